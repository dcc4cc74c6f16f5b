"""Answers that are no objects, in the file of the cache."""

from __future__ import annotations

from sqlite3 import Connection

from yurttunnel.hub.cache.interfaces import KeptDocument
from yurttunnel.hub.cache.writes import OVERHEAD, Statements

MOST = 2_000
"""Documents; kubectl's discovery of a large cluster reads some 200."""

MOST_BYTES = 128 * 1024 * 1024
"""Bytes of their bodies; OpenAPI of a large cluster has some 10 MB."""

SHARE = 0.25
"""Part of the file that they may take, where that is less."""


def keep(client: str, path: str, form: str, document: KeptDocument) -> Statements:
    """Return what keeps a document; the same as before writes nothing, and is not older for it."""
    return Statements(
        (
            "INSERT INTO documents (client, path, form, content_type, body) VALUES (?, ?, ?, ?, ?)"
            " ON CONFLICT DO UPDATE SET content_type = excluded.content_type, body = excluded.body"
            " WHERE (content_type, body) <> (excluded.content_type, excluded.body)",
            (client, path, form, *document),
        ),
        size=OVERHEAD + len(document.body),
    )


def size(connection: Connection) -> int:
    """Return the bytes of all bodies."""
    return _count(connection)[1]


def bound(connection: Connection, most: int) -> int:
    """Forget the oldest ones until all take ``most`` bytes or fewer; return how many went.

    One that is larger than that goes alone.
    """
    number, taken = _count(connection)
    if number <= MOST and taken <= most:
        return 0
    return connection.execute(
        "DELETE FROM documents WHERE id IN (SELECT id FROM (SELECT id,"
        " count(*) OVER newest AS number, sum(length(body)) OVER newest AS bytes"
        " FROM documents WINDOW newest AS (ORDER BY length(body) > ?, id DESC))"
        " WHERE number > ? OR bytes > ?)",
        (most, MOST, most),
    ).rowcount


def find(connection: Connection, client: str, path: str, form: str) -> KeptDocument | None:
    """Return a document."""
    row = connection.execute(
        "SELECT content_type, body FROM documents WHERE (client, path, form) = (?, ?, ?)",
        (client, path, form),
    ).fetchone()
    return None if row is None else KeptDocument(*row)


def _count(connection: Connection) -> tuple[int, int]:
    """Return how many there are, and the bytes of all bodies."""
    number, taken = connection.execute(
        "SELECT count(*), total(length(body)) FROM documents"
    ).fetchone()
    return number, int(taken)
