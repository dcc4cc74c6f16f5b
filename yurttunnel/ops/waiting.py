"""Waiting for the end of something, but not forever: SIGTERM never hangs on a silent peer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from twisted.internet.defer import CancelledError, Deferred, DeferredList
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import deferLater
from twisted.logger import Logger
from twisted.python.failure import Failure

_log = Logger()


def ended_within(clock: IReactorTime, seconds: float, ending: Deferred[Any]) -> Deferred[bool]:
    """Return whether ``ending`` has fired within ``seconds``; it goes on if it has not.

    How it has ended does not matter here: its owner logs errors before. Cancelling ends the
    waiting alone.
    """
    known: Deferred[bool] = Deferred(lambda _: timer.cancel())
    timer = clock.callLater(seconds, known.callback, False)

    def ended(_: object) -> None:
        if timer.active():
            timer.cancel()
            known.callback(True)

    _ = ending.addBoth(ended)
    return known


async def within(clock: IReactorTime, seconds: float, deferreds: Iterable[Deferred[Any]]) -> bool:
    """Wait until all ``deferreds`` have fired, at most ``seconds``; return whether all have.

    For ``stopService``: what has not ended by then is left as it is, neither canceled nor
    forgotten, and the caller aborts the connections behind it. A failure counts as an end and
    is logged, since whoever stops has no other use for it.
    """
    ending = DeferredList([deferred.addErrback(log_failure) for deferred in deferreds])
    if ending.called:
        return True
    if not await ended_within(clock, seconds, ending):
        return False
    # In a turn of its own: the last one may end within a call that has to go on.
    await deferLater(clock, 0)
    return True


def log_failure(failure: Failure) -> None:
    """Tell of what has failed while it was stopped."""
    if not failure.check(CancelledError):
        _log.failure("While stopping, a part of the process ended with an error", failure)
