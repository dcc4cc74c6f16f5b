"""A standalone server, and agents that enroll with it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.trial.unittest import TestCase

from tests.pki.support import EDGE_1, MemoryServer, clock_now
from yurttunnel.agent.standalone import enrolled_trust
from yurttunnel.agent.trust import AgentTrust
from yurttunnel.pki.contexts import ClientContexts
from yurttunnel.pki.enrolment_client import ServerAddress
from yurttunnel.pki.identity import Identifiers
from yurttunnel.pki.token import JoinToken
from yurttunnel.server.standalone_trust import StandaloneServerTrust

DAY = 86400


class World(TestCase):
    """A server, and agents that enroll with it."""

    def setUp(self) -> None:
        """Start the server."""
        self.clock = clock_now()
        self.state = self.mktemp()
        self.start_server()

    def start_server(self) -> None:
        """Start the server's part on the state directory."""
        self.trust = StandaloneServerTrust(self.clock, self.state, ["127.0.0.1"])
        self.trust.startService()
        self.addCleanup(self.trust.stopService)
        self.network = MemoryServer(self.clock, self.trust.contexts, self.trust.enrolment_factory)
        self.server = ServerAddress("127.0.0.1", 10262, self.network)

    def read_token(self) -> JoinToken:
        """Read the server's current join token."""
        return JoinToken.parse(Path(self.state, "join-token").read_text())

    def agent(
        self,
        node: str = "edge-1",
        identifiers: Identifiers = EDGE_1,
        state: str | None = None,
        read_token: Callable[[], JoinToken] | None = None,
        servers: list[ServerAddress] | None = None,
    ) -> AgentTrust:
        """Create an agent's part, by default on a new state directory."""
        return self.started(
            enrolled_trust(
                self.clock,
                state or self.mktemp(),
                node,
                identifiers,
                servers or [self.server],
                read_token or self.read_token,
            )
        )

    def open(
        self,
        clock: Clock,
        state: str,
        read_token: Callable[[], JoinToken] | None,
        identifiers: Identifiers = EDGE_1,
        node: str = "edge-1",
    ) -> AgentTrust:
        """Open an agent's part on the state directory ``state``."""
        return enrolled_trust(clock, state, node, identifiers, [self.server], read_token)

    def started(self, agent: AgentTrust) -> AgentTrust:
        """Start an agent's part."""
        agent.startService()
        self.addCleanup(lambda: agent.running and agent.stopService())
        return agent

    def get_ready(self, agent: AgentTrust) -> Deferred[ClientContexts]:
        """Let the agent obtain its certificate."""
        ready = Deferred.fromCoroutine(agent.ready())
        self.network.settle()
        return ready

    def pass_time(self, seconds: float, step: float = 3600.0) -> None:
        """Advance the clock, and transfer data."""
        for _ in range(int(seconds / step)):
            self.clock.advance(step)
            self.network.settle()
