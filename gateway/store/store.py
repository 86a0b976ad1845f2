"""The store: responses and conversations, each with an owner."""

import sqlite3
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from types import TracebackType
from typing import Any, Literal, NamedTuple, Self, TypeAlias

import msgspec

from config.settings import StoreConfig
from gateway.errors import InternalError, TooLarge
from gateway.store.shares import share
from gateway.store.tables import (
    BEGIN_CONVERSATION,
    DESCRIBE,
    OLDEST,
    PUT,
    ROW,
    TURN,
    TURN_SIZE,
    KeptConversation,
    KeptItem,
    KeptResponse,
    KeptTurn,
    append_items,
    bytes_by_owner,
    conversation_of,
    opened,
    size_of_items,
    size_of_response,
)
from gateway.store.thread import StoreThread

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

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._thread.end()

    # ------------------------------------------------------------------------------- responses

    async def put(self, owner: str, kept: KeptResponse) -> None:
        """Keep a response, or what has become of it. Raises TooLarge."""

        def work(connection: sqlite3.Connection) -> None:
            size = size_of_response(kept)
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
            is_theirs = conversation_of(connection, owner, home) is not None
            places = _places(connection, home) if is_theirs else []
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

    # --------------------------------------------------------------------------- conversations

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
            return _places(connection, id)

        places = await self._run(measure)
        return None if places is None else await self._read(places, room)

    async def page(
        self, owner: str, id: str, *, after: str | None, limit: int, newest_first: bool, room: Room
    ) -> Sequence[KeptItem] | None:
        """At most `limit` of a conversation's items, those behind the item `after`; None if the
        conversation isn't there. Raises as `part`.
        """

        def measure(connection: sqlite3.Connection) -> Sequence[_Place] | None:
            if conversation_of(connection, owner, id) is None:
                return None
            places = _places(connection, id)[:: -1 if newest_first else 1]
            behind = (k + 1 for k, place in enumerate(places) if place.id == after)
            start = next(behind, 0)
            return places[start : start + limit]

        places = await self._run(measure)
        return None if places is None else await self._read(places, room)

    async def item(self, owner: str, conversation: str, item: str, room: Room) -> KeptItem | None:
        """An item of a conversation, if it is there. Raises as `part`."""

        def measure(connection: sqlite3.Connection) -> Sequence[_Place]:
            is_theirs = conversation_of(connection, owner, conversation) is not None
            places = _places(connection, conversation) if is_theirs else []
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


def _places(connection: sqlite3.Connection, conversation: str) -> list[_Place]:
    """Where a conversation's items are, in their order, without reading them."""
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
        text = f"{field}: What is gone on from has more than {LONGEST_TALK:,} bytes."
        raise TooLarge(text, param=field)
