"""A part of a program that has to wait for something before it can even be made."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from twisted.application.service import IService, Service
from twisted.internet.defer import CancelledError, Deferred, maybeDeferred
from twisted.logger import Logger

from yurttunnel.ops.ending import end_process
from yurttunnel.tunnel.reactor import IReactor


class DeferredStart(Service):
    """Makes and starts a service of ``program`` when ``ready()`` is over.

    ``waiting`` says, for ``/readyz``, what is missing until then. What keeps it from starting, such
    as a port in use, ends the process with a sentence: whoever started it should see that.
    """

    _log = Logger()

    def __init__(
        self,
        reactor: IReactor,
        program: str,
        waiting: str,
        ready: Callable[[], Awaitable[None]],
        make: Callable[[], IService],
    ) -> None:
        self._reactor = reactor
        self._program = program
        self._ready = ready
        self._make = make
        self._beginning: Deferred[None] | None = None
        self._made: IService | None = None
        self.not_accepting: Callable[[], str | None] = lambda: waiting
        """What does not serve, for ``/readyz``; whoever is made replaces it."""

    def problem(self) -> str | None:
        """Return what it waits for, or the problem of the service once there is one."""
        return self.not_accepting()

    def startService(self) -> None:
        super().startService()
        self._beginning = Deferred.fromCoroutine(self._begin())

    async def _begin(self) -> None:
        try:
            await self._ready()
            made = self._make()
            made.startService()
            self._made = made
        except CancelledError:
            return
        except SystemExit as error:
            end_process(self._reactor, str(error.code))
        except Exception as error:
            # A process that lives on without listening would look healthy to its supervisor.
            self._log.failure(
                "{program} could not begin because of a defect", program=self._program
            )
            end_process(self._reactor, f"{self._program}: internal error: {error!r}")

    def stopService(self) -> Deferred[Any]:
        """Stop the service, or the waiting for it."""
        super().stopService()
        beginning, self._beginning = self._beginning, None
        if beginning is not None:
            beginning.cancel()
        made, self._made = self._made, None
        return maybeDeferred(lambda: None if made is None else made.stopService())
