"""The command line of the quickstart: parsed, checked and turned into :class:`Settings`."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from twisted.python import usage

from yurttunnel.http.authority import split_authority
from yurttunnel.ops import flags
from yurttunnel.ops.flag_table import Flag, Group, Switch
from yurttunnel.ops.help import Example
from yurttunnel.ops.options import CommandOptions
from yurttunnel.pki.names import check_node_name

ADDRESS = "127.0.0.1"
"""The address of all ports: whoever reaches the API runs programs as the user who started it."""

DEFAULT_PORT = 10260
_BLOCK_STEP = 1000
_BLOCKS = 40


class Ports(NamedTuple):
    """The consecutive ports of the quickstart's parts.

    With the default first port, those of server, agent and hub are their defaults. ``agents`` is
    where the server accepts agents; ``secure`` and ``insecure`` are its interception of HTTPS and
    HTTP. Those called ``meta`` serve health, metrics and pages. The API and the kubelet serve
    HTTPS.
    """

    api: int
    hub: int
    agents: int
    secure: int
    insecure: int
    server_meta: int
    agent_meta: int
    hub_meta: int
    hub_secure: int
    kubelet: int
    proxy_meta: int

    @classmethod
    def from_first(cls, first: int) -> Ports:
        """Return the ports that begin with ``first``."""
        return cls(*range(first, first + PORT_COUNT))

    def first_in_use(self) -> int | None:
        """Return the first of the ports on which another process listens, or ``None``."""
        return next((port for port in self if _is_in_use(port)), None)


PORT_COUNT = len(Ports._fields)


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of the command line.

    ``state_dir`` is ``None`` for a temporary directory that is removed at the end.
    ``server_address`` is the address that the agent dials, ``None`` for the server's own port.
    ``firewall`` is whether rules are installed for the addresses of Services.
    """

    state_dir: Path | None
    ports: Ports
    node_name: str
    server_address: str | None
    firewall: bool
    check: bool


def _absolute_path(text: str) -> Path:
    return flags.path(text).absolute()


def _requested_ports(text: str) -> Ports:
    ports = Ports.from_first(flags.port(text))
    if ports.api + PORT_COUNT > 65536:
        raise ValueError(f"{PORT_COUNT} ports are needed: give {65536 - PORT_COUNT} at most")
    in_use = ports.first_in_use()
    if in_use is not None:
        raise ValueError(
            f"another process listens on {in_use}: choose another first port, or omit --port"
            " for a free one"
        )
    return ports


def _free_ports() -> Ports:
    for block in range(_BLOCKS):
        ports = Ports.from_first(DEFAULT_PORT + block * _BLOCK_STEP)
        if _reserve(ports.api) and ports.first_in_use() is None:
            return ports
    raise usage.UsageError("--port: no row of free ports was found: give the first of one")


# Kept open until the process ends.
_reservations: list[socket.socket] = []


def _reserve(first: int) -> bool:
    """Keep other quickstarts from choosing the same ports before this one listens on them.

    It binds a name in Linux's abstract namespace of Unix sockets (unix(7)), which only one process
    can have, and which vanishes with it.
    """
    name = socket.socket(socket.AF_UNIX)
    try:
        name.bind(f"\0yurttunnel-quickstart-{first}")
    except OSError:
        name.close()
        return False
    _reservations.append(name)
    return True


def _is_in_use(port: int) -> bool:
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
    "Run each check once through the tunnel, print its result and duration, and exit with status"
    " 0 if all passed.",
)

STATE_DIR = Flag(
    "state-dir",
    Group.BASICS,
    _absolute_path,
    "Directory for certificates, pod logs and the kubeconfig. [default: a temporary directory,"
    " removed at exit]",
)

PORT = Flag(
    "port",
    Group.BASICS,
    _requested_ports,
    f"First of {PORT_COUNT} consecutive ports on {ADDRESS}: API, hub, server, agent, further ports"
    f" of the hub, node, service proxy. [default: {DEFAULT_PORT}, or the next free range]",
)

NODE_NAME = Flag(
    "node-name", Group.BASICS, check_node_name, "Name of the edge node.", default="edge-1"
)

TUNNELSERVER_ADDR = Flag(
    "tunnelserver-addr",
    Group.BASICS,
    _server_address,
    "HOST:PORT at which the agent connects to the server, for example of a proxy in between that"
    " simulates a bad network.",
)

FIREWALL = Switch(
    "firewall",
    Group.STEERING,
    "Make Services reachable at their cluster IPs for programs on this machine, by firewall rules"
    " that are removed at exit. Requires root, a default route, and no other service proxy on this"
    " machine.",
)


class Options(CommandOptions[Settings]):
    """Options of ``twist yurttunnel-quickstart``."""

    invocation = "yurttunnel quickstart"

    longdesc = """Runs everything on one machine, without a cluster: an embedded Kubernetes API (in
    memory), both ends of the tunnel, and an edge node with a hub and a service proxy, whose pods
    are processes of this machine. It writes a kubeconfig for kubectl and prints its path. All
    requests of the API to the node (logs, exec, attach, port-forward, cp, metrics) go through the
    tunnel. Pods run, but there are no controllers that create pods, such as for Deployments."""

    examples = (
        Example("Try kubectl through the tunnel"),
        Example("Check that everything works here", "--check"),
        Example("Also reach Services at their cluster IPs", "--firewall"),
    )

    table = (CHECK, STATE_DIR, PORT, NODE_NAME, TUNNELSERVER_ADDR, FIREWALL)

    def make_settings(self) -> Settings:
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
