"""The hub of a node as a real process."""

from __future__ import annotations

import os
from collections.abc import Sequence

from tests.e2e.programs import Program, free_ports
from yurttunnel.kube.client import KubeClient
from yurttunnel.kube.configuration import KubeConfiguration
from yurttunnel.kube.credentials import FileCredentials

NODE = "edge-1"

PATIENT = ("--heartbeat-interval-seconds", "5", "--heartbeat-timeout-seconds", "5")
"""Flags of every hub: the cloud is in the test's own process, which on a busy machine answers
nobody for a second or two."""

QUICK = ("--heartbeat-interval-seconds", "1", "--heartbeat-timeout-seconds", "1")
"""Flags with which a hub sees in a second or two that a server has fallen silent."""


class Hub(Program):
    """``twist yurthub`` before API ``servers``, URLs between commas; every port is chosen free.

    Its files are in ``directory`` below ``state``, which another hub may take up. It has no
    interface for pods, unless ``extra`` says so, which is added last and so replaces what is here.
    ``port`` is that of clients on the node, ``secure_port`` that of pods.
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
            *PATIENT,
            *extra,
        ]
        log_path = os.path.join(directory, f"hub-{state}.log")
        super().__init__(reactor, arguments, log_path, meta_port, prefix)

    @property
    def url(self) -> str:
        """What clients on the node ask."""
        return f"http://127.0.0.1:{self.port}"

    def client(self, component: str = "kubelet") -> KubeClient:
        """Make a client on the node; whoever made it closes it."""
        configuration = KubeConfiguration(self.url, "default", lambda: b"", FileCredentials())
        return KubeClient(self._reactor, configuration, program=component)

    async def online(self) -> bool:
        """Whether it has an API server that is healthy."""
        return await self.metric("node_yurthub_server_healthy_status") > 0
