"""The tables of the cache."""

from __future__ import annotations

APPLICATION = 0x79687562
"""``application_id`` of the file: "yhub", by which file(1) can identify it."""

VERSION = 8
"""``user_version`` of the file."""

TABLES = """
CREATE TABLE collections (
    -- Random, so that no id is used twice, not even in another file: see lists.py.
    id INTEGER PRIMARY KEY,
    client TEXT NOT NULL,
    resource TEXT NOT NULL,
    form TEXT NOT NULL,
    view TEXT NOT NULL,
    api_version TEXT NOT NULL,
    kind TEXT NOT NULL,
    columns BLOB NOT NULL,
    -- The newest version seen so far; no column affinity, see versions.py.
    version NOT NULL,
    -- The hour of its client's last request, see clients.py.
    hour INTEGER NOT NULL,
    -- The size of its objects and scopes in bytes, maintained by the triggers below. The length
    -- of a text is in characters, that of a BLOB in bytes.
    bytes INTEGER NOT NULL DEFAULT 0,
    UNIQUE (client, resource, form, view)
);
-- The scopes that were listed completely.
CREATE TABLE scopes (
    id INTEGER PRIMARY KEY,
    collection INTEGER NOT NULL,
    namespace TEXT NOT NULL,
    label_selector TEXT NOT NULL,
    field_selector TEXT NOT NULL,
    -- The version of the list, or up to which a watch of exactly this scope has reported all.
    version NOT NULL,
    -- Below this version it may lack objects that another scope has reported as deleted; or 0.
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
    -- The size of the body in bytes.
    size INTEGER NOT NULL,
    -- The CRC-32 of these columns (objects.py): SQLite does not detect damage to content.
    texts INTEGER NOT NULL,
    -- The CRC-32 of the body.
    checksum INTEGER NOT NULL,
    -- The last column, so that searches by the others do not read it.
    body BLOB NOT NULL,
    UNIQUE (collection, namespace, name)
);
CREATE TABLE documents (
    id INTEGER PRIMARY KEY,
    client TEXT NOT NULL,
    path TEXT NOT NULL,
    form TEXT NOT NULL,
    content_type TEXT NOT NULL,
    -- The CRC-32 of content type and body, as for objects.
    checksum INTEGER NOT NULL,
    body BLOB NOT NULL,
    UNIQUE (client, path, form)
);
-- An id is never reused, not even in another file: an event may be deleted late.
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
-- The number of hours with requests, see clients.py.
CREATE TABLE hours (hour INTEGER NOT NULL);
INSERT INTO hours VALUES (0);
INSERT INTO sqlite_sequence VALUES ('events', abs(random() % 4294967296));
"""
