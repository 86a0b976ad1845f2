"""A thread of its own for SQLite: callers wait for their work without blocking the event loop.

Knows no tables.
"""

import asyncio
import queue
import sqlite3
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, NamedTuple, TypeAlias, TypeVar

from gateway.terms.errors import InternalError

T = TypeVar("T")
Work: TypeAlias = Callable[[sqlite3.Connection], Any]

MOST = 256  # pieces of work in one transaction
IDLE = 1.0  # seconds without work


class _Piece(NamedTuple):
    """Some work, and who waits for it."""

    work: Work
    done: Future[Any]


class StoreThread:
    """One thread with a SQLite connection. `run` hands it work; `end` ends it.

    It takes whatever waits for it, up to `MOST`, into one transaction, so that many writers cost
    one commit, and no caller gets a result before it is committed. When nothing has come for a
    moment, what was committed is moved from the write-ahead log into the file, so that a copy of
    the file has it.
    """

    def __init__(self, connect: Callable[[], sqlite3.Connection]) -> None:
        """`connect` is called in the thread."""
        self._connect = connect
        self._waiting: queue.SimpleQueue[_Piece | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="store", daemon=True)

    def start(self) -> None:
        """Once."""
        self._thread.start()

    async def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """`work` in the thread, committed. Raises InternalError where SQLite fails."""
        done: Future[T] = Future()
        self._waiting.put(_Piece(work, done))
        try:
            return await asyncio.wrap_future(done)
        except (sqlite3.Error, OSError) as error:
            raise InternalError(f"the store failed: {error}") from error

    async def end(self) -> None:
        """When all that waits is done."""
        self._waiting.put(None)
        await asyncio.to_thread(self._thread.join)

    def _work(self) -> None:
        try:
            connection = self._connect()
        except (sqlite3.Error, OSError) as error:
            self._refuse_all(error)
            return
        while (batch := self._batch(connection)) is not None:
            _carry_out(connection, _wanted(batch))
        connection.close()

    def _first(self, connection: sqlite3.Connection) -> _Piece | None:
        try:
            return self._waiting.get(timeout=IDLE)
        except queue.Empty:
            with suppress(sqlite3.Error):  # the disk is full, say: then it stays in the log
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            return self._waiting.get()

    def _batch(self, connection: sqlite3.Connection) -> list[_Piece] | None:
        """What waits; None: there will be no more."""
        first = self._first(connection)
        if first is None:
            return None
        batch = [first]
        while len(batch) < MOST and not self._waiting.empty():
            if (piece := self._waiting.get()) is None:
                self._waiting.put(None)
                break
            batch.append(piece)
        return batch

    def _refuse_all(self, error: Exception) -> None:
        while (piece := self._waiting.get()) is not None:
            for wanted in _wanted([piece]):
                wanted.done.set_exception(error)


def _wanted(batch: Sequence[_Piece]) -> list[_Piece]:
    """Those whose callers haven't left."""
    return [piece for piece in batch if piece.done.set_running_or_notify_cancel()]


def _carry_out(connection: sqlite3.Connection, batch: Sequence[_Piece]) -> None:
    """All of it in one transaction; a piece that fails leaves no trace."""
    try:
        connection.execute("BEGIN")
        outcomes = [_tried(connection, piece.work) for piece in batch]
        connection.execute("COMMIT")
    except sqlite3.Error as error:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        outcomes = [(None, error)] * len(batch)
    for piece, (result, failure) in zip(batch, outcomes, strict=True):
        if failure is None:
            piece.done.set_result(result)
        else:
            piece.done.set_exception(failure)


def _tried(connection: sqlite3.Connection, work: Work) -> tuple[Any, Exception | None]:
    connection.execute("SAVEPOINT piece")
    try:
        result = work(connection)
    except Exception as error:  # noqa: BLE001 - whoever asked for the work gets it
        connection.execute("ROLLBACK TO piece")
        connection.execute("RELEASE piece")
        return None, error
    connection.execute("RELEASE piece")
    return result, None
