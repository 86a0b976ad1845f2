-- A store of version 0 as one of version 1, but for its triggers. Version 0 counted no metadata, no ids and no
-- rows, and by no owner. A row counts as 256 bytes (`ROW` in gateway/keys/store.py).
DROP TRIGGER IF EXISTS responses_in;
DROP TRIGGER IF EXISTS responses_changed;
DROP TRIGGER IF EXISTS responses_out;
DROP TRIGGER IF EXISTS items_in;
DROP TRIGGER IF EXISTS items_out;
DROP TRIGGER IF EXISTS conversations_out;
DROP TABLE IF EXISTS total;
ALTER TABLE conversations ADD COLUMN used REAL NOT NULL DEFAULT 0;
ALTER TABLE conversations ADD COLUMN size INTEGER NOT NULL DEFAULT 0;
UPDATE responses SET size = 256 + length(document) + length(input) + length(output)
    + length(events);
UPDATE items SET size = 256 + length(id) + length(item);
UPDATE conversations SET used = created, size = 256 + length(metadata)
    + (SELECT coalesce(sum(size), 0) FROM items WHERE conversation = conversations.id);
CREATE TABLE owners (owner TEXT PRIMARY KEY, bytes INTEGER NOT NULL);
INSERT INTO owners SELECT owner, sum(size) FROM (
    SELECT owner, size FROM responses UNION ALL SELECT owner, size FROM conversations)
    GROUP BY owner;
