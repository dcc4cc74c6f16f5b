"""Published attacks on readers of HTTP, at each port; what gets through is the judge."""

from __future__ import annotations

import re

import h11
from twisted.internet.error import ConnectionDone
from twisted.internet.protocol import Factory
from twisted.internet.task import Clock
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from tests.adversarial.published import ANSWERS, DESTINATIONS, HIDDEN, ODD, REQUESTS
from tests.fakes import Recorder
from tests.ops.test_http_site import TcpTransport
from tests.server.frontends.connecting import ESTABLISHED, ConnectTestCase
from tests.server.frontends.kubelet.world import KubeletTLS, World
from yurttunnel.ops.http_site import LimitedSite, PageRequest, PageResponse
from yurttunnel.tunnel import tls

METHOD_AND_TARGET = re.compile(rb"POST \S+")
FRAMING = re.compile(rb"\r\n(?:content-length|transfer-encoding):[^\r\n]*", re.IGNORECASE)
ANSWER = re.compile(rb"HTTP/1\.[01] (?!100 )\d{3} ")
"""A status line that is not an interim one's."""


def misread(passed: bytes, allowed: int = 1) -> str:
    """What is wrong with the requests that have got through on one connection, if anything."""
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
    """Return the target and the body of a request, as another implementation reads them."""
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


class JudgeTests(SynchronousTestCase):
    """The judge itself."""

    def test_what_is_misread(self) -> None:
        """It sees what it is there for, and lets a hidden request pass where it is a body."""
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
        """Have kubelets keep what comes, with TLS or without, instead of answering."""
        self.kubelets: list[Recorder] = []

        def kubelet() -> Recorder:
            self.kubelets.append(Recorder())
            return self.kubelets[-1]

        factory: Factory = Factory.forProtocol(kubelet)
        if secure:
            contexts = KubeletTLS(self.issuer.server("edge-1"), names=None)
            factory = tls.server_side(self.reactor, contexts, factory)
        self.listen(factory)

    def forget(self, caller: Recorder) -> None:
        """End a caller, and what there was for it."""
        caller.transport.abortConnection()
        self.settle()
        self.links.clear()
        self.kubelets.clear()

    def attack(self, secure: bool) -> None:
        """Make each request on a connection of its own."""
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
                self.forget(caller)
        # The others are requests whose hidden field is none for anybody.
        self.assertGreater(refused, sum(map(len, REQUESTS.values())) * 3 // 4)

    def ask_oddly(self, secure: bool) -> None:
        """Make each request that is allowed, and judge what comes of it at the kubelet."""
        self.record(secure)
        reached = 0
        for source, requests in ODD.items():
            for text in requests:
                caller = self.dial() if secure else self.dial_insecurely()
                caller.transport.write(text)
                self.settle()
                passed = b"".join(kubelet.received for kubelet in self.kubelets)
                named = f"{source}: {text!r}: {passed!r} {caller.received!r}"
                head, _, body = passed.partition(b"\r\n\r\n")
                self.assertNotRegex(
                    head.lower(), rb"\n(te|keep-alive|proxy-connection|x-hop):", named
                )
                self.assertNotRegex(body.lower(), rb"\n(cookie|authorization|x-trailer):", named)
                if passed:
                    reached += 1
                    problem = misread(passed)
                    self.assertFalse(problem, f"{problem}: {named}")
                    self.assertEqual(head.lower().count(b"\nhost: "), 1, named)
                else:
                    self.assertRegex(caller.received, rb"HTTP/1.1 [45]", named)
                self.forget(caller)
        self.assertGreaterEqual(reached, 36)

    def test_odd_requests_at_the_secure_port(self) -> None:
        """What may be spelled so reaches a kubelet by 10263 as one request, whole and once."""
        self.ask_oddly(secure=True)

    def test_odd_requests_at_the_insecure_port(self) -> None:
        """The same by 10264."""
        self.ask_oddly(secure=False)

    def test_secure_port(self) -> None:
        """What reaches a kubelet by 10263 is one request that nobody misreads, or nothing."""
        self.attack(secure=True)

    def test_insecure_port(self) -> None:
        """The same by 10264."""
        self.attack(secure=False)

    def answer(self, secure: bool) -> None:
        """Answer the first request of each caller."""
        self.record(secure)
        for source, answers in ANSWERS.items():
            for text in answers:
                caller = self.dial() if secure else self.dial_insecurely()
                self.ask(caller)
                self.kubelets[-1].transport.write(text)
                self.settle()
                self.kubelets[-1].transport.loseConnection()
                self.settle()
                named = f"{source}: {text!r}: {caller.received!r}"
                self.assertNotIn(b"Smuggled", caller.received.partition(b"\r\n\r\n")[0], named)
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
                self.assertEqual(1, len(heads), named)
                self.assertEqual(b"", client.trailing_data[0], named)
                self.forget(caller)

    def test_answers_at_the_secure_port(self) -> None:
        """A caller of 10263 gets one answer that is well formed, and nothing behind it."""
        self.answer(secure=True)

    def test_answers_at_the_insecure_port(self) -> None:
        """The same at 10264."""
        self.answer(secure=False)


class ConnectTests(ConnectTestCase):
    """CONNECT, in front of a session that records."""

    def test_destinations(self) -> None:
        """What is no host with a port is refused, and no node is asked."""
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
        """None of the requests is taken for a CONNECT."""
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
        """What has a body is refused, in itself and as a CONNECT, and the body is no request."""
        for source, requests in ODD.items():
            for text in requests:
                for line in (
                    text,
                    text.replace(b"POST ", b"CONNECT "),
                    METHOD_AND_TARGET.sub(b"CONNECT edge-1:80", text),
                ):
                    connection = self.open(line)
                    connection.turns()
                    named = f"{source}: {line!r}: {connection.sent!r}"
                    self.assertEqual([], self.session.dials, named)
                    self.assertRegex(connection.sent, rb"\AHTTP/1\.1 [45]", named)
                    self.assertEqual(1, len(ANSWER.findall(connection.sent)), named)
                    connection.break_off(ConnectionDone())

    def test_odd_fields(self) -> None:
        """Without a body what follows the head is the target's, to the byte, or nobody's."""
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
                named = f"{source}: {line!r}: {connection.sent!r}"
                if received:
                    reached += 1
                    self.assertEqual(([HIDDEN], ESTABLISHED), (received, connection.sent), named)
                else:
                    self.assertRegex(connection.sent, rb"\AHTTP/1\.1 [45]", named)
                    self.assertEqual(1, len(ANSWER.findall(connection.sent)), named)
                self.session.dials.clear()
                connection.break_off(ConnectionDone())
        self.assertGreaterEqual(reached, 39)


class Recording:
    """A meta port's page that keeps what it is asked for."""

    def __init__(self) -> None:
        self.paths: list[str] = []
        self.asked: list[tuple[bytes, bytes]] = []

    def __call__(self, request: PageRequest) -> PageResponse:
        """Keep the path, and the target with the body."""
        self.paths.append(request.path)
        self.asked.append((request.head.target, request.body))
        return PageResponse(b"text/plain", b"recorded")


class MetaPortTests(SynchronousTestCase):
    """10265 and 10266, which answer by themselves."""

    def ask(self, text: bytes) -> tuple[Recording, bytes]:
        """Return a page for which somebody has asked so, and what was answered."""
        page, transport = Recording(), TcpTransport()
        protocol = LimitedSite({"/*": page}, Clock()).buildProtocol(None)
        protocol.makeConnection(transport)
        protocol.dataReceived(text)
        protocol.connectionLost(Failure(ConnectionDone()))
        return page, transport.value()

    def test_requests(self) -> None:
        """Whatever comes, the hidden request is not one."""
        for source, requests in REQUESTS.items():
            for text in requests:
                page, _ = self.ask(text)
                self.assertLessEqual(len(page.paths), 1, f"{source}: {text!r}")
                self.assertNotIn("/smuggled", page.paths, f"{source}: {text!r}")

    def test_odd_requests(self) -> None:
        """A page is asked for what another reader takes the request for, once, or it is refused."""
        reached = 0
        for source, requests in ODD.items():
            for text in requests:
                page, answer = self.ask(text)
                named = f"{source}: {text!r}: {page.asked} {answer!r}"
                self.assertEqual(1, len(ANSWER.findall(answer)), named)
                if page.asked:
                    reached += 1
                    self.assertEqual([read_by_another(text)], page.asked, named)
                else:
                    self.assertRegex(answer, rb"HTTP/1\.[01] [45]", named)
        self.assertGreaterEqual(reached, 36)
