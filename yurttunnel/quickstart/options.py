"""The command line of the quickstart: parsed, checked and turned into :class:`Settings`."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path

from twisted.python import usage

from yurttunnel.http.authority import split_authority
from yurttunnel.ops import flags
from yurttunnel.ops.flag_table import Flag, Group, Switch
from yurttunnel.ops.help import Example
from yurttunnel.ops.options import CommandOptions
from yurttunnel.pki.names import check_node_name

ADDRESS = "127.0.0.1"
"""Where everything listens: whoever reaches the API runs programs as the user who started it."""

USUAL_PORT = 10260
PORT_COUNT = 11
_BLOCK_STEP = 1000
_BLOCKS = 40


@dataclass(frozen=True, slots=True)
class Ports:
    """The ports of the quickstart's parts, in a row from ``first``.

    With the usual first port those of server, agent and hub are the ones they have everywhere.
    """

    first: int

    @property
    def api(self) -> int:
        """The embedded API, HTTPS."""
        return self.first

    @property
    def hub(self) -> int:
        """The hub, HTTP."""
        return self.first + 1

    @property
    def agents(self) -> int:
        """Where the server takes in agents."""
        return self.first + 2

    @property
    def secure(self) -> int:
        """The server's HTTPS interception."""
        return self.first + 3

    @property
    def insecure(self) -> int:
        """The server's HTTP interception."""
        return self.first + 4

    @property
    def server_meta(self) -> int:
        """The server's health and metrics."""
        return self.first + 5

    @property
    def agent_meta(self) -> int:
        """The agent's health and metrics."""
        return self.first + 6

    @property
    def hub_meta(self) -> int:
        """The hub's health and metrics."""
        return self.first + 7

    @property
    def hub_secure(self) -> int:
        """The hub, HTTPS."""
        return self.first + 8

    @property
    def kubelet(self) -> int:
        """The edge node, HTTPS."""
        return self.first + 9

    @property
    def proxy_meta(self) -> int:
        """The service proxy's pages and metrics."""
        return self.first + 10

    def first_taken(self) -> int | None:
        """Return the first of the ports on which another process listens, if any."""
        ports = range(self.first, self.first + PORT_COUNT)
        return next((port for port in ports if _taken(port)), None)


@dataclass(frozen=True, slots=True)
class Settings:
    """What the command line says.

    ``state_dir`` is ``None`` for a directory that is made for this run and removed after it.
    ``server_address`` is where the agent dials the server, ``None`` for the server's own port.
    ``firewall`` is whether rules are made by which Services have their addresses.
    """

    state_dir: Path | None
    ports: Ports
    node_name: str
    server_address: str | None
    firewall: bool
    check: bool


def _absolute_path(text: str) -> Path:
    return flags.path(text).absolute()


def _asked_ports(text: str) -> Ports:
    ports = Ports(flags.port(text))
    if ports.first + PORT_COUNT > 65536:
        raise ValueError(f"{PORT_COUNT} ports are needed: give {65536 - PORT_COUNT} at most")
    taken = ports.first_taken()
    if taken is not None:
        raise ValueError(
            f"another process listens on {taken}: give another first port, or leave --port away"
            " to have one chosen"
        )
    return ports


def _free_ports() -> Ports:
    for block in range(_BLOCKS):
        ports = Ports(USUAL_PORT + block * _BLOCK_STEP)
        if _reserve(ports.first) and ports.first_taken() is None:
            return ports
    raise usage.UsageError("--port: no row of free ports was found: give the first of one")


# Held until the process ends.
_reservations: list[socket.socket] = []


def _reserve(first: int) -> bool:
    """Keep other quickstarts from choosing the same row before this one listens there.

    A name in Linux's abstract namespace of Unix sockets (unix(7)) belongs to one process and is
    gone with it.
    """
    name = socket.socket(socket.AF_UNIX)
    try:
        name.bind(f"\0yurttunnel-quickstart-{first}")
    except OSError:
        name.close()
        return False
    _reservations.append(name)
    return True


def _taken(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((ADDRESS, port))
        except OSError:
            return True
        return False


def _server_address(text: str) -> str:
    split_authority(text)
    return text


CHECK = Switch(
    "check",
    Group.BASICS,
    "Try everything once through the tunnel, print one line for each with its time, and exit:"
    " with status 0 only if all worked.",
)

STATE_DIR = Flag(
    "state-dir",
    Group.BASICS,
    _absolute_path,
    "Directory for certificates, logs of pods and the kubeconfig. [default: one that is"
    " removed in the end]",
)

PORT = Flag(
    "port",
    Group.BASICS,
    _asked_ports,
    f"The first of {PORT_COUNT} ports in a row, on {ADDRESS}: API, hub, those of server and agent,"
    f" the hub's others, node, service proxy. [default: {USUAL_PORT}, or the next row that is"
    " free]",
)

NODE_NAME = Flag(
    "node-name",
    Group.BASICS,
    check_node_name,
    "Name of the edge node.",
    default="edge-1",
)

TUNNELSERVER_ADDR = Flag(
    "tunnelserver-addr",
    Group.BASICS,
    _server_address,
    "HOST:PORT at which the agent reaches the server, when there is something between them,"
    " such as a proxy that makes the network bad.",
)

FIREWALL = Switch(
    "firewall",
    Group.STEERING,
    "Have programs of this machine reach Services at their cluster IPs, by rules of the firewall"
    " that are removed in the end; takes root and a default route, and nothing else here that"
    " serves Services. Without it the firewall stays as it is.",
)


class Options(CommandOptions[Settings]):
    """Options of ``twist yurttunnel-quickstart``."""

    invocation = "yurttunnel quickstart"

    longdesc = """Everything on one machine, without a cluster: an embedded Kubernetes API (in
    memory), the two ends of the tunnel and an edge node, behind a hub, whose pods are processes
    of this machine, with a service proxy. It writes a kubeconfig for kubectl and says where. What
    the API wants from the node (logs, exec, attach, port-forward, cp, metrics) goes through the
    tunnel and nowhere else. It runs pods; there are no controllers for what makes pods, such as
    deployments."""

    examples = (
        Example("To try kubectl through the tunnel"),
        Example("To see that all of it works here", "--check"),
        Example("To call Services at their addresses, too", "--firewall"),
    )

    table = (CHECK, STATE_DIR, PORT, NODE_NAME, TUNNELSERVER_ADDR, FIREWALL)

    def make_settings(self) -> Settings:
        """Check and convert everything; raises ``UsageError`` naming the flag and the fix."""
        if self.is_given(FIREWALL) and os.geteuid() != 0:
            raise usage.UsageError(
                "--firewall: only root changes the firewall: leave it out, or run this by sudo"
            )
        return Settings(
            state_dir=self.optional_value(STATE_DIR, None),
            ports=_free_ports() if self["port"] is None else self.value(PORT),
            node_name=self.value(NODE_NAME),
            server_address=self.optional_value(TUNNELSERVER_ADDR, None),
            firewall=self.is_given(FIREWALL),
            check=self.is_given(CHECK),
        )
