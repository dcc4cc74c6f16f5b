"""The facades: everything together, over TLS in memory."""

from __future__ import annotations

from collections.abc import Callable

from twisted.internet.defer import Deferred
from twisted.trial.unittest import TestCase

from tests.pki.support import EDGE_1, MemoryServer, clock_now
from yurttunnel.pki.contexts import ClientContexts
from yurttunnel.pki.enrolment_client import ServerAddress
from yurttunnel.pki.identity import Identifiers, identity_from_certificate
from yurttunnel.pki.standalone import AgentTrust, ServerTrust
from yurttunnel.pki.token import JoinToken


class StandaloneTests(TestCase):
    """A server and its agents, as the commands put them together."""

    def setUp(self) -> None:
        self.clock = clock_now()
        self.state = self.mktemp()
        self.trust = ServerTrust.open(self.clock, self.state, ["127.0.0.1"])
        self.trust.startService()
        self.addCleanup(self.trust.stopService)
        self.network = MemoryServer(self.clock, self.trust.contexts, self.trust.enrolment_factory)
        self.server = ServerAddress("127.0.0.1", self.network)

    def read_token(self) -> JoinToken:
        return JoinToken.read(f"{self.state}/join-token")

    def agent(
        self,
        node: str = "edge-1",
        identifiers: Identifiers = EDGE_1,
        state: str | None = None,
        token: JoinToken | None = None,
    ) -> AgentTrust:
        read: Callable[[], JoinToken] = self.read_token if token is None else lambda: token
        agent = AgentTrust.open(self.clock, state or self.mktemp(), node, identifiers, read)
        agent.startService()
        self.addCleanup(agent.stopService)
        return agent

    def get_ready(self, agent: AgentTrust) -> Deferred[ClientContexts]:
        ready = Deferred.fromCoroutine(agent.ready([self.server]))
        self.network.settle()
        return ready

    def test_agent_enrolls(self) -> None:
        """An agent with the join token gets a certificate for its name and identifiers."""
        contexts = self.successResultOf(self.get_ready(self.agent()))
        identity = identity_from_certificate(contexts.credentials.certificate)
        self.assertEqual((identity.node, identity.identifiers), ("edge-1", EDGE_1))
        self.assertEqual(self.network.open_connections, 0)
