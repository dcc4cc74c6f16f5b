"""Connections of this process to endpoints, to find out whether they respond."""

from __future__ import annotations

import enum
from typing import TypeVar

from twisted.internet.defer import Deferred, DeferredSemaphore
from twisted.internet.interfaces import IAddress, IConnector, IDelayedCall, ITCPTransport
from twisted.internet.protocol import ClientFactory, Protocol, connectionDone
from twisted.python.failure import Failure

from yurttunnel.proxy.sockets.dialing import NO_SOURCE_ADDRESS
from yurttunnel.proxy.state.virtual_services import Endpoint
from yurttunnel.tunnel.reactor import IReactor
from yurttunnel.tunnel.sockets import EXHAUSTED

TIMEOUT = 0.25
"""How long an endpoint may take to respond: as long as in user mode, which dials the next one then.
With the time before the suspicion, this leaves more than half of the second after which TCP
retransmits a client's first packet, for a change of rules on a busy machine."""

MAX_PROBES = 64
"""The maximum number of probes in progress; others wait."""


_TWISTED_FACTOR = 4
"""A multiple of :data:`TIMEOUT`: Twisted's own timeout, which never expires first."""

_Result = TypeVar("_Result")


class Outcome(enum.Enum):
    """The result of a probe."""

    ANSWERED = "it answers"
    REFUSED = "it refuses connections"
    SILENT = "it does not answer"
    UNKNOWN = "this machine cannot open a socket to probe it"


class Prober:
    """Connects by TCP, and closes the connection at once."""

    def __init__(self, reactor: IReactor) -> None:
        self._reactor = reactor
        self._semaphore = DeferredSemaphore(MAX_PROBES)
        self._probing: set[Deferred[Outcome]] = set()

    def probe(self, endpoint: Endpoint) -> Deferred[Outcome]:
        """Return the result of a probe, at most :data:`TIMEOUT` after it starts.

        Fails with ``CancelledError`` if :meth:`stop` is called first.
        """
        probing: Deferred[Outcome] = self._semaphore.run(self._connect, endpoint)
        self._probing.add(probing)
        return probing.addBoth(self._finish, probing)

    def stop(self) -> None:
        """Cancel the probes in progress."""
        for probing in list(self._probing):
            probing.cancel()

    def _finish(self, result: _Result, probing: Deferred[Outcome]) -> _Result:
        self._probing.discard(probing)
        return result

    def _connect(self, endpoint: Endpoint) -> Deferred[Outcome]:
        probe = _Probe(self._reactor)
        # Its own timeout is not used: it would ignore a response that arrived while this process
        # was late.
        self._reactor.connectTCP(
            str(endpoint.address), endpoint.port, probe, timeout=_TWISTED_FACTOR * TIMEOUT
        )
        return probe.outcome


class _Probe(ClientFactory):
    noisy = False
    _connector: IConnector | None = None

    def __init__(self, reactor: IReactor) -> None:
        self.outcome: Deferred[Outcome] = Deferred(self._cancelled)
        self._reactor = reactor
        self._is_over = False
        self._timer: IDelayedCall = reactor.callLater(TIMEOUT, self._wait_for_reads)

    def report(self, outcome: Outcome) -> None:
        """Report the result, unless the probe has ended."""
        if not self._is_over:
            self._finish()
            self.outcome.callback(outcome)

    def startedConnecting(self, connector: IConnector) -> None:
        """Store the connector, to cancel the connection."""
        self._connector = connector

    def buildProtocol(self, addr: IAddress | None) -> Protocol:
        """Make the protocol that records the response."""
        return _Connected(self)

    def clientConnectionFailed(self, connector: IConnector, reason: Failure) -> None:
        """Report the reason, including a router's report that there is no route."""
        is_own = getattr(reason.value, "osError", None) in {*EXHAUSTED, NO_SOURCE_ADDRESS}
        self.report(Outcome.UNKNOWN if is_own else Outcome.REFUSED)

    def _wait_for_reads(self) -> None:
        """Let the reactor read what has arrived: it runs timers first."""
        self._timer = self._reactor.callLater(0, self._timed_out)

    def _timed_out(self) -> None:
        self.report(Outcome.SILENT)
        self._disconnect()

    def _cancelled(self, _: Deferred[Outcome]) -> None:
        self._finish()
        self._disconnect()

    def _finish(self) -> None:
        self._is_over = True
        if self._timer.active():
            self._timer.cancel()

    def _disconnect(self) -> None:
        if self._connector is not None:
            self._connector.disconnect()


class _Connected(Protocol):
    transport: ITCPTransport

    def __init__(self, probe: _Probe) -> None:
        self._probe = probe

    def connectionMade(self) -> None:
        """Close the connection by a reset, which leaves no state at either end."""
        self.transport.abortConnection()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """Report that the connection was established."""
        self._probe.report(Outcome.ANSWERED)
