"""An agent's client connected to the real listener, over TLS in memory."""

from __future__ import annotations

import random

from twisted.logger import LogLevel
from twisted.trial.unittest import TestCase

from tests.logged import Logged
from tests.network import MemoryNetwork, context_with, open_stream
from tests.pki.support import Issuer, clock_now
from tests.tunnel.memory import Acceptor
from yurttunnel.agent.client import ServerClient
from yurttunnel.agent.connection_group import ClientSettings, ConnectionGroup
from yurttunnel.agent.routes import Routes
from yurttunnel.pki.contexts import ClientContexts, ServerContexts
from yurttunnel.server.agents import AgentListener, AgentListenerSettings, RefuseStreams
from yurttunnel.server.registry import SessionRegistry
from yurttunnel.tunnel import tls
from yurttunnel.tunnel.connection import CLOSE_TIMEOUT
from yurttunnel.wire.codes import Code
from yurttunnel.wire.hello import Limits


class ClientTestCase(TestCase):
    """A server and a client of it; nothing may remain of either."""

    def setUp(self):
        """Create a server and a client that is not started."""
        random.seed(2)
        self.clock = clock_now()
        self.issuer = Issuer.make(self, self.clock)
        self.network = MemoryNetwork(self.clock, None)
        self.revoked = False
        self.start_server()
        self.acceptor = Acceptor()
        self.group = ConnectionGroup()
        self.clients = self.group.clients
        self.settings = ClientSettings("edge-1", lambda: "host=edge-1", Limits(), "test 1")
        self.client = self.make_client(self.issuer.node())
        self.warnings = Logged(self, "ServerClient", level=LogLevel.warn)
        self.logged = Logged(self, "ServerClient", level=LogLevel.info)
        self.addCleanup(self.check_nothing_is_left)

    def check_nothing_is_left(self):
        """Stop the clients; no session, connection or timer may remain."""
        for client in self.clients:
            client.close(Code.GOING_AWAY, "the test is over")
            self.assertEqual([], client.sessions())
        self.listener.close_sessions(Code.GOING_AWAY, "the test is over")
        self.network.settle()
        self.clock.advance(CLOSE_TIMEOUT)
        self.network.settle()
        self.assertEqual([], self.network.open_links)
        self.assertEqual([], self.clock.getDelayedCalls())

    def start_server(self):
        """Start a server in place of the previous one."""
        self.server = context_with(self.clock, RefuseStreams())
        self.registry = SessionRegistry(self.clock)
        self.listener = AgentListener(
            self.server,
            self.registry,
            lambda identity: self.revoked,
            AgentListenerSettings(Limits(), 0.8),
            {},
        )
        contexts = ServerContexts(self.issuer.server())
        self.network.factory = tls.server_side(self.clock, contexts, self.listener)

    def make_client(self, credentials):
        """Create a client."""
        self.context = context_with(self.clock, self.acceptor)
        creator = ClientContexts(credentials).creator("server.test")
        endpoint = tls.TLSEndpoint(self.clock, creator, self.network)
        routes = Routes(lambda host, port, skip: endpoint, ())
        routes.use([("server.test", 10262)])
        client = ServerClient(self.context, routes, self.settings, self.group)
        self.clients.append(client)
        return client

    def connect(self):
        """Start the client, and let it connect."""
        self.client.start()
        self.network.settle()
        self.assertTrue(self.client.connected, self.client.last_error)

    def stream(self):
        """Open a stream from the server; return the protocols of its near and far end."""
        return open_stream(self.network, self.registry, self.acceptor)

    def delay(self):
        """Return the seconds until the client's next attempt."""
        call = self.client._retry_call
        self.assertIsNotNone(call, "no attempt is to come")
        return call.getTime() - self.clock.seconds()

    def attempt(self):
        """Let the client's next attempt take place."""
        self.clock.advance(self.delay() + 1e-6)
        self.network.settle()

    def closed_with(self, counters):
        """Return the codes with which sessions have ended."""
        return dict(counters.session_ends)
