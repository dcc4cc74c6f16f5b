"""Responses that are not objects, in the cache file."""

from __future__ import annotations

from sqlite3 import Connection
from zlib import crc32

from yurttunnel.hub.cache.errors import BodyDamaged
from yurttunnel.hub.cache.interfaces import CachedDocument
from yurttunnel.hub.cache.writes import OVERHEAD, Statements

MAX_DOCUMENTS = 2_000
"""Maximum number of documents; kubectl's discovery of a large cluster reads about 200."""

MAX_BYTES = 128 * 1024 * 1024
"""Maximum size of all bodies in bytes; OpenAPI of a large cluster has about 10 MB."""

SHARE = 0.25
"""Maximum share of the file for documents, if that is less than :data:`MAX_BYTES`."""

OWNER = "documents"
"""The account of their writes, because all clients share them."""


def store(client: str, path: str, form: str, document: CachedDocument) -> Statements:
    """Return the write that caches a document; an unchanged document is not written."""
    return Statements(
        (
            "INSERT INTO documents (client, path, form, content_type, checksum, body)"
            " VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET"
            " content_type = excluded.content_type, checksum = excluded.checksum,"
            " body = excluded.body"
            " WHERE (content_type, body) <> (excluded.content_type, excluded.body)",
            (client, path, form, document.content_type, _checksum(*document), document.body),
        ),
        size=OVERHEAD + len(document.body),
    )


def size(connection: Connection) -> int:
    """Return the bytes of all bodies."""
    return _count(connection)[1]


def evict_over(connection: Connection, most: int) -> int:
    """Evict the oldest documents until all use at most ``most`` bytes; return the number evicted.

    A document that is larger than that is evicted alone.
    """
    number, total = _count(connection)
    if number <= MAX_DOCUMENTS and total <= most:
        return 0
    return connection.execute(
        "DELETE FROM documents WHERE id IN (SELECT id FROM (SELECT id,"
        " count(*) OVER newest AS number, sum(length(body)) OVER newest AS bytes"
        " FROM documents WINDOW newest AS (ORDER BY length(body) > ?, id DESC))"
        " WHERE number > ? OR bytes > ?)",
        (most, MAX_DOCUMENTS, most),
    ).rowcount


def find(connection: Connection, client: str, path: str, form: str) -> CachedDocument | None:
    """Return a document."""
    row = connection.execute(
        "SELECT checksum, content_type, body FROM documents WHERE (client, path, form) = (?, ?, ?)",
        (client, path, form),
    ).fetchone()
    if row is None:
        return None
    checksum, *document = row
    if list(map(type, document)) != [str, bytes] or _checksum(*document) != checksum:
        raise BodyDamaged.of_row(path)
    return CachedDocument(*document)


def _checksum(content_type: str, body: bytes) -> int:
    return crc32(body, crc32(content_type.encode()))


def _count(connection: Connection) -> tuple[int, int]:
    """Return the number of documents, and the bytes of all bodies."""
    number, total = connection.execute(
        "SELECT count(*), total(length(body)) FROM documents"
    ).fetchone()
    return number, int(total)
