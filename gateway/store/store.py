"""The store: responses and conversations, each with an owner."""

import sqlite3
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

import msgspec

from config.settings import StoreConfig
from gateway.errors import InternalError, TooLarge
from gateway.store.tables import (
    GET,
    PRUNE,
    PUT,
    KeptConversation,
    KeptItem,
    KeptResponse,
    append_items,
    conversation_of,
    kept_response,
    opened,
    size_of,
)
from gateway.store.thread import StoreThread

PRUNED = 64  # responses that leave at a time, the oldest first
LONGEST_CHAIN = 10_000  # responses that one goes on from
LONGEST_TALK = 64 << 20  # bytes of all that is gone on from; as the largest body
TIDY = 60.0  # seconds between removals of what is too old


class Store:
    """One per server; open in its context."""

    def __init__(self, config: StoreConfig) -> None:
        self._config = config
        self._thread = StoreThread(lambda: opened(config.path))
        self._run = self._thread.run
        self._tidied = 0.0

    async def __aenter__(self) -> Self:
        """Raises InternalError where the file can't be opened."""
        self._thread.start()
        try:
            await self._run(size_of)
        except InternalError:
            await self._thread.end()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._thread.end()

    # ------------------------------------------------------------------------------- responses

    async def put(self, owner: str, kept: KeptResponse) -> None:
        """Keep a response, or what has become of it."""

        def work(connection: sqlite3.Connection) -> None:
            size = sum(map(len, (kept.document, kept.input, kept.output, kept.events)))
            values = msgspec.structs.asdict(kept)
            connection.execute(PUT, {**values, "owner": owner, "size": size})
            self._prune(connection)

        await self._run(work)

    async def get(self, owner: str, id: str) -> KeptResponse | None:
        """The response, if it is this owner's."""

        def work(connection: sqlite3.Connection) -> KeptResponse | None:
            row = connection.execute(GET, (id, owner)).fetchone()
            return kept_response(row) if row else None

        return await self._run(work)

    async def remove(self, owner: str, id: str) -> bool:
        """Whether there was one to remove."""
        statement = "DELETE FROM responses WHERE id = ? AND owner = ?"
        return await self._run(lambda c: c.execute(statement, (id, owner)).rowcount > 0)

    async def chain(self, owner: str, id: str) -> Sequence[KeptResponse] | None:
        """All that a response goes on from and itself, the oldest first; None if one of them isn't
        there. Raises TooLarge.
        """

        def work(connection: sqlite3.Connection) -> Sequence[KeptResponse] | None:
            found: list[KeptResponse] = []
            size = 0
            wanted: str | None = id
            while wanted is not None and len(found) < LONGEST_CHAIN:
                row = connection.execute(GET, (wanted, owner)).fetchone()
                if row is None:
                    return None
                found.append(kept_response(row))
                size += len(found[-1].input) + len(found[-1].output)
                _refuse_long(size, "previous_response_id")
                wanted = found[-1].previous
            return found[::-1]

        return await self._run(work)

    async def mend(self, mended: Callable[[bytes], bytes]) -> None:
        """Responses that were running when the process ended are marked as over: `mended` gives
        their documents.
        """

        def work(connection: sqlite3.Connection) -> None:
            rows = connection.execute("SELECT id, document FROM responses WHERE running").fetchall()
            connection.executemany(
                "UPDATE responses SET running = 0, document = ? WHERE id = ?",
                [(mended(document), name) for name, document in rows],
            )

        await self._run(work)

    # --------------------------------------------------------------------------- conversations

    async def begin(self, owner: str, kept: KeptConversation, items: Sequence[KeptItem]) -> None:
        """Keep a new conversation."""

        def work(connection: sqlite3.Connection) -> None:
            connection.execute(
                "INSERT INTO conversations VALUES (?, ?, ?, ?)",
                (kept.id, owner, kept.created, kept.metadata),
            )
            append_items(connection, kept.id, items)
            self._prune(connection)

        await self._run(work)

    async def conversation(self, owner: str, id: str) -> KeptConversation | None:
        """The conversation, if it is this owner's."""
        return await self._run(lambda connection: conversation_of(connection, owner, id))

    async def describe(self, owner: str, id: str, metadata: bytes) -> KeptConversation | None:
        """Give a conversation other metadata; None if it isn't there."""

        def work(connection: sqlite3.Connection) -> KeptConversation | None:
            connection.execute(
                "UPDATE conversations SET metadata = ? WHERE id = ? AND owner = ?",
                (metadata, id, owner),
            )
            return conversation_of(connection, owner, id)

        return await self._run(work)

    async def forget(self, owner: str, id: str) -> bool:
        """Remove a conversation with its items; whether it was there."""
        statement = "DELETE FROM conversations WHERE id = ? AND owner = ?"
        return await self._run(lambda c: c.execute(statement, (id, owner)).rowcount > 0)

    async def append(self, owner: str, id: str, items: Sequence[KeptItem]) -> bool:
        """Put items at a conversation's end; whether it was there."""

        def work(connection: sqlite3.Connection) -> bool:
            if conversation_of(connection, owner, id) is None:
                return False
            append_items(connection, id, items)
            self._prune(connection)
            return True

        return await self._run(work)

    async def items(self, owner: str, id: str) -> Sequence[KeptItem] | None:
        """A conversation's items in their order; None if it isn't there."""

        def work(connection: sqlite3.Connection) -> Sequence[KeptItem] | None:
            if conversation_of(connection, owner, id) is None:
                return None
            statement = "SELECT id, item FROM items WHERE conversation = ? ORDER BY position"
            found: list[KeptItem] = []
            size = 0
            for row in connection.execute(statement, (id,)):
                found.append(KeptItem(*row))
                size += len(found[-1].item)
                _refuse_long(size, "conversation")
            return found

        return await self._run(work)

    async def drop(self, owner: str, conversation: str, item: str) -> bool:
        """Remove an item of a conversation; whether it was there."""

        def work(connection: sqlite3.Connection) -> bool:
            if conversation_of(connection, owner, conversation) is None:
                return False
            statement = "DELETE FROM items WHERE conversation = ? AND id = ?"
            return connection.execute(statement, (conversation, item)).rowcount > 0

        return await self._run(work)

    def _prune(self, connection: sqlite3.Connection) -> None:
        """Let go of what is too old, and of the oldest while there is too much."""
        now = time.time()
        if now - self._tidied >= TIDY:
            self._tidied = now
            eldest = (now - self._config.max_age,)
            connection.execute("DELETE FROM responses WHERE created < ? AND NOT running", eldest)
            connection.execute("DELETE FROM conversations WHERE created < ?", eldest)
        while size_of(connection) > self._config.max_bytes:
            if not connection.execute(PRUNE, (PRUNED,)).rowcount:
                oldest = "SELECT id FROM conversations ORDER BY created LIMIT 1"
                gone = connection.execute(f"DELETE FROM conversations WHERE id IN ({oldest})")  # noqa: S608 - no client's words
                if not gone.rowcount:
                    return


def _refuse_long(size: int, field: str) -> None:
    """Raises TooLarge."""
    if size > LONGEST_TALK:
        text = f"{field}: What is gone on from has more than {LONGEST_TALK:,} bytes."
        raise TooLarge(text, param=field)
