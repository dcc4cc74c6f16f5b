"""The limits of the meta port."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import count
from typing import Any

from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectionDone
from twisted.internet.protocol import Protocol
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.internet.threads import deferToThread
from twisted.logger import capturedLogs
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase, TestCase

from yurttunnel.ops.http_site import (
    MAX_BODY_BYTES,
    MAX_LINGERING,
    PAGES_PER_TURN,
    REQUEST_SECONDS,
    AnyPage,
    LimitedSite,
    PageRequest,
    PageResponse,
    text,
)
from yurttunnel.ops.slices import Slices
from yurttunnel.tunnel.direct.reactor import with_transports

REQUEST = b"GET / HTTP/1.1\r\nHost: meta\r\n"
METRICS = b"GET /metrics HTTP/1.1\r\nHost: meta\r\n\r\n"
PROBE = b"GET /healthz HTTP/1.1\r\nHost: meta\r\n\r\n"


BROKEN = b"the page could not be made: the log has the reason\n"


class CountingPage:
    """A page that counts its calls."""

    renders = 0

    def __call__(self, request: PageRequest) -> PageResponse:
        """Count the call."""
        self.renders += 1
        return text("counted")


class CountedPages(dict[str, AnyPage]):
    """A mapping of pages that counts its lookups."""

    lookups = 0

    def __contains__(self, path: object) -> bool:
        """Return whether the page exists."""
        self.lookups += 1
        return super().__contains__(path)

    def get(self, path: str, default: Any = None) -> Any:
        """Return a page that may be missing."""
        self.lookups += 1
        return super().get(path, default)


def late_page(request: PageRequest) -> Deferred[PageResponse]:
    """Return a response that never comes."""
    return Deferred()


def broken_page(request: PageRequest) -> PageResponse:
    """Raise an exception."""
    raise ArithmeticError


def data(body: str) -> AnyPage:
    """Return a page that responds with ``body``."""
    return lambda request: text(body)


class TcpTransport(StringTransport):
    """A transport from which a producer may be unregistered twice, like a real connection."""

    closed = 0

    def loseConnection(self) -> None:
        """Count the call."""
        super().loseConnection()
        self.closed += 1

    def unregisterProducer(self) -> None:
        """Unregister the producer, if there is one."""
        self.producer = None
        self.streaming = None

    def loseWriteConnection(self) -> None:
        """Record the call."""
        self.disconnecting = True

    def abortConnection(self) -> None:
        """Record the call; like a real transport, it notifies its protocol later."""
        self.disconnected = True


class LimitTests(SynchronousTestCase):
    """What clients of the port can and cannot do."""

    def setUp(self) -> None:
        """Build a site with one page and room for two connections in each state."""
        self.clock = Clock()
        self.pages: dict[str, AnyPage] = {"/": data("page")}
        self.site = self.limited()

    def limited(self, **options: Any) -> LimitedSite:
        """Make the site."""
        return LimitedSite(
            self.pages, self.clock, **{"max_awaiting_request": 2, "max_in_progress": 2, **options}
        )

    def add(self, path: str, page: AnyPage) -> None:
        """Add a page."""
        self.pages[path] = page
        self.site = self.limited()

    def connect(self) -> tuple[Any, StringTransport]:
        """Connect to the site."""
        transport = TcpTransport()
        channel = self.site.buildProtocol(None)
        channel.makeConnection(transport)
        return channel, transport

    def disconnect(self, channel: Protocol) -> None:
        """Notify a channel that its connection has ended."""
        channel.connectionLost(Failure(ConnectionDone()))

    def test_silent_client(self) -> None:
        """A client that sends nothing gets 408 and is disconnected after the request timeout."""
        channel, transport = self.connect()
        self.clock.advance(REQUEST_SECONDS - 0.1)
        self.assertFalse(transport.disconnecting)
        self.clock.advance(0.1)
        self.assertTrue(transport.value().startswith(b"HTTP/1.1 408 "), transport.value())
        self.assertTrue(transport.disconnecting)
        self.disconnect(channel)
        self.clock.advance(REQUEST_SECONDS)
        self.assertEqual([], self.clock.getDelayedCalls())

    def test_slow_client(self) -> None:
        """A client that sends a byte each second has the same timeout as a silent one."""
        channel, transport = self.connect()
        for byte in REQUEST[:REQUEST_SECONDS]:
            self.assertFalse(transport.disconnecting)
            channel.dataReceived(bytes([byte]))
            self.clock.advance(1)
        self.assertTrue(transport.disconnecting)

    def test_many_requests_at_once(self) -> None:
        """Of many pipelined requests only the first is served, and the connection is closed."""
        page = CountingPage()
        self.add("/", page)
        channel, transport = self.connect()
        channel.dataReceived((REQUEST + b"\r\n") * 1000)
        self.assertEqual(1, page.renders)
        self.assertEqual(1, transport.value().count(b"HTTP/1.1 200 OK\r\n"))
        self.assertRegex(transport.value(), rb"(?i)\r\nconnection: close\r\n")
        self.assertTrue(transport.value().endswith(b"\r\n\r\ncounted"), transport.value())
        self.assertTrue(transport.disconnecting)

    def test_client_that_does_not_read(self) -> None:
        """A connection is aborted when its client does not read the response in time."""
        channel, transport = self.connect()
        self.clock.advance(REQUEST_SECONDS - 1)
        channel.dataReceived(REQUEST + b"\r\n")
        self.assertFalse(transport.disconnected)
        self.clock.pump([REQUEST_SECONDS, REQUEST_SECONDS])
        self.assertTrue(transport.disconnected)

    def test_silent_clients_make_room(self) -> None:
        """A new connection replaces the oldest of too many that have not sent a request."""
        (_, oldest), (_, older), (newest, answered) = (self.connect() for _ in range(3))
        self.assertTrue(oldest.disconnected)
        self.assertFalse(older.disconnected)
        newest.dataReceived(REQUEST + b"\r\n")
        self.assertIn(b"page", answered.value())

    def test_slow_senders_make_room(self) -> None:
        """Sending a byte now and then does not make a client younger."""
        (slow, oldest), (_, older) = self.connect(), self.connect()
        slow.dataReceived(REQUEST)
        self.connect()
        self.assertTrue(oldest.disconnected)
        self.assertFalse(older.disconnected)

    def test_clients_that_do_not_read_make_room(self) -> None:
        """Clients that do not read their response do not block others and are disconnected."""
        transports = []
        for _ in range(3):
            channel, transport = self.connect()
            channel.dataReceived(REQUEST + b"\r\n")
            self.assertIn(b"page", transport.value())
            transports.append(transport)
        self.assertEqual([True, False, False], [each.disconnected for each in transports])

    def test_a_flood_of_requests_does_not_delay_a_probe(self) -> None:
        """Requests over the limit per turn wait, except probes; abandoned ones are dropped."""
        page = CountingPage()
        probes = ("/healthz", "/readyz", "/livez", "/v1/healthz", "/v1/readyz")
        self.pages = {"/": page, **dict.fromkeys(probes, data("ok"))}
        self.site = self.limited(max_awaiting_request=100, max_in_progress=PAGES_PER_TURN + 3)
        channels = []
        for _ in range(PAGES_PER_TURN + 20):
            channel, _ = self.connect()
            channel.dataReceived(REQUEST + b"\r\n")
            channels.append(channel)
        self.assertEqual(PAGES_PER_TURN, page.renders)
        for path in probes:
            probe, transport = self.connect()
            probe.dataReceived(PROBE.replace(b"/healthz", path.encode()))
            self.assertIn(b"ok", transport.value(), path)
        self.disconnect(channels[-1])
        self.clock.advance(0)
        # One of the last requests that fit into the queue was abandoned.
        self.assertEqual(PAGES_PER_TURN + PAGES_PER_TURN + 3 - 1, page.renders)
        self.assertEqual([], [call for call in self.clock.getDelayedCalls() if not call.time])

    def test_a_port_for_probes(self) -> None:
        """A port that serves only probes answers every request at once."""
        page = CountingPage()
        self.pages = {"/*": page}
        self.site = self.limited(only_probes=True)
        transports = []
        for _ in range(PAGES_PER_TURN + 20):
            channel, transport = self.connect()
            channel.dataReceived(REQUEST + b"\r\n")
            transports.append(transport)
        self.assertEqual(PAGES_PER_TURN + 20, page.renders)
        self.assertFalse(any(each.disconnected for each in transports))

    def test_abandoned_requests_count_toward_the_limit(self) -> None:
        """Requests whose clients have already left count toward the limit per turn."""
        page = CountingPage()
        self.pages = {"/": page}
        self.site = self.limited(max_in_progress=64)

        def ask() -> None:
            channel, _ = self.connect()
            channel.dataReceived(REQUEST + b"\r\n")
            if channel.transport in self.site.in_progress and page.renders <= PAGES_PER_TURN:
                self.disconnect(channel)

        for _ in range(PAGES_PER_TURN + 2):
            ask()
        self.assertEqual(PAGES_PER_TURN, page.renders)
        for made in (1, 2):
            (turn,) = [call for call in self.clock.getDelayedCalls() if not call.time]
            self.clock.calls.remove(turn)
            turn.func()
            ask()
            self.assertEqual(PAGES_PER_TURN + made, page.renders)

    def test_later_probes_do_not_abort_responses(self) -> None:
        """Responses that are being sent are not aborted by any number of later probes."""
        self.add("/healthz", data("ok"))
        transports = []
        for _ in range(MAX_LINGERING + 10):
            channel, transport = self.connect()
            channel.dataReceived(PROBE)
            transports.append(transport)
        self.assertEqual(MAX_LINGERING, len(self.site.closing))
        self.assertFalse(any(each.disconnected for each in transports))
        self.assertEqual([1, 0], [transports[index].closed for index in (9, 10)])

    def test_silent_clients_do_not_abort_requests(self) -> None:
        """Any number of silent clients leaves a connection in progress alone."""
        self.add("/later", late_page)
        channel, transport = self.connect()
        channel.dataReceived(b"GET /later HTTP/1.1\r\nHost: meta\r\n\r\n")
        for _ in range(10):
            self.connect()
        self.assertFalse(transport.disconnected)

    def test_closed_connections_are_forgotten(self) -> None:
        """Closed connections are forgotten in every state."""
        channels = [self.connect()[0] for _ in range(2)]
        channels[0].dataReceived(REQUEST + b"\r\n")
        for channel in channels:
            self.disconnect(channel)
        self.assertEqual((0, 0), (len(self.site.connections), len(self.site.in_progress)))

    def test_long_head(self) -> None:
        """A head over 16 KiB is rejected with 431."""
        channel, transport = self.connect()
        channel.dataReceived(REQUEST)
        for number in range(20):
            channel.dataReceived(b"X-%d: %s\r\n" % (number, b"x" * 1000))
        self.assertIn(b" 431 ", transport.value())
        self.assertTrue(transport.disconnecting)

    def test_many_headers(self) -> None:
        """More than 100 headers are rejected with 431."""
        channel, transport = self.connect()
        channel.dataReceived(REQUEST + b"X: y\r\n" * 101 + b"\r\n")
        self.assertIn(b" 431 ", transport.value())
        self.assertTrue(transport.disconnecting)

    def test_small_body(self) -> None:
        """A body up to the limit is discarded, and the request is answered."""
        channel, transport = self.connect()
        channel.dataReceived(REQUEST + b"Content-Length: %d\r\n\r\n" % MAX_BODY_BYTES)
        channel.dataReceived(b"x" * MAX_BODY_BYTES)
        self.assertTrue(transport.value().startswith(b"HTTP/1.1 200 "), transport.value())
        self.assertTrue(transport.value().endswith(b"\r\n\r\npage"))

    def test_large_body(self) -> None:
        """A body over the limit is rejected with 413 as soon as its size is known."""
        page = CountingPage()
        self.add("/", page)
        size = MAX_BODY_BYTES + 2
        chunk = b"%x\r\n" % size + b"x" * (MAX_BODY_BYTES + 1)
        for before, last in (
            (b"Content-Length: %d\r\n\r" % size, b"\n"),
            (b"Transfer-Encoding: chunked\r\n\r\n" + chunk[:-1], chunk[-1:]),
        ):
            channel, transport = self.connect()
            channel.dataReceived(REQUEST + before)
            self.assertFalse(transport.disconnecting)
            channel.dataReceived(last)
            answer = transport.value()
            self.assertTrue(answer.startswith(b"HTTP/1.1 413 "), answer)
            self.assertTrue(transport.disconnecting)
            channel.dataReceived(b"x\r\n0\r\n\r\n")
            self.assertEqual(answer, transport.value())
            self.disconnect(channel)
        self.assertEqual(0, page.renders)

    def test_slow_body(self) -> None:
        """A body has the same timeout as a head, even if it trickles in."""
        self.add("/healthz", data("ok"))
        for request in (REQUEST, PROBE.removesuffix(b"\r\n")):
            channel, transport = self.connect()
            channel.dataReceived(request + b"Content-Length: 100\r\n\r\n")
            for _ in range(REQUEST_SECONDS):
                self.assertEqual(b"", transport.value())
                channel.dataReceived(b"x")
                self.clock.advance(1)
            self.assertTrue(transport.value().startswith(b"HTTP/1.1 408 "), transport.value())
            self.disconnect(channel)

    def test_missing_bodies_make_room(self) -> None:
        """A new connection replaces the oldest of too many that have not sent their body."""
        self.add("/healthz", data("ok"))
        transports = []
        for _ in range(3):
            channel, transport = self.connect()
            channel.dataReceived(PROBE.removesuffix(b"\r\n") + b"Content-Length: 1\r\n\r\n")
            transports.append(transport)
        self.assertEqual([True, False, False], [each.disconnected for each in transports])
        channel.dataReceived(b"x")
        self.assertTrue(transport.value().endswith(b"\r\n\r\nok"), transport.value())
        self.assertEqual(1, len(self.site.in_progress))

    def test_expected_body(self) -> None:
        """A client that expects 100-continue gets it, or 413 if its body is too large."""
        for size, answer in ((1, b"HTTP/1.1 100 "), (MAX_BODY_BYTES + 1, b"HTTP/1.1 413 ")):
            channel, transport = self.connect()
            fields = b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n" % size
            channel.dataReceived(REQUEST + fields)
            self.assertTrue(transport.value().startswith(answer), transport.value())

    def test_no_access_log(self) -> None:
        """Requests are not logged."""
        channel, transport = self.connect()
        with capturedLogs() as events:
            channel.dataReceived(REQUEST + b"\r\n")
        self.assertIn(b"page", transport.value())
        self.assertEqual([], events)

    def test_broken_page(self) -> None:
        """A page that raises is answered with 500, and the error is logged."""
        self.add("/broken", broken_page)
        channel, transport = self.connect()
        channel.dataReceived(b"GET /broken HTTP/1.1\r\nHost: meta\r\n\r\n")
        self.assertTrue(transport.value().startswith(b"HTTP/1.1 500 "), transport.value())
        self.assertTrue(transport.value().endswith(b"\r\n\r\n" + BROKEN), transport.value())
        self.assertEqual(1, len(self.flushLoggedErrors(ArithmeticError)))
        channel, transport = self.connect()
        channel.dataReceived(REQUEST + b"\r\n")
        self.assertIn(b"page", transport.value())

    def test_decoded_path(self) -> None:
        """A percent-encoded path finds its page."""
        self.add("/a%2Fb", data("found"))
        channel, transport = self.connect()
        channel.dataReceived(b"GET /%61%2Fb?a/c HTTP/1.1\r\nHost: meta\r\n\r\n")
        self.assertTrue(transport.value().endswith(b"\r\n\r\nfound"), transport.value())

    def test_pages_below_others(self) -> None:
        """A path without a page of its own gets the nearest page above that serves a subtree."""
        self.pages = {"/a": data("itself"), "/a/*": data("below"), "/a/b/*": data("deep")}
        self.site = self.limited(max_in_progress=64)
        for path, body in (
            *(("/a", "itself"), ("/a/", "below"), ("/a/x/y", "below"), ("/a/b", "below")),
            *(("/a/b/", "deep"), ("/a/b/c/d?e/f", "deep"), ("/", "no such"), ("//a", "no such")),
        ):
            self.clock.advance(0)
            channel, transport = self.connect()
            channel.dataReceived(f"GET {path} HTTP/1.1\r\nHost: meta\r\n\r\n".encode())
            answered = transport.value().partition(b"\r\n\r\n")[2].decode()
            self.assertTrue(answered.startswith(body), f"{path}: {answered}")
            self.disconnect(channel)

    def test_thousands_of_segments(self) -> None:
        """A path of thousands of segments needs few lookups, since anyone can send one."""
        self.pages = {"/a/*": data("below")}
        self.site = self.limited()
        self.site.pages = CountedPages(self.site.pages)
        channel, transport = self.connect()
        channel.dataReceived(b"GET /a" + 8000 * b"/x" + b" HTTP/1.1\r\nHost: meta\r\n\r\n")
        self.assertTrue(transport.value().endswith(b"\r\n\r\nbelow"), transport.value())
        self.assertLess(self.site.pages.lookups, 5)

    def test_client_that_leaves(self) -> None:
        """A page that is rendered in slices is abandoned when its client disconnects."""
        made = []

        def pieces() -> Iterator[str]:
            while True:
                made.append(1)
                yield "piece"

        def turn() -> None:
            for call in [each for each in self.clock.getDelayedCalls() if not each.time]:
                self.clock.calls.remove(call)
                call.func()

        self.add("/", lambda request: PageResponse(b"text/plain", pieces()))
        self.site.slices = Slices(self.clock, count().__next__)
        channel, _ = self.connect()
        channel.dataReceived(REQUEST + b"\r\n")
        turn()
        self.assertEqual(1, len(made))
        self.disconnect(channel)
        turn()
        self.assertEqual(1, len(made))
        self.assertEqual([], self.flushLoggedErrors())

    def test_no_path(self) -> None:
        """A request target that does not start with a slash is rejected with 400."""
        for line in (
            *("GET xhealthz", "GET http://localhost/healthz", "GET *", "OPTIONS *"),
            *("CONNECT localhost:80", "CONNECT /"),
        ):
            channel, transport = self.connect()
            channel.dataReceived(f"{line} HTTP/1.1\r\nHost: meta\r\n\r\n".encode())
            self.disconnect(channel)
            self.assertTrue(transport.value().startswith(b"HTTP/1.1 400 "), line)

    def test_date(self) -> None:
        """Responses have a Date header (RFC 9110, section 6.6.1)."""
        channel, transport = self.connect()
        channel.dataReceived(REQUEST + b"\r\n")
        self.assertRegex(transport.value(), rb"(?i)\r\ndate: \w{3}, \d\d \w{3} \d{4} .* GMT\r\n")


class _Expensive:
    """A page whose rendering blocks the reactor."""

    made = 0

    def __call__(self, request: PageRequest) -> PageResponse:
        """Count the call and block for a moment."""
        self.made += 1
        time.sleep(0.005)
        return text("x" * 20_000)


def flood(port: int, requests: Sequence[bytes]) -> list[bytes]:
    """Send each request on a connection of its own; return the responses to probes."""
    connections = [socket.create_connection(("127.0.0.1", port), 10) for _ in requests]
    with ExitStack() as stack:
        for connection, request in zip(connections, requests, strict=True):
            stack.enter_context(connection)
            connection.sendall(request)
        answers = []
        for connection, request in zip(connections, requests, strict=True):
            if request == PROBE:
                with connection.makefile("rb") as answer:
                    answers.append(answer.read())
        return answers


class FloodTests:
    """A flood of requests for an expensive page with probes in between, on real sockets."""

    transports: str

    async def test_probes_are_interleaved(self) -> None:
        """Each probe is answered, and few pages are rendered in one turn of the reactor."""
        page = _Expensive()
        site = LimitedSite({"/metrics": page, "/healthz": data("ok")}, reactor)
        self.addCleanup(site.close)
        listening = with_transports(reactor, self.transports).listenTCP(
            0, site, backlog=256, interface="127.0.0.1"
        )
        self.addCleanup(listening.stopListening)
        most = before = 0

        def turn() -> None:
            nonlocal most, before, turns
            most, before = max(most, page.made - before), page.made
            turns = reactor.callLater(0, turn)

        turns = reactor.callLater(0, turn)
        self.addCleanup(lambda: turns.cancel())
        requests = [METRICS] * 200
        requests[::10] = [PROBE] * 20
        answers = await deferToThread(flood, listening.getHost().port, requests)
        self.assertEqual([b"ok"] * 20, [answer[-2:] for answer in answers])
        # One queued page may be rendered between two measurements.
        self.assertLessEqual(most, PAGES_PER_TURN + 1)
        self.assertGreaterEqual(page.made, PAGES_PER_TURN)


class DirectFloodTests(FloodTests, TestCase):
    """With the transports of this package."""

    transports = "direct"


class TwistedFloodTests(FloodTests, TestCase):
    """With the transports of Twisted, which send a response one turn later."""

    transports = "twisted"
