"""The tables of the store, and their rows as structs."""

import os
import sqlite3
from collections.abc import Sequence
from pathlib import Path

import msgspec

ROW = 256  # bytes that a row takes beside its texts, keys and indexes included
VERSION = 1  # of the tables; a file of version 0 is brought to it

TABLES = """
CREATE TABLE IF NOT EXISTS responses (
    id TEXT PRIMARY KEY, owner TEXT NOT NULL, created REAL NOT NULL, previous TEXT,
    running INTEGER NOT NULL, document BLOB NOT NULL, input BLOB NOT NULL, output BLOB NOT NULL,
    events BLOB NOT NULL, size INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS conversations (
    id TEXT PRIMARY KEY, owner TEXT NOT NULL, created REAL NOT NULL, metadata BLOB NOT NULL,
    used REAL NOT NULL, size INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS items (
    position INTEGER PRIMARY KEY AUTOINCREMENT, conversation TEXT NOT NULL, id TEXT NOT NULL,
    item BLOB NOT NULL, size INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS owners (owner TEXT PRIMARY KEY, bytes INTEGER NOT NULL);
CREATE INDEX IF NOT EXISTS responses_by_age ON responses (created);
CREATE INDEX IF NOT EXISTS items_of ON items (conversation, position);
CREATE INDEX IF NOT EXISTS responses_of ON responses (owner, created);
CREATE INDEX IF NOT EXISTS conversations_of ON conversations (owner, used);
"""
# A conversation's size is all that is in it; an owner's bytes are all that is theirs.
TRIGGERS = """
CREATE TRIGGER IF NOT EXISTS responses_in AFTER INSERT ON responses
    BEGIN INSERT INTO owners VALUES (NEW.owner, NEW.size)
    ON CONFLICT (owner) DO UPDATE SET bytes = bytes + NEW.size; END;
CREATE TRIGGER IF NOT EXISTS responses_changed AFTER UPDATE OF size ON responses
    BEGIN UPDATE owners SET bytes = bytes + NEW.size - OLD.size WHERE owner = NEW.owner; END;
CREATE TRIGGER IF NOT EXISTS responses_out AFTER DELETE ON responses
    BEGIN UPDATE owners SET bytes = bytes - OLD.size WHERE owner = OLD.owner; END;
CREATE TRIGGER IF NOT EXISTS conversations_in AFTER INSERT ON conversations
    BEGIN INSERT INTO owners VALUES (NEW.owner, NEW.size)
    ON CONFLICT (owner) DO UPDATE SET bytes = bytes + NEW.size; END;
CREATE TRIGGER IF NOT EXISTS conversations_changed AFTER UPDATE OF size ON conversations
    BEGIN UPDATE owners SET bytes = bytes + NEW.size - OLD.size WHERE owner = NEW.owner; END;
CREATE TRIGGER IF NOT EXISTS conversations_out AFTER DELETE ON conversations
    BEGIN UPDATE owners SET bytes = bytes - OLD.size WHERE owner = OLD.owner;
    DELETE FROM items WHERE conversation = OLD.id; END;
CREATE TRIGGER IF NOT EXISTS items_in AFTER INSERT ON items
    BEGIN UPDATE conversations SET size = size + NEW.size WHERE id = NEW.conversation; END;
CREATE TRIGGER IF NOT EXISTS items_out AFTER DELETE ON items
    BEGIN UPDATE conversations SET size = size - OLD.size WHERE id = OLD.conversation; END;
"""
# Version 0 counted no metadata, no ids and no rows, and by no owner.
FROM_VERSION_0 = f"""
DROP TRIGGER IF EXISTS responses_in;
DROP TRIGGER IF EXISTS responses_changed;
DROP TRIGGER IF EXISTS responses_out;
DROP TRIGGER IF EXISTS items_in;
DROP TRIGGER IF EXISTS items_out;
DROP TRIGGER IF EXISTS conversations_out;
DROP TABLE IF EXISTS total;
ALTER TABLE conversations ADD COLUMN used REAL NOT NULL DEFAULT 0;
ALTER TABLE conversations ADD COLUMN size INTEGER NOT NULL DEFAULT 0;
UPDATE responses SET size = {ROW} + length(document) + length(input) + length(output)
    + length(events);
UPDATE items SET size = {ROW} + length(id) + length(item);
UPDATE conversations SET used = created, size = {ROW} + length(metadata)
    + (SELECT coalesce(sum(size), 0) FROM items WHERE conversation = conversations.id);
CREATE TABLE owners (owner TEXT PRIMARY KEY, bytes INTEGER NOT NULL);
INSERT INTO owners SELECT owner, sum(size) FROM (
    SELECT owner, size FROM responses UNION ALL SELECT owner, size FROM conversations)
    GROUP BY owner;
"""  # noqa: S608 - our own number


class KeptResponse(msgspec.Struct, frozen=True, kw_only=True):
    """A response. `input` and `output` are JSON arrays of its items; `created` is Unix time.

    `events`: those of its stream, where that may be taken up again. `running`: it isn't over.
    """

    id: str
    created: float
    document: bytes
    input: bytes
    output: bytes = b"[]"
    previous: str | None = None
    events: bytes = b""
    running: bool = False


class KeptTurn(msgspec.Struct, frozen=True, kw_only=True):
    """What others need of a response that they go on from: see `KeptResponse`."""

    previous: str | None
    running: bool
    input: bytes
    output: bytes


class KeptConversation(msgspec.Struct, frozen=True):
    """A conversation; `metadata` is JSON, `created` Unix time."""

    id: str
    created: float
    metadata: bytes


class KeptItem(msgspec.Struct, frozen=True):
    """An item of a conversation, as JSON."""

    id: str
    item: bytes


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
    _prepare(connection)
    return connection


def _prepare(connection: sqlite3.Connection) -> None:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version > VERSION:
        text = f"it was written by a newer release (version {version}, known: {VERSION})"
        raise sqlite3.DatabaseError(text)
    tables = "SELECT count(*) FROM sqlite_schema WHERE name = 'responses'"
    (exists,) = connection.execute(tables).fetchone()
    upgrade = FROM_VERSION_0 if exists and version < VERSION else ""
    connection.executescript(
        f"BEGIN; {upgrade} {TABLES} {TRIGGERS} PRAGMA user_version = {VERSION}; COMMIT;"
    )


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


def size_of_response(kept: KeptResponse) -> int:
    """Bytes that it takes."""
    return ROW + sum(map(len, (kept.document, kept.input, kept.output, kept.events)))


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
