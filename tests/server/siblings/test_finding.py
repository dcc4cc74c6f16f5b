"""Discovery of replicas, over TLS in memory."""

from __future__ import annotations

import itertools
import random

from twisted.internet.testing import StringTransport
from twisted.protocols.tls import TLSMemoryBIOFactory

from tests.server.siblings.world import OTHER_PROCESS, Server, WorldTests, sibling_credentials
from yurttunnel.cluster.services import server_name
from yurttunnel.kube.errors import ApiUnreachable
from yurttunnel.pki.contexts import ClientContexts
from yurttunnel.server.siblings import acceptor
from yurttunnel.server.siblings.hello import SIBLING_LIMITS
from yurttunnel.server.siblings.service import LISTING_TIMEOUT
from yurttunnel.tunnel.connection import HELLO_TIMEOUT, SessionConnection
from yurttunnel.tunnel.tls import SIBLING_ALPN
from yurttunnel.wire.codes import Code, Refused
from yurttunnel.wire.hello import NO_SESSION, Hello, Limits

WINDOW = SIBLING_LIMITS.resume_window / 1000


class FindingTests(WorldTests):
    """Discovery of replicas."""

    def test_three_replicas(self):
        """Each replica has one session with each other, none with itself, and counts three."""
        servers = self.cluster(3)
        for server in servers:
            self.assertEqual(2, len(server.siblings._acceptor.sessions()))
            self.assertEqual(3, server.siblings.replicas())
            self.assertIsNone(server.siblings.problem())

    def test_any_order(self):
        """Replicas are connected within a second of the last one's start, in any order."""
        for order in itertools.permutations((1, 2, 3)):
            servers = [self.made(number) for number in (1, 2, 3)]
            self.network.pass_time(1)
            for number in order:
                self.network.pass_time(4)
                servers[number - 1].start()
            self.network.pass_time(1)
            for server in servers:
                self.assertEqual((2, 2), server.stats, order)
            for server in servers:
                server.kill()
                self.unlist(server)
            self.network.pass_time(1)

    def made(self, number):
        """Create a replica that is listed, and not started."""
        server = Server(self, number)
        self.servers.append(server)
        self.list(server)
        return server

    def test_new_replica(self):
        """An added replica is connected, both ways, within a second."""
        first, second = self.cluster(2)
        third = self.server(3)
        self.network.pass_time(1)
        for server in (first, second, third):
            self.assertEqual((2, 2), server.stats)
            self.assertEqual(3, server.siblings.replicas())

    def test_restarted_in_place(self):
        """A restarted replica is connected at once, with its new nodes."""
        first, second = self.cluster(2)
        self.agent(second)
        self.network.pass_time(0.1)
        second.kill()
        self.network.pass_time(20)
        self.assertEqual((1, 0), first.stats)
        self.assertIn("server-2", first.siblings.problem())
        again = self.server(2)
        self.agent(again, "edge-2")
        self.network.pass_time(0.2)
        self.assertEqual((1, 1), first.stats)
        self.assertTrue(first.serves("edge-2"))
        self.assertFalse(first.serves("edge-1"))
        self.assertIsNone(first.siblings.problem())

    def test_own_address(self):
        """A server that has dialed itself does not repeat that, until its address changes."""
        server = self.server(1)
        self.network.pass_time(30)
        self.assertEqual(["10.0.0.1"], self.network.attempts)
        self.assertEqual([], server.listener.sessions())
        self.assertEqual([], server.siblings._acceptor.sessions())
        self.assertEqual(1, server.siblings.replicas())
        self.network.listening["10.0.0.9"] = self.network.listening["10.0.0.1"]
        server.host = "10.0.0.9"
        self.list(server)
        self.network.pass_time(30)
        self.assertEqual(["10.0.0.1", "10.0.0.9"], self.network.attempts)

    def test_new_address(self):
        """A sibling's new address is tried at once, however many attempts failed."""
        self.patch(random, "uniform", lambda least, most: most)
        first = self.server(1)
        second = Server(self, 2)
        self.servers.append(second)
        second.host = "10.0.0.8"
        self.list(second)
        self.network.pass_time(20)
        second.host = "10.0.0.2"
        second.listen()
        self.network.pass_time(4)
        self.assertEqual((1, 0), first.stats)
        # The last attempt was a while ago, the next one is not due yet.
        self.network.pass_time(1.5)
        self.list(second)
        self.network.pass_time(0.1)
        self.assertEqual((1, 1), first.stats)

    def test_not_serving(self):
        """A replica that is not serving is not dialed; one without the condition is."""
        first = self.server(1)
        second = self.server(2, listed=False)
        self.list(second, serving=False, ready=False)
        self.network.pass_time(1)
        self.assertEqual((0, 0), first.stats)
        self.list(second, serving=True, ready=False, terminating=True)
        self.network.pass_time(1)
        self.assertEqual((1, 1), first.stats)

    def test_number_of_replicas(self):
        """The number includes the listed replicas, and this server if it is not listed."""
        first = self.server(1, listed=False)
        self.network.pass_time(LISTING_TIMEOUT, step=1)
        self.assertEqual(1, first.siblings.replicas())
        second = self.server(2)
        self.network.pass_time(1)
        self.assertEqual((2, 1), (first.siblings.replicas(), second.siblings.replicas()))
        self.list(first)
        self.network.pass_time(1)
        self.assertEqual((2, 2), (first.siblings.replicas(), second.siblings.replicas()))
        second.kill()
        self.network.pass_time(1)
        self.assertEqual(2, first.siblings.replicas())
        self.unlist(second)
        self.network.pass_time(1)
        self.assertEqual(1, first.siblings.replicas())

    def test_unknown_number(self):
        """While the API has not responded, the number of replicas is unknown, and not sent."""
        self.api.fail(ApiUnreachable("away"))
        server = self.server(1)
        self.network.pass_time(1)
        self.assertIsNone(server.siblings.replicas())
        self.assertNotIn("servers", self.agent(server).answer.properties)
        self.api.recover()
        self.network.pass_time(60, step=1)
        self.assertEqual(1, server.siblings.replicas())

    def test_servers_that_start_together(self):
        """A server that is not listed yet sends no number; it sends it once it is known."""
        first, second = self.server(1, listed=False), self.server(2, listed=False)
        agents = [self.agent(server) for server in (first, second)]
        numbers_sent = [[], []]
        for agent, numbers in zip(agents, numbers_sent, strict=True):
            self.assertNotIn("servers", agent.answer.properties)
            agent.session.on_servers.append(numbers.append)
        self.list(second)
        self.network.pass_time(1)
        self.assertEqual([[], [1]], numbers_sent)
        self.list(first)
        self.network.pass_time(1)
        self.assertEqual([[2], [1, 2]], numbers_sent)
        self.unlist(second)
        self.network.pass_time(1)
        # The listed one no longer counts itself separately.
        self.assertEqual([[2, 1], [1, 2]], numbers_sent)

    def test_server_that_is_never_listed(self):
        """A server in no pod waits for a while, then counts itself, and notifies its agents."""
        server = self.server(1, listed=False)
        numbers_sent = []
        self.agent(server).session.on_servers.append(numbers_sent.append)
        self.network.pass_time(LISTING_TIMEOUT - 1, step=1)
        self.assertEqual([], numbers_sent)
        self.network.pass_time(2, step=1)
        self.assertEqual([1], numbers_sent)

    def test_agents_receive_the_number(self):
        """An agent receives the number of servers from each of them."""
        first, _ = self.cluster(2)
        self.assertEqual("2", self.agent(first).answer.properties["servers"])

    def test_two_families(self):
        """A replica with an address of each family is one, and has one session."""
        first, second = self.cluster(2)
        self.network.listening["2001:db8::2"] = self.network.listening[second.host]
        endpoint = {**self.listed[second.pod], "addresses": ["2001:db8::2"]}
        self.put_slice("v6", "IPv6", [endpoint])
        self.network.pass_time(1)
        self.assertEqual((1, 1), first.stats)
        self.assertEqual(2, first.siblings.replicas())
        second.stop_listening()
        self.network.open_links[0].cut()
        for link in self.network.open_links:
            link.cut()
        self.network.pass_time(5)
        self.assertEqual((1, 1), first.stats)
        self.assertIn("2001:db8::2", self.network.attempts)
        del self.network.listening["2001:db8::2"]

    def test_unlisted(self):
        """The session with an unlisted replica ends, and its nodes are removed."""
        first, second = self.cluster(2)
        self.agent(second)
        self.network.pass_time(0.1)
        self.assertTrue(first.serves("edge-1"))
        self.unlist(second)
        self.network.pass_time(1)
        self.assertEqual((0, 0), first.stats)
        self.assertFalse(first.serves("edge-1"))
        self.assertEqual([], second.siblings._acceptor.sessions())

    def test_unlisted_with_a_stream(self):
        """A stream through an unlisted replica continues until its end."""
        first, second = self.cluster(2)
        agent = self.agent(second)
        self.network.pass_time(0.1)
        near, far = self.stream(first, agent)
        self.unlist(second)
        self.network.pass_time(5)
        near.transport.write(b"still here")
        self.network.settle()
        self.assertEqual(b"still here", bytes(far.received))
        self.assertEqual(1, len(first.siblings._draining))
        near.transport.abortConnection()
        self.network.pass_time(1)
        self.assertEqual([], second.siblings._acceptor.sessions())
        self.assertEqual([], first.siblings._draining)

    def test_unreachable(self):
        """An unresponsive sibling is retried, and logged once."""
        self.network.dark.add("10.0.0.2")
        first = self.server(1)
        second = self.server(2)
        self.network.pass_time(30)
        attempts = self.network.attempts.count("10.0.0.2")
        self.assertGreaterEqual(attempts, 3)
        self.assertEqual((1, 0), first.stats)
        # It is unknown that the other one of the two is the second itself.
        self.assertEqual((2, 1), second.stats)
        self.assertIn("server-2", first.siblings.problem())
        failed = [server.siblings.stats().failed_attempts for server in (first, second)]
        self.assertGreaterEqual(failed[0], 3)
        # The last attempt of each may still be in progress.
        self.assertIn(attempts - sum(failed), (0, 1, 2))
        lines = [line for line in self.warnings if line.startswith("sibling server-2")]
        # One by each of the two servers.
        self.assertEqual(2, len(lines), lines)


class AdmissionTests(WorldTests):
    """Admission of siblings."""

    class Peer:
        """Sends HELLO like a sibling, and stores the response."""

        def __init__(self, clock, process):
            self.clock = clock
            self.process = process
            self.answer = None
            self.error = None

        def buildProtocol(self, addr):
            """Return a connection."""
            return SessionConnection(self.clock, self, alpn=SIBLING_ALPN)

        def doStart(self):
            """Provide the interface of a factory."""

        doStop = doStart

        def connection_ready(self, connection):
            """Send HELLO."""
            connection.send_hello(Hello(Limits(), NO_SESSION, self.process))

        def hello_received(self, connection, hello):
            """Store it."""
            self.answer = hello
            connection.transport.loseConnection()

        def connection_ended(self, connection, reason):
            """Record the reason."""
            self.error = reason.value

    def knock(self, server, credentials, process=OTHER_PROCESS):
        """Connect as a sibling with these credentials; return the result."""
        peer = self.Peer(self.network, process)
        creator = ClientContexts(credentials, SIBLING_ALPN).creator(server_name("kube-system"))
        factory = TLSMemoryBIOFactory(creator, True, peer, self.network)
        self.network.link(factory.buildProtocol(None), server.host)
        self.network.pass_time(0.5)
        return peer

    def test_server(self):
        """The project's certificate tunnel-proxy-client is accepted."""
        peer = self.knock(self.server(1), sibling_credentials(self.issuer))
        self.assertIsNotNone(peer.answer)
        self.network.pass_time(WINDOW + 1)

    def test_sessions_are_limited(self):
        """The number of sessions is limited, including those without a connection."""
        self.patch(acceptor, "MAX_SESSIONS", 3)
        server, credentials = self.server(1), sibling_credentials(self.issuer)
        for number in range(1, 4):
            peer = self.knock(server, credentials, bytes([number]) * 16)
            self.assertIsNotNone(peer.answer, peer.error)
            self.assertEqual(number, len(server.siblings._acceptor.sessions()))
        peer = self.knock(server, credentials, b"x" * 16)
        self.assertIsNone(peer.answer)
        self.assertEqual(Code.OVERLOADED, peer.error.code)
        self.network.pass_time(WINDOW + 1)
        self.assertIsNotNone(self.knock(server, credentials).answer)
        self.network.pass_time(WINDOW + 1)

    def test_unfinished_connections_are_limited(self):
        """The oldest connection without a HELLO is evicted above the limit."""
        self.patch(acceptor, "MAX_UNFINISHED", 3)
        server = self.server(1)
        transports = [StringTransport() for _ in range(4)]
        for transport in transports:
            server.siblings._acceptor.build().makeConnection(transport)
        self.assertEqual([True, False, False, False], [each.disconnected for each in transports])
        for _ in range(3):
            self.assertIsNotNone(self.knock(server, sibling_credentials(self.issuer)).answer)
        # One of them needed room, and returned it.
        self.assertEqual([True, True, False, False], [each.disconnected for each in transports])
        self.network.pass_time(HELLO_TIMEOUT + WINDOW + 1)

    def test_others(self):
        """No other certificate is accepted, whoever has signed it; that is logged once."""
        server = self.server(1)
        for credentials in (
            self.issuer.node(),
            self.issuer.caller(),
            sibling_credentials(self.issuer, organization=None),
            sibling_credentials(self.issuer, name="tunnel-agent-client"),
        ):
            peer = self.knock(server, credentials)
            self.assertIsNone(peer.answer)
            self.assertIsInstance(peer.error, Refused)
            self.assertEqual(Code.NOT_AUTHORIZED, peer.error.code)
        self.assertEqual([], server.siblings._acceptor.sessions())
        lines = [line for line in self.warnings if "from a sibling at" in line]
        self.assertEqual(1, len(lines))
        self.assertIn("not a server's", lines[0])

    def test_agents_port_for_siblings(self):
        """A server's certificate is not accepted as an agent's."""
        server = self.server(1)
        credentials = sibling_credentials(self.issuer)
        peer = self.Peer(self.network, OTHER_PROCESS)
        peer.buildProtocol = lambda addr: SessionConnection(self.network, peer)
        creator = ClientContexts(credentials).creator(server_name("kube-system"))
        factory = TLSMemoryBIOFactory(creator, True, peer, self.network)
        self.network.link(factory.buildProtocol(None), server.host)
        self.network.settle()
        self.assertEqual(Code.NOT_AUTHORIZED, peer.error.code)
