"""Waiting with a timeout, so that SIGTERM never hangs on a silent peer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from twisted.internet.defer import CancelledError, Deferred, DeferredList
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import deferLater
from twisted.logger import Logger
from twisted.python.failure import Failure

_log = Logger()


def fired_within(clock: IReactorTime, seconds: float, ending: Deferred[Any]) -> Deferred[bool]:
    """Return whether ``ending`` fires within ``seconds``; it is not cancelled if it does not.

    Its result is ignored: its owner logs errors first. Cancelling the returned Deferred only ends
    the wait.
    """
    known: Deferred[bool] = Deferred(lambda _: timer.cancel())
    timer = clock.callLater(seconds, known.callback, False)

    def ended(_: object) -> None:
        if timer.active():
            timer.cancel()
            known.callback(True)

    _ = ending.addBoth(ended)
    return known


async def ended_or_cancelled(
    clock: IReactorTime, finish: float, cancel: float, deferreds: Sequence[Deferred[Any]]
) -> bool:
    """Wait ``finish`` seconds for ``deferreds``, then cancel them and wait ``cancel`` seconds.

    Return whether all have fired then.
    """
    if finish and await fired_within(clock, finish, DeferredList(deferreds)):
        return True
    for each in deferreds:
        each.cancel()
    return await fired_within(clock, cancel, DeferredList(deferreds))


async def all_fired_within(
    clock: IReactorTime, seconds: float, deferreds: Iterable[Deferred[Any]]
) -> bool:
    """Wait until all ``deferreds`` have fired, at most ``seconds``; return whether all have.

    For ``stopService``: a Deferred that has not fired by then is left alone, and the caller aborts
    the connections behind it. A failure counts as fired and is logged, since a caller that stops
    has no other use for it.
    """
    ending = DeferredList([deferred.addErrback(log_failure) for deferred in deferreds])
    if ending.called:
        return True
    if not await fired_within(clock, seconds, ending):
        return False
    # In a later turn: the last Deferred may fire within a call that is not finished.
    await deferLater(clock, 0)
    return True


def log_failure(failure: Failure) -> None:
    """Log a failure that happened during a stop."""
    if not failure.check(CancelledError):
        _log.failure("While stopping, a part of the process ended with an error", failure)
