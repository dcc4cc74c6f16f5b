"""SQL operations on the rows of objects, in the writer thread.

Each statement processes many rows: SQLite releases the interpreter's lock while a statement runs,
and the reactor has to wait each time the lock is acquired again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from sqlite3 import Connection
from typing import Any
from zlib import crc32

from yurttunnel.hub.cache.errors import BodyDamaged
from yurttunnel.hub.cache.interfaces import Collection, Scope
from yurttunnel.hub.cache.selectors import changing_part, selector, stored_selector
from yurttunnel.hub.cache.versions import Version, newest, version_of
from yurttunnel.hub.media.interfaces import Item, TypeMeta

_ROWS = 50
"""Objects per statement, about 300 KB."""

_KEYS = 500
"""Names per statement."""

MAX_SCOPES = 100
"""Maximum number of selections of one collection that are recorded as listed.

Selections that are part of another one are removed first, then those that were listed longest ago.
"""

MAX_NAMESPACES = 1_000
"""The same for selections without selectors. They need little room, and no selector is parsed; each
further list takes 10 ms in the writer thread."""

_IS_COVERED = (
    "EXISTS (SELECT 1 FROM scopes AS other WHERE other.collection = scopes.collection"
    " AND other.id <> scopes.id AND other.namespace IN ('', scopes.namespace)"
    " AND other.label_selector IN ('', scopes.label_selector)"
    " AND other.field_selector IN ('', scopes.field_selector)"
    " AND other.version >= other.whole_from)"
)
"""Whether a scope is part of another scope that is complete."""

TEXTS = "namespace, name, objects.version, labels, node, size, texts"
"""The columns of an object besides its body, for :func:`item_of`."""

OLDER = "(typeof(version) = 'text' OR version < ?)"
"""Whether an object may be older than a version; all are older than the empty version, a text."""

_NOT_NEWER = "(typeof({0}) = 'text' OR {0} <= {1})"
"""Whether {0} may be older than {1} or the same; SQLite sorts numbers before all texts."""


_RAISE_VERSION = (
    f"SET version = ?1 WHERE ?1 <> '' AND version <> ?1 AND {_NOT_NEWER.format('version', '?1')}"
)


def upsert_collection(
    connection: Connection, collection: Collection, type: TypeMeta, version: Version
) -> int:
    """Return the row of a collection, created if necessary, with ``version`` recorded as seen."""
    connection.execute(
        "INSERT INTO collections"
        " (id, client, resource, form, view, api_version, kind, columns, version, hour)"
        " VALUES (abs(random() % 4294967296), ?, ?, ?, ?, ?, ?, x'', '', (SELECT hour FROM hours))"
        " ON CONFLICT (client, resource, form, view) DO UPDATE SET"
        " api_version = excluded.api_version, kind = excluded.kind, hour = excluded.hour"
        " WHERE (api_version, kind, hour) <> (excluded.api_version, excluded.kind, excluded.hour)",
        (*collection, *type),
    )
    id = find(connection, collection)
    assert id is not None
    raise_version(connection, id, version)
    return id


def find(connection: Connection, collection: Collection) -> int | None:
    """Return the row of a collection, ``None`` if it is not cached."""
    row = connection.execute(
        "SELECT id FROM collections WHERE (client, resource, form, view) = (?, ?, ?, ?)", collection
    ).fetchone()
    return None if row is None else int(row[0])


def raise_version(connection: Connection, collection: int, version: Version) -> None:
    """Record that a collection has had ``version``; its version never decreases."""
    connection.execute(f"UPDATE collections {_RAISE_VERSION} AND id = ?2", (version, collection))


def advance_scopes(
    connection: Connection, collection: int, ranges: Iterable[tuple[Scope, Version, Version]]
) -> None:
    """Record, for each range in its order, that its scope is known from one version to another.

    It has no effect if the scope was not known up to the first one; versions that cannot be
    compared count as known.
    """
    connection.executemany(
        f"UPDATE scopes {_RAISE_VERSION} AND collection = ?2"
        " AND namespace = ?3 AND label_selector = ?4 AND field_selector = ?5"
        " AND (typeof(?6) = 'text' OR version >= ?6)",
        ((version, collection, *scope[1:], since) for scope, since, version in ranges),
    )


def put(
    connection: Connection, collection: int, items: Sequence[Item], listed: Version = ""
) -> int:
    """Store objects; return how many of them are new or have another version.

    An object that is not newer than the stored one is not written, unless a list of the version
    ``listed``, at least as new as the stored one, has it: then etcd was restored from a backup.
    """
    written = 0
    known = listed if isinstance(listed, int) else -1
    for first in range(0, len(items), _ROWS):
        some = items[first : first + _ROWS]
        values: list[Any] = []
        for item in some:
            texts = (
                item.namespace,
                item.name,
                version_of(item.version),
                labels_text(item.labels),
                item.node,
                len(item.body),
            )
            values += (collection, *texts, _checksum(texts), crc32(item.body), item.body)
        written += connection.execute(_put(len(some)), [*values, known]).rowcount
    return written


@cache
def _put(rows: int) -> str:
    return (
        "INSERT INTO objects"
        " (collection, namespace, name, version, labels, node, size, texts, checksum, body) VALUES "
        + ", ".join(["(?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"] * rows)
        + " ON CONFLICT DO UPDATE SET version = excluded.version, labels = excluded.labels,"
        " node = excluded.node, size = excluded.size, texts = excluded.texts,"
        " checksum = excluded.checksum, body = excluded.body"
        " WHERE excluded.version > version"
        " OR (typeof(version) = 'text' AND excluded.version <> version)"
        # Metrics and similar objects have no version, or 0.
        " OR (excluded.version IN ('', 0) AND excluded.version = version AND excluded.body <> body)"
        " OR (excluded.version < version AND version <= ?)"
    )


def remove(
    connection: Connection, collection: int, keys: Iterable[tuple[str, str, Version]]
) -> None:
    """Remove objects, by namespace and name, that are older than the given version."""
    connection.executemany(
        f"DELETE FROM objects WHERE collection = ? AND namespace = ? AND name = ? AND {OLDER}",
        ((collection, *key) for key in keys),
    )


def record_exits(
    connection: Connection, collection: int, part: Scope, items: Sequence[Item]
) -> None:
    """Record that objects have left a part of a collection, each at its version.

    They were removed from the cache, but may still exist. So all scopes with them are incomplete
    below that version, except scopes within the part.
    """
    scopes = connection.execute(
        "SELECT id, version, namespace, label_selector, field_selector FROM scopes"
        " WHERE collection = ? AND NOT (? IN ('', label_selector) AND ? IN ('', field_selector))",
        (collection, part.label_selector, part.field_selector),
    ).fetchall()
    for id, known, *texts in scopes:
        selects = stored_selector(Scope(part.collection, *texts))
        left = [version_of(item.version) for item in items if selects(item)]
        if not left:
            continue
        version = newest(left)
        if isinstance(known, int) and isinstance(version, int):
            connection.execute(
                "UPDATE scopes SET whole_from = ?1 WHERE id = ?2 AND whole_from < ?1", (version, id)
            )
        else:
            # The version up to which it is known cannot be compared.
            connection.execute("DELETE FROM scopes WHERE id = ?", (id,))


def remove_others(
    connection: Connection,
    collection: int,
    scope: Scope,
    keys: Sequence[tuple[str, str]],
    version: Version,
) -> None:
    """Remove the objects of a scope that are not in ``keys`` and not newer than ``version``.

    They have left the scope.
    """
    within, values = within_scope(collection, scope)
    _put_listed(connection, keys)
    others = connection.execute(
        f"SELECT id, {TEXTS} FROM objects WHERE {within}"
        f" AND {_NOT_NEWER.format('version', '?')}"
        " AND NOT EXISTS (SELECT 1 FROM temp.listed"
        " WHERE (listed.namespace, listed.name) = (objects.namespace, objects.name))",
        (*values, version),
    ).fetchall()
    connection.execute("DELETE FROM temp.listed")
    selects = selector(scope)
    removed = {
        id: item._replace(version=str(version))
        for id, *texts in others
        if selects(item := item_of(*texts))
    }
    connection.executemany("DELETE FROM objects WHERE id = ?", ((id,) for id in removed))
    part = changing_part(scope)
    if has_selectors(part):
        record_exits(connection, collection, part, list(removed.values()))


def has_selectors(scope: Scope) -> bool:
    """Return whether a scope has selectors."""
    return bool(scope.label_selector or scope.field_selector)


def is_within(scope: Scope, part: Scope) -> bool:
    """Return whether a scope is within a part of all namespaces, by comparing their selectors."""
    labels, fields = part.label_selector, part.field_selector
    return labels in ("", scope.label_selector) and fields in ("", scope.field_selector)


def absent(
    connection: Connection, collection: int, keys: Iterable[tuple[str, str]]
) -> set[tuple[str, str]]:
    """Return which of the namespaces and names are not stored."""
    _put_listed(connection, list(keys))
    rows = connection.execute(
        "SELECT namespace, name FROM temp.listed WHERE NOT EXISTS (SELECT 1 FROM objects WHERE"
        " (collection, objects.namespace, objects.name) = (?, listed.namespace, listed.name))",
        (collection,),
    ).fetchall()
    connection.execute("DELETE FROM temp.listed")
    return set(rows)


def _put_listed(connection: Connection, keys: Sequence[tuple[str, str]]) -> None:
    for first in range(0, len(keys), _KEYS):
        some = keys[first : first + _KEYS]
        connection.execute(_listed(len(some)), [text for key in some for text in key])


@cache
def _listed(rows: int) -> str:
    return "INSERT OR IGNORE INTO temp.listed VALUES " + ", ".join(["(?, ?)"] * rows)


def within_scope(collection: int, scope: Scope) -> tuple[str, tuple[Any, ...]]:
    """Return the SQL condition, and its values, for a scope without its selectors."""
    if scope.namespace:
        return "collection = ? AND namespace = ?", (collection, scope.namespace)
    return "collection = ?", (collection,)


def mark_listed(
    connection: Connection,
    collection: int,
    scope: Scope,
    columns: bytes,
    version: Version,
    whole_from: int,
) -> None:
    """Record that a scope was listed at ``version``; ``columns`` are those of a Table.

    Below the version ``whole_from`` it may be incomplete.
    """
    connection.execute(
        "UPDATE collections SET columns = ?1 WHERE id = ?2 AND columns <> ?1", (columns, collection)
    )
    connection.execute(
        "INSERT INTO scopes"
        " (collection, namespace, label_selector, field_selector, version, whole_from)"
        " VALUES (?, ?, ?, ?, '', ?)"
        " ON CONFLICT DO UPDATE SET id = (SELECT max(id) + 1 FROM scopes),"
        " whole_from = max(whole_from, excluded.whole_from)",
        (collection, *scope[1:], whole_from),
    )
    # A list does not depend on earlier knowledge.
    advance_scopes(connection, collection, [(scope, "", version)])
    alike = "collection = ?1 AND (label_selector || field_selector <> '') = ?2"
    connection.execute(
        f"DELETE FROM scopes WHERE {alike}"
        f" AND (SELECT count(*) FROM scopes WHERE {alike}) > ?3 AND id NOT IN"
        f" (SELECT id FROM scopes WHERE {alike} ORDER BY {_IS_COVERED}, id DESC LIMIT ?3)",
        (collection, *((1, MAX_SCOPES) if has_selectors(scope) else (0, MAX_NAMESPACES))),
    )


def known_version(connection: Connection, collection: int, scope: Scope) -> Version | None:
    """Return the version up to which a scope is known, ``None`` if it may be incomplete.

    A list or a watch of a scope also covers all scopes that are part of it.
    """
    rows = connection.execute(
        "SELECT version FROM scopes WHERE collection = ? AND namespace IN ('', ?)"
        " AND label_selector IN ('', ?) AND field_selector IN ('', ?) AND version >= whole_from",
        (collection, *scope[1:]),
    ).fetchall()
    return newest([version for (version,) in rows]) if rows else None


def are_whole(connection: Connection, collection: int) -> bool:
    """Return whether all objects of a collection can be found, by the size that is counted.

    SQLite does not detect damage to a page by which objects seem not to exist. The keys are those
    of the index, by which objects are found, and the sizes those of the rows that they refer to.
    """
    row = connection.execute(
        "SELECT bytes = (SELECT total(row.size + 500)"
        " FROM objects AS key CROSS JOIN objects AS row ON row.id = key.id"
        " AND (row.collection, row.namespace, row.name)"
        " = (key.collection, key.namespace, key.name) WHERE key.collection = ?1)"
        " + (SELECT total(2 * length(CAST(label_selector || field_selector AS BLOB)) + 500)"
        " FROM scopes WHERE collection = ?1) FROM collections WHERE id = ?1",
        (collection,),
    ).fetchone()
    # It may have been evicted since it was found.
    return row is None or bool(row[0])


def mark_incomplete(connection: Connection, collection: Collection) -> None:
    """Record that a collection is incomplete, until it is listed again.

    Without a form, those of all forms and views are.
    """
    connection.execute(
        "DELETE FROM scopes WHERE collection IN (SELECT id FROM collections"
        " WHERE (client, resource) = (?1, ?2) AND (?3 = '' OR (form, view) = (?3, ?4)))",
        collection,
    )


def mark_all_incomplete(connection: Connection, of: Callable[[str], bool]) -> None:
    """Record that all collections are incomplete whose clients satisfy ``of``."""
    rows = connection.execute("SELECT id, client FROM collections").fetchall()
    for number in (number for number, client in rows if of(client)):
        connection.execute("DELETE FROM scopes WHERE collection = ?", (number,))


def labels_text(labels: Mapping[str, str]) -> str:
    """Return labels in the form in which they are stored."""
    return json.dumps(labels) if labels else ""


def item_of(
    namespace: str,
    name: str,
    version: Version,
    labels: str,
    node: str,
    size: int,
    texts: int,
) -> Item:
    """Return the object with these :data:`TEXTS`, without its body.

    Raises :class:`BodyDamaged` if they have changed on the disk.
    """
    if _checksum((namespace, name, version, labels, node, size)) != texts:
        raise BodyDamaged.of_row(name)
    return Item(namespace, name, str(version), json.loads(labels) if labels else {}, node, b"")


def _checksum(texts: tuple[str, str, Version, str, str, int]) -> int:
    # If damage has changed the type of a value, its text is another one.
    return crc32(ascii(texts).encode())
