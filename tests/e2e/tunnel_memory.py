"""The memory of a server and an agent, whose buffers have one budget for each session."""

from __future__ import annotations

from tests.e2e.leaks import LeakTestCase
from tests.e2e.programs import MEBIBYTE, Program, Tunnel, max_growth


class TunnelMemoryTestCase(LeakTestCase):
    """A test that compares the memory of both programs with their budgets."""

    async def budget(self, program: Program, prefix: str) -> float:
        """Return the program's limit for buffers, in bytes."""
        limit = await program.metric(f"{prefix}_memory_budget_limit_bytes")
        self.assertGreater(limit, 0, "no memory budget in /metrics")
        return limit

    async def inside_bounds(
        self, program: Program, prefix: str, resident_before: int, streams: int
    ) -> None:
        """Require that a program uses no more memory than that many streams of one session may."""
        limit = await self.budget(program, prefix)
        used = await program.metric(f"{prefix}_memory_budget_used_bytes")
        self.assertLessEqual(used, limit, prefix)
        growth = program.resident() - resident_before
        bound = max_growth(streams)
        print(f"{prefix}: grown by {growth / MEBIBYTE:.1f} MiB of {bound / MEBIBYTE:.1f}")
        self.assertLess(growth, bound, prefix)

    def programs(self, tunnel: Tunnel) -> tuple[tuple[Program, str], ...]:
        """The two programs and the prefixes of their metrics."""
        return (
            (tunnel.server, "yurttunnel_server"),
            (tunnel.agent, "yurttunnel_agent"),
        )
