"""Endpoints that send their own and the client's address, and clients that hash the response.

An endpoint sends first, as in many protocols: a line with its own address and its client's. Then it
sends back what it receives, and closes when the client has closed its direction. So each call uses
both directions, and ends through a half-closed connection.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace

from twisted.internet.defer import Deferred, maybeDeferred, succeed
from twisted.internet.error import ConnectError
from twisted.internet.protocol import ClientFactory, DatagramProtocol, Factory

from tests.e2e.clients import Payload, Peer, Sender
from tests.proxy.kernel.lab import retransmissions_of

REFUSED = "ConnectionRefusedError"
CLOSED = "closed"
UNANSWERED = "unanswered"
UNREACHED = ("TimeoutError", "NoRouteError")
"""The problems of an address without a machine, with and without an error message."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of a client.

    ``endpoint`` is the address of the endpoint that served it, ``client`` the address that the
    endpoint saw, ``seconds`` the time until the greeting, or else until the end, and ``attempts``
    how often the client has sent its first packet. ``problem`` is empty if all data came back.
    """

    endpoint: str = ""
    client: str = ""
    seconds: float = 0.0
    problem: str = ""
    attempts: int = 1


class Caller(Sender):
    """Sends a payload and its end, and compares the response.

    ``answered`` fires with the :class:`Answer` when the connection has ended, ``greeted`` when the
    endpoint has sent its greeting, or at the end at the latest. One that ``keeps_open`` sends
    nothing until :meth:`finish` is called.
    """

    def __init__(self, reactor, size: int, keeps_open: bool) -> None:
        super().__init__()
        self._reactor = reactor
        self._began = reactor.seconds()
        self.payload = Payload(size)
        self._keeps_open = keeps_open
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
        if not self._keeps_open:
            self.finish()

    def finish(self) -> None:
        """Send the payload, and then the end."""
        if self.transport is not None and self.lost_reason is None:
            self.transport.registerProducer(self, False)

    def dataReceived(self, data: bytes) -> None:
        """Read the greeting, and hash what follows."""
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
        """Close after the remaining data."""
        super().readConnectionLost()
        self.transport.loseConnection()

    def connectionLost(self, reason) -> None:
        """Fire with the result."""
        super().connectionLost(reason)
        complete = self.read_ended and self._hash.hexdigest() == self.payload.digest
        self._end("" if self._greeting and complete else CLOSED)

    def not_connected(self, reason) -> None:
        """Fire with the result that no endpoint was reached."""
        self.lost_reason = reason
        self._end(type(reason.value).__name__ if reason.check(ConnectError) else str(reason.value))

    @property
    def answer(self) -> Answer:
        """Return the result so far."""
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
        """Fire with the failure."""
        self._caller.not_connected(reason)


class Greeter(Peer):
    """The endpoint's end of a connection; ``head`` is the data before the first byte of a call."""

    def __init__(self, endpoint: StreamEndpoint) -> None:
        super().__init__()
        self._endpoint = endpoint

    def connectionMade(self) -> None:
        """Send the greeting."""
        super().connectionMade()
        self._endpoint.connections.add(self)
        self._endpoint.total += 1
        here, there = self.transport.getHost().host, self.transport.getPeer().host
        self.transport.write(f"{here} {there}\n".encode())

    def dataReceived(self, data: bytes) -> None:
        """Send data back, as fast as it is accepted."""
        super().dataReceived(data)
        self.transport.write(data)

    def readConnectionLost(self) -> None:
        """Close after the remaining data."""
        super().readConnectionLost()
        self.transport.loseConnection()

    def connectionLost(self, reason) -> None:
        """Remove the connection."""
        super().connectionLost(reason)
        self._endpoint.connections.discard(self)


class StreamEndpoint(Factory):
    """A TCP port of an endpoint; ``connections`` are current ones, ``total`` counts all."""

    noisy = False

    def __init__(self) -> None:
        self.connections: set[Greeter] = set()
        self.total = 0

    def buildProtocol(self, addr) -> Greeter:
        """Accept a connection."""
        return Greeter(self)

    def cut(self) -> None:
        """Reset all connections, as at the end of a process."""
        for connection in list(self.connections):
            connection.drop()


class DatagramEndpoint(DatagramProtocol):
    """A UDP port of an endpoint: answers ``ADDRESS CLIENT`` and the datagram.

    ``delay`` is the number of seconds before the answer, ``total`` counts datagrams.
    """

    noisy = False

    def __init__(self, reactor, address: str) -> None:
        self._reactor = reactor
        self._address = address
        self.delay = 0.0
        self.total = 0

    def datagramReceived(self, datagram, addr) -> None:
        """Count a datagram, and answer it after the delay."""
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
    """A UDP client with its own port, which sends one request after the other."""

    noisy = False

    def __init__(self, reactor) -> None:
        self._reactor = reactor
        self._question = b""
        self._waiting: _Waiting | None = None

    def ask(self, question: bytes, answer_timeout: float) -> Deferred[Answer]:
        """Send a datagram and wait for its answer."""
        self._question = question
        answered: Deferred[Answer] = Deferred()
        timeout = self._reactor.callLater(answer_timeout, self._end, UNANSWERED)
        self._waiting = _Waiting(answered, self._reactor.seconds(), timeout)
        self.transport.write(question)
        return answered

    def datagramReceived(self, datagram, addr) -> None:
        """Accept an answer to the current request; a late one is ignored."""
        head, _, rest = datagram.partition(b"\n")
        if rest == self._question:
            endpoint, _, client = head.decode().partition(" ")
            self._end("", endpoint, client)

    def connectionRefused(self) -> None:
        """Record that nothing listens (ICMP port unreachable)."""
        self._end(REFUSED)

    def stopProtocol(self) -> None:
        """Record the same: Twisted's port ends on the error, when epoll reports it."""
        self._end(REFUSED)

    def close(self) -> Deferred[None]:
        """Close the port."""
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
