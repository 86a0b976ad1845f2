"""The store of the responses API: responses and conversations, in one SQLite file.

Everything belongs to an owner, and is found by its owner alone. When there is too much, whoever has
most gives up the oldest that it has: so an owner loses nothing to others as long as it has no more
than an equal part (`share`). In WAL mode what is committed survives the end of this process,
however sudden (https://sqlite.org/wal.html). Documents and items are bytes here: no API is known.
"""

import asyncio
import os
import sqlite3
import time
import uuid
from collections.abc import Callable, Collection, Coroutine, Sequence
from contextlib import closing, suppress
from functools import wraps
from pathlib import Path
from sqlite3 import Connection
from threading import Lock
from typing import Any, Concatenate, Literal, NamedTuple, ParamSpec, Self, TypeAlias, TypeVar

import msgspec
from anyio import CancelScope, CapacityLimiter, from_thread, to_thread

from config.errors import ConfigError
from config.settings import StoreConfig
from gateway.terms.errors import InternalError, TooLarge

T = TypeVar("T")
P = ParamSpec("P")


def share(total: int, others: Collection[int]) -> int:
    """The most that an owner can have of `total`, where the others have so much now."""
    left, owners = total, len(others) + 1
    for size in sorted(others):
        if size * owners > left:
            break  # this owner and all behind it have more than an equal part
        left -= size
        owners -= 1
    return left // owners


ROW = 256  # bytes that a row takes beside its texts, keys and indexes included
VERSION = 1  # of the tables; a file of version 0 is brought to it
# Who only reads at first, and writes then, fails where another server has written in between.
BEGIN = "BEGIN IMMEDIATE;"

TABLES = Path(__file__).with_name("tables.sql").read_text(encoding="utf-8")
FROM_VERSION_0 = Path(__file__).with_name("from_version_0.sql").read_text(encoding="utf-8")


def fresh_id() -> str:
    """Of the server's own choice: what is kept is found by it."""
    return uuid.uuid4().hex


class KeptTurn(msgspec.Struct, frozen=True, kw_only=True):
    """What others need of a response that they go on from. `input` and `output` are JSON arrays of
    its items. `running`: it isn't over.
    """

    input: bytes
    output: bytes = b"[]"
    previous: str | None = None
    running: bool = False


class KeptResponse(KeptTurn, frozen=True, kw_only=True):
    """A response; `created` is Unix time. `events`: those of its stream, where that may be taken up
    again.
    """

    id: str
    created: float
    document: bytes
    events: bytes = b""


class KeptConversation(msgspec.Struct, frozen=True):
    """A conversation; `metadata` is JSON, `created` Unix time."""

    id: str
    created: float
    metadata: bytes


class KeptItem(msgspec.Struct, frozen=True):
    """An item of a conversation, as JSON."""

    id: str
    item: bytes


def check_store(path: str | None) -> None:
    """Raises ConfigError for what can't be the store; changes nothing, and makes none. Blocks."""
    if path is None or not (file := Path(path).expanduser()).exists():
        return
    try:
        if file.is_dir():
            raise sqlite3.OperationalError("it is a folder")
        place = f"{file.absolute().as_uri()}?mode=ro"
        with closing(sqlite3.connect(place, uri=True)) as connection:
            _version(connection)
    except sqlite3.Error as error:
        raise ConfigError("the configuration", "$.store.path", f"{path}: {error}") from error


def opened(path: str | None) -> Connection:
    """For any thread, one at a time. The file is readable by its owner alone: it holds what people
    wrote. Raises sqlite3.Error for one that a newer release wrote.
    """
    if path is None:
        target = ":memory:"
    else:
        file = Path(path).expanduser()
        file.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(file, os.O_CREAT | os.O_RDWR, 0o600))
        target = str(file)
    connection = sqlite3.connect(target, isolation_level=None, timeout=5.0, check_same_thread=False)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    version = _version(connection)
    upgrade = FROM_VERSION_0 if version is not None and version < VERSION else ""
    tables = f"{upgrade} {TABLES} PRAGMA user_version = {VERSION};"
    connection.executescript(f"{BEGIN} {tables} COMMIT;")
    return connection


def _version(connection: Connection) -> int | None:
    """Of the tables; None: there are none yet. Raises sqlite3.Error for what isn't ours."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_schema")}
    if tables and "responses" not in tables:
        raise sqlite3.DatabaseError("it is another program's database")
    if version > VERSION:
        text = f"it was written by a newer release (version {version}, known: {VERSION})"
        raise sqlite3.DatabaseError(text)
    return int(version) if tables else None


# The lengths of blobs are read without them.
TURN_SIZE = """
SELECT previous, length(input) + length(output) FROM responses WHERE id = ? AND owner = ?
"""
TURN = "SELECT previous, running, input, output FROM responses WHERE id = ? AND owner = ?"
PUT = """
INSERT INTO responses (id, owner, created, previous, running, document, input, output, events, size)
VALUES (:id, :owner, :created, :previous, :running, :document, :input, :output, :events, :size)
ON CONFLICT (id) DO UPDATE SET running = excluded.running, document = excluded.document,
    output = excluded.output, events = excluded.events, size = excluded.size
WHERE owner = excluded.owner
"""
BEGIN_CONVERSATION = """
INSERT INTO conversations (id, owner, created, metadata, used, size) VALUES (?, ?, ?, ?, ?, ?)
"""
DESCRIBE = """
UPDATE conversations SET size = size - length(metadata) + length(?1), metadata = ?1, used = ?4
WHERE id = ?2 AND owner = ?3
"""
# The oldest that an owner has: responses by their age, conversations by their last use.
OLDEST = """
SELECT * FROM (SELECT 'responses', id, size, created AS age FROM responses
    WHERE owner = ?1 ORDER BY created LIMIT ?2)
UNION ALL
SELECT * FROM (SELECT 'conversations', id, size, used AS age FROM conversations
    WHERE owner = ?1 ORDER BY used LIMIT ?2)
ORDER BY age LIMIT ?2
"""


def size_of_items(items: Sequence[KeptItem]) -> int:
    """Bytes that they take."""
    return sum(ROW + len(item.id.encode()) + len(item.item) for item in items)


def conversation_of(connection: Connection, owner: str, id: str) -> KeptConversation | None:
    """The conversation, if it is this owner's."""
    statement = "SELECT id, created, metadata FROM conversations WHERE id = ? AND owner = ?"
    row = connection.execute(statement, (id, owner)).fetchone()
    return KeptConversation(*row) if row else None


def append_items(connection: Connection, id: str, items: Sequence[KeptItem]) -> None:
    """Put items at the end of a conversation."""
    connection.executemany(
        "INSERT INTO items (conversation, id, item, size) VALUES (?, ?, ?, ?)",
        [(id, item.id, item.item, size_of_items((item,))) for item in items],
    )


def bytes_by_owner(connection: Connection) -> dict[str, int]:
    """What each owner has in the store."""
    return dict(connection.execute("SELECT owner, bytes FROM owners"))


PAGE = 64  # of an owner's oldest that are looked at in one query
LONGEST_CHAIN = 10_000  # responses that one goes on from
LONGEST_TALK = 64 << 20  # bytes of all that is gone on from; as the largest body
TIDY = 60.0  # seconds between removals of what is too old
IDLE = 1.0  # seconds without work

Part: TypeAlias = Literal["document", "input", "events"]
# Called with a number of bytes before they are read. Raises QueueFull where there is no room.
Room: TypeAlias = Callable[[int], None]


class _Place(NamedTuple):
    """Where an item is kept."""

    position: int
    id: str
    size: int


def transaction(
    work: Callable[Concatenate["Store", P], T],
) -> Callable[Concatenate["Store", P], Coroutine[Any, Any, T]]:
    """A store's method, which is carried out as `Store.carry_out` does it."""

    @wraps(work)
    async def carried_out(store: "Store", /, *given: P.args, **named: P.kwargs) -> T:
        return await store.carry_out(lambda _db: work(store, *given, **named))

    return carried_out


class Store:
    """One per server; open in its context.

    Threads do its work, one at a time, so that nothing blocks the event loop. When nothing has come
    for a moment, what was committed is moved from the write-ahead log into the file, so that a copy
    of the file has it.
    """

    _db: Connection  # while it is open
    _rest: asyncio.TimerHandle

    def __init__(self, config: StoreConfig) -> None:
        self._config = config
        self._in_line = CapacityLimiter(1)
        self._one_works = Lock()  # also where a cancelled request has left its thread behind
        self._tidied = 0.0

    async def __aenter__(self) -> Self:
        """Raises InternalError where the file can't be opened."""
        self._db = await self._in_thread(lambda: opened(self._config.path))
        self._rest = self._merge_later()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._rest.cancel()
        with CancelScope(shield=True):
            await self._in_thread(self._db.close)

    async def carry_out(self, work: Callable[[Connection], T]) -> T:
        """Something else with the file, in a transaction: tables of another module. Raises
        InternalError.
        """

        def committed() -> T:
            with self._db as db:
                db.execute(BEGIN)
                return work(db)

        try:
            return await self._in_thread(committed)
        finally:
            self._rest.cancel()
            self._rest = self._merge_later()

    async def _in_thread(self, work: Callable[[], T]) -> T:
        """Raises InternalError where SQLite fails."""

        def alone() -> T:
            with self._one_works:
                return work()

        try:
            return await to_thread.run_sync(alone, limiter=self._in_line)
        except (sqlite3.Error, OSError) as error:
            raise InternalError(f"the store failed: {error}") from error

    def _merge_later(self) -> asyncio.TimerHandle:
        loop = asyncio.get_running_loop()
        return loop.call_later(IDLE, loop.run_in_executor, None, self._merge)

    def _merge(self) -> None:
        with self._one_works, suppress(sqlite3.Error):  # the disk is full, say: then it stays there
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    @transaction
    def put(self, owner: str, kept: KeptResponse) -> None:
        """Keep a response, or what has become of it. Raises TooLarge."""
        texts = (kept.document, kept.input, kept.output, kept.events)
        size = ROW + sum(map(len, texts))
        self._refuse_large(owner, size)
        values = msgspec.structs.asdict(kept)
        self._db.execute(PUT, {**values, "owner": owner, "size": size})
        self._prune(kept.id)

    @transaction
    def check(self, owner: str, size: int) -> None:
        """Raises TooLarge where so many bytes would not be kept."""
        self._refuse_large(owner, size)

    @transaction
    def part(self, owner: str, id: str, part: Part, room: Room) -> bytes | None:
        """That part of a response alone, if it is this owner's; see `KeptResponse`. Nothing is read
        before `room` has been made for it. Raises as `room`.
        """
        statement = "SELECT {} FROM responses WHERE id = ? AND owner = ?"
        measure, read = statement.format(f"length({part})"), statement.format(part)
        if (size := self._db.execute(measure, (id, owner)).fetchone()) is None:
            return None
        from_thread.run_sync(room, *size)
        return bytes(*self._db.execute(read, (id, owner)).fetchone())

    @transaction
    def remove(self, owner: str, id: str) -> bool:
        """Whether there was one to remove."""
        statement = "DELETE FROM responses WHERE id = ? AND owner = ?"
        return self._db.execute(statement, (id, owner)).rowcount > 0

    @transaction
    def chain(self, owner: str, id: str, room: Room) -> Sequence[KeptTurn] | None:
        """All that a response goes on from and itself, the oldest first; None if one of them isn't
        there. Raises TooLarge, and as `part`.
        """
        names: list[str] = []
        wanted: str | None = id
        size = 0
        while wanted is not None and len(names) < LONGEST_CHAIN:
            row = self._db.execute(TURN_SIZE, (wanted, owner)).fetchone()
            if row is None:
                return None
            names.append(wanted)
            wanted, more = row
            size += more
            _refuse_long(size, "previous_response_id")
        from_thread.run_sync(room, size)
        rows = (self._db.execute(TURN, (name, owner)).fetchone() for name in reversed(names))
        return [_turn(row) for row in rows]

    @transaction
    def named(
        self, owner: str, homes: Sequence[str], names: Collection[str], room: Room
    ) -> Sequence[bytes]:
        """Arrays of items, as JSON, that hold those of the items `names` which are kept in `homes`:
        ids of responses and conversations. Raises as `chain`.
        """
        size, places = 0, {}
        for home in homes:
            row = self._db.execute(TURN_SIZE, (home, owner)).fetchone()
            there = _places(self._db, owner, home) or ()
            places[home] = [place for place in there if place.id in names]
            size += (row[1] if row else 0) + sum(place.size for place in places[home])
            _refuse_long(size, "input")
        from_thread.run_sync(room, size)
        found: list[bytes] = []
        for home in homes:
            if row := self._db.execute(TURN, (home, owner)).fetchone():
                found += (row[2], row[3])
            else:
                kept = _items_at(self._db, places[home])
                found.append(b"[" + b",".join(one.item for one in kept) + b"]")
        return found

    @transaction
    def mend(self, mended: Callable[[bytes], bytes]) -> None:
        """Responses that were running when the process ended are marked as over: `mended` gives
        their documents.
        """
        rows = self._db.execute("SELECT id, document FROM responses WHERE running").fetchall()
        self._db.executemany(
            "UPDATE responses SET running = 0, document = ? WHERE id = ?",
            [(mended(document), name) for name, document in rows],
        )

    @transaction
    def begin(self, owner: str, kept: KeptConversation, items: Sequence[KeptItem]) -> None:
        """Keep a new conversation. Raises TooLarge."""
        size = ROW + len(kept.metadata)
        self._refuse_large(owner, size + size_of_items(items))
        row = (kept.id, owner, kept.created, kept.metadata, time.time(), size)
        self._db.execute(BEGIN_CONVERSATION, row)
        append_items(self._db, kept.id, items)
        self._prune(kept.id)

    @transaction
    def conversation(self, owner: str, id: str) -> KeptConversation | None:
        """The conversation, if it is this owner's."""
        return conversation_of(self._db, owner, id)

    @transaction
    def describe(self, owner: str, id: str, metadata: bytes) -> KeptConversation | None:
        """Give a conversation other metadata; None if it isn't there."""
        self._db.execute(DESCRIBE, (metadata, id, owner, time.time()))
        self._prune(id)
        return conversation_of(self._db, owner, id)

    @transaction
    def forget(self, owner: str, id: str) -> bool:
        """Remove a conversation with its items; whether it was there."""
        statement = "DELETE FROM conversations WHERE id = ? AND owner = ?"
        return self._db.execute(statement, (id, owner)).rowcount > 0

    @transaction
    def append(self, owner: str, id: str, items: Sequence[KeptItem]) -> bool:
        """Put items at a conversation's end; whether it was there. Raises TooLarge."""
        if (size := _size_of_talk(self._db, owner, id)) is None:
            return False
        self._refuse_large(owner, size + size_of_items(items))
        self._db.execute("UPDATE conversations SET used = ? WHERE id = ?", (time.time(), id))
        append_items(self._db, id, items)
        self._prune(id)
        return True

    @transaction
    def items(self, owner: str, id: str, room: Room) -> Sequence[KeptItem] | None:
        """A conversation's items in their order; None if it isn't there. Raises TooLarge, and as
        `part`.
        """
        if (size := _size_of_talk(self._db, owner, id)) is None:
            return None
        _refuse_long(size, "conversation")
        return _read(self._db, _places(self._db, owner, id) or (), room)

    @transaction
    def page(
        self,
        owner: str,
        id: str,
        *,
        after: str | None,
        limit: int,
        newest_first: bool,
        room: Room,
    ) -> Sequence[KeptItem] | None:
        """At most `limit` of a conversation's items, those behind the item `after`; None if the
        conversation isn't there. Raises as `part`.
        """
        if (places := _places(self._db, owner, id)) is None:
            return None
        places = places[:: -1 if newest_first else 1]
        start = next((k + 1 for k, place in enumerate(places) if place.id == after), 0)
        return _read(self._db, places[start : start + limit], room)

    @transaction
    def item(self, owner: str, conversation: str, item: str, room: Room) -> KeptItem | None:
        """An item of a conversation, if it is there. Raises as `part`."""
        places = _places(self._db, owner, conversation) or ()
        found = _read(self._db, [place for place in places if place.id == item][:1], room)
        return found[0] if found else None

    @transaction
    def drop(self, owner: str, conversation: str, item: str) -> bool:
        """Remove an item of a conversation; whether it was there."""
        if conversation_of(self._db, owner, conversation) is None:
            return False
        statement = "DELETE FROM items WHERE conversation = ? AND id = ?"
        return self._db.execute(statement, (conversation, item)).rowcount > 0

    def _refuse_large(self, owner: str, size: int) -> None:
        """Raises TooLarge for one thing of so many bytes that it would not be kept."""
        held = bytes_by_owner(self._db)
        held.pop(owner, None)
        if size > share(self._config.max_bytes, held.values()):
            raise TooLarge(
                f"This takes {size:,} bytes of what is kept, more than this key's share of them "
                "(store.max_bytes).",
                param="store",
            )

    def _prune(self, fresh: str) -> None:
        """Let go of what is too old, and while there is too much of the oldest of whoever has most;
        never of `fresh`.
        """
        now = time.time()
        if now - self._tidied >= TIDY:
            self._tidied = now
            eldest = (now - self._config.max_age,)
            self._db.execute("DELETE FROM responses WHERE created < ? AND NOT running", eldest)
            self._db.execute("DELETE FROM conversations WHERE used < ?", eldest)
        held = bytes_by_owner(self._db)
        excess = sum(held.values()) - self._config.max_bytes
        while excess > 0 and held:
            owner = max(held, key=held.__getitem__)
            freed = _let_go(self._db, owner, fresh, excess, held)
            excess -= freed
            if not freed:
                del held[owner]  # it has nothing else


def _let_go(
    connection: Connection, owner: str, fresh: str, excess: int, held: dict[str, int]
) -> int:
    """The bytes of an owner's oldest that are gone: no more of them than must be, and as long as no
    other has more.
    """
    before = held[owner]
    most_of_others = max((size for one, size in held.items() if one != owner), default=0)
    for table, name, size, _ in connection.execute(OLDEST, (owner, PAGE)).fetchall():
        if before - held[owner] >= excess or held[owner] < most_of_others:
            break
        if name != fresh:
            connection.execute(f"DELETE FROM {table} WHERE id = ?", (name,))  # noqa: S608 - ours
            held[owner] -= size
    return before - held[owner]


def _turn(row: Sequence[Any]) -> KeptTurn:
    previous, running, given, output = row
    return KeptTurn(previous=previous, running=bool(running), input=given, output=output)


def _size_of_talk(connection: Connection, owner: str, id: str) -> int | None:
    """Bytes of a conversation; None if it isn't there."""
    statement = "SELECT size FROM conversations WHERE id = ? AND owner = ?"
    row = connection.execute(statement, (id, owner)).fetchone()
    return int(row[0]) if row else None


def _places(connection: Connection, owner: str, conversation: str) -> list[_Place] | None:
    """Where a conversation's items are, in their order, without reading them; None if it isn't
    this owner's.
    """
    if conversation_of(connection, owner, conversation) is None:
        return None
    statement = """
        SELECT position, id, length(item) FROM items WHERE conversation = ? ORDER BY position
    """
    return [_Place(*row) for row in connection.execute(statement, (conversation,))]


def _read(connection: Connection, places: Sequence[_Place], room: Room) -> list[KeptItem]:
    """The items there, once `room` has been made for them, on the event loop. Raises as `room`."""
    from_thread.run_sync(room, sum(place.size for place in places))
    return _items_at(connection, places)


def _items_at(connection: Connection, places: Sequence[_Place]) -> list[KeptItem]:
    statement = "SELECT id, item FROM items WHERE position = ?"
    rows = (connection.execute(statement, (place.position,)) for place in places)
    return [KeptItem(*row.fetchone()) for row in rows]


def _refuse_long(size: int, field: str) -> None:
    """Raises TooLarge."""
    if size > LONGEST_TALK:
        raise TooLarge.at(field, f"The stored input has more than {LONGEST_TALK:,} bytes.")
