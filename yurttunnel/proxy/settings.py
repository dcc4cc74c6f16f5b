"""The command line of the service proxy, validated and converted."""

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
    """The kernel if it supports that, else this process."""
    USER = "user"
    KERNEL = "kernel"


class BackEnd(enum.Enum):
    """What redirects portals to sockets or endpoints."""

    AUTO = "auto"
    IPTABLES = "iptables"
    NFTABLES = "nftables"
    NONE = "none"
    """Nothing: clients connect to the ports of the proxy themselves."""


@dataclass(frozen=True, slots=True)
class SourceSettings:
    """Where Services and EndpointSlices come from: the API, a file, or both.

    ``master`` is the URL of the API if it differs from the one in ``kube_config``, or if there is
    none.
    """

    api: bool
    kube_config: Path | None
    master: str | None
    file: Path | None


@dataclass(frozen=True, slots=True)
class PageSettings:
    """The host and port of the pages; ``health`` is ``None`` if it is disabled."""

    health: tuple[str, int] | None
    metrics: tuple[str, int]


@dataclass(frozen=True, slots=True)
class SyncSettings:
    """When sockets and rules are compared with the desired state; in seconds.

    A sync runs at least every ``period``, and at most once in ``min_period``. Sockets that are no
    longer needed end their connections after ``drain``. ``removes_rules`` applies at the end of the
    process.
    """

    period: float
    min_period: float
    drain: float
    removes_rules: bool


@dataclass(frozen=True, slots=True)
class UdpSettings:
    """How long an association of a client with an endpoint lasts without a datagram; in seconds.

    ``first`` applies until the endpoint has responded once, ``idle`` afterwards.
    """

    first: float
    idle: float


@dataclass(frozen=True, slots=True)
class Settings:
    """The whole command line.

    ``bind_address`` is the address of the proxy's sockets, usually the unspecified one.
    ``proxy_ports`` are the ports that they may use, ``None`` to let the kernel choose. Node ports
    are served at the addresses in ``node_port_networks``; if it is empty, at all addresses. If
    ``cleanup`` is set, the process does nothing else. ``state_dir`` is for the admin socket.
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
    def is_local_only(self) -> bool:
        """Whether only programs of this machine can be clients."""
        return ip_address(self.bind_address).is_loopback
