-- The store's tables; gateway/keys/store.py carries this out at each start.
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
-- The console's; without a text it was deleted. The text is last: rows are listed without reading it.
CREATE TABLE IF NOT EXISTS synced (
    owner TEXT NOT NULL, id TEXT NOT NULL, title TEXT NOT NULL, changed INTEGER NOT NULL,
    size INTEGER NOT NULL, conversation TEXT NOT NULL, PRIMARY KEY (owner, id));
CREATE VIEW IF NOT EXISTS synced_texts AS SELECT * FROM synced WHERE size > 0;
CREATE TABLE IF NOT EXISTS owners (owner TEXT PRIMARY KEY, bytes INTEGER NOT NULL);
CREATE INDEX IF NOT EXISTS responses_by_age ON responses (created);
CREATE INDEX IF NOT EXISTS items_of ON items (conversation, position);
CREATE INDEX IF NOT EXISTS responses_of ON responses (owner, created);
CREATE INDEX IF NOT EXISTS conversations_of ON conversations (owner, used);

-- A conversation's size is all that is in it; an owner's bytes are all that is theirs.
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
-- An owner's last deletions are known.
CREATE TRIGGER IF NOT EXISTS synced_out AFTER INSERT ON synced WHEN NEW.size = 0
    BEGIN DELETE FROM synced WHERE owner = NEW.owner AND size = 0 AND id NOT IN
    (SELECT id FROM synced WHERE owner = NEW.owner AND size = 0 ORDER BY changed DESC LIMIT 500);
    END;
