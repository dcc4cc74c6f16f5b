"""Ending the process: with an error, from within the reactor, and when told to more than once."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from twisted.internet.error import ReactorNotRunning
from twisted.internet.interfaces import IReactorCore
from twisted.logger import Logger

_log = Logger()

STATUS = 70
"""EX_SOFTWARE of sysexits.h is what the shell sees."""


def end_process(reactor: IReactorCore, sentence: str) -> None:
    """Stop ``reactor`` and have the process exit with an error, ``sentence`` on stderr.

    Stopping alone ends with status 0, and ``SystemExit`` raised in a callback is only
    logged. The exit handler is the last word because handlers run in reverse order of their
    registration, and the standard streams are flushed before it.
    """
    atexit.register(_exit)
    # Services are started before the reactor runs, and it cannot be stopped until then.
    reactor.callWhenRunning(_stop, reactor)
    # The end must not depend on a full disk, or on somebody who reads.
    with contextlib.suppress(OSError, ValueError):
        print(sentence, file=sys.__stderr__, flush=True)


def _stop(reactor: IReactorCore) -> None:
    # It may be stopping already, by a signal or another error.
    with contextlib.suppress(ReactorNotRunning):
        reactor.stop()


def _exit() -> None:
    for stream in (sys.stdout, sys.stderr):
        # The status has to be right even when nobody reads them any more, or they are closed.
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(STATUS)


def stop_at_hangup(reactor: Any, stop: Callable[[], object]) -> None:
    """Have SIGHUP call ``stop()`` in ``reactor``, unless it is ignored, as by nohup(1).

    A terminal that closes sends it, and it would end the process on the spot: without a drain, and
    with all that a program removes in the end, such as rules of the firewall, left behind.
    """

    def hung_up(number: int, frame: object) -> None:
        reactor.callFromThread(stop)

    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
        signal.signal(signal.SIGHUP, hung_up)


def stop_once(reactor: Any) -> None:
    """Have ``reactor`` only log that it is to stop while it stops.

    Supervisors and people repeat SIGTERM when a drain takes its time. For Twisted that is an
    error, of which it logs a traceback.
    """
    stop = reactor.stop

    def stop_unless_stopping() -> None:
        try:
            stop()
        except ReactorNotRunning:
            _log.info("told to stop again: it stops already, when its drain allows")

    reactor.stop = stop_unless_stopping
