"""Connections to kubelets: verification in TLS, reuse, and missing responses."""

from __future__ import annotations

from dataclasses import replace

from twisted.internet.protocol import Factory

from tests.fakes import Recorder
from tests.pki.support import Issuer
from tests.server.frontends.kubelet.world import RESPONSE_TIMEOUT, Session, World
from yurttunnel.ops.clocks import utc_now
from yurttunnel.pki.kubelets import KubeletVerification
from yurttunnel.server.frontends.kubelet.kubelets import HANDSHAKE_TIMEOUT
from yurttunnel.tunnel.shares import FOR_KUBELETS
from yurttunnel.wire.codes import Code


class TrustTests(World):
    """Kubelets whose TLS is rejected, or that reject the server's."""

    def handshakes(self, **expected):
        """Assert the results of handshakes."""
        self.assertEqual(expected, {k: n for k, n in self.counters.handshakes.items() if n})

    def test_verified(self):
        """A kubelet with a certificate of the authority is verified, and counted."""
        self.send_request(self.dial())
        self.handshakes(done=1)
        self.assertEqual({"verified": 1}, self.counters.verdicts)

    def test_unverified(self):
        """A kubelet of another authority is accepted with a warning, and counted."""
        self.serve_kubelet(Issuer.make(self).server("edge-1"))
        caller = self.dial()
        self.send_request(caller)
        self.answered(caller, 200)
        self.assertEqual({"unverified": 1}, self.counters.verdicts)
        self.assertTrue(any("edge-1" in line and "not verified" in line for line in self.lines))

    def test_not_trusted(self):
        """A kubelet with another name is rejected; the error has node, address, reason and flag."""
        self.serve_kubelet(self.issuer.server("edge-2"))
        caller = self.dial()
        self.send_request(caller)
        self.answered(caller, 502, "edge-1 at edge-1:10250", "is for edge-2", "--kubelet-verify")
        self.handshakes(not_trusted=1)
        self.assertEqual([], self.kubelet.exchanges)

    def test_no_tls(self):
        """A port without TLS is reported."""
        self.serve_kubelet(None)
        caller = self.dial()
        self.send_request(caller)
        self.answered(caller, 502, "TLS with the kubelet of edge-1", "does not speak TLS")
        self.handshakes(failed=1)

    def test_refuses_us(self):
        """A kubelet that does not know this server's certificate is reported, with the remedy."""
        self.serve_kubelet(Issuer.make(self).server("edge-1"), trusting=False)
        caller = self.dial()
        self.send_request(caller)
        self.answered(
            caller, 502, "edge-1", "rejects the certificate tunnel-proxy-client", "ca.crt"
        )

    def test_broken_off(self):
        """A connection closed in the handshake is reported."""

        class Closing(Recorder):
            def connectionMade(self):
                self.transport.loseConnection()

        self.listen(Factory.forProtocol(Closing))
        caller = self.dial()
        self.send_request(caller)
        self.answered(caller, 502, "has failed: it has closed the connection")
        self.handshakes(failed=1)

    def test_silent(self):
        """A silent handshake times out."""
        silent = Recorder()
        self.listen(Factory.forProtocol(lambda: silent))
        caller = self.dial()
        self.send_request(caller)
        self.pass_time(HANDSHAKE_TIMEOUT - 1)
        self.assertEqual(b"", caller.received)
        self.pass_time(2)
        self.answered(caller, 504, "has not finished the TLS handshake in 15 s")
        self.handshakes(timeout=1)
        self.assertEqual(1, len(silent.ended_with))

    def test_impatient_caller(self):
        """A caller that leaves meanwhile cancels the attempt, which counts as no result."""
        silent = Recorder()
        self.listen(Factory.forProtocol(lambda: silent))
        caller = self.dial()
        self.send_request(caller)
        caller.transport.abortConnection()
        self.settle()
        self.pass_time(1)
        self.assertEqual(1, len(silent.ended_with))
        self.handshakes()

    def test_stopping(self):
        """A handshake in progress when the server stops is not a defect."""
        silent = Recorder()
        self.listen(Factory.forProtocol(lambda: silent))
        self.send_request(self.dial())
        self.interception.close()
        self.settle()
        self.assertEqual(1, len(silent.ended_with))
        self.assertEqual([], [line for line in self.lines if "Defect" in line])
        self.assertIn(": 503, ", self.lines[-1])

    def test_lost_node(self):
        """A node that is lost in the handshake is reported as such."""
        self.listen(Factory.forProtocol(Recorder))
        caller = self.dial()
        self.send_request(caller)
        self.pair.server.close(Code.SESSION_LOST, "the agent did not come back")
        self.settle()
        self.answered(caller, 503, "the agent did not come back")


class DemandingTests(World):
    """``--kubelet-verify ca``."""

    mode = KubeletVerification.CA

    def test_refused(self):
        """A kubelet of another authority is rejected, with the remedy."""
        self.serve_kubelet(Issuer.make(self).server("edge-1"))
        caller = self.dial()
        self.send_request(caller)
        self.answered(caller, 502, "is not from an authority of --kubelet-ca")
        self.assertEqual(0, self.counters.verdicts.total())


class PoolTests(World):
    """Reuse of connections to kubelets."""

    def test_reused(self):
        """Requests of all callers share connections; one handshake suffices."""
        for _ in range(3):
            caller = self.dial()
            for _ in range(3):
                self.send_request(caller)
                self.answered(caller, 200)
        self.assertEqual(1, len(self.connected))
        self.assertEqual(1, self.counters.handshakes["done"])
        self.assertEqual({"in_use": 0, "idle": 1}, self.pooled())

    def test_kinds(self):
        """Other destinations, and the server's other port, have separate connections."""
        secure = self.dial()
        self.send_request(secure)
        self.send_request(
            secure, X_Tunnel_Proxy_Dest="127.0.0.1:10250", X_Tunnel_Proxy_Host="edge-1"
        )
        self.assertEqual(2, len(self.connected))
        self.serve_kubelet(None)
        insecure = self.dial_insecurely()
        self.send_request(insecure)
        self.answered(insecure, 200)
        self.assertEqual(3, len(self.connected))

    def test_lost_session(self):
        """Connections end with the session that carries them."""
        self.send_request(self.dial())
        self.pair.server.close(Code.SESSION_LOST, "the agent did not come back")
        self.settle()
        self.assertEqual({"in_use": 0, "idle": 0}, self.pooled())

    def test_draining_session(self):
        """A draining session is not delayed by connections that are or become idle."""
        self.send_request(self.dial())
        answer = self.kubelet.answer
        self.kubelet.answer = lambda exchange: None
        caller = self.dial()
        self.send_request(caller)
        self.send_request(self.dial())
        self.kubelet.exchanges[-1].respond(200, [], b"x")
        self.settle()
        self.assertEqual({"in_use": 1, "idle": 1}, self.pooled())
        self.kubelet.answer = answer
        self.pair.server.draining = True
        self.interception.sessions_draining(frozenset({self.session}))
        self.settle()
        self.assertEqual({"in_use": 1, "idle": 0}, self.pooled())
        self.kubelet.exchanges[-2].respond(200, [], b"x")
        self.settle()
        self.answered(caller, 200)
        self.assertEqual({"in_use": 0, "idle": 0}, self.pooled())

    def test_new_session(self):
        """Connections of a session are not used for its replacement."""
        caller = self.dial()
        self.send_request(caller)
        self.registry.add(Session(self.pair.server))
        self.send_request(caller)
        self.answered(caller, 200)
        self.assertEqual(2, len(self.connected))

    def test_new_trust(self):
        """Older connections are not reused when the authorities of kubelets have changed."""
        caller = self.dial()
        self.send_request(caller)
        self.assertEqual({"verified": 1}, self.counters.verdicts)
        others = (Issuer.make(self).authority.certificate,)
        changed = replace(self.contexts.credentials, authorities=others)
        self.contexts.prepare(changed, utc_now(self.issuer.clock))()
        self.send_request(caller)
        self.assertEqual({"verified": 1, "unverified": 1}, self.counters.verdicts)

    def test_followed(self):
        """However many requests follow something, even without a line so far, others are served."""
        self.serve_kubelet(None)
        answer = self.kubelet.answer
        self.kubelet.answer = lambda exchange: None
        for _ in range(40):
            self.send_request(self.dial_insecurely(), "/containerLogs/a/b/c?follow=true")
        self.kubelet.answer = answer
        caller = self.dial_insecurely()
        self.send_request(caller)
        self.answered(caller, 200)
        self.assertEqual(41, len(self.connected))
        *followed, short = self.session.holders
        self.assertEqual(FOR_KUBELETS, short)
        self.assertEqual(1, len({*followed}))
        self.assertNotIn(FOR_KUBELETS, followed)

    def test_bounded(self):
        """One caller's connections to one kubelet are limited, however many requests it sends."""
        self.kubelet.answer = lambda exchange: None
        callers = [self.dial_insecurely() for _ in range(40)]
        self.serve_kubelet(None)
        for caller in callers:
            self.send_request(caller)
        self.assertEqual(16, len(self.connected))
        for exchange in list(self.kubelet.exchanges):
            exchange.respond(200, [], b"x")
        self.kubelet.answer = lambda exchange: exchange.respond(200, [], b"x")
        self.settle()
        for caller in callers:
            self.answered(caller, 200)
        self.assertEqual(16, len(self.connected))

    def test_lost_session_for_which_some_wait(self):
        """Waiters for a connection through a session that ends are rejected at once."""
        self.serve_kubelet(None)
        self.kubelet.answer = lambda exchange: None
        callers = [self.dial_insecurely() for _ in range(20)]
        for caller in callers:
            self.send_request(caller)
        self.assertEqual(4, self.stats().pool.waiting)
        self.pair.server.close(Code.SESSION_LOST, "the agent did not come back")
        self.settle()
        for caller in callers[:16]:
            self.answered(caller, 502, "did not come back")
        for caller in callers[16:]:
            self.answered(caller, 503, "the session has ended")
        self.assertEqual({"in_use": 0, "idle": 0}, self.pooled())


class TimeTests(World):
    """Missing responses."""

    def setUp(self):
        """Let the kubelet stay silent."""
        super().setUp()
        self.kubelet.answer = lambda exchange: None

    def test_overdue(self):
        """A kubelet that does not respond times out after --response-timeout."""
        caller = self.dial()
        self.send_request(caller)
        self.pass_time(RESPONSE_TIMEOUT - 1)
        self.assertEqual(b"", caller.received)
        self.pass_time(2)
        self.answered(caller, 504, "edge-1", "no response within 60 seconds")

    def test_another_response_timeout_from_now_on(self):
        """A request in flight keeps its timeout; later ones have the new one."""
        before, after = self.dial(), self.dial()
        self.send_request(before)
        self.interception.use_response_timeout(5.0)
        self.send_request(after)
        self.pass_time(8)
        self.answered(after, 504, "no response within 5 seconds")
        self.assertEqual(b"", before.received)
        self.interception.use_response_timeout(60.0)
        self.pass_time(60)
        self.answered(before, 504, "no response within 60 seconds")

    def test_follow(self):
        """A request that follows something has no timeout."""
        caller = self.dial()
        self.send_request(caller, "/containerLogs/a/b/c?follow=true")
        self.pass_time(2 * RESPONSE_TIMEOUT, step=5)
        self.kubelet.exchanges[0].respond(200, [], b"at last")
        self.settle()
        self.answered(caller, 200, "at last")

    def test_upgrade(self):
        """The response to an upgrade has the timeout."""
        caller = self.dial()
        self.send_request(caller, "/exec/a/b/c", Connection="Upgrade", Upgrade="SPDY/3.1")
        self.pass_time(RESPONSE_TIMEOUT + 1)
        self.answered(caller, 504)
