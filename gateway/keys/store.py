"""The store of the responses API: responses and conversations, in one SQLite file.

Everything belongs to an owner, and is found by its owner alone. When there is too much, whoever has
most gives up the oldest that it has: so an owner loses nothing to others as long as it has no more
than an equal part (`share`). In WAL mode what is committed survives the end of this process,
however sudden (https://sqlite.org/wal.html). Documents and items are bytes here: no API is known.
"""

import os
import sqlite3
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self, TypeAlias

import msgspec

from config.errors import ConfigError
from config.settings import StoreConfig
from gateway.keys.store_thread import StoreThread, T
from gateway.terms.errors import InternalError, TooLarge

__all__ = ["KeptConversation", "KeptItem", "KeptResponse", "KeptTurn", "Part", "Room", "Store"]


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


def opened(path: str | None) -> sqlite3.Connection:
    """Readable by its owner alone: it holds what people wrote. Raises sqlite3.Error for a file that
    a newer release wrote.
    """
    if path is None:
        target = ":memory:"
    else:
        file = Path(path).expanduser()
        file.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(file, os.O_CREAT | os.O_RDWR, 0o600))
        target = str(file)
    connection = sqlite3.connect(target, isolation_level=None, timeout=5.0)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    version = _version(connection)
    upgrade = FROM_VERSION_0 if version is not None and version < VERSION else ""
    connection.executescript(f"BEGIN; {upgrade} {TABLES} PRAGMA user_version = {VERSION}; COMMIT;")
    return connection


def _version(connection: sqlite3.Connection) -> int | None:
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


def conversation_of(connection: sqlite3.Connection, owner: str, id: str) -> KeptConversation | None:
    """The conversation, if it is this owner's."""
    statement = "SELECT id, created, metadata FROM conversations WHERE id = ? AND owner = ?"
    row = connection.execute(statement, (id, owner)).fetchone()
    return KeptConversation(*row) if row else None


def append_items(connection: sqlite3.Connection, id: str, items: Sequence[KeptItem]) -> None:
    """Put items at the end of a conversation."""
    connection.executemany(
        "INSERT INTO items (conversation, id, item, size) VALUES (?, ?, ?, ?)",
        [(id, item.id, item.item, size_of_items((item,))) for item in items],
    )


def bytes_by_owner(connection: sqlite3.Connection) -> dict[str, int]:
    """What each owner has in the store."""
    return dict(connection.execute("SELECT owner, bytes FROM owners"))


PAGE = 64  # of an owner's oldest that are looked at in one query
LONGEST_CHAIN = 10_000  # responses that one goes on from
LONGEST_TALK = 64 << 20  # bytes of all that is gone on from; as the largest body
TIDY = 60.0  # seconds between removals of what is too old

Part: TypeAlias = Literal["document", "input", "events"]
# Called with a number of bytes before they are read. Raises QueueFull where there is no room.
Room: TypeAlias = Callable[[int], None]


class _Place(NamedTuple):
    """Where an item is kept."""

    position: int
    id: str
    size: int


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
            await self._run(bytes_by_owner)
        except InternalError:
            await self._thread.end()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._thread.end()

    async def carry_out(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Something else with the file, in a transaction: tables of another module. Raises
        InternalError.
        """
        return await self._run(work)

    async def put(self, owner: str, kept: KeptResponse) -> None:
        """Keep a response, or what has become of it. Raises TooLarge."""

        def work(connection: sqlite3.Connection) -> None:
            texts = (kept.document, kept.input, kept.output, kept.events)
            size = ROW + sum(map(len, texts))
            self._refuse_large(connection, owner, size)
            values = msgspec.structs.asdict(kept)
            connection.execute(PUT, {**values, "owner": owner, "size": size})
            self._prune(connection, kept.id)

        await self._run(work)

    async def check(self, owner: str, size: int) -> None:
        """Raises TooLarge where so many bytes would not be kept."""
        await self._run(lambda connection: self._refuse_large(connection, owner, size))

    async def part(self, owner: str, id: str, part: Part, room: Room) -> bytes | None:
        """That part of a response alone, if it is this owner's; see `KeptResponse`. Nothing is read
        before `room` has been made for it. Raises as `room`.
        """

        def first(column: str) -> Callable[[sqlite3.Connection], Any]:
            statement = f"SELECT {column} FROM responses WHERE id = ? AND owner = ?"  # noqa: S608 - no client's words
            return lambda connection: connection.execute(statement, (id, owner)).fetchone()

        if (size := await self._run(first(f"length({part})"))) is None:
            return None
        room(*size)
        row = await self._run(first(part))
        return bytes(row[0]) if row else None

    async def remove(self, owner: str, id: str) -> bool:
        """Whether there was one to remove."""
        statement = "DELETE FROM responses WHERE id = ? AND owner = ?"
        return await self._run(lambda c: c.execute(statement, (id, owner)).rowcount > 0)

    async def chain(self, owner: str, id: str, room: Room) -> Sequence[KeptTurn] | None:
        """All that a response goes on from and itself, the oldest first; None if one of them isn't
        there. Raises TooLarge, and as `part`.
        """
        names: list[str] = []

        def measure(connection: sqlite3.Connection) -> int | None:
            size = 0
            wanted: str | None = id
            while wanted is not None and len(names) < LONGEST_CHAIN:
                row = connection.execute(TURN_SIZE, (wanted, owner)).fetchone()
                if row is None:
                    return None
                names.append(wanted)
                wanted, bytes_more = row
                size += bytes_more
                _refuse_long(size, "previous_response_id")
            return size

        def read(connection: sqlite3.Connection) -> Sequence[KeptTurn] | None:
            rows = [connection.execute(TURN, (name, owner)).fetchone() for name in names]
            return None if None in rows else [_turn(row) for row in reversed(rows)]

        size = await self._run(measure)
        if size is None:
            return None
        room(size)
        return await self._run(read)

    async def named(
        self, owner: str, homes: Sequence[str], names: Collection[str], room: Room
    ) -> Sequence[bytes]:
        """Arrays of items, as JSON, that hold those of the items `names` which are kept in `homes`:
        ids of responses and conversations. Raises as `chain`.
        """
        wanted = frozenset(names)

        def places_in(connection: sqlite3.Connection, home: str) -> list[_Place]:
            places = _places(connection, owner, home) or ()
            return [place for place in places if place.id in wanted]

        def measure(connection: sqlite3.Connection) -> int:
            size = 0
            for home in homes:
                row = connection.execute(TURN_SIZE, (home, owner)).fetchone()
                size += row[1] if row else 0
                size += sum(place.size for place in places_in(connection, home))
                _refuse_long(size, "input")
            return size

        def read(connection: sqlite3.Connection) -> Sequence[bytes]:
            found: list[bytes] = []
            for home in homes:
                if row := connection.execute(TURN, (home, owner)).fetchone():
                    found += (row[2], row[3])
                else:
                    kept = _items_at(connection, places_in(connection, home))
                    found.append(b"[" + b",".join(one.item for one in kept) + b"]")
            return found

        room(await self._run(measure))
        return await self._run(read)

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

    async def begin(self, owner: str, kept: KeptConversation, items: Sequence[KeptItem]) -> None:
        """Keep a new conversation. Raises TooLarge."""

        def work(connection: sqlite3.Connection) -> None:
            size = ROW + len(kept.metadata)
            self._refuse_large(connection, owner, size + size_of_items(items))
            row = (kept.id, owner, kept.created, kept.metadata, time.time(), size)
            connection.execute(BEGIN_CONVERSATION, row)
            append_items(connection, kept.id, items)
            self._prune(connection, kept.id)

        await self._run(work)

    async def conversation(self, owner: str, id: str) -> KeptConversation | None:
        """The conversation, if it is this owner's."""
        return await self._run(lambda connection: conversation_of(connection, owner, id))

    async def describe(self, owner: str, id: str, metadata: bytes) -> KeptConversation | None:
        """Give a conversation other metadata; None if it isn't there."""

        def work(connection: sqlite3.Connection) -> KeptConversation | None:
            connection.execute(DESCRIBE, (metadata, id, owner, time.time()))
            self._prune(connection, id)
            return conversation_of(connection, owner, id)

        return await self._run(work)

    async def forget(self, owner: str, id: str) -> bool:
        """Remove a conversation with its items; whether it was there."""
        statement = "DELETE FROM conversations WHERE id = ? AND owner = ?"
        return await self._run(lambda c: c.execute(statement, (id, owner)).rowcount > 0)

    async def append(self, owner: str, id: str, items: Sequence[KeptItem]) -> bool:
        """Put items at a conversation's end; whether it was there. Raises TooLarge."""

        def work(connection: sqlite3.Connection) -> bool:
            if (size := _size_of_talk(connection, owner, id)) is None:
                return False
            self._refuse_large(connection, owner, size + size_of_items(items))
            connection.execute("UPDATE conversations SET used = ? WHERE id = ?", (time.time(), id))
            append_items(connection, id, items)
            self._prune(connection, id)
            return True

        return await self._run(work)

    async def items(self, owner: str, id: str, room: Room) -> Sequence[KeptItem] | None:
        """A conversation's items in their order; None if it isn't there. Raises TooLarge, and as
        `part`.
        """

        def measure(connection: sqlite3.Connection) -> Sequence[_Place] | None:
            if (size := _size_of_talk(connection, owner, id)) is None:
                return None
            _refuse_long(size, "conversation")
            return _places(connection, owner, id)

        places = await self._run(measure)
        return None if places is None else await self._read(places, room)

    async def page(
        self, owner: str, id: str, *, after: str | None, limit: int, newest_first: bool, room: Room
    ) -> Sequence[KeptItem] | None:
        """At most `limit` of a conversation's items, those behind the item `after`; None if the
        conversation isn't there. Raises as `part`.
        """

        def measure(connection: sqlite3.Connection) -> Sequence[_Place] | None:
            if (places := _places(connection, owner, id)) is None:
                return None
            places = places[:: -1 if newest_first else 1]
            start = next((k + 1 for k, place in enumerate(places) if place.id == after), 0)
            return places[start : start + limit]

        places = await self._run(measure)
        return None if places is None else await self._read(places, room)

    async def item(self, owner: str, conversation: str, item: str, room: Room) -> KeptItem | None:
        """An item of a conversation, if it is there. Raises as `part`."""

        def measure(connection: sqlite3.Connection) -> Sequence[_Place]:
            places = _places(connection, owner, conversation) or ()
            return [place for place in places if place.id == item][:1]

        found = await self._read(await self._run(measure), room)
        return found[0] if found else None

    async def _read(self, places: Sequence[_Place], room: Room) -> Sequence[KeptItem]:
        room(sum(place.size for place in places))
        return await self._run(lambda connection: _items_at(connection, places))

    async def drop(self, owner: str, conversation: str, item: str) -> bool:
        """Remove an item of a conversation; whether it was there."""

        def work(connection: sqlite3.Connection) -> bool:
            if conversation_of(connection, owner, conversation) is None:
                return False
            statement = "DELETE FROM items WHERE conversation = ? AND id = ?"
            return connection.execute(statement, (conversation, item)).rowcount > 0

        return await self._run(work)

    def _refuse_large(self, connection: sqlite3.Connection, owner: str, size: int) -> None:
        """Raises TooLarge for one thing of so many bytes that it would not be kept."""
        held = bytes_by_owner(connection)
        held.pop(owner, None)
        if size > share(self._config.max_bytes, held.values()):
            raise TooLarge(
                f"This takes {size:,} bytes of what is kept, more than this key's share of them "
                "(store.max_bytes).",
                param="store",
            )

    def _prune(self, connection: sqlite3.Connection, fresh: str) -> None:
        """Let go of what is too old, and while there is too much of the oldest of whoever has most;
        never of `fresh`.
        """
        now = time.time()
        if now - self._tidied >= TIDY:
            self._tidied = now
            eldest = (now - self._config.max_age,)
            connection.execute("DELETE FROM responses WHERE created < ? AND NOT running", eldest)
            connection.execute("DELETE FROM conversations WHERE used < ?", eldest)
        held = bytes_by_owner(connection)
        excess = sum(held.values()) - self._config.max_bytes
        while excess > 0 and held:
            owner = max(held, key=held.__getitem__)
            freed = _let_go(connection, owner, fresh, excess, held)
            excess -= freed
            if not freed:
                del held[owner]  # it has nothing else


def _let_go(
    connection: sqlite3.Connection, owner: str, fresh: str, excess: int, held: dict[str, int]
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


def _size_of_talk(connection: sqlite3.Connection, owner: str, id: str) -> int | None:
    """Bytes of a conversation; None if it isn't there."""
    statement = "SELECT size FROM conversations WHERE id = ? AND owner = ?"
    row = connection.execute(statement, (id, owner)).fetchone()
    return int(row[0]) if row else None


def _places(connection: sqlite3.Connection, owner: str, conversation: str) -> list[_Place] | None:
    """Where a conversation's items are, in their order, without reading them; None if it isn't
    this owner's.
    """
    if conversation_of(connection, owner, conversation) is None:
        return None
    statement = """
        SELECT position, id, length(item) FROM items WHERE conversation = ? ORDER BY position
    """
    return [_Place(*row) for row in connection.execute(statement, (conversation,))]


def _items_at(connection: sqlite3.Connection, places: Iterable[_Place]) -> list[KeptItem]:
    """Those that are still there."""
    statement = "SELECT id, item FROM items WHERE position = ?"
    rows = (connection.execute(statement, (place.position,)).fetchone() for place in places)
    return [KeptItem(*row) for row in rows if row is not None]


def _refuse_long(size: int, field: str) -> None:
    """Raises TooLarge."""
    if size > LONGEST_TALK:
        raise TooLarge.at(field, f"The stored input has more than {LONGEST_TALK:,} bytes.")
