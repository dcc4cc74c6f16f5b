"""The startup time of the two commands."""

from __future__ import annotations

from tests.e2e.test_standalone import StandaloneTestCase

READY_SECONDS = 1.0
"""The maximum seconds until a program is ready, without the time of others on the processors;
measured alone, and for the best of three starts."""


class StartTests(StandaloneTestCase):
    """The duration of a start."""

    async def test_both_are_ready_in_less_than_a_second(self) -> None:
        """Each is ready within a second at its first start, including keys and certificates."""
        server_times, agent_times = [], []
        for number in range(3):
            server, agent, _, _ = self.commands(str(number))
            server.disable_fork_server()
            agent.disable_fork_server()
            server.start()
            server_times.append(await server.ready() - server.waited())
            agent.start()
            agent_times.append(await agent.ready() - agent.waited())
            await agent.stop()
            await server.stop()
        print(f"\nready, seconds: server {server_times}, agent {agent_times}")
        self.assertLess(min(server_times), READY_SECONDS, server_times)
        self.assertLess(min(agent_times), READY_SECONDS, agent_times)
