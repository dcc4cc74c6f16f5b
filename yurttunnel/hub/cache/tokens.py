"""Tokens that the API has accepted, in the file of the cache: their digests, not they."""

from __future__ import annotations

from sqlite3 import Connection

from yurttunnel.hub.cache.writes import Statements

MOST = 10_000
"""Tokens; those go first that end first."""


def accept(digest: bytes, owner: str, until: float) -> Statements:
    """Return what keeps a token."""
    return Statements(
        (
            "INSERT INTO tokens VALUES (?, ?, ?)"
            " ON CONFLICT DO UPDATE SET owner = excluded.owner, until = excluded.until"
            " WHERE (owner, until) <> (excluded.owner, excluded.until)",
            (digest, owner, until),
        ),
        (
            "DELETE FROM tokens WHERE digest IN"
            " (SELECT digest FROM tokens ORDER BY until DESC LIMIT -1 OFFSET ?)",
            (MOST,),
        ),
    )


def refuse(digest: bytes) -> Statements:
    """Return what forgets a token."""
    return Statements(("DELETE FROM tokens WHERE digest = ?", (digest,)))


def owner(connection: Connection, digest: bytes, now: float) -> str | None:
    """Return whose token it is, if it has not ended at ``now``."""
    row = connection.execute(
        "SELECT owner FROM tokens WHERE digest = ? AND until > ?", (digest, now)
    ).fetchone()
    return None if row is None else str(row[0])
