"""Connections of our own to endpoints, to find out whether they answer."""

from __future__ import annotations

import enum
from typing import TypeVar

from twisted.internet.defer import Deferred, DeferredSemaphore
from twisted.internet.interfaces import IAddress, IConnector, IDelayedCall, ITCPTransport
from twisted.internet.protocol import ClientFactory, Protocol, connectionDone
from twisted.python.failure import Failure

from yurttunnel.proxy.sockets.dialing import NO_SOURCE
from yurttunnel.proxy.state.virtual_services import Endpoint
from yurttunnel.tunnel.reactor import IReactor
from yurttunnel.tunnel.sockets import EXHAUSTED

SECONDS = 0.25
"""How long an endpoint may take to answer: as long as in user mode, where the next one is dialed
then. With the time before it is suspected this leaves more than half of the second after which TCP
sends a client's first packet again, to change rules on a busy machine."""

AT_ONCE = 64
"""Probes that are under way at a time; further ones wait."""


_LONGER = 4
"""Times :data:`SECONDS`: the time of Twisted's, which never comes to it."""

_Result = TypeVar("_Result")


class Outcome(enum.Enum):
    """What an endpoint has done."""

    ANSWERED = "it answers"
    REFUSED = "it refuses connections"
    SILENT = "it does not answer"
    UNKNOWN = "this machine cannot open a socket to ask it"


class Prober:
    """Connects by TCP, and ends the connection at once."""

    def __init__(self, reactor: IReactor) -> None:
        self._reactor = reactor
        self._turn = DeferredSemaphore(AT_ONCE)
        self._probing: set[Deferred[Outcome]] = set()

    def probe(self, endpoint: Endpoint) -> Deferred[Outcome]:
        """Return what the endpoint does, after :data:`SECONDS` at most once it is its turn.

        Fails with ``CancelledError`` where :meth:`stop` comes before.
        """
        probing: Deferred[Outcome] = self._turn.run(self._connect, endpoint)
        self._probing.add(probing)
        return probing.addBoth(self._end, probing)

    def stop(self) -> None:
        """Give up what is under way."""
        for probing in list(self._probing):
            probing.cancel()

    def _end(self, result: _Result, probing: Deferred[Outcome]) -> _Result:
        self._probing.discard(probing)
        return result

    def _connect(self, endpoint: Endpoint) -> Deferred[Outcome]:
        probe = _Probe(self._reactor)
        # Its own timer is not used: it would not take what has come while this process was late.
        self._reactor.connectTCP(
            str(endpoint.address), endpoint.port, probe, timeout=_LONGER * SECONDS
        )
        return probe.outcome


class _Probe(ClientFactory):
    noisy = False
    _connector: IConnector | None = None

    def __init__(self, reactor: IReactor) -> None:
        self.outcome: Deferred[Outcome] = Deferred(self._give_up)
        self._reactor = reactor
        self._is_over = False
        self._waiting: IDelayedCall = reactor.callLater(SECONDS, self._wait_a_turn)

    def tell(self, outcome: Outcome) -> None:
        """Report what the endpoint has done, unless nobody waits for it any more."""
        if not self._is_over:
            self._end()
            self.outcome.callback(outcome)

    def startedConnecting(self, connector: IConnector) -> None:
        """Take note of what could be given up."""
        self._connector = connector

    def buildProtocol(self, addr: IAddress | None) -> Protocol:
        """Take note of the answer."""
        return _Connected(self)

    def clientConnectionFailed(self, connector: IConnector, reason: Failure) -> None:
        """Report why: also where a router says that there is no way."""
        is_own = getattr(reason.value, "osError", None) in {*EXHAUSTED, NO_SOURCE}
        self.tell(Outcome.UNKNOWN if is_own else Outcome.REFUSED)

    def _wait_a_turn(self) -> None:
        """Have the reactor read what has come: it serves timers first."""
        self._waiting = self._reactor.callLater(0, self._silent)

    def _silent(self) -> None:
        self.tell(Outcome.SILENT)
        self._disconnect()

    def _give_up(self, _: Deferred[Outcome]) -> None:
        self._end()
        self._disconnect()

    def _end(self) -> None:
        self._is_over = True
        if self._waiting.active():
            self._waiting.cancel()

    def _disconnect(self) -> None:
        if self._connector is not None:
            self._connector.disconnect()


class _Connected(Protocol):
    transport: ITCPTransport

    def __init__(self, probe: _Probe) -> None:
        self._probe = probe

    def connectionMade(self) -> None:
        """End it; a reset leaves nothing behind at either end."""
        self.transport.abortConnection()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """Report that it stood."""
        self._probe.tell(Outcome.ANSWERED)
