"""A part of a program that must wait for a condition before it can be created."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from twisted.application.service import IService, Service
from twisted.internet.defer import CancelledError, Deferred, maybeDeferred
from twisted.logger import Logger

from yurttunnel.ops.shutdown import exit_with_error
from yurttunnel.tunnel.reactor import IReactor


class DeferredStart(Service):
    """Creates and starts a service of ``program`` once ``ready()`` has finished.

    ``waiting`` describes for ``/readyz`` what is missing until then. If the service cannot start,
    for example because a port is in use, the process ends with an error message, so that the
    failure is visible to its supervisor.
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
        """The service for ``/readyz`` to check; the actual service replaces it."""

    def problem(self) -> str | None:
        """Return what the start waits for, or afterwards the problem of the service, if any."""
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
            exit_with_error(self._reactor, str(error.code))
        except Exception as error:
            # A process that stayed up without listening would look healthy to its supervisor.
            self._log.failure(
                "{program} could not start because of a defect", program=self._program
            )
            exit_with_error(self._reactor, f"{self._program}: internal error: {error!r}")

    def stopService(self) -> Deferred[Any]:
        """Stop the service, or stop waiting."""
        super().stopService()
        beginning, self._beginning = self._beginning, None
        if beginning is not None:
            beginning.cancel()
        made, self._made = self._made, None
        return maybeDeferred(lambda: None if made is None else made.stopService())
