"""Waiting for something in the real reactor."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from twisted.internet import reactor
from twisted.internet.task import deferLater

SECONDS = 60.0
"""The deadline of anything that tests wait for, on a loaded machine."""

_PAUSE_SECONDS = 0.002

_Result = TypeVar("_Result")


async def until(condition: Callable[[], _Result], what: str = "it happens") -> _Result:
    """Run the reactor until ``condition()`` is true, and return its result."""
    deadline = reactor.seconds() + SECONDS
    while not (result := condition()):
        if reactor.seconds() > deadline:
            raise AssertionError(f"after {SECONDS:.0f} s it was not so that {what}")
        await deferLater(reactor, _PAUSE_SECONDS)
    return result
