"""The tables of the store, and their rows as structs."""

import os
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

SCHEMA = """
CREATE TABLE IF NOT EXISTS responses (
    id TEXT PRIMARY KEY, owner TEXT NOT NULL, created REAL NOT NULL, previous TEXT,
    running INTEGER NOT NULL, document BLOB NOT NULL, input BLOB NOT NULL, output BLOB NOT NULL,
    events BLOB NOT NULL, size INTEGER NOT NULL);
CREATE INDEX IF NOT EXISTS responses_by_age ON responses (created);
CREATE TABLE IF NOT EXISTS conversations (
    id TEXT PRIMARY KEY, owner TEXT NOT NULL, created REAL NOT NULL, metadata BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS items (
    position INTEGER PRIMARY KEY AUTOINCREMENT, conversation TEXT NOT NULL, id TEXT NOT NULL,
    item BLOB NOT NULL, size INTEGER NOT NULL);
CREATE INDEX IF NOT EXISTS items_of ON items (conversation, position);
CREATE TABLE IF NOT EXISTS total (bytes INTEGER NOT NULL);
INSERT INTO total SELECT 0 WHERE NOT EXISTS (SELECT 1 FROM total);
CREATE TRIGGER IF NOT EXISTS responses_in AFTER INSERT ON responses
    BEGIN UPDATE total SET bytes = bytes + NEW.size; END;
CREATE TRIGGER IF NOT EXISTS responses_changed AFTER UPDATE OF size ON responses
    BEGIN UPDATE total SET bytes = bytes + NEW.size - OLD.size; END;
CREATE TRIGGER IF NOT EXISTS responses_out AFTER DELETE ON responses
    BEGIN UPDATE total SET bytes = bytes - OLD.size; END;
CREATE TRIGGER IF NOT EXISTS items_in AFTER INSERT ON items
    BEGIN UPDATE total SET bytes = bytes + NEW.size; END;
CREATE TRIGGER IF NOT EXISTS items_out AFTER DELETE ON items
    BEGIN UPDATE total SET bytes = bytes - OLD.size; END;
CREATE TRIGGER IF NOT EXISTS conversations_out AFTER DELETE ON conversations
    BEGIN DELETE FROM items WHERE conversation = OLD.id; END;
"""


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
    """Readable by its owner alone: it holds what people wrote."""
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
    connection.executescript(SCHEMA)
    return connection


COLUMNS = "id, created, document, input, output, previous, events, running"
GET = f"SELECT {COLUMNS} FROM responses WHERE id = ? AND owner = ?"  # noqa: S608 - our own words
PUT = """
INSERT INTO responses (id, owner, created, previous, running, document, input, output, events, size)
VALUES (:id, :owner, :created, :previous, :running, :document, :input, :output, :events, :size)
ON CONFLICT (id) DO UPDATE SET running = excluded.running, document = excluded.document,
    output = excluded.output, events = excluded.events, size = excluded.size
WHERE owner = excluded.owner
"""
PRUNE = """
DELETE FROM responses
WHERE id IN (SELECT id FROM responses WHERE NOT running ORDER BY created LIMIT ?)
"""


def kept_response(row: Sequence[Any]) -> KeptResponse:
    """A row of `COLUMNS`."""
    name, created, document, given, output, previous, events, running = row
    return KeptResponse(
        id=name,
        created=created,
        document=document,
        input=given,
        output=output,
        previous=previous,
        events=events,
        running=bool(running),
    )


def conversation_of(connection: sqlite3.Connection, owner: str, id: str) -> KeptConversation | None:
    """The conversation, if it is this owner's."""
    statement = "SELECT id, created, metadata FROM conversations WHERE id = ? AND owner = ?"
    row = connection.execute(statement, (id, owner)).fetchone()
    return KeptConversation(*row) if row else None


def append_items(connection: sqlite3.Connection, id: str, items: Sequence[KeptItem]) -> None:
    """Put items at the end of a conversation."""
    connection.executemany(
        "INSERT INTO items (conversation, id, item, size) VALUES (?, ?, ?, ?)",
        [(id, item.id, item.item, len(item.item)) for item in items],
    )


def size_of(connection: sqlite3.Connection) -> int:
    """Bytes of all that is kept."""
    (size,) = connection.execute("SELECT bytes FROM total").fetchone()
    return int(size)
