"""The meta pages, over HTTP in memory."""

from __future__ import annotations

import gc
import json
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from email.message import Message
from email.parser import BytesParser

from prometheus_client.parser import text_string_to_metric_families
from twisted.internet.address import IPv4Address
from twisted.internet.protocol import Protocol, connectionDone
from twisted.internet.task import Clock
from twisted.internet.testing import MemoryReactorClock
from twisted.trial.unittest import SynchronousTestCase

from tests.ops.snapshots import snapshot
from tests.ops.status_pages import PageUnderTest
from tests.ops.test_http_site import TcpTransport
from yurttunnel.metrics import MetricRegistry, counter
from yurttunnel.ops.http_site import LimitedSite
from yurttunnel.ops.meta import JsonPage, MetaPort, meta_pages
from yurttunnel.ops.readiness import Readiness
from yurttunnel.ops.status.view import StatusSources
from yurttunnel.steering.page import steering_page
from yurttunnel.steering.report import RulesReport, SteeringReport
from yurttunnel.tunnel.statistics import SessionSnapshot


@dataclass
class Answer:
    """An HTTP response."""

    status: int
    headers: Message
    body: bytes


def parse(data: bytes) -> Answer:
    """Parse one response."""
    head, _, body = data.partition(b"\r\n\r\n")
    status_line, _, fields = head.partition(b"\r\n")
    headers = BytesParser().parsebytes(fields + b"\r\n\r\n", headersonly=True)
    return Answer(int(status_line.split()[1]), headers, body)


class MetaTestCase(SynchronousTestCase):
    """A meta site without a port."""

    def setUp(self) -> None:
        """Make the site of a process without checks, sessions or metrics."""
        self.clock = Clock()
        self.readiness = Readiness()
        self.registry = MetricRegistry()
        self.sessions: list[SessionSnapshot] = []
        self.steering: SteeringReport | None = None
        self.under_test = PageUnderTest("yurttunnel <server>")
        self.status = self.under_test.page
        self.serve([steering_page(lambda: self.steering)])

    def serve(self, features: Sequence[JsonPage]) -> None:
        """Make the site with the pages of ``features``."""
        pages = meta_pages(
            self.status, self.readiness, self.registry, lambda: self.sessions, features
        )
        self.site = LimitedSite(pages, self.clock)

    def connect(self, peer: str = "192.0.2.1") -> tuple[Protocol, TcpTransport]:
        """Connect to the site."""
        transport = TcpTransport(peerAddress=IPv4Address("TCP", peer, 40000))
        channel = self.site.buildProtocol(None)
        channel.makeConnection(transport)
        return channel, transport

    def ask(
        self, path: str, method: str = "GET", host: str = "meta", peer: str = "192.0.2.1"
    ) -> Answer:
        """Request a path on a new connection."""
        channel, transport = self.connect(peer)
        channel.dataReceived(f"{method} {path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        self.clock.advance(0)
        channel.connectionLost(connectionDone)
        return parse(transport.value())


class PageTests(MetaTestCase):
    """The content of each page."""

    def test_healthz(self) -> None:
        """/healthz answers 200 even if the process is not ready."""
        self.readiness.add("listeners", lambda: "port 10262 is not bound")
        answer = self.ask("/healthz")
        self.assertEqual((200, b"ok\n"), (answer.status, answer.body))

    def test_ready(self) -> None:
        """/readyz answers 200 with the names of the checks when all checks pass."""
        self.readiness.add("listeners", lambda: None)
        self.readiness.add("certificate", lambda: None)
        answer = self.ask("/readyz")
        self.assertEqual(200, answer.status)
        self.assertEqual(b"listeners: ok\ncertificate: ok\nready\n", answer.body)

    def test_not_ready(self) -> None:
        """/readyz answers 503 with the failed check and its reason."""
        self.readiness.add("listeners", lambda: None)
        self.readiness.add("certificate", lambda: "it has expired")
        answer = self.ask("/readyz")
        self.assertEqual(503, answer.status)
        self.assertEqual(b"listeners: ok\ncertificate: it has expired\nnot ready\n", answer.body)

    def test_warning(self) -> None:
        """A failed check that is not required is reported, and the process is ready."""
        self.readiness.add("servers", lambda: None)
        self.readiness.add("every server", lambda: "one is away", required=False)
        answer = self.ask("/readyz")
        self.assertEqual(200, answer.status)
        self.assertEqual(b"servers: ok\nevery server: one is away\nready\n", answer.body)

    def test_broken_check(self) -> None:
        """A check that raises makes the process not ready; the page still works."""

        def broken() -> str | None:
            raise OSError("no such file")

        self.readiness.add("files", broken)
        answer = self.ask("/readyz")
        self.assertEqual(503, answer.status)
        self.assertIn(b"no such file", answer.body)
        self.flushLoggedErrors(OSError)

    def test_invalid_utf8(self) -> None:
        """A check's result may contain a file name that is not UTF-8."""
        self.readiness.add("files", lambda: "/x/\udcff cannot be read")
        self.assertIn(b"files: /x/\\udcff cannot be read", self.ask("/readyz").body)

    def test_metrics(self) -> None:
        """/metrics serves the registry in the text format of Prometheus."""
        self.registry.add([counter("things", "Things.", int)], lambda: 3)
        answer = self.ask("/metrics")
        self.assertEqual(200, answer.status)
        self.assertEqual("text/plain; version=0.0.4; charset=utf-8", answer.headers["content-type"])
        values = {
            sample.name: sample.value
            for family in text_string_to_metric_families(answer.body.decode())
            for sample in family.samples
        }
        self.assertEqual(3, values["things_total"])

    def test_metrics_with_a_query(self) -> None:
        """/metrics ignores query parameters."""
        self.assertEqual(200, self.ask("/metrics?name[]=up").status)

    def test_agents(self) -> None:
        """/agents lists sessions as JSON, times in ISO 8601 UTC, durations in seconds."""
        self.sessions = [snapshot()]
        answer = self.ask("/agents")
        self.assertEqual(200, answer.status)
        self.assertEqual("application/json", answer.headers["content-type"])
        self.assertEqual(
            [
                {
                    "node": "edge-1",
                    "session": "5e55",
                    "since": "2026-11-21T03:04:05Z",
                    "connected": True,
                    "waits_for_seconds": None,
                    "rtt_seconds": 0.0625,
                    "streams": 3,
                    "streams_by_entry": {"connect": 2, "forward": 1},
                    "bytes_received": 1000,
                    "bytes_sent": 2000,
                    "unacknowledged_bytes": 500,
                    "resumptions": 4,
                    "version": "0.1.0",
                    "address": "192.0.2.7:40000",
                    "certificate_expiry": "2027-01-02T03:04:05Z",
                }
            ],
            json.loads(answer.body),
        )

    def test_agents_without_measurement(self) -> None:
        """Unknown values of a session are null."""
        self.sessions = [snapshot(round_trip=None, certificate_not_after=None)]
        [session] = json.loads(self.ask("/agents").body)
        self.assertIsNone(session["rtt_seconds"])
        self.assertIsNone(session["certificate_expiry"])

    def test_agents_are_ordered(self) -> None:
        """Sessions are sorted by the names of their nodes."""
        self.sessions = [snapshot(node=node) for node in ("c", "a", "b")]
        nodes = [session["node"] for session in json.loads(self.ask("/agents").body)]
        self.assertEqual(["a", "b", "c"], nodes)

    def test_no_agents(self) -> None:
        """Without sessions the list is empty."""
        self.assertEqual([], json.loads(self.ask("/agents").body))

    def test_index(self) -> None:
        """The index is HTML that links every page, and each link works; the title is escaped."""
        answer = self.ask("/")
        self.assertEqual(200, answer.status)
        self.assertEqual("text/html; charset=utf-8", answer.headers["content-type"])
        self.assertIn(b"<h1>yurttunnel &lt;server&gt;</h1>", answer.body)
        for page in ("/healthz", "/readyz", "/metrics", "/agents"):
            self.assertIn(f'href="{page}"'.encode(), answer.body)
            self.assertEqual(200, self.ask(page).status)

    def test_the_filter_of_the_index(self) -> None:
        """The query parameter ``q`` is shown escaped on the page, whether it is UTF-8 or not."""
        for query, shown in (("edge%2D1", b"edge-1"), ("%22%3Cb%3E", b"&quot;&lt;b&gt;")):
            self.assertIn(b'value="' + shown + b'"', self.ask(f"/?q={query}").body)
        for query in ("?q=", "?q=%FF", "?q", "?", "?other=1", f"?q={'x' * 5000}"):
            self.assertEqual(200, self.ask(f"/{query}").status)

    def test_the_index_is_closed_to_others(self) -> None:
        """The security policy blocks foreign content, framing and referrers."""
        headers = self.ask("/").headers
        self.assertIn("default-src 'none'", headers["content-security-policy"])
        self.assertIn("frame-ancestors 'none'", headers["content-security-policy"])
        self.assertEqual("no-referrer", headers["referrer-policy"])

    def test_steering(self) -> None:
        """/steering serves the report as JSON; the index has a link to it and a section."""
        self.under_test.steering = self.steering = SteeringReport(
            RulesReport(state="waiting", problem="port <10263> is not bound", families=())
        )
        answer = self.ask("/steering")
        self.assertEqual((200, "application/json"), (answer.status, answer.headers["content-type"]))
        self.assertEqual("waiting", json.loads(answer.body)["iptables"]["state"])
        index = self.ask("/").body
        self.assertIn(b'href="/steering"', index)
        self.assertIn(b"<h2>Steering</h2>", index)
        self.assertIn(b"waiting", index)
        self.assertIn(b"port &lt;10263&gt; is not bound", index)

    def test_no_steering(self) -> None:
        """Without steering /steering answers 404, and the index does not mention it."""
        answer = self.ask("/steering")
        self.assertEqual(404, answer.status)
        self.assertEqual("text/plain; charset=utf-8", answer.headers["content-type"])
        self.assertIn(b"steering is disabled", answer.body)
        self.assertNotIn(b"teering", self.ask("/").body)

    def test_no_pages_by_default(self) -> None:
        """A site without feature pages has none."""
        self.serve([])
        self.assertEqual(404, self.ask("/steering").status)


class HttpTests(MetaTestCase):
    """Methods, paths and headers."""

    def test_head(self) -> None:
        """HEAD returns the head of GET without the body."""
        for path in ("/", "/healthz", "/readyz", "/metrics", "/agents", "/nothing"):
            got, headed = self.ask(path), self.ask(path, "HEAD")
            self.assertEqual(got.status, headed.status)
            self.assertEqual(got.headers["content-type"], headed.headers["content-type"])
            self.assertEqual(b"", headed.body)
            if got.body:
                self.assertEqual(str(len(got.body)), headed.headers["content-length"])

    def test_unknown_path(self) -> None:
        """Unknown paths get 404 in plain text, also below existing pages."""
        for path in ("/nothing", "/healthz/", "/metrics/deeper/down", "/debug/pprof/"):
            answer = self.ask(path)
            self.assertEqual(404, answer.status)
            self.assertEqual("text/plain; charset=utf-8", answer.headers["content-type"])
            self.assertIn(b"no such page", answer.body)

    def test_other_methods(self) -> None:
        """Methods other than GET and HEAD get 405 with an Allow header on every page."""
        for method in ("POST", "PUT", "DELETE", "OPTIONS", "PATCH"):
            for path in ("/", "/metrics"):
                answer = self.ask(path, method)
                self.assertEqual(405, answer.status)
                self.assertEqual("GET, HEAD", answer.headers["allow"])

    def test_headers(self) -> None:
        """Responses forbid caching and sniffing, and the Server header has no version."""
        headers = self.ask("/readyz").headers
        self.assertEqual("no-store", headers["cache-control"])
        self.assertEqual("nosniff", headers["x-content-type-options"])
        self.assertEqual(["yurttunnel"], headers.get_all("server"))

    def test_allowed_host_names(self) -> None:
        """Requests from this machine need an address or own name as host, except for /healthz."""
        self.under_test.steering = self.steering = SteeringReport()
        names = ("127.0.0.1:10265", "[::1]:8080", "localhost", "LocalHost.:1", socket.gethostname())
        for path in ("/", "/agents", "/steering", "/readyz", "/metrics"):
            for host in names:
                self.assertEqual(200, self.ask(path, host=host, peer="127.0.0.1").status, host)
            for host in ("evil.example", "127.0.0.1.evil.example:10265", "0x7f.1", ""):
                for method in ("GET", "POST"):
                    answer = self.ask(path, method, host, "127.0.0.1")
                    self.assertEqual(403, answer.status, host)
                    self.assertIn(b"use an IP address", answer.body)
            self.assertEqual(200, self.ask(path, host="meta.example").status)
        answer = self.ask("/healthz", host="probe.example", peer="127.0.0.1")
        self.assertEqual(200, answer.status)

    def test_one_request(self) -> None:
        """A connection is closed after one response, with ``Connection: close``."""
        channel, transport = self.connect()
        channel.dataReceived(b"GET /healthz HTTP/1.1\r\nHost: meta\r\n\r\n")
        self.assertEqual(b"ok\n", parse(transport.value()).body)
        self.assertRegex(transport.value(), rb"(?i)\r\nconnection: close\r\n")
        self.assertTrue(transport.disconnecting)


class MetaServiceTests(SynchronousTestCase):
    """The port, and the garbage collector's service beside it."""

    def test_life(self) -> None:
        """The port is open and the garbage collector is observed while the service runs."""
        reactor = MemoryReactorClock()
        sources = StatusSources(program="program", readiness=Readiness(), certificates=None)
        service = MetaPort(
            reactor,
            ("--meta-port", "127.0.0.1", 10265),
            sources,
            MetricRegistry(),
            "test_",
        )
        before = list(gc.callbacks)
        service.startService()
        self.assertEqual([10265], [port for port, *_ in reactor.tcpServers])
        self.assertEqual(1, len(gc.callbacks) - len(before))
        self.successResultOf(service.stopService())
        self.assertEqual(before, gc.callbacks)
        self.assertEqual([], reactor.getDelayedCalls())
