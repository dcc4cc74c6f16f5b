"""How long the two commands take until they are ready."""

from __future__ import annotations

from tests.e2e.alone.machine import slowness
from tests.e2e.test_standalone import StandaloneTestCase

READY_SECONDS = 1.0
"""A program is ready in less than this, on a machine as fast as that of the figures in
docs/performance.md; measured alone, at the best of three starts."""


class StartTests(StandaloneTestCase):
    """How long a start takes."""

    async def test_both_are_ready_in_less_than_a_second(self) -> None:
        """A first start, with keys and certificates to make, takes each less than a second."""
        allowed = READY_SECONDS * slowness()
        server_times, agent_times = [], []
        for number in range(3):
            server, agent, _, _ = self.commands(str(number))
            server.start()
            server_times.append(await server.ready())
            agent.start()
            agent_times.append(await agent.ready())
            await agent.stop()
            await server.stop()
        print(
            f"\nready, seconds: server {server_times}, agent {agent_times}, {allowed:.2f} allowed"
        )
        self.assertLess(min(server_times), allowed, server_times)
        self.assertLess(min(agent_times), allowed, agent_times)
