"""Published attacks on HTTP parsers, at each port; what passes is checked."""

from __future__ import annotations

import re

import h11
from twisted.internet.error import ConnectionDone
from twisted.internet.protocol import Factory
from twisted.internet.task import Clock
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from tests.adversarial.published import DESTINATIONS, HIDDEN, ODD, REQUESTS, RESPONSES
from tests.fakes import Recorder
from tests.ops.test_http_site import TcpTransport
from tests.server.frontends.connecting import ESTABLISHED, ConnectTestCase
from tests.server.frontends.kubelet.world import KubeletTLS, World
from yurttunnel.ops.http_site import LimitedSite, PageRequest, PageResponse
from yurttunnel.tunnel import tls

METHOD_AND_TARGET = re.compile(rb"POST \S+")
FRAMING = re.compile(rb"\r\n(?:content-length|transfer-encoding):[^\r\n]*", re.IGNORECASE)
FINAL_STATUS = re.compile(rb"HTTP/1\.[01] (?!100 )\d{3} ")
"""The status line of a final response."""


def misread(passed: bytes, allowed: int = 1) -> str:
    """Return what is wrong with the requests that passed on one connection, or an empty text."""
    head = passed.partition(b"\r\n\r\n")[0]
    if re.search(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]", head) or re.search(
        rb"\r(?!\n)|(?<!\r)\n", head
    ):
        return "a control character in the head"
    names = [line.partition(b":")[0].lower() for line in head.split(b"\r\n")[1:]]
    letters = [re.sub(rb"[^a-z]", b"", name) for name in names]
    framing = [each for each in letters if each in (b"transferencoding", b"contentlength")]
    if len(framing) > 1:
        return f"framed more than once: {names}"
    parser = h11.Connection(h11.SERVER)
    targets = []
    try:
        parser.receive_data(passed)
        while (event := parser.next_event()) not in (h11.NEED_DATA, h11.PAUSED):
            if isinstance(event, h11.Request):
                targets.append(event.target)
    except h11.RemoteProtocolError as error:
        return str(error)
    if parser.trailing_data[0] or len(targets) > allowed or b"/smuggled" in targets:
        return f"more than one request: {targets}, {parser.trailing_data[0]!r}"
    return ""


def read_by_another(request: bytes) -> tuple[bytes, bytes]:
    """Return the target and the body of a request, as another implementation parses them."""
    parser = h11.Connection(h11.SERVER)
    parser.receive_data(request.removeprefix(b"\r\n"))
    target, body = b"", b""
    while not isinstance(event := parser.next_event(), h11.EndOfMessage):
        if isinstance(event, h11.Request):
            target = event.target
        elif isinstance(event, h11.Data):
            body += event.data
        else:
            raise AssertionError(f"no whole request: {event} in {request!r}")
    return target, body


class MisreadTests(SynchronousTestCase):
    """:func:`misread` itself."""

    def test_smuggled_requests(self) -> None:
        """It detects smuggled requests, and accepts a hidden request that is a body."""
        begin = b"POST / HTTP/1.1\r\nHost: a\r\n"
        for passed in (
            begin + b"\r\n" + HIDDEN,
            begin + b"Content-Length: 0\r\nTransfer_Encoding: chunked\r\n\r\n",
            begin + b"X: \rY: z\r\n\r\n",
            begin + b"X : y\r\n\r\n",
            begin + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + HIDDEN,
        ):
            self.assertTrue(misread(passed), passed)
        self.assertFalse(misread(begin + b"Content-Length: %d\r\n\r\n" % len(HIDDEN) + HIDDEN))


class InterceptionTests(World):
    """10263 and 10264, with kubelets that record."""

    def record(self, secure: bool) -> None:
        """Serve kubelets that record what they receive, with TLS or without, and do not respond."""
        self.kubelets: list[Recorder] = []

        def kubelet() -> Recorder:
            self.kubelets.append(Recorder())
            return self.kubelets[-1]

        factory: Factory = Factory.forProtocol(kubelet)
        if secure:
            contexts = KubeletTLS(self.issuer.server("edge-1"), names=None)
            factory = tls.server_side(self.reactor, contexts, factory)
        self.listen(factory)

    def end_caller(self, caller: Recorder) -> None:
        """Close a caller's connection, and forget the kubelets' connections."""
        caller.transport.abortConnection()
        self.settle()
        self.links.clear()
        self.kubelets.clear()

    def send_attacks(self, secure: bool) -> None:
        """Send each attack on a connection of its own."""
        self.record(secure)
        refused = 0
        for source, requests in REQUESTS.items():
            for text in requests:
                caller = self.dial() if secure else self.dial_insecurely()
                caller.transport.write(text)
                self.settle()
                self.clock.advance(1)
                self.settle()
                refused += b"HTTP/1.1 4" in caller.received or b"HTTP/1.1 5" in caller.received
                for kubelet in self.kubelets:
                    problem = misread(kubelet.received)
                    self.assertFalse(problem, f"{source}: {text!r}: {kubelet.received!r}")
                self.end_caller(caller)
        # In the other requests, the hidden field is one for no parser.
        self.assertGreater(refused, sum(map(len, REQUESTS.values())) * 3 // 4)

    def send_odd_requests(self, secure: bool) -> None:
        """Send each allowed request, and check what reaches the kubelet."""
        self.record(secure)
        reached = 0
        for source, requests in ODD.items():
            for text in requests:
                caller = self.dial() if secure else self.dial_insecurely()
                caller.transport.write(text)
                self.settle()
                passed = b"".join(kubelet.received for kubelet in self.kubelets)
                message = f"{source}: {text!r}: {passed!r} {caller.received!r}"
                head, _, body = passed.partition(b"\r\n\r\n")
                self.assertNotRegex(
                    head.lower(), rb"\n(te|keep-alive|proxy-connection|x-hop):", message
                )
                self.assertNotRegex(body.lower(), rb"\n(cookie|authorization|x-trailer):", message)
                if passed:
                    reached += 1
                    problem = misread(passed)
                    self.assertFalse(problem, f"{problem}: {message}")
                    self.assertEqual(head.lower().count(b"\nhost: "), 1, message)
                else:
                    self.assertRegex(caller.received, rb"HTTP/1.1 [45]", message)
                self.end_caller(caller)
        self.assertGreaterEqual(reached, 36)

    def test_odd_requests_at_the_secure_port(self) -> None:
        """An unusual but valid request through 10263 reaches a kubelet once and complete."""
        self.send_odd_requests(secure=True)

    def test_odd_requests_at_the_insecure_port(self) -> None:
        """An unusual but valid request through 10264 reaches a kubelet once and complete."""
        self.send_odd_requests(secure=False)

    def test_secure_port(self) -> None:
        """A request through 10263 reaches a kubelet as one unambiguous request, or is rejected."""
        self.send_attacks(secure=True)

    def test_insecure_port(self) -> None:
        """A request through 10264 reaches a kubelet as one unambiguous request, or is rejected."""
        self.send_attacks(secure=False)

    def send_responses(self, secure: bool) -> None:
        """Answer the first request of each caller with a published response."""
        self.record(secure)
        for source, responses in RESPONSES.items():
            for text in responses:
                caller = self.dial() if secure else self.dial_insecurely()
                self.send_request(caller)
                self.kubelets[-1].transport.write(text)
                self.settle()
                self.kubelets[-1].transport.loseConnection()
                self.settle()
                message = f"{source}: {text!r}: {caller.received!r}"
                self.assertNotIn(b"Smuggled", caller.received.partition(b"\r\n\r\n")[0], message)
                client = h11.Connection(h11.CLIENT)
                client.send(h11.Request(method="GET", target="/", headers=[("Host", "a")]))
                client.send(h11.EndOfMessage())
                client.receive_data(caller.received)
                heads = []
                while (event := client.next_event()) not in (h11.NEED_DATA, h11.PAUSED):
                    if isinstance(event, h11.Response):
                        heads.append(event)
                    if isinstance(event, h11.EndOfMessage):
                        break
                self.assertEqual(1, len(heads), message)
                self.assertEqual(b"", client.trailing_data[0], message)
                self.end_caller(caller)

    def test_answers_at_the_secure_port(self) -> None:
        """A caller of 10263 gets one well-formed response, and nothing after it."""
        self.send_responses(secure=True)

    def test_answers_at_the_insecure_port(self) -> None:
        """A caller of 10264 gets one well-formed response, and nothing after it."""
        self.send_responses(secure=False)


class ConnectTests(ConnectTestCase):
    """CONNECT, with a session that records its dials."""

    def test_destinations(self) -> None:
        """A target that is not a host with a port is rejected, and no node is dialed."""
        for target in DESTINATIONS:
            connection = self.open(b"CONNECT %b HTTP/1.1\r\nHost: edge-1:80\r\n\r\n" % target)
            connection.turns()
            dialed = [(dial.host, dial.port) for dial in self.session.dials]
            self.assertEqual([], dialed, target)
            self.assertRegex(connection.sent, rb"\AHTTP/1\.1 [45]", target)
            connection.break_off(ConnectionDone())
        self.open(b"CONNECT edge-1:80 HTTP/1.1\r\nHost: edge-1:80\r\n\r\n")
        self.assertEqual(1, len(self.session.dials), "what is one is dialed")

    def test_requests(self) -> None:
        """No attack is taken for a CONNECT with a body."""
        for source, requests in REQUESTS.items():
            for text in requests:
                for line in (text, text.replace(b"POST /attack", b"CONNECT edge-1:80")):
                    connection = self.open(line)
                    connection.turns(2)
                    self.assertLessEqual(len(self.session.dials), 1, f"{source}: {line!r}")
                    for dial in self.session.dials:
                        self.assertEqual(("edge-1", 80), (dial.host, dial.port))
                        head = line.partition(b"\r\n\r\n")[0]
                        self.assertNotRegex(
                            head, rb"(?i)(content|transfer)[-_ ]?(length|enc)", line
                        )
                    self.session.dials.clear()
                    connection.break_off(ConnectionDone())

    def test_odd_requests(self) -> None:
        """A request with a body is rejected, also as a CONNECT; its body is no second request."""
        for source, requests in ODD.items():
            for text in requests:
                for line in (
                    text,
                    text.replace(b"POST ", b"CONNECT "),
                    METHOD_AND_TARGET.sub(b"CONNECT edge-1:80", text),
                ):
                    connection = self.open(line)
                    connection.turns()
                    message = f"{source}: {line!r}: {connection.sent!r}"
                    self.assertEqual([], self.session.dials, message)
                    self.assertRegex(connection.sent, rb"\AHTTP/1\.1 [45]", message)
                    self.assertEqual(1, len(FINAL_STATUS.findall(connection.sent)), message)
                    connection.break_off(ConnectionDone())

    def test_odd_fields(self) -> None:
        """Without a body, the bytes after the head reach the target, or the request is rejected."""
        reached = 0
        for source, requests in ODD.items():
            for text in requests:
                head = FRAMING.sub(b"", text.partition(b"\r\n\r\n")[0])
                line = METHOD_AND_TARGET.sub(b"CONNECT edge-1:80", head) + b"\r\n\r\n" + HIDDEN
                connection = self.open(line)
                received = []
                for dial in self.session.dials:
                    self.assertEqual(("edge-1", 80), (dial.host, dial.port), line)
                    target = dial.succeed()
                    connection.turns()
                    received.append(target.received)
                connection.turns()
                message = f"{source}: {line!r}: {connection.sent!r}"
                if received:
                    reached += 1
                    self.assertEqual(([HIDDEN], ESTABLISHED), (received, connection.sent), message)
                else:
                    self.assertRegex(connection.sent, rb"\AHTTP/1\.1 [45]", message)
                    self.assertEqual(1, len(FINAL_STATUS.findall(connection.sent)), message)
                self.session.dials.clear()
                connection.break_off(ConnectionDone())
        self.assertGreaterEqual(reached, 39)


class RecordingPage:
    """A page of a meta port that records its requests."""

    def __init__(self) -> None:
        self.paths: list[str] = []
        self.requests: list[tuple[bytes, bytes]] = []

    def __call__(self, request: PageRequest) -> PageResponse:
        """Record the path, and the target with the body."""
        self.paths.append(request.path)
        self.requests.append((request.head.target, request.body))
        return PageResponse(b"text/plain", b"recorded")


class MetaPortTests(SynchronousTestCase):
    """10265 and 10266, which respond by themselves."""

    def send(self, text: bytes) -> tuple[RecordingPage, bytes]:
        """Send ``text`` to a page. Return the page and the response."""
        page, transport = RecordingPage(), TcpTransport()
        protocol = LimitedSite({"/*": page}, Clock()).buildProtocol(None)
        protocol.makeConnection(transport)
        protocol.dataReceived(text)
        protocol.connectionLost(Failure(ConnectionDone()))
        return page, transport.value()

    def test_requests(self) -> None:
        """The hidden request is never taken for a request."""
        for source, requests in REQUESTS.items():
            for text in requests:
                page, _ = self.send(text)
                self.assertLessEqual(len(page.paths), 1, f"{source}: {text!r}")
                self.assertNotIn("/smuggled", page.paths, f"{source}: {text!r}")

    def test_odd_requests(self) -> None:
        """A page receives the request once, as another parser reads it, or it is rejected."""
        reached = 0
        for source, requests in ODD.items():
            for text in requests:
                page, response = self.send(text)
                message = f"{source}: {text!r}: {page.requests} {response!r}"
                self.assertEqual(1, len(FINAL_STATUS.findall(response)), message)
                if page.requests:
                    reached += 1
                    self.assertEqual([read_by_another(text)], page.requests, message)
                else:
                    self.assertRegex(response, rb"HTTP/1\.[01] [45]", message)
        self.assertGreaterEqual(reached, 36)
