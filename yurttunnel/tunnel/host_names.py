"""Names of hosts as DNS and TLS have them: in ASCII."""

from __future__ import annotations

MAX_LABEL = 63
"""Characters between two dots (RFC 1035)."""


def in_ascii(name: str) -> bytes:
    """Return ``name`` with what is not ASCII in it written as IDNA has it (RFC 3490).

    Raises ``UnicodeError`` for a name that cannot be. What is ASCII already is returned as it is:
    Python's codec would give the same, but it and its tables take 0.2 MiB once it is asked.
    """
    if name.isascii() and all(0 < len(label) <= MAX_LABEL for label in name.split(".")):
        return name.encode("ascii")
    return name.encode("idna")
