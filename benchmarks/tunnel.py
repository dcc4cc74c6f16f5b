"""What is measured: a server and its agents, as a user starts them in standalone mode."""

from __future__ import annotations

import http.client
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.ports import free_ports
from benchmarks.processes import Program


@dataclass(frozen=True)
class Settings:
    """What is common to server and agent: Twisted's reactor, and their --transport."""

    reactor: str = "epoll"
    transport: str = "direct"


class Command(Program):
    """One ``twist`` command with a meta port, waited for until it is ready.

    ``seconds`` is the time from its start until it was.
    """

    def __init__(
        self, name: str, directory: Path, settings: Settings, arguments: Sequence[str]
    ) -> None:
        (self._meta_port,) = free_ports(1)
        command = [
            sys.executable, "-m", "twisted", "--reactor", settings.reactor,
            *arguments,
            "--standalone",
            "--meta-port", str(self._meta_port),
            "--transport", settings.transport,
            "--drain-timeout", "1",
        ]  # fmt: skip
        super().__init__(command, directory / f"{name}.log")
        try:
            self.seconds = self.wait_until(self._is_ready, "it was ready")
        except BaseException:
            self.stop()
            raise

    def _is_ready(self) -> bool:
        try:
            return self.get("/readyz")[0] == 200
        except OSError:
            return False

    def get(self, path: str) -> tuple[int, bytes]:
        """Fetch a page of the meta port; raises ``OSError``."""
        connection = http.client.HTTPConnection("127.0.0.1", self._meta_port, timeout=5)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()


class Server(Command):
    """``twist yurttunnel-server``; it verifies the backend with TLS by ``kubelet_authority``."""

    def __init__(self, directory: Path, settings: Settings, kubelet_authority: Path) -> None:
        self.state = directory / "server"
        self.socket = directory / "connect.sock"
        self.agent_port, self.secure_port, insecure_port = free_ports(3)
        arguments = [
            "yurttunnel-server",
            "--state-dir", str(self.state),
            "--bind-address", "127.0.0.1",
            "--tunnel-agent-connect-port", str(self.agent_port),
            "--secure-port", str(self.secure_port),
            "--insecure-port", str(insecure_port),
            "--connect-endpoint", f"unix:{self.socket}",
            "--kubelet-verify", "ca",
            "--kubelet-ca", str(kubelet_authority),
        ]  # fmt: skip
        super().__init__("server", directory, settings, arguments)

    @property
    def join_token(self) -> Path:
        """The file that agents enrol with."""
        return self.state / "join-token"

    def connected(self) -> int:
        """Count the agents that are connected."""
        return len(json.loads(self.get("/agents")[1]))


class Agent(Command):
    """``twist yurttunnel-agent`` for the node ``node``, which dials ``server_port``."""

    def __init__(
        self, directory: Path, settings: Settings, node: str, server: Server, server_port: int
    ) -> None:
        arguments = [
            "yurttunnel-agent",
            "--state-dir", str(directory / node),
            "--node-name", node,
            "--node-ip", "127.0.0.1",
            "--tunnelserver-addr", f"127.0.0.1:{server_port}",
            "--join-token-file", str(server.join_token),
        ]  # fmt: skip
        super().__init__(node, directory, settings, arguments)
