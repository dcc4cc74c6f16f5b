"""Tokens that the API has accepted, in the file of the cache: their digests, not they."""

from __future__ import annotations

from collections.abc import Callable, Collection
from sqlite3 import Connection

from yurttunnel.hub.cache.writes import OVERHEAD, Statements

MOST = 10_000
"""Tokens; those go first that end first."""


def accept(digest: bytes, owner: str, until: float, dropped: Callable[[], object]) -> Statements:
    """Return what keeps a token; ``dropped`` is called if that will not be done."""
    return Statements(
        (
            "INSERT INTO tokens VALUES (?, ?, ?)"
            " ON CONFLICT DO UPDATE SET owner = excluded.owner, until = excluded.until"
            " WHERE (owner, until) <> (excluded.owner, excluded.until)",
            (digest, owner, until),
        ),
        (
            "DELETE FROM tokens WHERE digest IN"
            " (SELECT digest FROM tokens ORDER BY until"
            " LIMIT max(0, (SELECT count(*) FROM tokens) - ?))",
            (MOST,),
        ),
        dropped=dropped,
    )


def refuse(digests: Collection[bytes]) -> Statements:
    """Return what forgets tokens."""
    return Statements(
        *(("DELETE FROM tokens WHERE digest = ?", (digest,)) for digest in digests),
        size=OVERHEAD * len(digests),
    )


def owner(connection: Connection, digest: bytes, now: float) -> str | None:
    """Return whose token it is, if it has not ended at ``now``."""
    row = connection.execute(
        "SELECT owner FROM tokens WHERE digest = ? AND until > ?", (digest, now)
    ).fetchone()
    return None if row is None else str(row[0])
