"""Removes secrets from text: bundles are sent by mail and attached to public issues.

This module does not know the actual secrets. It is the second line of defense: the collection reads
no keys and no tokens, and this removes what looks like one from what programs and people wrote.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

REDACTED = "[redacted]"

# The module re compiles these patterns when they are first used, and keeps most: that takes 3 ms,
# which would be a part of each start.
_WHOLE = (
    r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----.*?(?:-----END [A-Z0-9 ]*PRIVATE KEY-----|\Z)"
    # A join token, or one of kubeadm: ID and secret. The pin that follows is in ca.crt, too.
    r"|\b(?:[0-9a-f]{16}\.[0-9a-f]{32}|[0-9a-z]{6}\.[0-9a-z]{16})\b"
    # A JSON Web Token, such as those of service accounts.
    r"|\beyJ[\w-]+\.[\w-]+\.[\w-]*"
)

_MARK = r"(?:&quot;|&#x27;)"
"""A quote on the status page, escaped for HTML."""

_NAMES = (
    r"(?<![\w-])[\w-]{0,80}?"
    r"(?:authorization|token|password|passwd|secret|api[_-]?key|client[_-]?key[_-]?data)"
    # To the closing quote, which may be escaped: in JSON within JSON.
    rf"(?:\\*(?:[\"']|{_MARK}))?"
)

_END = r"(?=\n)|\Z"
"""The end of a quoted value that was cut off."""

# The quote that ends a value is escaped as often as the one that begins it; quotes within the value
# are escaped more often.
_QUOTED = "|".join(
    (
        rf"b?(?P<quote>[\"'])[^\n]*?(?:(?<!\\)(?P=quote)|{_END})",
        # The value also ends where the surrounding text ends.
        rf"b?(?P<escaped>\\+[\"'])[^\n]*?(?:(?<!\\)(?:(?P=escaped)|(?=\"))|{_END})",
        rf"b?(?P<mark>\\*{_MARK})[^<\n]*?(?:(?<!\\)(?P=mark)|(?=<)|{_END})",
    )
)

_SCHEMES = "bearer|basic|negotiate|digest|ntlm|token"

_VALUES = (
    # A block of YAML: all lines that are indented below the name.
    rf"({_NAMES}\s*:[ \t]*)[|>][^\n]*\n(?:[ \t]+[^\n]*(?:\n|\Z))+",
    # Cookies, to the end of the line.
    rf"(\b(?:set-)?cookie[\"']?\s*[:=][ \t]*)(?:{_QUOTED}|[^\n\"']+)",
    # A list, to its end or the end of the line.
    rf"({_NAMES}\s*[:=][ \t]*)[\[(](?:{_QUOTED}|[^\])\n])*[\])]?",
    # A field of YAML, JSON or a header, or an assignment; the scheme of a header stays.
    rf"({_NAMES}\s*[:=][ \t]*(?:(?:{_SCHEMES})[ \t]+)?)"
    rf"(?:{_QUOTED}|[^\s,;\"']+)",
    # Values of headers without their names. All schemes but the first are ordinary words, too.
    r"(\bbearer[ \t]+)\S+",
    r"(\b(?:basic|negotiate|ntlm)[ \t]+)[a-z0-9+/=_-]{12,}",
    rf"((?=--){_NAMES}[ \t]+)(?!-)\S+",
)

_URL = r"(\b[a-z][a-z0-9+.-]{0,20}://)([^\s/@\"']+@)?([^\s?#\"']*)(\?[^\s\"']*)?"


def redact(text: str, secrets: Iterable[str] = ()) -> str:
    """Return ``text`` without ``secrets``, and without what looks like a secret.

    User, password and query are removed from URLs.
    """
    for secret in secrets:
        text = text.replace(secret, REDACTED)
    text = re.sub(_WHOLE, REDACTED, text, flags=re.DOTALL)
    for values in _VALUES:
        text = re.sub(values, rf"\1{REDACTED}", text, flags=re.IGNORECASE)
    return re.sub(_URL, _without_query, text, flags=re.IGNORECASE)


def redacted_arguments(arguments: Sequence[str], secret_flags: Iterable[str]) -> list[str]:
    """Return a command line without the values of ``secret_flags`` (``--join-token``)."""
    shown: list[str] = []
    secret_follows = False
    for argument in arguments:
        flag, equals, _ = argument.partition("=")
        if secret_follows:
            shown.append(REDACTED)
            secret_follows = False
        elif flag in secret_flags:
            shown.append(f"{flag}={REDACTED}" if equals else flag)
            secret_follows = not equals
        else:
            shown.append(redact(argument))
    return shown


def _without_query(match: re.Match[str]) -> str:
    scheme, user, rest, query = match.groups()
    user, query = (f"{REDACTED}@" if user else ""), (f"?{REDACTED}" if query else "")
    return f"{scheme}{user}{rest}{query}"
