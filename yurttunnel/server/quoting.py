"""What callers have sent, as logs may quote it: of any length, and with secrets in it."""

from __future__ import annotations

import re

LONGEST_QUOTED = 300
"""Characters of a text that are quoted: more than a host name, a port and a sentence have."""

# Each takes one pass over a text, however long it is: heads of requests have tens of kilobytes.
_QUERY = re.compile(r"\?\S+")
_USER_INFORMATION_BACKWARDS = re.compile(r"@\S*")


def quotable(text: str) -> str:
    """Return ``text`` without user information and queries, cut to :data:`LONGEST_QUOTED`.

    User information is what stands before an ``@``, as in the URL of a proxy; in queries of
    kubelets are commands. What is cut is as :func:`shortened` has it.
    """
    backwards = _QUERY.sub(_without_query, text)[::-1]
    shown = _USER_INFORMATION_BACKWARDS.sub("@***", backwards)[::-1]
    return shortened(shown)


def shortened(text: str) -> str:
    """Return ``text`` cut to :data:`LONGEST_QUOTED`; one that was cut has ``...`` at its end."""
    return text if len(text) <= LONGEST_QUOTED else f"{text[:LONGEST_QUOTED]}..."


def _without_query(query: re.Match[str]) -> str:
    # With an "@" it may be the end of a password, whose beginning stands before it.
    return "@?***" if "@" in query[0] else "?***"
