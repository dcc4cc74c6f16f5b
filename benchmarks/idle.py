"""What the tunnel takes when nothing happens: its memory, and the time of its start."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path

from benchmarks.certificates import Authority
from benchmarks.processes import resident
from benchmarks.tunnel import Agent, ManyAgents, Server, Settings

FURTHER_AGENTS = 50

RATE = 50.0
"""How many of them connect each second, so that their handshakes do not come all at once."""

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
        many = ManyAgents(directory, settings, server, FURTHER_AGENTS, FURTHER_AGENTS)
        stack.enter_context(many)
        many.have_certificates(60)
        many.connect(FURTHER_AGENTS, RATE, 60)
        # What is measured is a process that has nothing to do.
        time.sleep(CALM)
        growth = resident(server.pid) - before
        return {
            "memory": both / 2**20,
            "memory-agent": growth / FURTHER_AGENTS / 1024,
            "start-server": server.seconds,
            "start-agent": agent.seconds,
        }
