"""The hub of a node as a process."""

from __future__ import annotations

import os
from collections.abc import Sequence

from tests.e2e.programs import Program, free_ports
from yurttunnel.kube.client import KubeClient
from yurttunnel.kube.configuration import KubeConfiguration
from yurttunnel.kube.credentials import FileCredentials

NODE = "edge-1"

SLOW_HEARTBEAT = ("--heartbeat-interval-seconds", "5", "--heartbeat-timeout-seconds", "5")
"""Flags of all hubs: the cloud is in the process of the test, which on a busy machine may not
respond for a second or two."""

FAST_HEARTBEAT = ("--heartbeat-interval-seconds", "1", "--heartbeat-timeout-seconds", "1")
"""Flags with which a hub detects in a second or two that a server does not respond."""


class Hub(Program):
    """``twist yurthub`` with API ``servers``, URLs separated by commas; it uses free ports.

    Its files are in ``directory`` below ``state``, which another hub may use later. It has no
    interface for pods, unless ``extra`` enables it, whose flags come last and override these.
    ``port`` is for clients on the node, ``secure_port`` for pods.
    """

    def __init__(
        self,
        reactor,
        directory: str,
        servers: str,
        *,
        extra: Sequence[str] = (),
        state: str = "H",
        prefix: tuple[str, ...] = (),
        node: str = NODE,
    ) -> None:
        self.node = node
        self.state = os.path.join(directory, state)
        self.cache = os.path.join(self.state, "cache")
        self.port = free_ports.take()
        self.secure_port = free_ports.take()
        meta_port = free_ports.take()
        arguments = [
            "yurthub",
            *("--node-name", node),
            *("--server-addr", servers),
            *("--root-dir", self.state),
            *("--disk-cache-path", self.cache),
            *("--bind-address", "127.0.0.1"),
            *("--bind-proxy-address", "127.0.0.1"),
            *("--proxy-port", str(self.port)),
            *("--proxy-secure-port", str(self.secure_port)),
            *("--serve-port", str(meta_port)),
            "--enable-dummy-if=false",
            *SLOW_HEARTBEAT,
            *extra,
        ]
        log_path = os.path.join(directory, f"hub-{state}.log")
        super().__init__(reactor, arguments, log_path, meta_port, prefix)

    @property
    def url(self) -> str:
        """The URL for clients on the node."""
        return f"http://127.0.0.1:{self.port}"

    def client(self, component: str = "kubelet") -> KubeClient:
        """Create a client on the node; the caller closes it."""
        configuration = KubeConfiguration(self.url, "default", lambda: b"", FileCredentials())
        return KubeClient(self._reactor, configuration, program=component)

    async def online(self) -> bool:
        """Return whether it has a healthy API server."""
        return await self.metric("node_yurthub_server_healthy_status") > 0
