"""Endpoints that tell who they are and whom they see, and clients that hash what comes back.

An endpoint speaks first, as many protocols have it: a line with its own address and its client's.
Then it sends back what it gets, and ends when the client has ended its direction. So each call
goes both ways, and the last of it through a connection that is half closed.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace

from twisted.internet.defer import Deferred, maybeDeferred, succeed
from twisted.internet.error import ConnectError
from twisted.internet.protocol import ClientFactory, DatagramProtocol, Factory

from tests.e2e.clients import Payload, Peer
from tests.proxy.kernel.lab import retransmissions_of

REFUSED = "ConnectionRefusedError"
CLOSED = "closed"
UNANSWERED = "unanswered"
UNREACHED = ("TimeoutError", "NoRouteError")
"""Where nobody has an address, by whether somebody says so."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a client got.

    ``endpoint`` is the address of who served it, ``client`` the one that was seen there,
    ``seconds`` how long it took until the greeting, or else until the end, ``attempts`` how often
    the client has sent its first packet. ``problem`` is empty where all came back that was sent.
    """

    endpoint: str = ""
    client: str = ""
    seconds: float = 0.0
    problem: str = ""
    attempts: int = 1


class Caller(Peer):
    """Sends a payload and its end, and compares what comes back.

    ``answered`` fires with the :class:`Answer` when the connection has ended, ``greeted`` when the
    endpoint has spoken, or by then at the latest. One that ``stays`` sends nothing until it is told
    to :meth:`finish`.
    """

    def __init__(self, reactor, size: int, stays: bool) -> None:
        super().__init__()
        self._reactor = reactor
        self._began = reactor.seconds()
        self._payload = Payload(size)
        self._stays = stays
        self._greeting = b""
        self._seconds = 0.0
        self._attempts = 1
        self._hash = hashlib.sha256()
        self.greeted: Deferred[None] = Deferred()
        self.answered: Deferred[Answer] = Deferred()

    def connectionMade(self) -> None:
        """Send."""
        super().connectionMade()
        self._attempts += retransmissions_of(self.transport.getHandle())
        if not self._stays:
            self.finish()

    def finish(self) -> None:
        """Send what there is, and then the end."""
        if self.transport is not None and self.lost_reason is None:
            self.transport.registerProducer(self, False)

    def resumeProducing(self) -> None:
        """Write the next chunk: the last one has left."""
        chunk = self._payload.take()
        if chunk:
            self.transport.write(chunk)
        else:
            self.transport.unregisterProducer()
            self.transport.loseWriteConnection()

    def stopProducing(self) -> None:
        """Do nothing: the connection has gone, ``connectionLost`` says why."""

    def dataReceived(self, data: bytes) -> None:
        """Take the greeting, and hash what follows."""
        if not self._greeting.endswith(b"\n"):
            head, separator, data = data.partition(b"\n")
            self._greeting += head + separator
            if not separator:
                return
            self._seconds = self._reactor.seconds() - self._began
            self.greeted.callback(None)
        super().dataReceived(data)
        self._hash.update(data)

    def readConnectionLost(self) -> None:
        """Close behind what is still to be sent."""
        super().readConnectionLost()
        self.transport.loseConnection()

    def connectionLost(self, reason) -> None:
        """Answer."""
        super().connectionLost(reason)
        whole = self.read_ended and self._hash.hexdigest() == self._payload.digest
        self._end("" if self._greeting and whole else CLOSED)

    def not_connected(self, reason) -> None:
        """Answer that there is nobody."""
        self.lost_reason = reason
        self._end(type(reason.value).__name__ if reason.check(ConnectError) else str(reason.value))

    @property
    def answer(self) -> Answer:
        """What it has got so far."""
        endpoint, _, client = self._greeting.decode().strip().partition(" ")
        return Answer(endpoint, client, self._seconds, attempts=self._attempts)

    def _end(self, problem: str) -> None:
        got = self.answer
        seconds = got.seconds or self._reactor.seconds() - self._began
        if not self.greeted.called:
            self.greeted.callback(None)
        self.answered.callback(replace(got, seconds=seconds, problem=problem))


class CallerFactory(ClientFactory):
    """Builds one caller."""

    noisy = False

    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    def buildProtocol(self, addr) -> Caller:
        """Return it."""
        return self._caller

    def clientConnectionFailed(self, connector, reason) -> None:
        """Have it answer."""
        self._caller.not_connected(reason)


class Greeter(Peer):
    """The endpoint's end of a connection; ``head`` is what came before the first byte of a call."""

    def __init__(self, endpoint: StreamEndpoint) -> None:
        super().__init__()
        self._endpoint = endpoint

    def connectionMade(self) -> None:
        """Greet."""
        super().connectionMade()
        self._endpoint.connections.add(self)
        self._endpoint.total += 1
        here, there = self.transport.getHost().host, self.transport.getPeer().host
        self.transport.write(f"{here} {there}\n".encode())

    def dataReceived(self, data: bytes) -> None:
        """Send it back, as fast as it is taken."""
        super().dataReceived(data)
        self.transport.write(data)

    def readConnectionLost(self) -> None:
        """Close behind what is still to be sent."""
        super().readConnectionLost()
        self.transport.loseConnection()

    def connectionLost(self, reason) -> None:
        """Be forgotten."""
        super().connectionLost(reason)
        self._endpoint.connections.discard(self)


class StreamEndpoint(Factory):
    """A TCP port of an endpoint; ``connections`` are those that stand, ``total`` all so far."""

    noisy = False

    def __init__(self) -> None:
        self.connections: set[Greeter] = set()
        self.total = 0

    def buildProtocol(self, addr) -> Greeter:
        """Take a connection."""
        return Greeter(self)

    def cut(self) -> None:
        """Reset all connections, as the end of a process does."""
        for connection in list(self.connections):
            connection.drop()


class DatagramEndpoint(DatagramProtocol):
    """A UDP port of an endpoint: answers ``ADDRESS CLIENT`` and the datagram.

    ``delay`` are the seconds until then, ``total`` counts datagrams.
    """

    noisy = False

    def __init__(self, reactor, address: str) -> None:
        self._reactor = reactor
        self._address = address
        self.delay = 0.0
        self.total = 0

    def datagramReceived(self, datagram, addr) -> None:
        """Answer."""
        self.total += 1
        answer = f"{self._address} {addr[0]}\n".encode() + datagram
        if self.delay:
            self._reactor.callLater(self.delay, self._answer, answer, addr)
        else:
            self._answer(answer, addr)

    def _answer(self, answer: bytes, addr) -> None:
        if self.transport is not None:
            self.transport.write(answer, addr)


@dataclass
class _Waiting:
    answered: Deferred[Answer]
    began: float
    timeout: object = field(repr=False)


class DatagramCaller(DatagramProtocol):
    """A UDP client with a port of its own, which asks one question after the other."""

    noisy = False

    def __init__(self, reactor) -> None:
        self._reactor = reactor
        self._question = b""
        self._waiting: _Waiting | None = None

    def ask(self, question: bytes, patience: float) -> Deferred[Answer]:
        """Send a datagram and wait for its answer."""
        self._question = question
        answered: Deferred[Answer] = Deferred()
        timeout = self._reactor.callLater(patience, self._end, UNANSWERED)
        self._waiting = _Waiting(answered, self._reactor.seconds(), timeout)
        self.transport.write(question)
        return answered

    def datagramReceived(self, datagram, addr) -> None:
        """Take an answer to the question of the moment; a late one is nobody's."""
        head, _, rest = datagram.partition(b"\n")
        if rest == self._question:
            endpoint, _, client = head.decode().partition(" ")
            self._end("", endpoint, client)

    def connectionRefused(self) -> None:
        """Note that nobody listens (ICMP port unreachable)."""
        self._end(REFUSED)

    def stopProtocol(self) -> None:
        """Note the same: Twisted's port has ended at it, when it was told by epoll."""
        self._end(REFUSED)

    def close(self) -> Deferred[None]:
        """Give the port back."""
        if self.transport is None:
            return succeed(None)
        return maybeDeferred(self.transport.stopListening)

    def _end(self, problem: str, endpoint: str = "", client: str = "") -> None:
        if self._waiting is None:
            return
        waiting, self._waiting = self._waiting, None
        if waiting.timeout.active():
            waiting.timeout.cancel()
        seconds = self._reactor.seconds() - waiting.began
        waiting.answered.callback(Answer(endpoint, client, seconds, problem))
