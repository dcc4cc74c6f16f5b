"""The middleware ``trace``."""

from __future__ import annotations

import gc

from twisted.internet.address import IPv6Address
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.trial.unittest import SynchronousTestCase

from tests.logged import Logged
from tests.pki.support import Issuer
from tests.server.frontends.kubelet.fakes import SecureTransport, head, request
from yurttunnel.http.interfaces import ExchangeFailed
from yurttunnel.ops.log_levels import REQUESTS
from yurttunnel.server.frontends.kubelet.destination import Destination
from yurttunnel.server.frontends.kubelet.trace import Trace


class TraceTests(SynchronousTestCase):
    """Each request has one line in the log."""

    def setUp(self):
        """Observe the log."""
        self.clock = Clock()
        self.lines = Logged(self, REQUESTS)

    def handle(self, intercepted, handler=lambda intercepted: None):
        """Handle a request."""
        Trace(self.clock).wrap(handler)(intercepted)

    def test_line(self):
        """A completed request is logged with its caller, destination and result."""

        def find(intercepted):
            intercepted.destination = Destination("192.0.2.7", "192.0.2.7", 10250)
            intercepted.node = "edge-1"

        intercepted = request(head(target="/containerLogs/default/web/web"), "abc-7")
        self.handle(intercepted, find)
        self.assertEqual([], self.lines)
        self.clock.advance(0.25)
        intercepted.exchange.end(200, sent=1234)
        self.assertEqual(
            [
                "GET /containerLogs to 192.0.2.7:10250 on edge-1 from 192.0.2.99:4242 (abc-7):"
                " 200, 1234 bytes in 0.250 s"
            ],
            self.lines,
        )

    def test_failed(self):
        """A request that failed early has a line, too, with the reason."""
        intercepted = request()
        self.handle(intercepted)
        intercepted.exchange.end(0, error=ExchangeFailed("the client has left"))
        self.assertEqual(
            [
                "GET /metrics to nowhere on no node from 192.0.2.99:4242 (r-1): no answer,"
                " 0 bytes in 0.000 s; the client has left"
            ],
            self.lines,
        )

    def test_caller(self):
        """Over TLS the line also has the name in the caller's certificate.

        The certificate is read once for all requests of a connection.
        """
        transport = SecureTransport(Issuer.make(self).caller().certificate)
        trace = Trace(self.clock).wrap(lambda intercepted: None)
        for _ in range(2):
            intercepted = request()
            intercepted.exchange.transport = transport
            trace(intercepted)
            intercepted.exchange.end(200)
        for line in self.lines:
            self.assertIn(
                " on no node by 'kube-apiserver-kubelet-client' from [2001:db8::9]:4242 (r-1)", line
            )
        self.assertEqual((2, 1), (len(self.lines), transport.certificate_reads))

    def test_authorized(self):
        """An authorized caller is logged by that name, with or without a certificate."""

        def authorize(intercepted):
            intercepted.caller = "system:serviceaccount:monitoring:prometheus"

        intercepted = request()
        intercepted.exchange.transport = SecureTransport(None)
        self.handle(intercepted, authorize)
        intercepted.exchange.end(200)
        self.assertIn(
            " by 'system:serviceaccount:monitoring:prometheus' from [2001:db8::9]", self.lines[0]
        )

    def test_unknown_caller(self):
        """Over TLS a caller without a certificate is logged by its address."""
        intercepted = request()
        intercepted.exchange.transport = SecureTransport(None)
        self.handle(intercepted)
        intercepted.exchange.end(401)
        self.assertIn(" on no node from [2001:db8::9]:4242 (r-1): 401", self.lines[0])

    def test_mapped_address(self):
        """At a listener for both families, IPv4 callers are logged as such."""
        intercepted = request()
        mapped = IPv6Address("TCP", "::ffff:192.0.2.7", 4242)
        intercepted.exchange.transport = StringTransport(peerAddress=mapped)
        self.handle(intercepted)
        intercepted.exchange.end(200)
        self.assertIn(" from 192.0.2.7:4242 (r-1): 200", self.lines[0])

    def test_caller_has_left(self):
        """Nothing is stored after the end of a connection."""
        trace = Trace(self.clock)
        for _ in range(3):
            intercepted = request()
            trace.wrap(lambda intercepted: None)(intercepted)
            intercepted.exchange.end(200)
        del intercepted
        gc.collect()
        self.assertEqual(0, len(trace._callers))

    def test_hostile_names(self):
        """A caller's name of any characters is logged in one line, of limited length."""
        name = "\n2026 [-] forged \x1b[2J" + "x" * 5000

        def authorize(intercepted):
            intercepted.caller = name

        for error in (None, ExchangeFailed(name)):
            intercepted = request()
            self.handle(intercepted, authorize)
            intercepted.exchange.end(200, error=error)
        for line in self.lines:
            self.assertLess(len(line), 1000)
        self.assertTrue(self.lines[0].isprintable(), self.lines[0])

    def test_secrets(self):
        """Only the class of the path, and nothing of the query, is logged."""
        intercepted = request(head("POST", "/exec/default/web/web?command=secret"))
        self.handle(intercepted)
        intercepted.exchange.end(101)
        self.assertNotIn("secret", self.lines[0])
        self.assertNotIn("web", self.lines[0])
