"""Requests of callers through both ports to a kubelet, with real TLS and HTTP in memory."""

from __future__ import annotations

from twisted.internet.protocol import Factory
from zope.interface import implementer

from tests.fakes import Recorder
from tests.pki.support import Issuer
from tests.server.frontends.kubelet.world import RESPONSE_TIMEOUT, Session, World
from yurttunnel.http.server import ServerSettings
from yurttunnel.pki.authority import CALLER_NAME
from yurttunnel.pki.kubelets import KubeletVerification
from yurttunnel.server.frontends.kubelet.destination import Destination
from yurttunnel.server.frontends.kubelet.kubelets import HANDSHAKE_TIMEOUT
from yurttunnel.server.frontends.kubelet.middleware import IMiddleware
from yurttunnel.tunnel.shares import FOR_KUBELETS
from yurttunnel.wire.codes import Code


class RequestTests(World):
    """What reaches the kubelet, and what comes back."""

    def test_secure(self):
        """A request that has come by TLS goes to the kubelet by TLS."""
        caller = self.dial()
        self.ask(caller, "/metrics?x=y", Authorization="Bearer t", Accept="*/*")
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
        """A defect on the way to the kubelet is logged, and told to the caller as one."""
        self.session.open_stream = lambda *asked: 1 / 0
        caller = self.dial()
        self.ask(caller)
        self.answered(caller, 500, "the server has a defect; its log has more")
        self.assertEqual(1, len(self.flushLoggedErrors(ZeroDivisionError)))

    def test_insecure(self):
        """One that has come without TLS goes without."""
        self.serve_kubelet(None)
        caller = self.dial_insecurely()
        self.ask(caller, Host="edge-1:10255")
        self.answered(caller, 200, "metric 1\n")
        self.assertEqual([("edge-1", 10255)], self.connected)
        self.assertFalse(self.kubelet.exchanges[0].secure)
        self.assertEqual(0, self.counters.handshakes.total())

    def test_fields_for_the_server(self):
        """The fields of the tunnel choose node and destination, and are not passed on."""
        caller = self.dial()
        self.ask(
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
        """The id of the caller is taken over, another one made, and the kubelet gets either."""
        caller = self.dial()
        self.ask(caller, X_Request_Id="abc-7")
        self.assertEqual([b"abc-7"], self.kubelet.head.values(b"x-request-id"))
        self.assertTrue(any("(abc-7): 200, 9 bytes" in line for line in self.lines), self.lines)
        self.ask(caller, X_Request_Id="not fit for a log")
        [made] = self.kubelet.head.values(b"x-request-id")
        self.assertRegex(made, rb"\A[0-9a-f]{8}-\d+\Z")

    def test_traced(self):
        """The line of the log says who has asked, by name and address."""
        self.ask(self.dial())
        self.assertTrue(
            any("by 'kube-apiserver-kubelet-client' from " in line for line in self.lines),
            self.lines,
        )

    def test_long_head(self):
        """A command of many long words gets through, and so do many fields."""
        caller = self.dial()
        target = "/exec/default/web/web?command=" + "%C3%BC" * 80_000
        self.ask(caller, target, **{f"X_{number}": "y" for number in range(150)})
        self.answered(caller, 200)
        self.assertEqual(target.encode(), self.kubelet.head.target)

    def test_body(self):
        """Bodies pass, with a length and in chunks."""
        bodies = []

        class Sink:
            def __init__(self, exchange):
                self.exchange = exchange
                self.data = b""

            def write(self, data):
                self.data += data

            def finish(self, trailers=()):
                bodies.append(self.data)
                self.exchange.respond(201, [], self.data[::-1])

        self.kubelet.answer = lambda exchange: exchange.deliver_body(Sink(exchange))
        caller = self.dial()
        self.ask(caller, method="POST", body=b"12345", Content_Length="5")
        self.answered(caller, 201, "54321")
        self.ask(caller, method="POST", body=b"3\r\nabc\r\n0\r\n\r\n", Transfer_Encoding="chunked")
        self.answered(caller, 201, "cba")
        self.assertEqual([b"12345", b"abc"], bodies)

    def test_answers_of_kubelets(self):
        """Whatever the kubelet answers passes, refusals too."""
        caller = self.dial()
        for status in (204, 302, 401, 403, 404, 500, 503):
            self.kubelet.answer = lambda exchange, status=status: exchange.respond(
                status, [(b"X-Kubelet", b"y")], b"" if status == 204 else b"its own words"
            )
            self.ask(caller)
            self.answered(caller, status)
            self.assertIn(b"X-Kubelet: y", caller.received)
            self.assertEqual(status != 204, caller.received.endswith(b"its own words"))

    def test_upgrade(self):
        """After a 101 bytes pass both ways, those before the answer included."""
        for method in ("GET", "POST"):
            far = Recorder()
            self.kubelet.answer = lambda exchange, far=far: exchange.switch(
                101, b"", [(b"Connection", b"Upgrade"), (b"Upgrade", b"SPDY/3.1")], far
            )
            caller = self.dial()
            length = {"Content_Length": "0"} if method == "POST" else {}
            self.ask(
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
            self.assertEqual(1, self.counters.in_hand[method, "/exec"])
            caller.transport.loseConnection()
            self.settle()
            self.assertEqual(1, len(far.ended_with))
            self.assertEqual(1, self.counters.answered[method, "/exec", "101"])
            self.assertEqual(0, self.counters.durations.total_seconds)

    def test_refused_upgrade(self):
        """A refusal of an upgrade passes with its body."""
        self.kubelet.answer = lambda exchange: exchange.respond(403, [], b"you may not")
        caller = self.dial()
        self.ask(caller, "/exec/a/b/c", "POST", Connection="Upgrade", Upgrade="SPDY/3.1")
        self.answered(caller, 403, "you may not")


class TwistedTLSRequestTests(RequestTests):
    """The same over Twisted's own TLS."""

    direct = False


class RefusalTests(World):
    """Requests and callers that do not get to a kubelet."""

    def test_destinations(self):
        """A request that names no destination is told what to write."""
        caller = self.dial_insecurely()
        self.ask(caller, Host="edge-1")
        self.answered(caller, 400, "edge-1:10250", "no port")
        self.assertEqual([], self.connected)

    def test_connect(self):
        """CONNECT is served elsewhere."""
        caller = self.dial_insecurely()
        self.ask(caller, "edge-1:10250", "CONNECT")
        self.answered(caller, 405, "--connect-endpoint")
        self.assertEqual([], self.connected)

    def test_no_agent(self):
        """For a node without an agent the answer says since when."""
        caller = self.dial()
        self.ask(caller, Host="edge-9:10250")
        self.answered(caller, 503, "no agent is connected for edge-9")
        self.registry.remove(self.session)
        self.pass_time(5)
        self.ask(caller)
        self.answered(caller, 503, "no agent is connected for edge-1", "last seen 5 s ago")

    def test_for_machines(self):
        """A caller that takes JSON gets the Status of Kubernetes."""
        caller = self.dial()
        self.ask(caller, Host="edge-9:10250", Accept="application/json")
        self.answered(caller, 503, '"kind": "Status"', '"reason": "ServiceUnavailable"')

    def test_callers(self):
        """Who is no caller does not get through, and the operator is told why."""
        node = self.issuer.node(CALLER_NAME)
        for credentials in (node, Issuer.make(self).caller()):
            caller = self.dial(
                credentials=self.issuer.authority.credentials(
                    credentials.key, credentials.certificate
                )
            )
            self.ask(caller)
            self.assertEqual(b"", caller.received)
        warned = [line for line in self.lines if "a caller from" in line]
        self.assertEqual(2, len(warned), self.lines)
        self.assertIn("its certificate is that of a node", warned[0])
        self.assertEqual([], self.connected)

    def test_broken_record(self):
        """Nonsense on a connection that has been let in is no refusal of a caller."""
        caller = self.dial()
        self.ask(caller)
        self.links[-1].server_io.protocol.dataReceived(b"\x17\x03\x03\x00\x20" + bytes(32))
        self.settle()
        self.assertEqual(1, len(caller.ended_with))
        self.assertEqual([], [line for line in self.lines if "is refused" in line])

    def test_heads(self):
        """What is no proper request is counted by status, on either port."""
        for caller in (self.dial(), self.dial_insecurely()):
            self.ask(caller, "nowhere")
            self.answered(caller, 400)
        caller = self.dial_insecurely()
        self.ask(caller, Expect="a-miracle")
        self.answered(caller, 417)
        self.assertEqual({400: 2, 417: 1}, self.stats().refusals)

    def test_unreachable(self):
        """What the agent says of the kubelet gets to the caller, with a status."""
        caller = self.dial()
        for code, status in (
            (Code.REFUSED, 502),
            (Code.NAME_NOT_RESOLVED, 502),
            (Code.TIMEOUT, 504),
            (Code.DENIED, 403),
        ):
            self.pair.acceptor.answer = lambda request, code=code: request.fail(code, "its words")
            self.ask(caller)
            self.answered(caller, status, "the kubelet of edge-1 at edge-1:10250: its words")


class TwistedTLSRefusalTests(RefusalTests):
    """The same over Twisted's own TLS."""

    direct = False


@implementer(IMiddleware)
class Clients:
    """Believes the field ``X-Client`` for whom a request is made."""

    def wrap(self, handler):
        """See ``IMiddleware``."""

        def named(request):
            request.client = b"".join(request.exchange.head.values(b"x-client")).decode()
            handler(request)

        return named


class UnderWayTests(World):
    """Requests that kubelets do not answer, and that nobody ends."""

    settings = ServerSettings(max_connections=4)
    middlewares = (Clients(),)

    def setUp(self):
        """Have the kubelet answer nothing."""
        super().setUp()
        self.kubelet.answer = lambda exchange: None

    def test_shared(self):
        """Of the requests at either port a caller may have as many as it leaves free."""
        for dial, credentials in (
            (self.dial, self.issuer.server("edge-1")),
            (self.dial_insecurely, None),
        ):
            self.serve_kubelet(credentials)
            held = [dial() for _ in range(2)]
            for caller in held:
                self.ask(caller, X_Client="mallory")
            refused = dial()
            self.ask(refused, X_Client="mallory")
            self.answered(
                refused,
                503,
                "2 of 4 requests are under way at this port, of which a caller may have as many as"
                " it leaves free: try again when some of yours have ended",
            )
            self.ask(dial(), X_Client="joan")
            self.ask(refused, X_Client="mallory")
            self.answered(refused, 503, "3 of 4 requests are under way")
            held[0].transport.loseConnection()
            held[1].transport.loseConnection()
            self.settle()
            self.ask(refused, X_Client="mallory")
            self.assertEqual(b"", refused.received)

    def test_answered(self):
        """What has been answered, and what was refused, counts no more."""
        self.kubelet.answer = lambda exchange: exchange.respond(200, [], b"metric 1\n")
        caller = self.dial()
        for _ in range(5):
            self.ask(caller, X_Client="joan")
            self.answered(caller, 200)
            self.ask(caller, X_Client="joan", Host="unknown:10250")
            self.answered(caller, 503)


class FullTests(World):
    """Ports with as many connections as they take."""

    settings = ServerSettings(max_connections=2, max_handshakes=1)
    middlewares = (Clients(),)

    def full(self):
        """Return the warnings."""
        return [line for line in self.lines if "turns callers away" in line]

    def test_warned(self):
        """Callers beyond the bound are counted; the log says on which port, once in a while."""
        self.kubelet.answer = lambda exchange: None
        for dial, flag, credentials in (
            (self.dial, "--secure-port", self.issuer.server("edge-1")),
            (self.dial_insecurely, "--insecure-port", None),
        ):
            self.serve_kubelet(credentials)
            self.lines.clear()
            for number in range(2):
                self.ask(dial(), X_Client=str(number))
            self.assertEqual([], self.full())
            for _ in range(2):
                self.answered(dial(), 503)
            [line] = self.full()
            self.assertIn(f"{flag} turns callers away: it has 3 connections (2 at most)", line)
        self.assertEqual(4, self.stats().refusals[503])
        self.lines.clear()
        self.pass_time(60, step=5)
        self.dial_insecurely()
        [line] = self.full()
        self.assertIn("1 more like this", line)

    def test_idle(self):
        """Callers that are idle make room, and the log says that, too."""
        for _ in range(4):
            caller = self.dial()
            self.ask(caller)
            self.answered(caller, 200)
        self.assertEqual(1, len(self.full()))
        self.assertEqual(0, self.stats().refusals[503])

    def test_handshakes(self):
        """So it is with handshakes that do not end; whoever means it gets through."""
        for _ in range(3):
            self.link(Recorder(), self.secured())
        self.assertIn("1 unfinished TLS handshakes (1 at most)", self.full()[0])
        caller = self.dial()
        self.ask(caller)
        self.answered(caller, 200)


class TrustTests(World):
    """Kubelets that TLS does not like, or that do not like TLS."""

    def handshakes(self, **expected):
        """Assert how handshakes have ended."""
        self.assertEqual(expected, {k: n for k, n in self.counters.handshakes.items() if n})

    def test_verified(self):
        """A kubelet of the authority is verified, and counted."""
        self.ask(self.dial())
        self.handshakes(done=1)
        self.assertEqual({"verified": 1}, self.counters.verdicts)

    def test_unverified(self):
        """One of another authority is served with a warning, and counted."""
        self.serve_kubelet(Issuer.make(self).server("edge-1"))
        caller = self.dial()
        self.ask(caller)
        self.answered(caller, 200)
        self.assertEqual({"unverified": 1}, self.counters.verdicts)
        self.assertTrue(any("edge-1" in line and "not verified" in line for line in self.lines))

    def test_not_trusted(self):
        """One of the authority with another name is refused: node, address, reason and flag."""
        self.serve_kubelet(self.issuer.server("edge-2"))
        caller = self.dial()
        self.ask(caller)
        self.answered(caller, 502, "edge-1 at edge-1:10250", "is for edge-2", "--kubelet-verify")
        self.handshakes(not_trusted=1)
        self.assertEqual([], self.kubelet.exchanges)

    def test_no_tls(self):
        """One that does not speak TLS is told so."""
        self.serve_kubelet(None)
        caller = self.dial()
        self.ask(caller)
        self.answered(caller, 502, "TLS with the kubelet of edge-1", "does not speak TLS")
        self.handshakes(failed=1)

    def test_refuses_us(self):
        """One that does not know this server's certificate is told so, with the way out."""
        self.serve_kubelet(Issuer.make(self).server("edge-1"), trusting=False)
        caller = self.dial()
        self.ask(caller)
        self.answered(
            caller, 502, "edge-1", "refuses the certificate tunnel-proxy-client", "ca.crt"
        )

    def test_broken_off(self):
        """One that closes the connection in the handshake is told so."""

        class Closing(Recorder):
            def connectionMade(self):
                self.transport.loseConnection()

        self.listen(Factory.forProtocol(Closing))
        caller = self.dial()
        self.ask(caller)
        self.answered(caller, 502, "has failed: it has closed the connection")
        self.handshakes(failed=1)

    def test_silent(self):
        """One that does not go on with the handshake is given up in time."""
        silent = Recorder()
        self.listen(Factory.forProtocol(lambda: silent))
        caller = self.dial()
        self.ask(caller)
        self.pass_time(HANDSHAKE_TIMEOUT - 1)
        self.assertEqual(b"", caller.received)
        self.pass_time(2)
        self.answered(caller, 504, "has not finished the TLS handshake in 15 s")
        self.handshakes(timeout=1)
        self.assertEqual(1, len(silent.ended_with))

    def test_impatient_caller(self):
        """A caller that leaves meanwhile ends the attempt, which counts as no result."""
        silent = Recorder()
        self.listen(Factory.forProtocol(lambda: silent))
        caller = self.dial()
        self.ask(caller)
        caller.transport.abortConnection()
        self.settle()
        self.pass_time(1)
        self.assertEqual(1, len(silent.ended_with))
        self.handshakes()

    def test_lost_node(self):
        """A node that is lost in the handshake is not the kubelet's fault."""
        self.listen(Factory.forProtocol(Recorder))
        caller = self.dial()
        self.ask(caller)
        self.pair.server.close(Code.SESSION_LOST, "the agent did not come back")
        self.settle()
        self.answered(caller, 503, "the agent did not come back")


class DemandingTests(World):
    """``--kubelet-verify ca``."""

    mode = KubeletVerification.CA

    def test_refused(self):
        """A kubelet of another authority is refused, with the way out."""
        self.serve_kubelet(Issuer.make(self).server("edge-1"))
        caller = self.dial()
        self.ask(caller)
        self.answered(caller, 502, "is not from an authority of --kubelet-ca")
        self.assertEqual(0, self.counters.verdicts.total())


@implementer(IMiddleware)
class Gate:
    """Turns away who asks for the wrong thing, and sends the others elsewhere."""

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
    """A middleware that was added."""

    middlewares = (Gate(),)

    def test_answers(self):
        """It can answer itself; that is traced and counted as all others are."""
        caller = self.dial()
        self.ask(caller, "/secret", X_Request_Id="abc-7")
        self.answered(caller, 403, "not for you, abc-7")
        self.assertEqual([], self.connected)
        self.assertTrue(any("(abc-7): 403" in line for line in self.lines), self.lines)
        self.assertEqual(1, self.counters.answered["GET", "other", "403"])

    def test_redirects(self):
        """It can choose another destination, of which the kubelet is told."""
        self.serve_kubelet(None)
        caller = self.dial_insecurely()
        self.ask(caller, Host="nonsense")
        self.answered(caller, 200)
        self.assertEqual([("192.0.2.7", 10251)], self.connected)
        self.assertEqual([b"192.0.2.7:10251"], self.kubelet.head.values(b"host"))


class PoolTests(World):
    """Connections to kubelets are used again."""

    def test_reused(self):
        """Requests of all callers share connections; one handshake is enough."""
        for _ in range(3):
            caller = self.dial()
            for _ in range(3):
                self.ask(caller)
                self.answered(caller, 200)
        self.assertEqual(1, len(self.connected))
        self.assertEqual(1, self.counters.handshakes["done"])
        self.assertEqual({"in_use": 0, "idle": 1}, self.pooled())

    def test_kinds(self):
        """Other destinations and other ports of the server have connections of their own."""
        secure = self.dial()
        self.ask(secure)
        self.ask(secure, X_Tunnel_Proxy_Dest="127.0.0.1:10250", X_Tunnel_Proxy_Host="edge-1")
        self.assertEqual(2, len(self.connected))
        self.serve_kubelet(None)
        insecure = self.dial_insecurely()
        self.ask(insecure)
        self.answered(insecure, 200)
        self.assertEqual(3, len(self.connected))

    def test_lost_session(self):
        """Connections end with the session that carries them."""
        self.ask(self.dial())
        self.pair.server.close(Code.SESSION_LOST, "the agent did not come back")
        self.settle()
        self.assertEqual({"in_use": 0, "idle": 0}, self.pooled())

    def test_draining_session(self):
        """A session that wants to end is not held up by what is idle, nor by what becomes idle."""
        self.ask(self.dial())
        answer = self.kubelet.answer
        self.kubelet.answer = lambda exchange: None
        caller = self.dial()
        self.ask(caller)
        self.ask(self.dial())
        self.kubelet.exchanges[-1].respond(200, [], b"x")
        self.settle()
        self.assertEqual({"in_use": 1, "idle": 1}, self.pooled())
        self.kubelet.answer = answer
        self.pair.server.going_away = True
        self.interception.sessions_drain(frozenset({self.session}))
        self.settle()
        self.assertEqual({"in_use": 1, "idle": 0}, self.pooled())
        self.kubelet.exchanges[-2].respond(200, [], b"x")
        self.settle()
        self.answered(caller, 200)
        self.assertEqual({"in_use": 0, "idle": 0}, self.pooled())

    def test_new_session(self):
        """Connections of a session are not used for the one that has replaced it."""
        caller = self.dial()
        self.ask(caller)
        self.registry.add(Session(self.pair.server))
        self.ask(caller)
        self.answered(caller, 200)
        self.assertEqual(2, len(self.connected))

    def test_new_trust(self):
        """Connections of before are not used when the authorities of kubelets have changed."""
        caller = self.dial()
        self.ask(caller)
        self.assertEqual({"verified": 1}, self.counters.verdicts)
        self.contexts.trust([Issuer.make(self).authority.certificate])
        self.ask(caller)
        self.assertEqual({"verified": 1, "unverified": 1}, self.counters.verdicts)

    def test_followed(self):
        """However many have something followed, without a line so far, others get their turn."""
        self.serve_kubelet(None)
        answer = self.kubelet.answer
        self.kubelet.answer = lambda exchange: None
        for _ in range(40):
            self.ask(self.dial_insecurely(), "/containerLogs/a/b/c?follow=true")
        self.kubelet.answer = answer
        caller = self.dial_insecurely()
        self.ask(caller)
        self.answered(caller, 200)
        self.assertEqual(41, len(self.connected))
        *followed, short = self.session.holders
        self.assertEqual(FOR_KUBELETS, short)
        self.assertEqual(1, len({*followed}))
        self.assertNotIn(FOR_KUBELETS, followed)

    def test_bounded(self):
        """However many one caller asks at once, its connections to one kubelet are bounded."""
        self.kubelet.answer = lambda exchange: None
        callers = [self.dial_insecurely() for _ in range(40)]
        self.serve_kubelet(None)
        for caller in callers:
            self.ask(caller)
        self.assertEqual(16, len(self.connected))
        for exchange in list(self.kubelet.exchanges):
            exchange.respond(200, [], b"x")
        self.kubelet.answer = lambda exchange: exchange.respond(200, [], b"x")
        self.settle()
        for caller in callers:
            self.answered(caller, 200)
        self.assertEqual(16, len(self.connected))


class TimeTests(World):
    """Answers that do not come."""

    def setUp(self):
        """Have the kubelet keep quiet."""
        super().setUp()
        self.kubelet.answer = lambda exchange: None

    def test_overdue(self):
        """A kubelet that does not answer is given up after --response-timeout."""
        caller = self.dial()
        self.ask(caller)
        self.pass_time(RESPONSE_TIMEOUT - 1)
        self.assertEqual(b"", caller.received)
        self.pass_time(2)
        self.answered(caller, 504, "edge-1", "no answer came within 60 seconds")

    def test_another_response_timeout_from_now_on(self):
        """A request that is under way keeps its own; later ones have the new one."""
        before, after = self.dial(), self.dial()
        self.ask(before)
        self.interception.use_response_timeout(5.0)
        self.ask(after)
        self.pass_time(8)
        self.answered(after, 504, "no answer came within 5 seconds")
        self.assertEqual(b"", before.received)
        self.interception.use_response_timeout(60.0)
        self.pass_time(60)
        self.answered(before, 504, "no answer came within 60 seconds")

    def test_follow(self):
        """One that has something followed has time."""
        caller = self.dial()
        self.ask(caller, "/containerLogs/a/b/c?follow=true")
        self.pass_time(2 * RESPONSE_TIMEOUT, step=5)
        self.kubelet.exchanges[0].respond(200, [], b"at last")
        self.settle()
        self.answered(caller, 200, "at last")

    def test_upgrade(self):
        """An upgrade has to be answered in time."""
        caller = self.dial()
        self.ask(caller, "/exec/a/b/c", Connection="Upgrade", Upgrade="SPDY/3.1")
        self.pass_time(RESPONSE_TIMEOUT + 1)
        self.answered(caller, 504)


class DrainTests(World):
    """The end."""

    def test_idle(self):
        """Idle connections close on both sides at once."""
        caller = self.dial()
        self.ask(caller)
        drained = self.interception.drain()
        self.settle()
        self.successResultOf(drained)
        self.assertEqual(1, len(caller.ended_with))
        self.assertEqual({"in_use": 0, "idle": 0}, self.pooled())
        self.assertEqual(0, self.pair.server.snapshot().streams)

    def test_running(self):
        """A request that runs gets its answer, the last on its connections."""
        self.kubelet.answer = lambda exchange: None
        caller = self.dial()
        self.ask(caller)
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
        """What has not ended by then is aborted on both sides."""
        self.kubelet.answer = lambda exchange: None
        caller = self.dial()
        self.ask(caller)
        drained = self.interception.drain()
        self.interception.close()
        self.settle()
        self.successResultOf(drained)
        self.assertEqual(1, len(caller.ended_with))
        self.assertEqual(0, self.pair.server.snapshot().streams)
