"""The mapping of tests to the cases of the conformance list in ``docs/protocol.md``."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import TypeVar

_Test = TypeVar("_Test", bound=Callable[..., object])

SHOWN_BY: dict[str, list[str]] = defaultdict(list)
"""The names of the tests of a case, by its number (``C-001``)."""


def conformance(*cases: str) -> Callable[[_Test], _Test]:
    """Mark a test as covering the ``cases``."""

    def mark(test: _Test) -> _Test:
        for case in cases:
            SHOWN_BY[case].append(f"{test.__module__}.{test.__qualname__}")
        return test

    return mark
