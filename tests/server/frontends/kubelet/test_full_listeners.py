"""The ports for requests to kubelets: callers above their limits, and the shutdown."""

from __future__ import annotations

from zope.interface import implementer

from tests.fakes import Recorder
from tests.server.frontends.kubelet.world import World
from yurttunnel.http.server import ServerSettings
from yurttunnel.server.frontends.kubelet.middleware import IMiddleware


@implementer(IMiddleware)
class Clients:
    """Takes the client of a request from the field ``X-Client``."""

    def wrap(self, handler):
        """See ``IMiddleware``."""

        def named(request):
            request.client = b"".join(request.exchange.head.values(b"x-client")).decode()
            handler(request)

        return named


class InFlightTests(World):
    """Requests to which kubelets do not respond, and that nobody ends."""

    settings = ServerSettings(max_connections=4)
    middlewares = (Clients(),)

    def setUp(self):
        """Let the kubelet never respond."""
        super().setUp()
        self.kubelet.answer = lambda exchange: None

    def test_shared(self):
        """One caller may have as many requests in flight at a port as remain free."""
        for dial, credentials in (
            (self.dial, self.issuer.server("edge-1")),
            (self.dial_insecurely, None),
        ):
            self.serve_kubelet(credentials)
            waiting = [dial() for _ in range(2)]
            for caller in waiting:
                self.send_request(caller, X_Client="mallory")
            refused = dial()
            self.send_request(refused, X_Client="mallory")
            self.answered(
                refused,
                503,
                "2 of 4 requests are in flight at this port, and one caller may use as many as"
                " remain free: try again when some of yours have ended",
            )
            self.send_request(dial(), X_Client="joan")
            self.send_request(refused, X_Client="mallory")
            self.answered(refused, 503, "3 of 4 requests are in flight")
            waiting[0].transport.loseConnection()
            waiting[1].transport.loseConnection()
            self.settle()
            self.send_request(refused, X_Client="mallory")
            self.assertEqual(b"", refused.received)

    def test_answered(self):
        """Completed and rejected requests no longer count."""
        self.kubelet.answer = lambda exchange: exchange.respond(200, [], b"metric 1\n")
        caller = self.dial()
        for _ in range(5):
            self.send_request(caller, X_Client="joan")
            self.answered(caller, 200)
            self.send_request(caller, X_Client="joan", Host="unknown:10250")
            self.answered(caller, 503)


class FullTests(World):
    """Ports with as many connections as they accept."""

    settings = ServerSettings(max_connections=2, max_handshakes=1)
    middlewares = (Clients(),)

    def full(self):
        """Return the warnings."""
        return [line for line in self.lines if "rejects callers" in line]

    def test_warned(self):
        """Callers above the limit are counted; the log names the port, at a limited rate."""
        self.kubelet.answer = lambda exchange: None
        for dial, flag, credentials in (
            (self.dial, "--secure-port", self.issuer.server("edge-1")),
            (self.dial_insecurely, "--insecure-port", None),
        ):
            self.serve_kubelet(credentials)
            self.lines.clear()
            for number in range(2):
                self.send_request(dial(), X_Client=str(number))
            self.assertEqual([], self.full())
            for _ in range(2):
                self.answered(dial(), 503)
            [line] = self.full()
            self.assertIn(f"{flag} rejects callers: it has 3 connections (2 at most)", line)
        self.assertEqual(4, self.stats().refusals[503])
        self.lines.clear()
        self.pass_time(60, step=5)
        self.dial_insecurely()
        [line] = self.full()
        self.assertIn("1 more like this", line)

    def test_idle(self):
        """Idle callers are evicted, which is also logged."""
        for _ in range(4):
            caller = self.dial()
            self.send_request(caller)
            self.answered(caller, 200)
        self.assertEqual(1, len(self.full()))
        self.assertEqual(0, self.stats().refusals[503])

    def test_handshakes(self):
        """Incomplete handshakes are evicted, too; callers that complete theirs are served."""
        for _ in range(3):
            self.link(Recorder(), self.secured())
        self.assertIn("1 unfinished TLS handshakes (1 at most)", self.full()[0])
        caller = self.dial()
        self.send_request(caller)
        self.answered(caller, 200)


class DrainTests(World):
    """The shutdown."""

    def test_idle(self):
        """Idle connections close on both sides at once."""
        caller = self.dial()
        self.send_request(caller)
        drained = self.interception.drain()
        self.settle()
        self.successResultOf(drained)
        self.assertEqual(1, len(caller.ended_with))
        self.assertEqual({"in_use": 0, "idle": 0}, self.pooled())
        self.assertEqual(0, self.pair.server.snapshot().streams)

    def test_running(self):
        """A running request gets its response, the last on its connections."""
        self.kubelet.answer = lambda exchange: None
        caller = self.dial()
        self.send_request(caller)
        drained = self.interception.drain()
        self.settle()
        self.assertNoResult(drained)
        self.kubelet.exchanges[0].respond(200, [], b"done")
        self.settle()
        self.answered(caller, 200, "done")
        self.assertIn(b"Connection: close", caller.received)
        self.successResultOf(drained)
        self.assertEqual(0, self.pair.server.snapshot().streams)

    def test_close(self):
        """Remaining connections are aborted on both sides."""
        self.kubelet.answer = lambda exchange: None
        caller = self.dial()
        self.send_request(caller)
        drained = self.interception.drain()
        self.interception.close()
        self.settle()
        self.successResultOf(drained)
        self.assertEqual(1, len(caller.ended_with))
        self.assertEqual(0, self.pair.server.snapshot().streams)
