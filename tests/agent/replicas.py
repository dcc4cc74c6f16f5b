"""Several servers in memory, addresses that lead to them, and an agent's sessions with them."""

from __future__ import annotations

import itertools
import random

from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.error import ConnectionRefusedError
from twisted.internet.interfaces import IStreamClientEndpoint
from twisted.logger import LogLevel
from twisted.trial.unittest import TestCase
from zope.interface import implementer

from tests.logged import Logged
from tests.network import Links, context_with, open_stream
from tests.pki.support import Issuer, clock_now
from tests.tunnel.memory import Acceptor
from tests.tunnel.test_connection import Link
from yurttunnel.agent.connection_group import ClientSettings
from yurttunnel.agent.servers import ServerSet
from yurttunnel.pki.contexts import ClientContexts, ServerContexts
from yurttunnel.server.agents import AgentListener, AgentListenerSettings, RefuseStreams
from yurttunnel.server.registry import SessionRegistry
from yurttunnel.tunnel import tls
from yurttunnel.tunnel.connection import CLOSE_TIMEOUT
from yurttunnel.wire.codes import Code
from yurttunnel.wire.hello import Limits


class Replica:
    """One server; ``up`` is whether it responds."""

    def __init__(self, world, name):
        self.world = world
        self.name = name
        self.up = True
        self.registry = SessionRegistry(world.clock)
        self.listener = AgentListener(
            context_with(world.clock, RefuseStreams()),
            self.registry,
            lambda identity: False,
            AgentListenerSettings(Limits(), world.grace),
            {},
            replicas=lambda: world.announced,
        )
        self.factory = tls.server_side(world.clock, world.server_contexts, self.listener)

    def sessions(self):
        """Return the sessions that accept streams."""
        return [session for session in self.listener.sessions() if not session.draining]

    def stream(self):
        """Open a stream; return the protocols of its near and far end."""
        return open_stream(self.world, self.registry, self.world.acceptor)


@implementer(IStreamClientEndpoint)
class Address:
    """An address: each attempt reaches the next of the replicas behind it."""

    def __init__(self, world, location):
        self.world = world
        self.location = location

    def connect(self, protocolFactory):
        """Connect to the next replica that is up, or fail with a refused connection."""
        world = self.world
        world.dialed.append(self.location[0])
        if world.hangs:
            return Deferred()
        up = [replica for replica in world.behind.get(self.location[0], ()) if replica.up]
        if not up:
            return fail(ConnectionRefusedError())
        replica = up[next(world.turns) % len(up)]
        client, server = protocolFactory.buildProtocol(None), replica.factory.buildProtocol(None)
        link = Link(world.clock, client, server)
        link.replica = replica
        world.links.append(link)
        return succeed(client)


class ReplicaTests(Links, TestCase):
    """A test case with several servers; ``announced`` is the number of servers that they send."""

    limit = None
    expected = 2
    grace = 5.0

    def setUp(self):
        """Start without servers, and with an agent that knows no address."""
        random.seed(5)
        self.clock = clock_now()
        issuer = Issuer.make(self, self.clock)
        self.server_contexts = ServerContexts(issuer.server())
        self.creator = ClientContexts(issuer.node()).creator("server.test")
        self.announced = None
        self.identifiers = "host=edge-1"
        self.behind = {}
        self.hangs = False
        self.dialed = []
        self.links = []
        self.turns = itertools.count()
        self.replicas = []
        self.acceptor = Acceptor()
        self.context = context_with(self.clock, self.acceptor)
        self.servers = self.agent()
        self.logged = Logged(self, "yurttunnel.agent")
        self.warnings = Logged(self, "yurttunnel.agent", level=LogLevel.warn)
        self.addCleanup(self.check_nothing_is_left)

    def agent(self):
        """Create an agent that knows no address."""
        settings = ClientSettings("edge-1", lambda: self.identifiers, Limits(), "test 1")

        def tls_endpoint(host, port, skip):
            return tls.TLSEndpoint(self.clock, self.creator, Address(self, (host, port)))

        return ServerSet(self.context, settings, tls_endpoint, self.limit, self.expected)

    def check_nothing_is_left(self):
        """Stop everything; no session, connection or timer may remain."""
        self.servers.close(Code.GOING_AWAY, "the test is over")
        for replica in self.replicas:
            replica.listener.close_sessions(Code.GOING_AWAY, "the test is over")
        self.settle()
        self.clock.advance(CLOSE_TIMEOUT)
        self.settle()
        self.assertEqual([], self.servers.sessions())
        self.assertEqual([], self.open_links)
        self.assertEqual([], self.clock.getDelayedCalls())

    def replica(self, *hosts):
        """Start a server behind these addresses."""
        replica = Replica(self, f"replica-{len(self.replicas)}")
        self.replicas.append(replica)
        for host in hosts:
            self.behind.setdefault(host, []).append(replica)
        return replica

    def use(self, *hosts):
        """Pass addresses to the agent."""
        self.servers.use([(host, 10262) for host in hosts])
        self.settle()

    def kill(self, replica):
        """Stop a server abruptly; attempts to its addresses get no response any more."""
        replica.up = False
        for link in self.links:
            if link.replica is replica:
                link.cut()
        replica.listener.close_sessions(Code.GOING_AWAY, "the process is gone")
        self.settle()

    def counts(self):
        """Return the number of sessions that accept streams, for each server."""
        return [len(replica.sessions()) for replica in self.replicas]
