"""Connections of our own to endpoints, to find out whether they answer."""

from __future__ import annotations

import enum

from twisted.internet.defer import Deferred, DeferredSemaphore
from twisted.internet.error import TimeoutError as ConnectTimedOut
from twisted.internet.interfaces import IAddress, IConnector, IReactorTCP, ITCPTransport
from twisted.internet.protocol import ClientFactory, Protocol, connectionDone
from twisted.python.failure import Failure

from yurttunnel.proxy.state.virtual_services import Endpoint

SECONDS = 0.35
"""How long an endpoint may take to answer. With the time before it is suspected this has to be less
than the second after which TCP sends a client's first packet again."""

AT_ONCE = 64
"""Probes that are under way at a time; further ones wait."""


class Outcome(enum.Enum):
    """What an endpoint has done."""

    ANSWERED = "it answers"
    REFUSED = "it refuses connections"
    SILENT = "it does not answer"


class Prober:
    """Connects by TCP, and ends the connection at once."""

    def __init__(self, reactor: IReactorTCP) -> None:
        self._reactor = reactor
        self._turn = DeferredSemaphore(AT_ONCE)

    def probe(self, endpoint: Endpoint) -> Deferred[Outcome]:
        """Return what the endpoint does, after :data:`SECONDS` at most once it is its turn."""
        return self._turn.run(self._connect, endpoint)

    def _connect(self, endpoint: Endpoint) -> Deferred[Outcome]:
        probe = _Probe()
        self._reactor.connectTCP(str(endpoint.address), endpoint.port, probe, timeout=SECONDS)
        return probe.outcome


class _Probe(ClientFactory):
    noisy = False

    def __init__(self) -> None:
        self.outcome: Deferred[Outcome] = Deferred()

    def buildProtocol(self, addr: IAddress | None) -> Protocol:
        """Take note of the answer."""
        return _Connected(self.outcome)

    def clientConnectionFailed(self, connector: IConnector, reason: Failure) -> None:
        """Tell why: also where a router says that there is no way."""
        silent = reason.check(ConnectTimedOut) is not None
        self.outcome.callback(Outcome.SILENT if silent else Outcome.REFUSED)


class _Connected(Protocol):
    transport: ITCPTransport

    def __init__(self, outcome: Deferred[Outcome]) -> None:
        self._outcome = outcome

    def connectionMade(self) -> None:
        """End it; a reset leaves nothing behind at either end."""
        self.transport.abortConnection()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """Tell that it stood."""
        self._outcome.callback(Outcome.ANSWERED)
