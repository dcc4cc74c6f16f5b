"""The announcement that a process prints when it first becomes ready."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TextIO

from twisted.application.service import Service
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import LoopingCall
from twisted.logger import Logger
from twisted.python.failure import Failure

from yurttunnel.ops.readiness import Readiness, is_ready

INTERVAL = 0.1
"""The interval between two checks of the readiness, in seconds."""


def terminal() -> TextIO | None:
    """Return standard output if it is a terminal; in place of ``sys.stdout`` twist has its log."""
    screen = sys.__stdout__
    return screen if screen is not None and screen.isatty() else None


class Announcement(Service):
    """Calls ``announce()`` once, when ``readiness`` first reports no problem."""

    _log = Logger()

    def __init__(
        self, clock: IReactorTime, readiness: Readiness, announce: Callable[[], object]
    ) -> None:
        self._readiness = readiness
        self._announce = announce
        self._loop = LoopingCall(self._check)
        self._loop.clock = clock

    def startService(self) -> None:
        """Begin to check once the reactor runs."""
        super().startService()
        _ = self._loop.start(INTERVAL, now=False).addErrback(self._defect)

    def stopService(self) -> None:
        super().stopService()
        if self._loop.running:
            self._loop.stop()

    def _check(self) -> None:
        if is_ready(self._readiness.findings()):
            self._loop.stop()
            self._announce()

    def _defect(self, failure: Failure) -> None:
        self._log.failure("Defect: the startup message is not printed", failure)
