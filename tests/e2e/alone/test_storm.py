"""Hundreds of agents that reconnect at once after their server was killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from twisted.internet import reactor

from benchmarks.ports import free_ports
from tests.e2e.clients import Echo, EchoClient
from tests.e2e.leaks import LeakTestCase
from tests.e2e.programs import OTHER_GROWTH, ROOT, Program, Server

AGENTS = 300

MAX_RETURN = 60.0
"""The seconds within which all agents must reconnect."""

DIAL_SECONDS = 5.0
"""The maximum seconds of a dial while all others reconnect, on a busy machine as well."""

DOWN_SECONDS = 4.0
"""The seconds for which the server is down: the shortest reboot of a machine."""

BUSIEST_SHARE = 0.6
"""The maximum share of agents that reconnect within one second. After so long an outage their next
attempts are within five seconds, most of them in the first two: 109 of 300 were the maximum in
200 simulated runs, and a busy machine delays some."""

LINES_EACH = 3
"""The maximum number of lines that the server logs for each reconnected agent; it logs one."""

MAX_WARNINGS = 40
"""The maximum number of warnings of a program: at most twenty of one kind are logged per minute."""


class ManyAgents(Program):
    """Many agents in one process, see :mod:`benchmarks.agents`; ready when all are connected."""

    def __init__(self, server: Server, directory: str) -> None:
        meta_port = free_ports.take()
        arguments = [
            "--count", str(AGENTS),
            "--enrolling", "20",
            "--connect", str(AGENTS),
            "--rate", "200",
            "--server", f"127.0.0.1:{server.agent_port}",
            "--server-state", server.state,
            "--meta-port", str(meta_port),
        ]  # fmt: skip
        super().__init__(reactor, arguments, os.path.join(directory, "crowd.log"), meta_port)

    def start(self) -> None:
        """Start the process."""
        with open(self.log_path, "ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.agents", *self.arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=os.path.dirname(self.log_path),
                env={**os.environ, "PYTHONPATH": str(ROOT)},
            )
        self._started = reactor.seconds()

    async def connected_since(self) -> list[float]:
        """Return when the session of each connected agent started, in seconds since the epoch."""
        _, body = await self.get("/figures")
        return [float(moment) for moment in json.loads(body)["connected_since"]]


def max_resident(program: Program) -> int:
    """Return the maximum resident memory of the process, in bytes."""
    status = Path(f"/proc/{program.pid}/status").read_text()
    [line] = [line for line in status.splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) * 1024


def warnings(lines: list[str]) -> list[str]:
    """Return the lines at level warning or above."""
    return [line for line in lines if any(f"#{level}]" in line for level in ("warn", "error"))]


class StormTests(LeakTestCase):
    """SIGKILL of a server with 300 agents, and a new one in its place some seconds later.

    Results depend on the CPU time that the processes get.
    """

    async def test_all_reconnect_and_others_do_not_wait(self) -> None:
        """They reconnect spread over time; the server's memory and log stay small; dials
        succeed.
        """
        echo = self.listen(Echo)
        tunnel = await self.start_tunnel()
        before = tunnel.server.descriptors()
        many_agents = ManyAgents(tunnel.server, self.directory)
        tunnel.others.append(many_agents)
        many_agents.start()
        await many_agents.ready(MAX_RETURN)
        calm = tunnel.server.resident()
        logged = [len(each.log.splitlines()) for each in (tunnel.server, tunnel.agent)]

        killed = time.time()
        tunnel.server.kill()
        await self.pause(DOWN_SECONDS)
        tunnel.server.start()
        await self.eventually(
            lambda: self.serves_edge_1(tunnel.server), "edge-1 is back", MAX_RETURN
        )
        dialing = self.connected(tunnel, echo, EchoClient(reactor))
        client = await self.within(DIAL_SECONDS, dialing, "a dial during the storm")
        await self.within(DIAL_SECONDS, client.round_trip(), "an echo during the storm")
        await many_agents.ready(MAX_RETURN)
        returns = [since - killed for since in await many_agents.connected_since()]
        self.assert_spread(returns)
        await client.round_trip()

        peak = max_resident(tunnel.server)
        print(f"{calm >> 20} MiB before, {peak >> 20} MiB at most in the storm")
        self.assertLess(peak, calm + OTHER_GROWTH)
        for program, count in zip((tunnel.server, tunnel.agent), logged, strict=True):
            lines = program.log.splitlines()[count:]
            self.assertLess(len(lines), LINES_EACH * AGENTS)
            self.assertLess(len(warnings(lines)), MAX_WARNINGS)

        self.assertEqual(await many_agents.stop(), 0)
        client.drop()
        await client.when_lost()
        await self.descriptors_return(tunnel.server, before)
        [session] = await tunnel.server.agents()
        self.assertEqual((session["node"], session["streams"]), ("edge-1", 0))

    async def serves_edge_1(self, server: Server) -> bool:
        """Return whether the server is up, and has a session with the test's node."""
        try:
            return any(each["node"] == "edge-1" for each in await server.agents())
        except Exception:  # The meta port does not listen yet; the caller has a deadline.
            return False

    def assert_spread(self, returns: list[float]) -> None:
        """Require that the agents have reconnected one after the other, and none too late."""
        self.assertEqual(len(returns), AGENTS)
        seconds = Counter(int(moment) for moment in returns)
        shown = ", ".join(
            f"{count} in second {number}" for number, count in sorted(seconds.items())
        )
        print(f"\nback after {min(returns):.1f} to {max(returns):.1f} s: {shown}")
        self.assertGreater(min(returns), 0)
        self.assertLess(max(returns), MAX_RETURN)
        self.assertLess(max(seconds.values()), BUSIEST_SHARE * AGENTS)
