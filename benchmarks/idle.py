"""What the tunnel takes when nothing happens: its memory, and the time of its start."""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack
from pathlib import Path

from benchmarks.certificates import Authority
from benchmarks.load import SOURCE
from benchmarks.processes import Program, resident
from benchmarks.tunnel import Agent, Server, Settings

FURTHER_AGENTS = 50

CALM = 2.0
"""Seconds from the last event until memory is looked at."""


def measure(directory: Path, settings: Settings) -> dict[str, float]:
    """Start a server and an agent, let them be, and have more agents connect.

    The figures are by the names of their lines.
    """
    authority = Authority(directory).certificate
    with ExitStack() as stack:
        server = stack.enter_context(Server(directory, settings, authority))
        agent = stack.enter_context(Agent(directory, settings, "edge-1", server, server.agent_port))
        # What is measured is a process that has nothing to do.
        time.sleep(CALM)
        before = resident(server.pid)
        both = before + resident(agent.pid)
        command = [
            sys.executable, "-m", "benchmarks.agents",
            "--count", str(FURTHER_AGENTS),
            "--server", f"127.0.0.1:{server.agent_port}",
            "--join-token-file", str(server.join_token),
            "--state-dir", str(directory),
            "--transport", settings.transport,
        ]  # fmt: skip
        path = {"PYTHONPATH": str(SOURCE.parents[1])}
        many = stack.enter_context(Program(command, directory / "many.log", path))
        many.wait_until(
            lambda: server.connected() == 1 + FURTHER_AGENTS,
            "all its agents were connected",
            seconds=60,
            interval=0.5,
        )
        # What is measured is a process that has nothing to do.
        time.sleep(CALM)
        growth = resident(server.pid) - before
        return {
            "memory": both / 2**20,
            "memory-agent": growth / FURTHER_AGENTS / 1024,
            "start-server": server.seconds,
            "start-agent": agent.seconds,
        }
