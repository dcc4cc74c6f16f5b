"""The hub's pages for operators, over HTTP in memory."""

from __future__ import annotations

import datetime
import json

from twisted.internet.address import IPv4Address
from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.protocol import connectionDone
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from tests.ops.status_pages import ParsedPage
from tests.ops.test_http_site import TcpTransport
from tests.ops.test_meta import parse
from yurttunnel.hub.meta import hub_pages
from yurttunnel.kube.errors import ApiUnreachable
from yurttunnel.metrics import MetricRegistry
from yurttunnel.ops.http_site import MAX_BODY_BYTES, LimitedSite
from yurttunnel.ops.meta import meta_pages
from yurttunnel.ops.readiness import Readiness
from yurttunnel.ops.status.page import StatusPage
from yurttunnel.ops.status.view import StatusSources

TOKEN = "abcdef.0123456789abcdef"


class HubPageTests(SynchronousTestCase):
    """The responses, and who gets them."""

    def setUp(self) -> None:
        """Create the pages of a hub."""
        self.clock = Clock()
        self.readiness = Readiness()
        self.tokens: list[str] = []
        self.joins = True
        self.pods: Deferred = succeed({"kind": "PodList", "items": []})
        status = StatusPage(
            self.clock,
            StatusSources(
                program="yurthub",
                readiness=self.readiness,
                certificates=lambda: {"client": datetime.datetime(2027, 1, 1, tzinfo=datetime.UTC)},
            ),
            float,
        )
        shared = meta_pages(status, self.readiness, MetricRegistry(), None)
        pages = shared | hub_pages(self.set_token, lambda: self.pods, shared)
        self.site = LimitedSite(pages, self.clock)

    def set_token(self, token) -> bool:
        """Accept a token."""
        self.tokens.append(token.bearer)
        return self.joins

    def request_page(
        self, path, method="GET", body=b"", peer="127.0.0.1", host="127.0.0.1:10267", **fields
    ):
        """Request a path on a connection of its own."""
        transport = TcpTransport(peerAddress=IPv4Address("TCP", peer, 40000))
        channel = self.site.buildProtocol(None)
        channel.makeConnection(transport)
        lines = [f"{method} {path} HTTP/1.1", f"Host: {host}", f"Content-Length: {len(body)}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in fields.items()]
        channel.dataReceived("\r\n".join([*lines, "", ""]).encode() + body)
        self.clock.advance(0)
        channel.connectionLost(connectionDone)
        return parse(transport.value())

    def post(self, body, **options):
        """Post to the page for tokens."""
        body = body if isinstance(body, bytes) else json.dumps(body).encode()
        answer = self.request_page("/v1/token", options.pop("method", "POST"), body, **options)
        self.assertEqual("application/json", answer.headers["content-type"])
        return answer.status, json.loads(answer.body)

    def test_health(self) -> None:
        """It is served at the path of all programs, and at upstream's."""
        for path in ("/healthz", "/v1/healthz"):
            self.assertEqual(
                (200, b"ok\n"), (self.request_page(path).status, self.request_page(path).body)
            )

    def test_readiness(self) -> None:
        """It says what is missing."""
        self.readiness.add("certificate", lambda: "there is none")
        for path in ("/readyz", "/v1/readyz"):
            answer = self.request_page(path)
            self.assertEqual(503, answer.status)
            self.assertIn(b"certificate: there is none", answer.body)

    def test_status_page(self) -> None:
        """It has the hub's sections, and none for sessions and streams."""
        page = ParsedPage(self.request_page("/").body)
        self.assertIn("client", page.sections["certificates"])
        self.assertEqual({"readiness", "overview", "certificates", "events"}, set(page.sections))
        self.assertNotIn("/agents", page.text)
        self.assertEqual(404, self.request_page("/agents").status)

    def test_token(self) -> None:
        """A token is accepted with POST and with PUT."""
        for method in ("POST", "PUT"):
            status, answer = self.post({"jointoken": TOKEN}, method=method)
            self.assertEqual((200, True), (status, answer["joins"]))
        self.joins = False
        status, answer = self.post({"jointoken": TOKEN})
        self.assertEqual((200, False), (status, answer["joins"]))
        self.assertIn("not needed", answer["message"])
        self.assertEqual([TOKEN] * 3, self.tokens)

    def test_no_token(self) -> None:
        """An invalid token is rejected, and is not in the response."""
        for body in (
            b"",
            b"{",
            b"[]",
            b"null",
            {},
            {"jointoken": 7},
            {"jointoken": "sesame"},
            b'{"jointoken": ' + b"[" * 9000,
        ):
            status, answer = self.post(body)
            self.assertEqual(400, status)
            self.assertNotIn("sesame", answer["message"])
        self.assertEqual([], self.tokens)

    def test_large_body(self) -> None:
        """A body that is too large for a token ends the connection."""
        answer = self.request_page("/v1/token", "POST", b" " * (MAX_BODY_BYTES + 1))
        self.assertEqual(413, answer.status)
        self.assertEqual([], self.tokens)

    def test_strangers(self) -> None:
        """Clients on other machines, and web pages on this one, cannot post a token."""
        for options in (
            {"peer": "192.0.2.1"},
            {"host": "evil.example"},
            {"Origin": "http://evil.example"},
            {"Sec_Fetch_Site": "cross-site"},
        ):
            status, answer = self.post({"jointoken": TOKEN}, **options)
            self.assertEqual(403, status)
            self.assertIn("/v1/token", answer["message"])
        self.assertEqual([], self.tokens)

    def test_other_methods(self) -> None:
        """A token cannot be read."""
        self.assertEqual(405, self.request_page("/v1/token").status)
        self.assertEqual(405, self.request_page("/pods", "POST").status)
        self.assertEqual(404, self.request_page("/v1/none").status)

    def test_pods(self) -> None:
        """The node's pods are a list of the API."""
        answer = self.request_page("/pods")
        self.assertEqual(200, answer.status)
        self.assertEqual("PodList", json.loads(answer.body)["kind"])

    def test_requests_for_pods_of_others(self) -> None:
        """Clients on other machines, and web pages on this one, cannot read them."""
        for options in ({"peer": "192.0.2.1"}, {"host": "evil.example"}, {"Origin": "http://a"}):
            answer = self.request_page("/pods", **options)
            self.assertEqual(403, answer.status)
            self.assertIn("/pods", json.loads(answer.body)["message"])

    def test_no_pods(self) -> None:
        """An error of the hub is in the response."""
        self.pods = fail(ApiUnreachable("nobody is there"))
        answer = self.request_page("/pods")
        self.assertEqual(503, answer.status)
        self.assertIn(b"nobody is there", answer.body)

    def test_client_that_leaves(self) -> None:
        """A response whose client has disconnected is not an error."""
        self.pods = Deferred()
        channel = self.site.buildProtocol(None)
        channel.makeConnection(TcpTransport(peerAddress=IPv4Address("TCP", "127.0.0.1", 1)))
        channel.dataReceived(b"GET /pods HTTP/1.1\r\nHost: localhost\r\n\r\n")
        channel.connectionLost(connectionDone)
        self.pods.callback({})
        self.assertEqual([], self.flushLoggedErrors())
