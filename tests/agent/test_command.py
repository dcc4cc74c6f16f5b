"""An agent, built from its command line, and a server, on one reactor in memory."""

from __future__ import annotations

import json
import os
from pathlib import Path

from twisted.internet import reactor
from twisted.internet.error import ConnectionLost
from twisted.internet.protocol import Factory
from twisted.internet.testing import StringTransport
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from tests.agent.fakes import FakeNameResolver
from tests.network import ProgramReactor, without_thread
from tests.tunnel.memory import HalfCloseUser
from yurttunnel.agent import command, server_endpoint, service
from yurttunnel.agent.connection_group import MAX_DELAY
from yurttunnel.agent.options import Options
from yurttunnel.agent.service import AgentService
from yurttunnel.pki.authority import DEFAULT_NODE_LIFETIME
from yurttunnel.pki.revocation import revoke_node
from yurttunnel.pki.token import BadToken
from yurttunnel.server import command as server_command
from yurttunnel.server import standalone
from yurttunnel.server.options import Options as ServerOptions

LIFE = DEFAULT_NODE_LIFETIME
META = 10266
SERVER_META = 10265
PROMISED = (
    "konnectivity_network_proxy_agent_dial_duration_seconds",
    "konnectivity_network_proxy_agent_server_connection_failure_count",
    "yurttunnel_agent_bytes_total",
    "yurttunnel_agent_dial_results_total",
    "yurttunnel_agent_stream_ends_total",
    "yurttunnel_agent_session_ends_total",
    "yurttunnel_agent_resumptions_total",
    "yurttunnel_agent_session_round_trip_seconds",
    "yurttunnel_agent_certificate_expiry_timestamp_seconds",
    "process_resident_memory_bytes",
)
"""The names of yurttunnel 1.2 that dashboards use, and further documented ones."""


class CommandTests(SynchronousTestCase):
    """From command lines to a tunnel."""

    def setUp(self):
        """Set the state directories."""
        # The reactor that runs the tests keeps its clock: the program would replace it by its own.
        self.patch(reactor, "seconds", reactor.seconds)
        self.reactor = ProgramReactor()
        self.patch(standalone, "run_in_new_thread", without_thread)
        self.state = self.mktemp()
        self.server_state = self.mktemp()
        # The real functions change the logging of the whole process, or end it.
        for module in (command, server_command):
            self.patch(module, "forward_standard_logging", lambda: None)
        self.patch(service, "exit_with_error", lambda reactor, sentence: self.fail(sentence))
        self.addCleanup(self.check_nothing_is_left)

    def start_server(self, *arguments):
        """Start a server; return it."""
        settings = ServerOptions().settings_of(
            "--standalone",
            "--bind-address",
            "127.0.0.1",
            "--state-dir",
            self.server_state,
            *arguments,
        )
        server = server_command.build(self.reactor, settings)
        server.startService()
        self.addCleanup(self.stop, server)
        return server

    def options(self, *arguments):
        """Parse an agent's command line."""
        options = Options()
        options.parseOptions(
            [
                "--standalone",
                "--state-dir",
                self.state,
                "--node-name",
                "edge-1",
                "--node-ip",
                "127.0.0.1",
                "--tunnelserver-addr",
                "127.0.0.1:10262",
                "--join-token-file",
                f"{self.server_state}/join-token",
                *arguments,
            ]
        )
        return options

    def write_token(self, text=f"{'a' * 16}.{'b' * 32}.sha256:{'c' * 64}"):
        """Write a token file, without a server."""
        Path(self.server_state).mkdir()
        Path(self.server_state, "join-token").write_text(text)

    def start(self, *arguments):
        """Start an agent."""
        agent = command.build(self.reactor, self.options(*arguments).settings)
        agent.startService()
        self.addCleanup(self.stop, agent)
        self.reactor.settle()
        return agent

    def stop(self, program):
        """Stop a program, unless it has stopped; its ports must be free again."""
        if not program.running:
            return
        ports = len(self.reactor.closed_ports)
        stopped = program.stopService()
        self.reactor.pass_time(3)
        self.successResultOf(stopped)
        closed = self.reactor.closed_ports[ports:]
        self.reactor.tcpServers[:] = [
            each for each in self.reactor.tcpServers if each[0] not in closed
        ]

    def check_nothing_is_left(self):
        """Check that neither program has left a timer or a connection attempt."""
        self.reactor.pass_time(6)
        self.assertEqual([], self.reactor.getDelayedCalls())

    def test_tunnel(self):
        """Agent and server enroll, connect and carry data from a forward to a target and back."""
        self.start_server("--forward", "9000=edge-1/127.0.0.1:8000")
        self.start()
        self.assertEqual(200, self.reactor.get(META, "/readyz")[0])
        target = HalfCloseUser()
        self.reactor.listenTCP(8000, Factory.forProtocol(lambda: target))
        caller = self.reactor.site(9000).buildProtocol(None)
        transport = StringTransport()
        caller.makeConnection(transport)
        self.reactor.settle()
        caller.dataReceived(b"question")
        self.reactor.settle()
        self.assertEqual(b"question", bytes(target.received))
        target.transport.write(b"answer")
        self.reactor.settle()
        self.assertEqual(b"answer", transport.value())
        caller.connectionLost(Failure(ConnectionLost()))
        self.reactor.settle()
        self.assertEqual(1, len(target.reasons))

    def test_agents_page(self):
        """The pages of both ends show the session."""
        self.start_server()
        self.start()
        for port, node in ((SERVER_META, "edge-1"), (META, "127.0.0.1:10262")):
            status, body = self.reactor.get(port, "/agents")
            [session] = json.loads(body)
            self.assertEqual((200, node, True), (status, session["node"], session["connected"]))
            self.assertTrue(session["version"])
        _, body = self.reactor.get(SERVER_META, "/agents")
        self.assertIsNotNone(json.loads(body)[0]["certificate_expiry"])
        _, body = self.reactor.get(SERVER_META, "/metrics")
        self.assertIn(
            'konnectivity_network_proxy_server_registered_agents{agentID="edge-1"} 1', body
        )

    def test_metrics(self):
        """All documented metrics exist by name."""
        self.start_server()
        self.start()
        status, body = self.reactor.get(META, "/metrics")
        self.assertEqual(200, status)
        for name in PROMISED:
            self.assertIn(f"# TYPE {name} ", body)
        self.assertIn('certificate="agent"', body)

    def test_a_token_that_cannot_be(self):
        """A malformed token is rejected before anything is created, unless enrolled already."""
        with self.assertRaisesRegex(BadToken, "^--join-token-file .*: No such file"):
            command.build(self.reactor, self.options().settings)
        self.write_token("id.secret")
        with self.assertRaisesRegex(BadToken, "^--join-token-file .*: the join token is not of"):
            command.build(self.reactor, self.options().settings)
        self.assertFalse(Path(self.state).exists())

    def test_an_enrolled_agent_needs_no_token(self):
        """The token's file may be missing: units and manifests name it permanently."""
        self.start_server()
        agent = self.start()
        self.stop(agent)
        Path(self.server_state, "join-token").unlink()
        self.start()
        self.assertEqual(200, self.reactor.get(META, "/readyz")[0])

    def test_not_ready(self):
        """Without a server the agent is alive, not ready, and reports why."""
        self.write_token()
        agent = command.build(self.reactor, self.options().settings)
        agent.startService()
        self.addCleanup(self.stop, agent)
        self.assertEqual((200, "ok\n"), self.reactor.get(META, "/healthz"))
        status, body = self.reactor.get(META, "/readyz")
        self.assertEqual(503, status)
        self.assertIn("servers: there is no certificate of node edge-1 yet: ", body)
        self.assertIn("certificate: there is no certificate of node edge-1 yet: ", body)
        self.assertEqual((200, "[]\n"), self.reactor.get(META, "/agents"))

    def test_not_renewed(self):
        """If the server does not know the enrolment, the agent is ready, with a warning."""
        server = self.start_server()
        agent = self.start()
        self.stop(agent)
        self.stop(server)
        Path(self.server_state, "nodes", "edge-1").unlink()
        self.reactor.advance(LIFE * 0.7)
        self.start_server()
        self.start()
        status, body = self.reactor.get(META, "/readyz")
        self.assertIn("servers: ok\n", body)
        self.assertIn("certificate: ok\n", body)
        self.assertIn("certificate renewal: the certificate of node edge-1, valid until ", body)
        self.assertIn("node edge-1 was not enrolled here", body)
        self.assertEqual(200, status)
        self.reactor.advance(LIFE * 0.3)
        status, body = self.reactor.get(META, "/readyz")
        self.assertIn("certificate: the certificate of node edge-1 has expired at ", body)
        self.assertIn("certificate renewal: ok\n", body)
        self.assertEqual(503, status)

    def test_several_servers(self):
        """There is a client for each server; one connected server suffices for readiness, the
        others are named.
        """
        self.start_server()
        agent = self.start("--tunnelserver-addr", "127.0.0.1:10262,127.0.0.1:10999")
        status, body = self.reactor.get(META, "/readyz")
        self.assertEqual(200, status)
        self.assertIn("servers: ok\nevery server: not connected: 127.0.0.1:10999", body)
        self.assertNotIn("127.0.0.1:10262", body)
        [clients] = [part for part in agent if isinstance(part, AgentService)]
        self.assertEqual(1, len(clients.servers.sessions()))

    def test_two_addresses_of_one_server(self):
        """The client whose session was replaced by the other one stands by, which is not reported
        as a problem.
        """
        self.start_server()
        agent = self.start("--tunnelserver-addr", "127.0.0.1:10262,[::1]:10262")
        [clients] = [part for part in agent if isinstance(part, AgentService)]
        self.reactor.pass_time(3)
        [session] = clients.servers.sessions()
        self.reactor.pass_time(MAX_DELAY * 2, 1)
        self.assertEqual([session], clients.servers.sessions())
        status, body = self.reactor.get(META, "/readyz")
        self.assertEqual((200, True), (status, "every server: ok\n" in body))

    def test_silent_resolver(self):
        """Unresponsive name servers cost one attempt its timeout, and the log names the server."""
        self.start_server()
        self.stop(self.start())
        self.patch(self.reactor, "nameResolver", FakeNameResolver())
        self.start("--tunnelserver-addr", "server.test:10262", "--meta-port", "10299")
        self.assertIn("not connected yet", self.reactor.get(10299, "/readyz")[1])
        self.reactor.pass_time(server_endpoint.CONNECT_TIMEOUT)
        self.assertIn(
            "no connection to server.test:10262 within 10 s", self.reactor.get(10299, "/readyz")[1]
        )

    def test_too_many_identifiers(self):
        """Identifiers that exceed a HELLO cause a one-line error, before anything is written."""
        many = "&".join(f"host={'n' * 50}.{'m' * 50}.n{number}.example" for number in range(200))
        options = self.options("--agent-identifiers", many)
        error = self.assertRaises(SystemExit, command.makeService, options)
        self.assertTrue(error.code.startswith("--agent-identifiers: "), error.code)
        self.assertNotIn("\n", error.code)
        self.assertFalse(Path(self.state).exists())

    def test_draining(self):
        """During the drain the meta port reports it; then it is closed."""
        self.start_server("--forward", "9000=edge-1/127.0.0.1:8000")
        agent = self.start()
        target = HalfCloseUser()
        self.reactor.listenTCP(8000, Factory.forProtocol(lambda: target))
        caller = self.reactor.site(9000).buildProtocol(None)
        caller.makeConnection(StringTransport())
        self.reactor.settle()
        stopped = agent.stopService()
        self.reactor.pass_time(3)
        self.assertNoResult(stopped)
        status, body = self.reactor.get(META, "/readyz")
        self.assertEqual((503, True), (status, "servers: draining\n" in body))
        self.assertNotIn(META, self.reactor.closed_ports)
        caller.connectionLost(Failure(ConnectionLost()))
        self.reactor.pass_time(3)
        self.successResultOf(stopped)
        self.assertIn(META, self.reactor.closed_ports)

    def test_failed_attempts(self):
        """Failed attempts are counted for each server."""
        self.start_server()
        self.start("--tunnelserver-addr", "127.0.0.1:10262,127.0.0.1:10999")
        self.reactor.refuse()
        # The endpoint notices at its next tick that there is no other address.
        self.reactor.pass_time(0.5)
        _, body = self.reactor.get(META, "/metrics")
        name = "konnectivity_network_proxy_agent_server_connection_failure_count"
        line = f'{name}{{direction="to_server"}} 1'
        self.assertIn(line, body.splitlines())
        self.assertIn("refused", self.reactor.get(META, "/readyz")[1])

    def test_revoked(self):
        """Revoking the node in the server's state ends its session within a second."""
        self.start_server()
        self.start()
        revoke_node(self.reactor, self.server_state, "edge-1")
        self.reactor.pass_time(1)
        self.assertEqual((200, "[]\n"), self.reactor.get(SERVER_META, "/agents"))
        _, body = self.reactor.get(META, "/metrics")
        self.assertIn('yurttunnel_agent_session_ends_total{reason="revoked"} 1', body)
        self.assertIn("is revoked", self.reactor.get(META, "/readyz")[1])

    def test_nothing_before_start(self):
        """Building binds nothing, connects to nothing and starts no timer."""
        self.write_token()
        command.build(self.reactor, self.options().settings)
        reactor = self.reactor
        self.assertEqual(
            ([], [], []), (reactor.tcpServers, reactor.tcpClients, reactor.getDelayedCalls())
        )

    def test_state(self):
        """An unusable state directory causes a one-line error with the flag and the path."""
        self.write_token()
        Path(self.state).touch()
        error = self.assertRaises(SystemExit, command.makeService, self.options())
        self.assertTrue(error.code.startswith("--state-dir: "), error.code)
        self.assertIn(self.state, error.code)
        self.assertNotIn("\n", error.code)

    def test_other_nodes_state(self):
        """So does the state of another node."""
        self.start_server()
        self.stop(self.start())
        options = self.options("--node-name", "edge-2")
        error = self.assertRaises(SystemExit, command.makeService, options)
        self.assertIn("is the state of node edge-1", error.code)

    def test_state_in_use(self):
        """So does one in use by another process, whose id is named, until that ends."""
        self.start_server()
        agent = self.start()
        error = self.assertRaises(SystemExit, command.makeService, self.options())
        self.assertIn(f"--state-dir: {self.state} is in use by process {os.getpid()}", error.code)
        self.stop(agent)
        self.start()
