"""A process that cleans up what other processes left on the machine, and exits."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Awaitable, Callable, Sequence

from twisted.application.service import Service
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IReactorCore
from twisted.logger import Logger

from yurttunnel.ops.shutdown import exit_with_error


class CleanupTask(Service):
    """Runs the cleanup ``run()`` when the process starts, and then ends the process.

    The messages that ``run()`` returns say what was removed. An error of class ``expected`` ends
    the process with a message that names ``flag``; any other error ends it with a message, too.
    """

    _log = Logger()

    def __init__(
        self,
        reactor: IReactorCore,
        flag: str,
        run: Callable[[], Awaitable[Sequence[str]]],
        expected: type[Exception],
    ) -> None:
        self._reactor = reactor
        self._flag = flag
        self._run = run
        self._expected = expected
        self._running: Deferred[None] | None = None

    def startService(self) -> None:
        super().startService()
        self._reactor.callWhenRunning(self._begin)

    def stopService(self) -> None:
        super().stopService()
        if self._running is not None:
            self._running.cancel()

    def _begin(self) -> None:
        self._running = Deferred.fromCoroutine(self._do())

    async def _do(self) -> None:
        try:
            sentences = await self._run()
        except CancelledError:
            return
        except self._expected as error:
            # All these errors of the kernel then have one cause.
            hint = "" if os.geteuid() == 0 else "run it as root: "
            exit_with_error(self._reactor, f"{self._flag}: {hint}{error}")
            return
        except Exception as error:
            # Without this, whatever waits for the process to end would wait forever.
            self._log.failure("{flag} failed because of a defect", flag=self._flag)
            exit_with_error(self._reactor, f"{self._flag}: internal error: {error!r}")
            return
        # The exit must not depend on a reader of the output.
        with contextlib.suppress(OSError, ValueError):
            for sentence in sentences or ["there was nothing to remove"]:
                # Not sys.stdout: what is written to it goes to the log of twist.
                print(sentence, file=sys.__stdout__, flush=True)
        self._reactor.stop()
