"""Ending the process with an error, from within the reactor."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys

from twisted.internet.error import ReactorNotRunning
from twisted.internet.interfaces import IReactorCore

STATUS = 70
"""EX_SOFTWARE of sysexits.h is what the shell sees."""


def end_process(reactor: IReactorCore, sentence: str) -> None:
    """Stop ``reactor`` and have the process exit with an error, ``sentence`` on stderr.

    Stopping alone ends with status 0, and ``SystemExit`` raised in a callback is only
    logged. The exit handler is the last word because handlers run in reverse order of their
    registration, and the standard streams are flushed before it.
    """
    print(sentence, file=sys.__stderr__, flush=True)
    atexit.register(_exit)
    # Services are started before the reactor runs, and it cannot be stopped until then.
    reactor.callWhenRunning(_stop, reactor)


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
