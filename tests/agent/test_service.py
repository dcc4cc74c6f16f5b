"""The agent as a service, with a whole server at the other end, over TLS in memory."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

from twisted.internet.defer import succeed
from twisted.trial.unittest import TestCase

from tests.network import MemoryNetwork, context_with, open_stream
from tests.pki.support import EDGE_1, clock_now
from tests.tunnel.memory import Acceptor
from yurttunnel.agent import service
from yurttunnel.agent.connection_group import ClientSettings
from yurttunnel.agent.server_addresses import FixedAddresses
from yurttunnel.agent.servers import ServerSet
from yurttunnel.agent.service import AgentService
from yurttunnel.agent.standalone import enrolled_trust
from yurttunnel.pki.contexts import ENROLMENT_PROTOCOL
from yurttunnel.pki.enrolment_client import ServerAddress
from yurttunnel.pki.token import JoinToken
from yurttunnel.server.agents import AgentListener, AgentListenerSettings, RefuseStreams
from yurttunnel.server.registry import SessionRegistry
from yurttunnel.server.standalone_trust import StandaloneServerTrust
from yurttunnel.tunnel import tls
from yurttunnel.tunnel.connection import CLOSE_TIMEOUT
from yurttunnel.wire.codes import Code
from yurttunnel.wire.hello import Limits

DRAIN_TIMEOUT = 10.0
HOST = "127.0.0.1"
DAY = 86400


class ServiceTests(TestCase):
    """A server, and an agent's service that is not started."""

    def setUp(self):
        """Create both."""
        self.clock = clock_now()
        self.server_state = self.mktemp()
        trust = StandaloneServerTrust(self.clock, self.server_state, [HOST])
        self.registry = SessionRegistry(self.clock)
        self.server_context = context_with(self.clock, RefuseStreams())
        self.listener = AgentListener(
            self.server_context,
            self.registry,
            trust.revocations.is_revoked,
            AgentListenerSettings(Limits(), 0.8),
            {ENROLMENT_PROTOCOL: lambda: trust.enrolment_factory.buildProtocol(None)},
        )
        self.network = MemoryNetwork(
            self.clock, tls.server_side(self.clock, trust.contexts, self.listener)
        )
        self.sentences = []
        self.patch(service, "exit_with_error", lambda reactor, text: self.sentences.append(text))
        self.acceptor = Acceptor()
        self.stopped_dialers = 0
        self.token = None
        self.state = self.mktemp()
        self.make_service()
        self.addCleanup(self.check_nothing_is_left)

    def check_nothing_is_left(self):
        """Stop both; no session, connection or timer may remain."""
        self.stop()
        self.clock.advance(DRAIN_TIMEOUT)
        self.network.settle()
        self.assertEqual([], self.servers.sessions())
        self.listener.close_sessions(Code.GOING_AWAY, "over")
        self.network.settle()
        self.clock.advance(CLOSE_TIMEOUT)
        self.network.settle()
        self.assertEqual([], self.network.open_links)
        self.assertEqual([], self.clock.getDelayedCalls())

    def read_token(self):
        """Return the server's join token, or the text set by the test."""
        return JoinToken.parse(self.token or Path(self.server_state, "join-token").read_text())

    def make_service(self):
        """Create the agent's service with its state directory."""
        self.trust = enrolled_trust(
            self.clock,
            self.state,
            "edge-1",
            EDGE_1,
            [ServerAddress(HOST, 10262, self.network)],
            self.read_token if self.token != "" else None,
        )
        self.context = context_with(self.clock, self.acceptor)
        settings = ClientSettings("edge-1", lambda: "host=edge-1", Limits(), "test 1")
        self.servers = ServerSet(self.context, settings, self.tls_endpoint)
        self.service = AgentService(
            self.clock,
            self.trust,
            FixedAddresses([(HOST, 10262)]),
            self.servers,
            SimpleNamespace(stop=self.stop_dialer),
            DRAIN_TIMEOUT,
        )

    def tls_endpoint(self, host, port, skip):
        """Return the endpoint of a server, always on the same network."""
        return tls.TLSEndpoint(self.clock, self.trust.creator(host), self.network)

    def stop_dialer(self):
        """Count the call."""
        self.stopped_dialers += 1

    def start(self):
        """Start like the command: trust first."""
        self.trust.startService()
        self.service.startService()
        self.network.settle()

    def stop(self):
        """Stop; return the ``Deferred`` of the end."""
        if self.trust.running:
            self.trust.stopService()
        return self.service.stopService() if self.service.running else succeed(None)

    def stream(self):
        """Open a stream from the server; return the protocols of its ends."""
        return open_stream(self.network, self.registry, self.acceptor)


class BeginningTests(ServiceTests):
    """Enrolment, then sessions."""

    def test_enrols_and_connects(self):
        """The first start enrols the node and connects it."""
        self.assertIn("no certificate of node edge-1 yet", self.service.problem())
        self.start()
        self.assertIsNone(self.service.problem())
        self.assertEqual("edge-1", self.registry.find("edge-1").node)
        self.assertEqual(1, len(self.servers.sessions()))
        self.assertEqual(0, self.servers.failed_attempts())

    def test_second_start(self):
        """A later start needs no token."""
        self.start()
        self.stop()
        self.network.pass_time(1)
        self.token = "gone"
        self.make_service()
        self.start()
        self.assertIsNone(self.service.problem())

    def test_waits_for_the_server(self):
        """While no server responds, the agent is not enrolled and retries."""
        self.network.refuse()
        self.start()
        self.network.pass_time(60)
        problem = self.service.problem()
        self.assertIn("there is no certificate of node edge-1 yet", problem)
        self.assertIn("refused", problem)
        self.assertEqual([], self.sentences)
        self.network.problem = None
        self.network.pass_time(40)
        self.assertIsNone(self.service.problem())

    def test_refused(self):
        """A rejection that a retry would not change ends the process with its message."""
        good = self.read_token()
        self.token = str(JoinToken(good.token_id, "0" * len(good.secret), good.pin))
        self.start()
        [sentence] = self.sentences
        self.assertTrue(sentence.startswith("yurttunnel-agent: "), sentence)
        self.assertIn("token", sentence)
        self.assertNotIn("\n", sentence)

    def test_bad_token(self):
        """So does a malformed token."""
        self.token = "nonsense"
        self.start()
        self.assertEqual(1, len(self.sentences))
        self.assertIn("token", self.sentences[0])

    def test_no_token(self):
        """So does a first start without a token; the message names the flag."""
        self.token = ""
        self.make_service()
        self.start()
        self.assertIn("--join-token", self.sentences[0])

    def test_defect(self):
        """So does a defect, which is logged, instead of an agent that hangs forever."""
        self.patch(self.servers, "use", lambda locations: {}["missing"])
        self.start()
        self.assertEqual(1, len(self.flushLoggedErrors(KeyError)))
        self.assertEqual(1, len(self.sentences))

    def test_not_connected(self):
        """A server that is not connected is reported with the reason."""
        self.start()
        self.network.refuse()
        self.network.cut()
        problem = self.service.problem()
        self.assertTrue(problem.startswith(f"not connected: {HOST}:10262 ("), problem)
        self.assertEqual(problem, self.service.warning(), "none is not every one")
        self.network.pass_time(3)
        self.assertIn("refused", self.service.problem())
        self.assertGreater(self.servers.failed_attempts(), 0)

    def test_certificate_problem(self):
        """Without a valid certificate there is a problem; a failed renewal is a warning."""
        trust = self.trust
        self.assertIn("there is no certificate of node edge-1 yet", trust.problem())
        self.assertIsNone(trust.warning())
        self.start()
        self.assertEqual((None, None), (trust.problem(), trust.warning()))
        self.assertEqual({"agent": trust.certificate.not_after}, trust.certificates())
        self.network.refuse()
        self.clock.advance(21 * DAY)
        self.assertIsNone(trust.problem())
        self.assertIn("is not renewed: ", trust.warning())
        self.clock.advance(10 * DAY)
        self.assertIn("has expired at ", trust.problem())
        self.assertIsNone(trust.warning())


class StopTests(ServiceTests):
    """The end of the agent."""

    def assert_stopped(self, stopped):
        """Check that everything has ended and nothing starts again."""
        self.successResultOf(stopped)
        attempts = self.network.attempts
        self.network.hangs, self.network.problem = False, None
        self.network.settle()
        self.clock.advance(CLOSE_TIMEOUT)
        self.network.pass_time(60, 5)
        self.assertEqual(attempts, self.network.attempts)
        self.assertEqual([], self.clock.getDelayedCalls())
        self.assertEqual([], self.sentences)

    def test_before_the_connection(self):
        """Stopping cancels the dial for the enrolment."""
        self.network.hangs = True
        self.start()
        self.assert_stopped(self.stop())
        self.assertEqual(1, self.network.cancelled)

    def test_between_attempts(self):
        """Stopping cancels the delay before the next enrolment attempt."""
        self.network.refuse()
        self.start()
        self.network.pass_time(5)
        self.assert_stopped(self.stop())

    def test_during_the_exchange(self):
        """Stopping cancels the enrolment while its response is pending."""
        self.trust.startService()
        self.service.startService()
        self.assertEqual(1, len(self.network.open_links))
        stopped = self.stop()
        self.network.settle()
        self.assert_stopped(stopped)
        self.assertEqual([], self.network.open_links)

    def test_idle(self):
        """Without streams stopping takes the two steps of GOAWAY."""
        self.start()
        stopped = self.stop()
        self.assertNoResult(stopped)
        self.network.pass_time(1)
        self.assert_stopped(stopped)
        self.assertEqual({Code.GOING_AWAY: 1}, dict(self.server_context.counters.session_ends))
        self.assertEqual(1, self.stopped_dialers)

    def test_drain(self):
        """Streams may complete; when the last one ends, so does the agent."""
        self.start()
        near, _ = self.stream()
        stopped = self.stop()
        self.network.pass_time(DRAIN_TIMEOUT / 2)
        self.assertNoResult(stopped)
        self.assertEqual((["made"], 0), (near.events, self.stopped_dialers))
        near.transport.abortConnection()
        self.network.pass_time(1)
        self.assert_stopped(stopped)

    def test_drain_timeout(self):
        """Streams that do not end are aborted after the drain timeout; the server is notified."""
        self.start()
        near, far = self.stream()
        stopped = self.stop()
        self.network.pass_time(DRAIN_TIMEOUT - 0.5)
        self.assertNoResult(stopped)
        self.network.pass_time(1)
        self.assert_stopped(stopped)
        for user in (near, far):
            self.assertEqual(Code.GOING_AWAY, user.reasons[0].value.code)
        self.assertIn("the agent has stopped", near.reasons[0].value.text)

    def test_connection_lost_while_draining(self):
        """Streams survive a lost connection in the drain as before it."""
        self.start()
        near, far = self.stream()
        stopped = self.stop()
        self.network.cut()
        self.network.pass_time(2)
        near.transport.write(b"still here")
        self.network.settle()
        self.assertEqual(b"still here", bytes(far.received))
        self.assertNoResult(stopped)
        near.transport.abortConnection()
        self.network.pass_time(1)
        self.assert_stopped(stopped)

    def test_connection_does_not_come_back(self):
        """The drain timeout also ends streams whose connection was lost."""
        self.start()
        _, far = self.stream()
        stopped = self.stop()
        self.network.cut()
        self.network.refuse()
        self.network.pass_time(DRAIN_TIMEOUT - 0.5)
        self.assertNoResult(stopped)
        self.network.pass_time(1)
        self.assert_stopped(stopped)
        self.assertEqual(Code.GOING_AWAY, far.reasons[0].value.code)

    def test_readiness(self):
        """From the start of the drain the agent is not ready, and reports why."""
        self.start()
        self.stream()
        self.stop()
        self.assertEqual("draining", self.service.problem())
        self.assertEqual("draining", self.service.warning())
