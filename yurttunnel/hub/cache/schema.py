"""The tables of the cache."""

from __future__ import annotations

APPLICATION = 0x79687562
"""``application_id`` of the file: "yhub", by which file(1) can identify it."""

VERSION = 5
"""``user_version`` of the file."""

TABLES = """
CREATE TABLE collections (
    -- Drawn, so that none is given twice, nor in another file: see lists.py.
    id INTEGER PRIMARY KEY,
    client TEXT NOT NULL,
    resource TEXT NOT NULL,
    form TEXT NOT NULL,
    view TEXT NOT NULL,
    api_version TEXT NOT NULL,
    kind TEXT NOT NULL,
    columns BLOB NOT NULL,
    -- The largest that was ever seen; no affinity, see versions.py.
    version NOT NULL,
    -- In which hour its client asked last, see clients.py.
    hour INTEGER NOT NULL,
    -- What its objects and selections take; the triggers below keep it. A text has a length in
    -- characters, its bytes are those of a BLOB.
    bytes INTEGER NOT NULL DEFAULT 0,
    UNIQUE (client, resource, form, view)
);
-- What was listed completely.
CREATE TABLE scopes (
    id INTEGER PRIMARY KEY,
    collection INTEGER NOT NULL,
    namespace TEXT NOT NULL,
    label_selector TEXT NOT NULL,
    field_selector TEXT NOT NULL,
    -- That of the list, or up to which a watch of the very scope has told of all.
    version NOT NULL,
    -- Before this version it may lack what another scope has told to be gone. 0 for none.
    whole_from INTEGER NOT NULL,
    UNIQUE (collection, namespace, label_selector, field_selector)
);
CREATE TABLE objects (
    id INTEGER PRIMARY KEY,
    collection INTEGER NOT NULL,
    namespace TEXT NOT NULL,
    name TEXT NOT NULL,
    version NOT NULL,
    labels TEXT NOT NULL,
    node TEXT NOT NULL,
    -- Bytes of the body.
    size INTEGER NOT NULL,
    -- The last one: what is looked for in the others does not read it.
    body BLOB NOT NULL,
    UNIQUE (collection, namespace, name)
);
CREATE TABLE documents (
    id INTEGER PRIMARY KEY,
    client TEXT NOT NULL,
    path TEXT NOT NULL,
    form TEXT NOT NULL,
    content_type TEXT NOT NULL,
    body BLOB NOT NULL,
    UNIQUE (client, path, form)
);
-- An id is never given twice, nor in another file: an event may be dropped late.
CREATE TABLE events (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    path TEXT NOT NULL,
    content_type TEXT NOT NULL,
    body BLOB NOT NULL,
    token TEXT NOT NULL,
    owner TEXT NOT NULL
);
CREATE TABLE tokens (
    digest BLOB PRIMARY KEY,
    owner TEXT NOT NULL,
    until REAL NOT NULL
) WITHOUT ROWID;
CREATE TRIGGER object_comes AFTER INSERT ON objects BEGIN
    UPDATE collections SET bytes = bytes + NEW.size + 500 WHERE id = NEW.collection;
END;
CREATE TRIGGER object_changes AFTER UPDATE OF size ON objects WHEN NEW.size <> OLD.size BEGIN
    UPDATE collections SET bytes = bytes + NEW.size - OLD.size WHERE id = NEW.collection;
END;
CREATE TRIGGER object_goes AFTER DELETE ON objects BEGIN
    UPDATE collections SET bytes = bytes - OLD.size - 500 WHERE id = OLD.collection;
END;
CREATE TRIGGER scope_comes AFTER INSERT ON scopes BEGIN
    UPDATE collections SET bytes = bytes
        + 2 * length(CAST(NEW.label_selector || NEW.field_selector AS BLOB)) + 500
        WHERE id = NEW.collection;
END;
CREATE TRIGGER scope_goes AFTER DELETE ON scopes BEGIN
    UPDATE collections SET bytes = bytes
        - 2 * length(CAST(OLD.label_selector || OLD.field_selector AS BLOB)) - 500
        WHERE id = OLD.collection;
END;
-- The hours in which clients asked, see clients.py.
CREATE TABLE hours (hour INTEGER NOT NULL);
INSERT INTO hours VALUES (0);
INSERT INTO sqlite_sequence VALUES ('events', abs(random() % 4294967296));
"""
