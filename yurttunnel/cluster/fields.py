"""Fields of objects of the API, read so that one that is not what it should be harms nothing.

The API checks what it stores, but not for the types of labels and addresses alone: another
version of it, or whatever answers in its place, may leave out or rename anything.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def text(value: object) -> str:
    """Return a text, an empty one for anything else."""
    return value if isinstance(value, str) else ""


def mapping(value: object) -> Mapping[str, Any]:
    """Return an object, an empty one for anything else."""
    return value if isinstance(value, dict) else {}


def objects(value: object) -> Iterator[Mapping[str, Any]]:
    """Go through the objects in a list, and past whatever else is there."""
    if isinstance(value, list):
        yield from (each for each in value if isinstance(each, dict))


def texts(value: object) -> Iterator[str]:
    """Go through the texts in a list, and past whatever else is there."""
    if isinstance(value, list):
        yield from (each for each in value if isinstance(each, str))
