"""The idle tunnel: its memory, and its start time."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path

from benchmarks.certificates import Authority
from benchmarks.processes import resident
from benchmarks.tunnel import Agent, ManyAgents, Server, Settings

FURTHER_AGENTS = 50

RATE = 50.0
"""The number of agents that connect each second, to spread their handshakes."""

SETTLE_SECONDS = 2.0
"""Seconds from the last event until memory is measured."""


def measure(directory: Path, settings: Settings) -> dict[str, float]:
    """Start a server and an agent, measure them while idle, then connect more agents.

    Returns the figures by the names of their lines.
    """
    authority = Authority(directory).certificate
    with ExitStack() as stack:
        server = stack.enter_context(Server(directory, settings, authority))
        agent = stack.enter_context(Agent(directory, settings, "edge-1", server, server.agent_port))
        # Wait until the processes are idle.
        time.sleep(SETTLE_SECONDS)
        before = resident(server.pid)
        both = before + resident(agent.pid)
        many = ManyAgents(directory, settings, server, FURTHER_AGENTS, FURTHER_AGENTS)
        stack.enter_context(many)
        many.have_certificates(60)
        many.connect(FURTHER_AGENTS, RATE, 60)
        # Wait until the processes are idle.
        time.sleep(SETTLE_SECONDS)
        growth = resident(server.pid) - before
        return {
            "memory": both / 2**20,
            "memory-agent": growth / FURTHER_AGENTS / 1024,
            "start-server": server.seconds,
            "start-agent": agent.seconds,
        }
