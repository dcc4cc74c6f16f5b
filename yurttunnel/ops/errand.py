"""A process that removes what others have left on the machine, and ends."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Awaitable, Callable, Sequence

from twisted.application.service import Service
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IReactorCore
from twisted.logger import Logger

from yurttunnel.ops.ending import end_process


class Errand(Service):
    """Removes what is there by ``run()`` when the process starts, and ends that.

    The sentences that it gives say what was removed. With an error of the class ``expected`` the
    process ends with a sentence about ``flag``, and with any other one, too.
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
            # The kernel's many refusals then have one reason.
            hint = "" if os.geteuid() == 0 else "run it as root: "
            end_process(self._reactor, f"{self._flag}: {hint}{error}")
            return
        except Exception as error:
            # Whoever waits for it to end would wait for ever.
            self._log.failure("{flag} could not be done because of a defect", flag=self._flag)
            end_process(self._reactor, f"{self._flag}: internal error: {error!r}")
            return
        # The end must not depend on somebody who reads.
        with contextlib.suppress(OSError, ValueError):
            for sentence in sentences or ["there was nothing to remove"]:
                # What goes to sys.stdout becomes part of twist's log.
                print(sentence, file=sys.__stdout__)
        self._reactor.stop()
