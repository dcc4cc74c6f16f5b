"""The tunnel under test: a server and its agents in standalone mode, as a user starts them."""

from __future__ import annotations

import http.client
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.ports import free_ports
from benchmarks.processes import Program

META_SECONDS = 20.0
"""The timeout of a page of the meta port; a server to which thousands reconnect is busy."""


@dataclass(frozen=True)
class Settings:
    """The Twisted reactor and the --transport of server and agent.

    The reactor ``counted`` is the default one in a process that counts its function calls.
    """

    reactor: str = "epoll"
    transport: str = "direct"


def twist(reactor: str) -> list[str]:
    """Return the arguments of Python that run ``twist`` with a reactor."""
    if reactor == "uvloop":
        # By its path, because the working directory is not the checkout.
        return [str(Path(__file__).with_name("uvloop_twist.py"))]
    if reactor == "counted":
        return [str(Path(__file__).with_name("counted_twist.py"))]
    return ["-m", "twisted", "--reactor", reactor]


class MetaProgram(Program):
    """A program with a meta port; ``flag`` with the port is appended to ``command``."""

    def __init__(
        self,
        command: Sequence[str],
        log: Path,
        environment: Mapping[str, str] | None = None,
        flag: str = "--meta-port={}",
    ) -> None:
        self._meta_port = free_ports.take()
        super().__init__([*command, flag.format(self._meta_port)], log, environment)

    def is_ready(self) -> bool:
        """Return whether ``/readyz`` responds 200."""
        try:
            return self.get("/readyz")[0] == 200
        except OSError:
            return False

    def get(self, path: str, method: str = "GET") -> tuple[int, bytes]:
        """Fetch a page of the meta port; raises ``OSError``."""
        connection = http.client.HTTPConnection("127.0.0.1", self._meta_port, timeout=META_SECONDS)
        try:
            connection.request(method, path)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()


class Command(MetaProgram):
    """One ``twist`` command, started until it is ready.

    ``seconds`` is the time from its start until it was ready.
    """

    def __init__(
        self, name: str, directory: Path, settings: Settings, arguments: Sequence[str]
    ) -> None:
        command = [
            sys.executable, *twist(settings.reactor),
            *arguments,
            "--standalone",
            "--transport", settings.transport,
            "--drain-timeout", "1",
        ]  # fmt: skip
        super().__init__(command, directory / f"{name}.log")
        self._wait_until_ready()

    def _wait_until_ready(self) -> None:
        try:
            self.seconds = self.wait_until(self.is_ready, "it was ready")
        except BaseException:
            self.stop()
            raise

    def restart(self) -> None:
        """Start the command again after the process has ended."""
        self._launch()
        self._wait_until_ready()


class Server(Command):
    """``twist yurttunnel-server``, which verifies the TLS backend with ``kubelet_authority``."""

    def __init__(self, directory: Path, settings: Settings, kubelet_authority: Path) -> None:
        self.state = directory / "server"
        self.socket = directory / "connect.sock"
        self.agent_port = free_ports.take()
        self.secure_port = free_ports.take()
        insecure_port = free_ports.take()
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
        """The file with the token by which agents enroll."""
        return self.state / "join-token"

    def connected(self) -> int:
        """Return the number of connected agents."""
        return len(json.loads(self.get("/agents")[1]))

    def streams_end(self, seconds: float) -> None:
        """Wait until all streams of a load that has ended are closed."""
        self.wait_until(
            lambda: not any(agent["streams"] for agent in json.loads(self.get("/agents")[1])),
            "all streams had ended",
            seconds,
            interval=0.2,
        )


class Agent(Command):
    """``twist yurttunnel-agent`` for the node ``node``, which connects to ``server_port``."""

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


class ManyAgents(MetaProgram):
    """The ``count`` agents of :mod:`benchmarks.agents`, which connect only on request.

    ``enrolling`` of them get their certificates with the join token.
    """

    def __init__(
        self, directory: Path, settings: Settings, server: Server, count: int, enrolling: int
    ) -> None:
        command = [
            sys.executable, "-m", "benchmarks.agents",
            "--count", str(count),
            "--enrolling", str(enrolling),
            "--server", f"127.0.0.1:{server.agent_port}",
            "--server-state", str(server.state),
            "--transport", settings.transport,
        ]  # fmt: skip
        checkout = {"PYTHONPATH": str(Path(__file__).resolve().parents[1])}
        super().__init__(command, directory / "agents.log", checkout)

    def have_certificates(self, seconds: float) -> None:
        """Wait until all agents have certificates."""
        self.wait_until(self.is_ready, "all had certificates", seconds, interval=0.1)

    def connect(self, count: int, rate: float, seconds: float) -> None:
        """Connect ``count`` agents, ``rate`` each second, and wait until they are connected."""
        self.get(f"/connect?count={count}&rate={rate}", "POST")
        self.all_connected(seconds)

    def all_connected(self, seconds: float) -> None:
        """Wait until all agents that should be connected are."""
        self.wait_until(self.is_ready, "all were connected", seconds, interval=0.1)

    def stats(self) -> dict[str, Any]:
        """Return :class:`benchmarks.crowd.Stats`."""
        stats: dict[str, Any] = json.loads(self.get("/figures")[1])
        return stats
