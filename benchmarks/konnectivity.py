"""Konnectivity, the tunnel of most clusters, for comparison if its programs are installed.

``KONNECTIVITY`` is the directory with ``proxy-server`` and ``proxy-agent`` of
apiserver-network-proxy (or ``server`` and ``agent``, as ``go build`` in its ``cmd`` names them).
They run as under kubeadm: HTTP CONNECT on a Unix socket, mutual TLS between the two.
"""

from __future__ import annotations

import os
import shutil
import socket
from contextlib import ExitStack
from pathlib import Path

from benchmarks.certificates import Authority
from benchmarks.ports import free_ports
from benchmarks.processes import BenchmarkFailed, Program

VARIABLE = "KONNECTIVITY"


def konnectivity_programs() -> tuple[str, str] | None:
    """Return the server and agent in ``KONNECTIVITY`` or PATH; ``None`` if there are none.

    Raises :class:`BenchmarkFailed` if the variable is set but its directory lacks them.
    """
    directory = os.environ.get(VARIABLE)
    names = [("proxy-server", "proxy-agent")]
    if directory:
        names.append(("server", "agent"))
    for server, agent in names:
        found = shutil.which(server, path=directory), shutil.which(agent, path=directory)
        if found[0] and found[1]:
            return found[0], found[1]
    if directory:
        raise BenchmarkFailed(
            f"${VARIABLE} is {directory}, which has no proxy-server with proxy-agent in it"
        )
    return None


class Konnectivity:
    """The server and agent, which run in ``directory`` until ``stack`` ends."""

    def __init__(self, stack: ExitStack, directory: Path, programs: tuple[str, str]) -> None:
        authority = Authority(directory)
        self.socket = directory / "connect.sock"
        port = str(free_ports.take())
        server_pair, agent_pair = authority.issue("server"), authority.issue("agent")
        server = Program(
            [
                programs[0],
                "--mode=http-connect",
                f"--uds-name={self.socket}",
                "--server-port=0",
                "--agent-bind-address=127.0.0.1",
                f"--agent-port={port}",
                f"--cluster-cert={server_pair.certificate}",
                f"--cluster-key={server_pair.key}",
                f"--cluster-ca-cert={authority.certificate}",
                "--health-bind-address=127.0.0.1",
                f"--health-port={free_ports.take()}",
                f"--admin-port={free_ports.take()}",
            ],
            directory / "konnectivity-server.log",
        )
        stack.enter_context(server)
        server.wait_until(self.socket.exists, "it listened")
        ready = free_ports.take()
        agent = Program(
            [
                programs[1],
                "--proxy-server-host=127.0.0.1",
                f"--proxy-server-port={port}",
                f"--ca-cert={authority.certificate}",
                f"--agent-cert={agent_pair.certificate}",
                f"--agent-key={agent_pair.key}",
                "--health-server-host=127.0.0.1",
                f"--health-server-port={ready}",
                f"--admin-server-port={free_ports.take()}",
            ],
            directory / "konnectivity-agent.log",
        )
        stack.enter_context(agent)
        agent.wait_until(lambda: _is_ready(ready), "it was connected")
        self.pids = {"server": server.pid, "agent": agent.pid}


def _is_ready(port: int) -> bool:
    """Return whether the agent reports that it is connected to a server."""
    try:
        with socket.create_connection(("127.0.0.1", port), 1) as asking:
            asking.sendall(b"GET /readyz HTTP/1.0\r\n\r\n")
            return b" 200 " in asking.recv(64)
    except OSError:
        return False
