"""Waiting for the end of something, but not forever."""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime


def ended_within(clock: IReactorTime, seconds: float, ending: Deferred[Any]) -> Deferred[bool]:
    """Say whether ``ending`` has fired within ``seconds``; it goes on if it has not.

    How it has ended does not matter here: its owner logs errors before.
    """
    known: Deferred[bool] = Deferred()
    timer = clock.callLater(seconds, known.callback, False)

    def ended(_: object) -> None:
        if timer.active():
            timer.cancel()
            known.callback(True)

    _ = ending.addBoth(ended)
    return known
