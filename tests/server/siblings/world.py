"""Several replicas of a server in one process, on a network in memory, with agents."""

from __future__ import annotations

import time

from twisted.internet.error import ConnectionAborted, ConnectionRefusedError, TimeoutError
from twisted.internet.task import Clock
from twisted.logger import LogLevel
from twisted.protocols.tls import TLSMemoryBIOFactory
from twisted.python.failure import Failure
from twisted.trial.unittest import TestCase

from tests.kube.fakes import FakeKubeClient
from tests.logged import Logged
from tests.network import Links, context_with
from tests.pki.support import Issuer
from tests.server.agents import Agent
from tests.tunnel.memory import HalfCloseUser
from tests.tunnel.test_connection import Link
from yurttunnel.cluster.services import server_name
from yurttunnel.kube.informer import Informers
from yurttunnel.kube.resources import ENDPOINT_SLICES
from yurttunnel.pki.contexts import ClientContexts, ServerContexts
from yurttunnel.pki.credentials import new_key
from yurttunnel.pki.names import KUBELET_CLIENT_NAME, NODE_ORGANIZATION
from yurttunnel.server.agents import AgentListener, AgentListenerSettings, RefuseStreams
from yurttunnel.server.registry import SessionRegistry
from yurttunnel.server.siblings.replicas import replica_slices
from yurttunnel.server.siblings.service import Siblings
from yurttunnel.tunnel import tls
from yurttunnel.tunnel.tls import ALPN, SIBLING_ALPN
from yurttunnel.wire.codes import Code
from yurttunnel.wire.hello import Limits

NAMESPACE = "kube-system"
PORT = 10262
OTHER_PROCESS = b"b" * 16


class _Connector:
    """A connection attempt in progress."""

    def __init__(self, network, factory, call):
        self.network = network
        self.factory = factory
        self.call = call

    def stopConnecting(self):
        """Cancel it."""
        if self.call.active():
            self.call.cancel()

    def getDestination(self):
        """Raise: no test uses it."""


class Network(Links, Clock):
    """A clock with ``connectTCP``: ``listening`` are the factories by host.

    Hosts in ``dark`` do not respond. ``attempts`` are the hosts that were dialed.
    """

    step = 0.05

    def __init__(self):
        super().__init__()
        self.clock = self
        self.advance(time.time())
        self.listening = {}
        self.dark = set()
        self.attempts = []
        self.links = []

    def connectTCP(self, host, port, factory, timeout=30, bindAddress=None):
        """Connect in the next iteration, or fail."""
        self.attempts.append(host)
        connector = _Connector(self, factory, None)
        factory.doStart()
        factory.startedConnecting(connector)
        if host in self.dark:
            connector.call = self.callLater(timeout, self._fail, connector, TimeoutError())
        elif host not in self.listening or port != PORT:
            connector.call = self.callLater(0, self._fail, connector, ConnectionRefusedError())
        else:
            connector.call = self.callLater(0, self._succeed, connector, host)
        return connector

    def _fail(self, connector, error):
        connector.factory.clientConnectionFailed(connector, Failure(error))

    def _succeed(self, connector, host):
        client = connector.factory.buildProtocol(None)
        self.link(client, host)

    def link(self, client, host):
        """Connect a protocol to a host."""
        server = self.listening[host].buildProtocol(None)
        link = Link(self, client, server)
        link.host = host
        self.links.append(link)
        return link

    def turn(self, link):
        """See ``Links``; an end that aborts a silent connection loses it, and its peer does not."""
        moved = link.turn()
        for io in (link.client_io, link.server_io):
            if link.lost and io.disconnecting and not io.disconnected:
                io.disconnected = True
                io.protocol.connectionLost(Failure(ConnectionAborted()))
        return moved


def sibling_credentials(issuer, name=KUBELET_CLIENT_NAME, organization=NODE_ORGANIZATION):
    """Return the credentials by which servers authenticate to each other."""
    key = new_key()
    certificate = issuer.authority.sign_client(key.public_key(), name, organization)
    return issuer.authority.credentials(key, certificate)


class Server:
    """One replica."""

    def __init__(self, world, number):
        self.world = world
        self.host = f"10.0.0.{number}"
        self.pod = f"server-{number}"
        clock, issuer = world.network, world.issuer
        self.context = context_with(clock, RefuseStreams())
        self.registry = SessionRegistry(clock)
        self.listener = AgentListener(
            self.context,
            self.registry,
            lambda identity: False,
            AgentListenerSettings(Limits(), 0.8),
            {},
            replicas=lambda: self.siblings.replicas(),
        )
        self.credentials = sibling_credentials(issuer)
        self.siblings = Siblings(
            clock,
            self.context,
            self.registry,
            self.listener,
            ClientContexts(self.credentials, SIBLING_ALPN).creator(server_name(NAMESPACE)),
            world.informers.informer(replica_slices(NAMESPACE)),
        )

    def start(self):
        """Listen, and discover siblings."""
        self.listen()
        self.siblings.startService()

    def listen(self):
        """Accept connections."""
        contexts = ServerContexts(
            self.world.issuer.server(server_name(NAMESPACE)), required=(ALPN, SIBLING_ALPN)
        )
        factory = tls.server_side(self.world.network, contexts, self.listener)
        self.world.network.listening[self.host] = factory

    def stop_listening(self):
        """Reject connections."""
        self.world.network.listening.pop(self.host, None)

    def drain(self):
        """Let the sessions with siblings end; return a ``Deferred`` for that."""
        ended = [session.ended() for session in self.siblings.sessions()]
        self.siblings.drain("the server is about to stop")
        return ended

    def kill(self):
        """End like ``kill -9``: connections are reset, and it stays silent."""
        self.stop_listening()
        network = self.world.network
        for link in network.open_links:
            if link.host == self.host or self.owns(link):
                link.cut()
        self.world.killed.append(self)
        self.siblings.stopService()
        self.listener.close_sessions(Code.INTERNAL, "")

    def owns(self, link):
        """Return whether this server has dialed a connection."""
        return any(
            getattr(client, "_connection", None) is not None
            and client._connection.transport is link.client_io.protocol
            for client in self.siblings._clients.values()
        )

    def serves(self, *hosts):
        """Return whether all hosts are served here now."""
        found = [self.registry.find_or_none(host) for host in hosts]
        return all(session is not None and session.connected for session in found)

    @property
    def stats(self):
        """Return the numbers of known and connected siblings."""
        stats = self.siblings.stats()
        return stats.known, stats.connected


class WorldTests(TestCase):
    """The common test case: a network, an API, an authority."""

    def setUp(self):
        """Start without servers."""
        self.network = Network()
        self.clock = self.network
        self.issuer = Issuer.make(self, self.network)
        self.api = FakeKubeClient(self.network)
        self.informers = Informers(self.network, self.api)
        self.informers.startService()
        self.servers = []
        self.killed = []
        self.listed = {}
        self.warnings = Logged(self, "yurttunnel", level=LogLevel.warn)
        self.addCleanup(self.check_nothing_is_left)

    def check_nothing_is_left(self):
        """Stop everything; no connection or timer may remain."""
        for server in self.servers:
            server.stop_listening()
            server.siblings.stopService()
            server.listener.close_sessions(Code.GOING_AWAY, "the test is over")
        self.informers.stopService()
        self.network.settle()
        self.network.pass_time(6, step=1)
        self.assertEqual([], self.network.open_links)
        self.network.pass_time(62, step=31)
        self.assertEqual([], self.network.getDelayedCalls())

    def server(self, number, listed=True):
        """Create and start a replica, which the API lists."""
        server = Server(self, number)
        self.servers.append(server)
        if listed:
            self.list(server)
        server.start()
        return server

    def cluster(self, count):
        """Create replicas, and wait until they are connected."""
        servers = [self.server(number) for number in range(1, count + 1)]
        self.network.pass_time(1)
        for server in servers:
            self.assertEqual((count - 1, count - 1), server.stats)
        return servers

    def list(self, server, **conditions):
        """List a server in the API."""
        self.listed[server.pod] = {
            "addresses": [server.host],
            "conditions": conditions,
            "targetRef": {"kind": "Pod", "name": server.pod},
        }
        self.put_slice()

    def unlist(self, server):
        """Remove a server from the list in the API."""
        del self.listed[server.pod]
        self.put_slice()

    def put_slice(self, suffix="v4", family="IPv4", endpoints=None):
        """Write an EndpointSlice."""
        self.api.put(
            ENDPOINT_SLICES,
            {
                "metadata": {
                    "name": f"x-tunnel-server-svc-{suffix}",
                    "namespace": NAMESPACE,
                    "labels": {"kubernetes.io/service-name": "x-tunnel-server-svc"},
                },
                "addressType": family,
                "ports": [{"name": "tcp", "port": PORT, "protocol": "TCP"}],
                "endpoints": list(self.listed.values()) if endpoints is None else endpoints,
            },
        )

    def agent(self, server, node="edge-1", **more):
        """Connect an agent to one server; its acceptor stores its requests."""
        agent = Agent(self.network, self.issuer, node, **more)
        creator = ClientContexts(agent.credentials).creator(server_name(NAMESPACE))
        factory = TLSMemoryBIOFactory(creator, True, agent, self.network)
        agent.link = self.network.link(factory.buildProtocol(None), server.host)
        self.network.settle()
        self.assertIsNotNone(agent.session, agent.error)
        return agent

    def stream(self, server, agent, host="192.0.2.80", port=80):
        """Open a stream from a server to an agent's node; return the protocols of both ends."""
        opened = self.dial(server, agent, host, port)
        request = agent.acceptor.requests[-1]
        near, far = HalfCloseUser(), HalfCloseUser()
        request.accept().attach(far)
        self.network.settle()
        self.successResultOf(opened).attach(near)
        self.network.settle()
        return near, far

    def dial(self, server, agent, host="192.0.2.80", port=80, timeout=15.0):
        """Request a stream, and deliver the request."""
        node = agent if isinstance(agent, str) else "edge-1"
        opened = server.registry.find(node).open_stream(host, port, timeout, "request-1")
        self.network.settle()
        return opened


class TwoServersTests(WorldTests):
    """The common test case of two replicas."""

    def setUp(self):
        """Create two replicas."""
        super().setUp()
        self.first, self.second = self.cluster(2)

    def joined(self, node="edge-1", **more):
        """Connect an agent to the second replica, and return it."""
        agent = self.agent(self.second, node, **more)
        self.network.pass_time(0.1)
        return agent

    def two_siblings_with_a_node(self):
        """Connect agents of edge-1 to a third replica, and then to the second; return them."""
        third = self.server(3)
        self.network.pass_time(1)
        agent = self.agent(third)
        self.network.pass_time(0.1)
        return agent, self.joined("edge-1", process=OTHER_PROCESS)

    def opens(self, opened, agent):
        """Accept the last request at an agent; ``opened`` must fire with the stream."""
        agent.acceptor.requests[-1].accept()
        self.network.settle()
        self.successResultOf(opened).abortConnection()
        self.network.settle()
