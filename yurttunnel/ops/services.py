"""Building blocks for the services of programs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.application.service import IService, MultiService, Service
from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.interfaces import IListeningPort, IReactorTime
from twisted.python.failure import Failure

from yurttunnel.ops.listen import CannotListen
from yurttunnel.ops.reconciler import Reconciler
from yurttunnel.ops.timeouts import log_failure


class PortService(Service):
    """Listens while it runs; ``listen`` binds at once, or raises CannotListen.

    ``end()`` is called when the port has stopped listening.
    """

    def __init__(
        self, listen: Callable[[], IListeningPort], end: Callable[[], object] = lambda: None
    ) -> None:
        self._listen = listen
        self._end = end
        self._port: IListeningPort | None = None

    def startService(self) -> None:
        self._port = self._listen()
        super().startService()

    def stopService(self) -> Deferred[None] | None:
        super().stopService()
        port, self._port = self._port, None
        closed = None if port is None else port.stopListening()
        self._end()
        return closed


class RetryingPort(Reconciler):
    """Listens while it runs, and tries again every ``period`` seconds while it cannot.

    ``problem`` is then the reason, which :meth:`report` logs once; a later success is logged, too.
    ``what`` is that of :class:`Reconciler`.
    """

    def __init__(
        self, clock: IReactorTime, period: float, what: str, listen: Callable[[], IListeningPort]
    ) -> None:
        super().__init__(clock, period, what, self.try_listening)
        self.problem: str | None = None
        self._listen = listen
        self._port: IListeningPort | None = None

    @property
    def listens(self) -> bool:
        """Whether the port is open."""
        return self._port is not None

    def report(self, error: CannotListen) -> None:
        """Log why it cannot listen."""
        raise NotImplementedError

    def stopService(self) -> Deferred[Any]:
        """Close the port; no attempt is under way, because none waits for anything."""
        stopped = super().stopService()
        port, self._port = self._port, None
        return stopped if port is None else maybeDeferred(port.stopListening)

    async def try_listening(self) -> None:
        """Listen, unless it does already."""
        if self._port is not None:
            return
        try:
            self._port = self._listen()
        except CannotListen as error:
            if str(error) != self.problem:
                self.problem = str(error)
                self.report(error)
        else:
            if self.problem is not None:
                self.problem = None
                self._log.info("{what} succeeded", what=self._what)


class CloseOnStop(Service):
    """Calls ``close()`` when it stops, and waits for the result."""

    def __init__(self, close: Callable[[], Deferred[Any] | None]) -> None:
        self._close = close

    def stopService(self) -> Deferred[Any] | None:
        super().stopService()
        return self._close()


class StoppedInReverse(MultiService):
    """Starts ``parts`` in order, those that are not ``None``, and stops them in reverse order.

    They stop one by one. The first parts thus serve the others until these have stopped:
    ``/readyz`` shows the drain.
    """

    def __init__(self, *parts: IService | None) -> None:
        super().__init__()
        for part in parts:
            if part is not None:
                part.setServiceParent(self)

    def stopService(self) -> Deferred[None]:
        """Stop each part after the one behind it has stopped; fail with the first failure.

        Further failures are logged.
        """
        return Deferred.fromCoroutine(self._stop())

    async def _stop(self) -> None:
        Service.stopService(self)
        # A part that fails must not prevent the drain of the others.
        failures: list[Failure] = []
        for part in reversed(list(self)):
            await maybeDeferred(part.stopService).addErrback(failures.append)
        for further in failures[1:]:
            log_failure(further)
        if failures:
            failures[0].raiseException()
