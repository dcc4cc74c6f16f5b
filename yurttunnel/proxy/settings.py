"""What the command line of the service proxy says, checked and converted."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

from yurttunnel.proxy.kernel.parts import Masquerade
from yurttunnel.proxy.state.virtual_services import Network


class Mode(enum.Enum):
    """Who carries the bytes of connections."""

    AUTO = "auto"
    """The kernel where it can, else this process."""
    USER = "user"
    KERNEL = "kernel"


class BackEnd(enum.Enum):
    """What leads portals to where they are served."""

    AUTO = "auto"
    IPTABLES = "iptables"
    NFTABLES = "nftables"
    NONE = "none"
    """Nothing: clients speak to the ports of the proxy themselves."""


@dataclass(frozen=True, slots=True)
class SourceSettings:
    """Where Services and EndpointSlices are listed: the API, a file, or both.

    ``master`` is the URL of the API where it is not the one of ``kube_config``, or there is none.
    """

    api: bool
    kube_config: Path | None
    master: str | None
    file: Path | None


@dataclass(frozen=True, slots=True)
class PageSettings:
    """Where the pages are, each as host and port; ``health`` is ``None`` for nowhere."""

    health: tuple[str, int] | None
    metrics: tuple[str, int]


@dataclass(frozen=True, slots=True)
class SyncSettings:
    """When sockets and rules are compared with what is wanted; seconds.

    It is done at least every ``period``, and at most once in ``least``. Sockets that are wanted no
    more end what is under way after ``drain``. ``removes_rules`` is for the end of the process.
    """

    period: float
    least: float
    drain: float
    removes_rules: bool


@dataclass(frozen=True, slots=True)
class UdpSettings:
    """How long an association of a client with an endpoint lasts without a datagram; seconds.

    ``first`` counts until the endpoint has answered once, ``idle`` then.
    """

    first: float
    idle: float


@dataclass(frozen=True, slots=True)
class Settings:
    """The whole command line.

    ``bind_address`` is the address of the proxy's sockets, mostly the unspecified one.
    ``proxy_ports`` are those that they may take, ``None`` for what the kernel chooses.
    ``node_port_networks`` have the addresses that serve node ports; none are all of them.
    ``cleanup`` is the whole of what is to be done. ``state_dir`` is for the socket of the commands.
    """

    node_name: str
    sources: SourceSettings
    pages: PageSettings
    mode: Mode
    back_end: BackEnd
    bind_address: str
    proxy_ports: range | None
    node_port_networks: tuple[Network, ...]
    masquerade: Masquerade
    udp: UdpSettings
    sync: SyncSettings
    cleanup: bool
    state_dir: Path | None

    @property
    def serves_itself(self) -> bool:
        """Whether nobody but programs of this machine can be a client."""
        return ip_address(self.bind_address).is_loopback
