"""Quotes callers' input for logs: input may have any length, and contain secrets."""

from __future__ import annotations

import re

MAX_QUOTED = 300
"""Maximum length of a quoted text in characters: enough for a host name, a port and a sentence."""

# Each takes one pass over a text, however long it is: heads of requests have tens of kilobytes.
_QUERY = re.compile(r"\?\S+")
_USER_INFORMATION_BACKWARDS = re.compile(r"@\S*")


def redacted(text: str) -> str:
    """Return ``text`` without user information and queries, truncated to :data:`MAX_QUOTED`.

    User information precedes an ``@``, as in the URL of a proxy; queries of kubelets contain
    commands. Truncation is that of :func:`truncated`.
    """
    backwards = _QUERY.sub(_without_query, text)[::-1]
    shown = _USER_INFORMATION_BACKWARDS.sub("@***", backwards)[::-1]
    return truncated(shown)


def truncated(text: str) -> str:
    """Return ``text`` truncated to :data:`MAX_QUOTED`, and then with ``...`` at its end."""
    return text if len(text) <= MAX_QUOTED else f"{text[:MAX_QUOTED]}..."


def _without_query(query: re.Match[str]) -> str:
    # With an "@" it may be the end of a password that began before it.
    return "@?***" if "@" in query[0] else "?***"
