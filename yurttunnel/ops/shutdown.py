"""Ending the process: with an error, from within the reactor, and on repeated signals."""

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
"""The exit status: EX_SOFTWARE of sysexits.h."""


def exit_with_error(reactor: IReactorCore, sentence: str) -> None:
    """Stop ``reactor``, and exit with an error status and ``sentence`` on stderr.

    Stopping the reactor alone exits with status 0, and a ``SystemExit`` that is raised in a
    callback is only logged. The status is set in an exit handler, which runs last because
    handlers run in reverse order of registration; it flushes the standard streams first.
    """
    atexit.register(_exit)
    # Services are started before the reactor runs, and it cannot be stopped until then.
    reactor.callWhenRunning(_stop, reactor)
    # Exiting must not depend on disk space, or on a reader of stderr.
    with contextlib.suppress(OSError, ValueError):
        print(sentence, file=sys.__stderr__, flush=True)


def _stop(reactor: IReactorCore) -> None:
    # A signal or another error may have stopped it already.
    with contextlib.suppress(ReactorNotRunning):
        reactor.stop()


def _exit() -> None:
    for stream in (sys.stdout, sys.stderr):
        # The status must be right even if the streams are closed or have no reader.
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(STATUS)


def stop_on_sighup(reactor: Any, stop: Callable[[], object]) -> None:
    """Call ``stop()`` in ``reactor`` on SIGHUP, unless SIGHUP is ignored, as by nohup(1).

    A closing terminal sends SIGHUP, which by default kills the process: without draining, and
    without the cleanup of a program at its end, such as of firewall rules.
    """

    def received(number: int, frame: object) -> None:
        reactor.callFromThread(stop)

    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
        signal.signal(signal.SIGHUP, received)


def stop_on_early_signals(reactor: Any) -> None:
    """Have SIGTERM, and SIGINT unless it is ignored, stop ``reactor`` as soon as it runs.

    Before it runs, they kill the process by default, which leaves its files behind.
    """
    signal.signal(signal.SIGTERM, reactor.sigTerm)
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, reactor.sigInt)


def ignore_repeated_stops(reactor: Any) -> None:
    """Make ``reactor`` only log a further request to stop while it is stopping.

    Supervisors and people repeat SIGTERM when a drain takes long. Twisted treats that as an error,
    and logs a traceback.
    """
    stop = reactor.stop

    def stop_unless_stopping() -> None:
        try:
            stop()
        except ReactorNotRunning:
            _log.info("stop requested again: already stopping, and waiting for the drain")

    reactor.stop = stop_unless_stopping
