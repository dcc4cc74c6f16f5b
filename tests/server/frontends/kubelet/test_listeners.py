"""The ports for requests to kubelets: forwarded and rejected requests."""

from __future__ import annotations

from zope.interface import implementer

from tests.fakes import Recorder
from tests.pki.support import Issuer
from tests.server.frontends.kubelet.world import RESPONSE_TIMEOUT, World
from yurttunnel.pki.names import CALLER_NAME
from yurttunnel.server.frontends.kubelet.destination import Destination
from yurttunnel.server.frontends.kubelet.middleware import IMiddleware
from yurttunnel.wire.codes import Code


class RequestTests(World):
    """The request at the kubelet, and the response."""

    def test_secure(self):
        """A request over TLS is forwarded over TLS."""
        caller = self.dial()
        self.send_request(caller, "/metrics?x=y", Authorization="Bearer t", Accept="*/*")
        self.answered(caller, 200, "metric 1\n")
        self.assertEqual([("edge-1", 10250)], self.connected)
        head = self.kubelet.head
        self.assertTrue(self.kubelet.exchanges[0].secure)
        self.assertEqual((b"GET", b"/metrics?x=y"), (head.method, head.target))
        self.assertEqual([b"edge-1:10250"], head.values(b"host"))
        self.assertEqual([b"Bearer t"], head.values(b"authorization"))
        self.assertEqual([b"*/*"], head.values(b"accept"))
        peer = self.kubelet.exchanges[0].transport.getPeerCertificate().to_cryptography()
        self.assertIn("CN=tunnel-proxy-client", peer.subject.rfc4514_string())

    def test_defect(self):
        """A defect on the way to the kubelet is logged, and reported to the caller as such."""
        self.session.open_stream = lambda *arguments: 1 / 0
        caller = self.dial()
        self.send_request(caller)
        self.answered(caller, 500, "internal error: see the log of the server")
        self.assertEqual(1, len(self.flushLoggedErrors(ZeroDivisionError)))

    def test_insecure(self):
        """A request without TLS is forwarded without."""
        self.serve_kubelet(None)
        caller = self.dial_insecurely()
        self.send_request(caller, Host="edge-1:10255")
        self.answered(caller, 200, "metric 1\n")
        self.assertEqual([("edge-1", 10255)], self.connected)
        self.assertFalse(self.kubelet.exchanges[0].secure)
        self.assertEqual(0, self.counters.handshakes.total())

    def test_fields_for_the_server(self):
        """The fields of the tunnel choose node and destination, and are not passed on."""
        caller = self.dial()
        self.send_request(
            caller,
            Host="tunnel.example",
            X_Tunnel_Proxy_Host="edge-1:1",
            X_Tunnel_Proxy_Dest="127.0.0.1:10250",
            X_Tunnel_Whatever="x",
            Connection="X-Hop",
            X_Hop="x",
        )
        self.answered(caller, 200)
        self.assertEqual([("127.0.0.1", 10250)], self.connected)
        names = {name.lower() for name, _ in self.kubelet.head.fields}
        self.assertEqual({b"host", b"x-request-id"}, names)
        self.assertEqual([b"127.0.0.1:10250"], self.kubelet.head.values(b"host"))

    def test_request_id(self):
        """The caller's id is used, otherwise a new one; the kubelet gets either."""
        caller = self.dial()
        self.send_request(caller, X_Request_Id="abc-7")
        self.assertEqual([b"abc-7"], self.kubelet.head.values(b"x-request-id"))
        self.assertTrue(any("(abc-7): 200, 9 bytes" in line for line in self.lines), self.lines)
        self.send_request(caller, X_Request_Id="not fit for a log")
        [made] = self.kubelet.head.values(b"x-request-id")
        self.assertRegex(made, rb"\A[0-9a-f]{8}-\d+\Z")

    def test_traced(self):
        """The log line has the caller's name and address."""
        self.send_request(self.dial())
        self.assertTrue(
            any("by 'kube-apiserver-kubelet-client' from " in line for line in self.lines),
            self.lines,
        )

    def test_long_head(self):
        """A command of many long words passes, and so do many fields."""
        caller = self.dial()
        target = "/exec/default/web/web?command=" + "%C3%BC" * 80_000
        self.send_request(caller, target, **{f"X_{number}": "y" for number in range(150)})
        self.answered(caller, 200)
        self.assertEqual(target.encode(), self.kubelet.head.target)

    def test_body(self):
        """Bodies pass, with a length and chunked."""
        bodies = self.return_bodies()
        caller = self.dial()
        self.send_request(caller, method="POST", body=b"12345", Content_Length="5")
        self.answered(caller, 201, "54321")
        self.send_request(
            caller, method="POST", body=b"3\r\nabc\r\n0\r\n\r\n", Transfer_Encoding="chunked"
        )
        self.answered(caller, 201, "cba")
        self.assertEqual([b"12345", b"abc"], bodies)

    def test_answers_of_kubelets(self):
        """Any response of the kubelet passes, including errors."""
        caller = self.dial()
        for status in (204, 302, 401, 403, 404, 500, 503):
            self.kubelet.answer = lambda exchange, status=status: exchange.respond(
                status, [(b"X-Kubelet", b"y")], b"" if status == 204 else b"its own words"
            )
            self.send_request(caller)
            self.answered(caller, status)
            self.assertIn(b"X-Kubelet: y", caller.received)
            self.assertEqual(status != 204, caller.received.endswith(b"its own words"))

    def test_upgrade(self):
        """After a 101 data passes in both directions, including early data."""
        for method in ("GET", "POST"):
            far = Recorder()
            self.kubelet.answer = lambda exchange, far=far: exchange.switch(
                101, b"", [(b"Connection", b"Upgrade"), (b"Upgrade", b"SPDY/3.1")], far
            )
            caller = self.dial()
            length = {"Content_Length": "0"} if method == "POST" else {}
            self.send_request(
                caller,
                "/exec/default/web/web?command=sh",
                method,
                b"early",
                Connection="Upgrade",
                Upgrade="SPDY/3.1",
                **length,
            )
            self.assertIn(b"HTTP/1.1 101 ", caller.received)
            self.assertIn(b"Upgrade: SPDY/3.1", caller.received)
            self.assertEqual(b"early", far.received)
            caller.received = b""
            far.transport.write(b"from the kubelet")
            caller.transport.write(b" and more")
            self.settle()
            self.assertEqual(b"from the kubelet", caller.received)
            self.assertEqual(b"early and more", far.received)
            self.pass_time(RESPONSE_TIMEOUT + 1)
            self.assertEqual([], far.ended_with)
            self.assertEqual(1, self.counters.in_flight[method, "/exec"])
            caller.transport.loseConnection()
            self.settle()
            self.assertEqual(1, len(far.ended_with))
            self.assertEqual(1, self.counters.completed[method, "/exec", "101"])
            self.assertEqual(0, self.counters.durations.total_seconds)

    def test_refused_upgrade(self):
        """A rejected upgrade passes with its body."""
        self.kubelet.answer = lambda exchange: exchange.respond(403, [], b"you may not")
        caller = self.dial()
        self.send_request(caller, "/exec/a/b/c", "POST", Connection="Upgrade", Upgrade="SPDY/3.1")
        self.answered(caller, 403, "you may not")


class TwistedTLSRequestTests(RequestTests):
    """``RequestTests`` over Twisted's own TLS."""

    direct = False


class RefusalTests(World):
    """Rejected requests and callers."""

    def test_destinations(self):
        """A request without a destination is rejected with the correct form."""
        caller = self.dial_insecurely()
        self.send_request(caller, Host="edge-1")
        self.answered(caller, 400, "edge-1:10250", "no port")
        self.assertEqual([], self.connected)

    def test_connect(self):
        """CONNECT is rejected."""
        caller = self.dial_insecurely()
        self.send_request(caller, "edge-1:10250", "CONNECT")
        self.answered(caller, 405, "--connect-endpoint")
        self.assertEqual([], self.connected)

    def test_no_agent(self):
        """For a node without an agent the response says when it was last seen."""
        caller = self.dial()
        self.send_request(caller, Host="edge-9:10250")
        self.answered(caller, 503, "no agent is connected for edge-9")
        self.registry.remove(self.session)
        self.pass_time(5)
        self.send_request(caller)
        self.answered(caller, 503, "no agent is connected for edge-1", "last seen 5 s ago")

    def test_for_machines(self):
        """A caller that accepts JSON gets a Kubernetes Status."""
        caller = self.dial()
        self.send_request(caller, Host="edge-9:10250", Accept="application/json")
        self.answered(caller, 503, '"kind": "Status"', '"reason": "ServiceUnavailable"')

    def test_callers(self):
        """Unknown callers are rejected, and the operator gets the reason."""
        node = self.issuer.node(CALLER_NAME)
        for credentials in (node, Issuer.make(self).caller()):
            caller = self.dial(
                credentials=self.issuer.authority.credentials(
                    credentials.key, credentials.certificate
                )
            )
            self.send_request(caller)
            self.assertEqual(b"", caller.received)
        warned = [line for line in self.lines if "a caller from" in line]
        self.assertEqual(2, len(warned), self.lines)
        self.assertIn("its certificate is that of a node", warned[0])
        self.assertEqual([], self.connected)

    def test_broken_record(self):
        """A malformed record on an accepted connection is not reported as a rejected caller."""
        caller = self.dial()
        self.send_request(caller)
        self.links[-1].server_io.protocol.dataReceived(b"\x17\x03\x03\x00\x20" + bytes(32))
        self.settle()
        self.assertEqual(1, len(caller.ended_with))
        self.assertEqual([], [line for line in self.lines if "is refused" in line])

    def test_heads(self):
        """Malformed requests are counted by status, on either port."""
        for caller in (self.dial(), self.dial_insecurely()):
            self.send_request(caller, "nowhere")
            self.answered(caller, 400)
        caller = self.dial_insecurely()
        self.send_request(caller, Expect="a-miracle")
        self.answered(caller, 417)
        self.assertEqual({400: 2, 417: 1}, self.stats().refusals)

    def test_unreachable(self):
        """An error of the agent reaches the caller, with a status."""
        caller = self.dial()
        for code, status in (
            (Code.REFUSED, 502),
            (Code.NAME_NOT_RESOLVED, 502),
            (Code.TIMEOUT, 504),
            (Code.DENIED, 403),
        ):
            self.pair.acceptor.answer = lambda request, code=code: request.fail(code, "its words")
            self.send_request(caller)
            self.answered(caller, status, "the kubelet of edge-1 at edge-1:10250: its words")


class TwistedTLSRefusalTests(RefusalTests):
    """``RefusalTests`` over Twisted's own TLS."""

    direct = False


@implementer(IMiddleware)
class Gate:
    """Rejects some requests, and redirects the others."""

    def wrap(self, handler):
        """See ``IMiddleware``."""

        def gated(request):
            if request.exchange.head.target == b"/secret":
                request.exchange.fail(403, f"not for you, {request.request_id}")
                return
            request.destination = Destination("edge-1", "192.0.2.7", 10251)
            handler(request)

        return gated


class MiddlewareTests(World):
    """An additional middleware."""

    middlewares = (Gate(),)

    def test_answers(self):
        """A middleware can respond itself; the request is traced and counted like all others."""
        caller = self.dial()
        self.send_request(caller, "/secret", X_Request_Id="abc-7")
        self.answered(caller, 403, "not for you, abc-7")
        self.assertEqual([], self.connected)
        self.assertTrue(any("(abc-7): 403" in line for line in self.lines), self.lines)
        self.assertEqual(1, self.counters.completed["GET", "other", "403"])

    def test_redirects(self):
        """A middleware can choose another destination, which the kubelet gets as Host."""
        self.serve_kubelet(None)
        caller = self.dial_insecurely()
        self.send_request(caller, Host="nonsense")
        self.answered(caller, 200)
        self.assertEqual([("192.0.2.7", 10251)], self.connected)
        self.assertEqual([b"192.0.2.7:10251"], self.kubelet.head.values(b"host"))
