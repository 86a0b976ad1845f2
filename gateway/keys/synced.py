"""The console's conversations that a key keeps in the store, so that all its browsers have them.

A text is the browser's own and is never looked into. Each has a number, the time of its last
change, and is replaced or deleted by who names that number alone: no browser overwrites what it
hasn't seen. A deletion leaves its number behind, so that other browsers learn of it. Unlike
responses none is let go for its age, and none counts for `store.max_bytes`.
"""

import time
from collections.abc import Sequence
from sqlite3 import Connection

import msgspec

from gateway.terms.errors import Conflict, InvalidRequest, NotFound, TooLarge

LARGEST = 4 << 20  # bytes of one
MOST_BYTES = 64 << 20  # of a key's
MOST = 500  # of a key, and as many deletions are known

LISTED = "SELECT id, title, changed, size FROM synced WHERE owner = ? ORDER BY changed DESC"
FOUND = "SELECT id, title, changed, size, conversation FROM synced_texts WHERE owner = ? AND id = ?"
NUMBER = "SELECT changed, size FROM synced WHERE owner = ? AND id = ?"
OTHERS = "SELECT count(*), coalesce(sum(size), 0) FROM synced_texts WHERE owner = ? AND id != ?"


class SyncedEntry(msgspec.Struct, frozen=True):
    """One conversation without its text. `changed`: Unix time in milliseconds; `size`: bytes, 0 of
    one that was deleted.
    """

    id: str
    title: str
    changed: int
    size: int


class Synced(SyncedEntry, frozen=True):
    """One conversation."""

    conversation: str


class SyncedList(msgspec.Struct, frozen=True):
    """A key's conversations, the last changed first, and the bytes that one may have."""

    conversations: Sequence[SyncedEntry]
    largest: int = LARGEST


def listed(connection: Connection, owner: str) -> SyncedList:
    """An owner's conversations, and what it deleted."""
    return SyncedList([SyncedEntry(*row) for row in connection.execute(LISTED, (owner,))])


def found(connection: Connection, owner: str, name: str) -> Synced:
    """One of an owner's. Raises NotFound."""
    if (row := connection.execute(FOUND, (owner, name)).fetchone()) is None:
        raise NotFound(f"Conversation {name!r:.80} not found.", param="id")
    return Synced(*row)


def keep(
    connection: Connection, owner: str, name: str, title: str, text: str, seen: int | None
) -> SyncedEntry:
    """Keep a text that was made from the one of the number `seen`; one that was deleted meanwhile
    is there again. Raises Conflict, TooLarge, InvalidRequest.
    """
    size = len(text.encode())
    count, others = connection.execute(OTHERS, (owner, name)).fetchone()
    if size > LARGEST or others + size > MOST_BYTES:
        raise TooLarge.at("conversation", f"At most {LARGEST:,} bytes, {MOST_BYTES:,} of all.")
    if count >= MOST:
        raise InvalidRequest.at("id", f"This key keeps {MOST} conversations already.")
    return _write(connection, owner, SyncedEntry(name, title, seen or 0, size), text)


def forget(connection: Connection, owner: str, name: str, seen: int) -> SyncedEntry:
    """Delete the text of the number `seen`. Raises NotFound, Conflict."""
    found(connection, owner, name)
    return _write(connection, owner, SyncedEntry(name, "", seen, 0), "")


def _write(connection: Connection, owner: str, entry: SyncedEntry, text: str) -> SyncedEntry:
    """In place of the text of the entry's number, under a greater one. Raises Conflict."""
    number, size = connection.execute(NUMBER, (owner, entry.id)).fetchone() or (0, 0)
    if size and number != entry.changed:
        raise Conflict.at("changed", f"It was changed meanwhile; its number is {number}.")
    written = msgspec.structs.replace(entry, changed=max(int(time.time() * 1000), number + 1))
    row = (owner, *msgspec.structs.astuple(written), text)
    connection.execute("INSERT OR REPLACE INTO synced VALUES (?, ?, ?, ?, ?, ?)", row)
    return written
