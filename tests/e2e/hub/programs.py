"""The hub of a node as a real process."""

from __future__ import annotations

import os
from collections.abc import Sequence

from tests.e2e.hub.cloud import NODE, Cloud
from tests.e2e.programs import Program, free_ports

HEARTBEAT = ("--heartbeat-interval-seconds", "1", "--heartbeat-timeout-seconds", "1")
"""Flags with which a hub sees in a second or two that a server has left or come back."""

JOINING = ("--bootstrap", "--join")
"""What the flags begin with that say how a hub joins."""


class Hub(Program):
    """``twist yurthub`` for the node of a cloud, with every port chosen free.

    Its files are in ``directory`` below ``state``, which another hub may take up. It has joined
    before, and has no interface for pods, unless ``extra`` says how it joins and what it makes.
    """

    def __init__(
        self,
        reactor,
        directory: str,
        cloud: Cloud,
        *,
        extra: Sequence[str] = (),
        state: str = "H",
        prefix: tuple[str, ...] = (),
        node: str = NODE,
    ) -> None:
        self.state = os.path.join(directory, state)
        self.cache = os.path.join(self.state, "cache")
        self.port = free_ports.take()
        self.secure_port = free_ports.take()
        meta_port = free_ports.take()
        arguments = [
            "yurthub",
            *("--node-name", node),
            *("--server-addr", cloud.urls),
            *("--root-dir", self.state),
            *("--disk-cache-path", self.cache),
            *("--bind-address", "127.0.0.1"),
            *("--bind-proxy-address", "127.0.0.1"),
            *("--proxy-port", str(self.port)),
            *("--proxy-secure-port", str(self.secure_port)),
            *("--serve-port", str(meta_port)),
            "--enable-dummy-if=false",
            *HEARTBEAT,
            *extra,
        ]
        if not any(each.startswith(JOINING) for each in extra) and not os.path.exists(self.state):
            cloud.join(self.state, node)
        log_path = os.path.join(directory, f"hub-{state}.log")
        super().__init__(reactor, arguments, log_path, meta_port, prefix)

    async def online(self) -> bool:
        """Whether it has an API server that is healthy."""
        return await self.metric("node_yurthub_server_healthy_status") > 0
