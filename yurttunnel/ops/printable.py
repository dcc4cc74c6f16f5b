"""Text from other machines for terminals, which obey control characters."""

from __future__ import annotations


def printable(text: str) -> str:
    r"""Return ``text`` in one line, with unprintable characters as ``\x1b`` or ``\udcff``."""
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in text
    )
