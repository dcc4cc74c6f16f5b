"""Tokens that the API has accepted, in the cache file: only their digests, not the tokens."""

from __future__ import annotations

from collections.abc import Callable, Collection
from sqlite3 import Connection

from yurttunnel.hub.cache.writes import OVERHEAD, Statements

MAX_TOKENS = 10_000
"""Maximum number of tokens; those that expire first are evicted first."""


def store(digest: bytes, owner: str, until: float, dropped: Callable[[], object]) -> Statements:
    """Return the write that stores a token; ``dropped`` is called if it is dropped."""
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
            (MAX_TOKENS,),
        ),
        dropped=dropped,
    )


def delete(digests: Collection[bytes]) -> Statements:
    """Return the write that deletes tokens."""
    return Statements(
        *(("DELETE FROM tokens WHERE digest = ?", (digest,)) for digest in digests),
        size=OVERHEAD * len(digests),
    )


def owner(connection: Connection, digest: bytes, now: float) -> str | None:
    """Return the owner of a token, if it has not expired at ``now``."""
    row = connection.execute(
        "SELECT owner FROM tokens WHERE digest = ? AND until > ?", (digest, now)
    ).fetchone()
    return None if row is None else str(row[0])
