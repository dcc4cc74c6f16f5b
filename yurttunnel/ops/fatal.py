"""Ending the process with an error, from within the reactor."""

from __future__ import annotations

import atexit
import os
import sys
from typing import Protocol

STATUS = 70
"""EX_SOFTWARE of sysexits.h is what the shell sees."""


class Stoppable(Protocol):
    """A reactor, as far as it is needed here."""

    def stop(self) -> None:
        """Stop the services, then the process."""


def end_process(reactor: Stoppable, sentence: str) -> None:
    """Stop ``reactor`` and have the process exit with an error, ``sentence`` on stderr.

    ``reactor.stop()`` alone ends with status 0, and ``SystemExit`` raised in a callback is only
    logged. The exit handler is the last word because handlers run in reverse order of their
    registration, and the standard streams are flushed before it.
    """
    print(sentence, file=sys.__stderr__, flush=True)
    atexit.register(_exit)
    reactor.stop()


def _exit() -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(STATUS)
