"""Comparison of object versions.

A resourceVersion is a decimal number that increases within a resource (KEP-5504), except in API
servers that are not Kubernetes' own. So it is stored as a number if it is one, else as a text;
SQLite sorts all texts after all numbers.
"""

from __future__ import annotations

from collections.abc import Sequence

Version = int | str
"""A number, or a text that cannot be compared."""

_DIGITS = 18
"""The number of digits that always fit into SQLite's signed 64-bit integers."""


def version_of(text: str) -> Version:
    """Return the stored form of a version; ``str`` restores the text."""
    if (
        text.isascii()
        and text.isdecimal()
        and len(text) <= _DIGITS
        and (text[0] != "0" or text == "0")
    ):
        return int(text)
    return text


def successor(text: str) -> str:
    """Return the lowest version that is newer than one; a text has none, and is returned."""
    version = version_of(text)
    return str(version + 1) if isinstance(version, int) else text


def is_older(one: Version, other: Version) -> bool:
    """Return whether ``one`` is older than ``other``; false if they cannot be compared."""
    return isinstance(one, int) and isinstance(other, int) and one < other


def newest(versions: Sequence[Version]) -> Version:
    """Return the newest of versions in order of arrival; if all are texts, the last one."""
    numbers = [version for version in versions if isinstance(version, int)]
    return max(numbers) if numbers else versions[-1]
