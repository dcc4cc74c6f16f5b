"""HTTP clients that a test controls byte by byte; responses are parsed with h11."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

import h11
from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectionDone
from twisted.internet.interfaces import IPullProducer
from twisted.python.failure import Failure
from zope.interface import implementer

from tests.e2e.clients import Incomplete, Payload, Peer

KEPT = 1024 * 1024
"""The default number of bytes of a body that are stored; the rest is only hashed."""

Fields = Iterable[tuple[bytes, bytes]]


@dataclass
class Response:
    """The response to a request; ``interim`` contains the responses before the final one."""

    status: int
    reason: bytes
    version: bytes
    fields: list[tuple[bytes, bytes]]
    interim: list[tuple[int, list[tuple[bytes, bytes]]]]
    body: bytearray = field(default_factory=bytearray)
    size: int = 0
    trailers: list[tuple[bytes, bytes]] = field(default_factory=list)
    kept: int = KEPT

    def __post_init__(self) -> None:
        self._hash = hashlib.sha256()

    def values(self, name: bytes) -> list[bytes]:
        """Return the values of all fields with this name."""
        return [value for key, value in self.fields if key.lower() == name.lower()]

    def take(self, data: bytes) -> None:
        """Count and hash a chunk of the body."""
        self.size += len(data)
        self._hash.update(data)
        if len(self.body) < self.kept:
            self.body += data

    @property
    def digest(self) -> str:
        """The SHA-256 of the body."""
        return self._hash.hexdigest()

    @property
    def text(self) -> str:
        """The body as text."""
        return self.body.decode("utf-8", "replace")


class Answer:
    """The pending response to one request; ``switch`` gets the connection after a 101.

    ``response`` grows while its body arrives; ``error`` is the reason if it stays incomplete.
    """

    def __init__(
        self, method: bytes = b"GET", switch: Peer | None = None, kept: int = KEPT
    ) -> None:
        self.switch = switch
        self._kept = kept
        self.response: Response | None = None
        self.complete = False
        self.error: Exception | None = None
        self._interim: list[tuple[int, list[tuple[bytes, bytes]]]] = []
        self._waiting_for_head: list[Deferred[Response]] = []
        self._waiting_for_end: list[Deferred[Response]] = []
        self._waiting_for_interim: list[Deferred[int]] = []
        self._parser = h11.Connection(h11.CLIENT, max_incomplete_event_size=KEPT)
        # The parser needs a request to parse the response; the test sends what it likes.
        headers = [("Host", "x")]
        if switch is not None:
            headers += [("Connection", "upgrade"), ("Upgrade", "x")]
        self._parser.send(h11.Request(method=method, target="/", headers=headers))
        self._parser.send(h11.EndOfMessage())

    def begun(self) -> Deferred[Response]:
        """Fire once the head of the final response is complete."""
        return self._wait(self._waiting_for_head, self.response is not None)

    def whole(self) -> Deferred[Response]:
        """Fire once the response is complete (a 101: once its head is)."""
        return self._wait(self._waiting_for_end, self.complete)

    def interim(self) -> Deferred[int]:
        """Fire with the status of the first interim response."""
        waiter: Deferred[int] = Deferred()
        if self._interim:
            waiter.callback(self._interim[0][0])
        elif self.error is not None:
            waiter.errback(self.error)
        else:
            self._waiting_for_interim.append(waiter)
        return waiter

    def feed(self, data: bytes) -> bytes | None:
        """Parse bytes (empty at end of file); return those after the response, or None."""
        self._parser.receive_data(data)
        while not self.complete:
            event = self._parser.next_event()
            if event is h11.NEED_DATA:
                return None
            self._take(event)
        return self._parser.trailing_data[0]

    def fail(self, error: Exception) -> None:
        """Fail: the response will not be complete."""
        self.error = self.error or error
        for waiters in (self._waiting_for_head, self._waiting_for_end, self._waiting_for_interim):
            while waiters:
                waiters.pop().errback(self.error)

    def _take(self, event) -> None:
        if isinstance(event, h11.InformationalResponse) and event.status_code != 101:
            self._interim.append((event.status_code, list(event.headers.raw_items())))
            _fire(self._waiting_for_interim, event.status_code)
        elif isinstance(event, h11.Response | h11.InformationalResponse):
            fields = list(event.headers.raw_items())
            version = event.http_version
            self.response = Response(
                event.status_code, event.reason, version, fields, self._interim, kept=self._kept
            )
            _fire(self._waiting_for_head, self.response)
            self.complete = event.status_code == 101
        elif isinstance(event, h11.Data):
            self.response.take(event.data)
        elif isinstance(event, h11.EndOfMessage):
            self.response.trailers = list(event.headers.raw_items())
            self.complete = True
        else:
            raise Incomplete(f"the connection ended without an answer: {event}")

    def tell(self) -> None:
        """Notify the waiters that the response is complete."""
        _fire(self._waiting_for_end, self.response)

    def _wait(self, waiters: list[Deferred[Response]], now: bool) -> Deferred[Response]:
        waiter: Deferred[Response] = Deferred()
        if now:
            waiter.callback(self.response)
        elif self.error is not None:
            waiter.errback(self.error)
        else:
            waiters.append(waiter)
        return waiter


class HttpClient(Peer):
    """A connection that sends requests, pipelined if desired, and reads the responses in order.

    ``host`` is the value of the requests' field Host; ``kept`` bytes of each body are stored.
    """

    def __init__(self, host: str = "", kept: int = KEPT) -> None:
        super().__init__()
        self.host = host
        self._kept = kept
        self.unexpected = b""
        """Received bytes that belong to no response."""
        self._expected: deque[Answer] = deque()
        self._user: Peer | None = None

    def connectionMade(self) -> None:
        """Send without delay."""
        self.transport.setTcpNoDelay(True)
        super().connectionMade()

    def ask(
        self, target: str, method: str = "GET", fields: Fields = (), body: bytes | None = None
    ) -> Answer:
        """Send a whole request."""
        if body is not None:
            fields = [*fields, (b"Content-Length", b"%d" % len(body))]
        self.send_head(target, method, fields, body or b"")
        return self.expect(method.encode())

    def send_head(
        self, target: str, method: str = "GET", fields: Fields = (), behind: bytes = b""
    ) -> None:
        """Send a head, followed by ``behind`` in the same write."""
        lines = b"".join(b"%b: %b\r\n" % item for item in fields)
        head = f"{method} {target} HTTP/1.1\r\nHost: {self.host}\r\n".encode()
        self.transport.write(head + lines + b"\r\n" + behind)

    def expect(self, method: bytes = b"GET", switch: Peer | None = None) -> Answer:
        """Expect one more response after those that are already expected."""
        answer = Answer(method, switch, self._kept)
        self._expected.append(answer)
        return answer

    def upgrade(
        self,
        target: str,
        peer: Peer,
        protocol: bytes = b"SPDY/3.1",
        fields: Fields = (),
        early: bytes = b"",
        method: str = "POST",
    ) -> Answer:
        """Request an upgrade, with ``early`` after the head; ``peer`` speaks the new protocol.

        As with clients written in Go, a POST has ``Content-Length: 0``.
        """
        fields = [(b"Connection", b"Upgrade"), (b"Upgrade", protocol), *fields]
        if method == "POST":
            fields.append((b"Content-Length", b"0"))
        self.send_head(target, method, fields, early)
        return self.expect(method.encode(), peer)

    def dataReceived(self, data: bytes) -> None:
        """Parse bytes of responses, or pass them to the protocol of an upgrade."""
        super().dataReceived(data)
        if self._user is not None:
            self._user.dataReceived(data)
            return
        while data and self._expected:
            rest = self._feed(self._expected[0], data)
            if rest is None:
                return
            answer = self._expected.popleft()
            if answer.switch is not None and answer.response.status == 101:
                self._hand_over(answer.switch, rest)
                rest = b""
            answer.tell()
            data = rest
        self.unexpected += data

    def readConnectionLost(self) -> None:
        """Record that the server has finished, and close as clients do."""
        super().readConnectionLost()
        if self._user is not None:
            self._user.readConnectionLost()
            return
        self._no_more_data()
        self.transport.loseConnection()

    def connectionLost(self, reason: Failure) -> None:
        """Fail all expected responses."""
        super().connectionLost(reason)
        if self._user is not None:
            self._user.connectionLost(reason)
        if reason.check(ConnectionDone):
            self._no_more_data()
        while self._expected:
            self._expected.popleft().fail(Incomplete(f"the connection ended: {reason.value}"))

    def _no_more_data(self) -> None:
        """Handle an orderly end of the connection: some bodies end with it."""
        while self._expected:
            answer = self._expected.popleft()
            if self._feed(answer, b"") is not None:
                answer.tell()

    def _feed(self, answer: Answer, data: bytes) -> bytes | None:
        try:
            return answer.feed(data)
        except (h11.RemoteProtocolError, Incomplete) as error:
            answer.fail(Incomplete(str(error)))
            self.drop()
            return None

    def _hand_over(self, peer: Peer, early: bytes) -> None:
        self._user = peer
        peer.makeConnection(self.transport)
        if early:
            peer.dataReceived(early)


@implementer(IPullProducer)
class ChunkedUpload:
    """The chunked body of a request, written to ``transport`` as fast as it accepts data."""

    def __init__(self, transport, size: int) -> None:
        self.payload = Payload(size)
        self._transport = transport
        transport.registerProducer(self, False)

    def resumeProducing(self) -> None:
        """Write the next chunk: the last one has been sent."""
        data = self.payload.take()
        if data:
            self._transport.write(b"%x\r\n%b\r\n" % (len(data), data))
        else:
            self._transport.unregisterProducer()
            self._transport.write(b"0\r\n\r\n")

    def stopProducing(self) -> None:
        """Do nothing: the connection is lost, and the expected response gets the reason."""


def _fire(waiters: list[Deferred], result) -> None:
    while waiters:
        waiters.pop().callback(result)
