"""Versions of objects, as they are compared.

A resourceVersion is a decimal number that grows in all of a resource (KEP-5504), but for API
servers that are not Kubernetes' own. So one is kept as a number where it is one, else as the text
that it is; SQLite puts all texts behind all numbers.
"""

from __future__ import annotations

from collections.abc import Sequence

Version = int | str
"""A number, or a text that can be compared with nothing."""

_DIGITS = 18
"""Digits of numbers that SQLite holds for certain, in 64 bits with a sign."""


def version_of(text: str) -> Version:
    """Return how a version is kept; ``str`` gives the same text again."""
    if (
        text.isascii()
        and text.isdecimal()
        and len(text) <= _DIGITS
        and (text[0] != "0" or text == "0")
    ):
        return int(text)
    return text


def is_older(one: Version, other: Version) -> bool:
    """Return whether ``one`` is from before ``other``; what cannot be compared is not."""
    return isinstance(one, int) and isinstance(other, int) and one < other


def newest(versions: Sequence[Version]) -> Version:
    """Return the newest of some, in the order in which they came; of texts it is the last one."""
    numbers = [version for version in versions if isinstance(version, int)]
    return max(numbers) if numbers else versions[-1]
