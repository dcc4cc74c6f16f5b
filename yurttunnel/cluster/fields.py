"""Type-safe access to fields of API objects, which replaces invalid values by empty ones.

The API validates what it stores, but this does not rely on that, even for the types of labels and
addresses: another version of the API, or another server in its place, may omit or rename any field.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def text(value: object) -> str:
    """Return a string, an empty one for any other value."""
    return value if isinstance(value, str) else ""


def mapping(value: object) -> Mapping[str, Any]:
    """Return an object, an empty one for any other value."""
    return value if isinstance(value, dict) else {}


def objects(value: object) -> Iterator[Mapping[str, Any]]:
    """Yield the objects in a list, and skip other values."""
    if isinstance(value, list):
        yield from (each for each in value if isinstance(each, dict))


def texts(value: object) -> Iterator[str]:
    """Yield the strings in a list, and skip other values."""
    if isinstance(value, list):
        yield from (each for each in value if isinstance(each, str))
