"""Stopping within a time limit: SIGTERM never hangs on a peer that does not answer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

log = Logger()


async def within(clock: IReactorTime, seconds: float, deferreds: Iterable[Deferred[Any]]) -> bool:
    """Wait until all ``deferreds`` have fired, at most ``seconds``; tell whether all have.

    For ``stopService``: what has not ended by then is left as it is, neither canceled nor
    forgotten, and the caller aborts the connections behind it. A failure counts as an end and
    is logged, since whoever stops has no other use for it.
    """
    waiting = list(deferreds)
    remaining = len(waiting)
    finished: Deferred[bool] = Deferred()
    timer: IDelayedCall | None = None

    def one_ended(result: object) -> object:
        nonlocal remaining, timer
        remaining -= 1
        if remaining == 0 and timer is not None and timer.active():
            # In a turn of its own: the last one may end within a call that has to go on.
            timer.cancel()
            timer = clock.callLater(0, finished.callback, True)
        return result

    for deferred in waiting:
        # The same Deferred comes back; mypy wants to see it used.
        _ = deferred.addErrback(_log_failure).addCallback(one_ended)
    if remaining == 0:
        return True
    timer = clock.callLater(seconds, finished.callback, False)
    try:
        return await finished
    finally:
        if timer.active():
            timer.cancel()


def _log_failure(failure: Failure) -> None:
    if not failure.check(CancelledError):
        log.failure("While stopping, a part of the process ended with an error", failure)
