"""The settings of the hub: its checked and converted command line."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from yurttunnel.http.authority import Address
from yurttunnel.pki.discovery import BootstrapToken


class BootstrapMode(enum.Enum):
    """How a hub without a certificate authenticates as its node."""

    TOKEN = "token"
    KUBELET_CERTIFICATE = "kubeletcertificate"


class LoadBalancing(enum.Enum):
    """Which healthy API server is used: each in turn, or the first in the list."""

    ROUND_ROBIN = "rr"
    PRIORITY = "priority"


@dataclass(frozen=True, slots=True)
class BootstrapSettings:
    """How the hub gets its first certificate.

    ``file`` is a kubeconfig with a token, ``token`` is a token given directly. ``pins`` are the
    pins of the cluster's authorities; they are empty if the authorities are not verified.
    ``kubelet_certificate`` and ``kubelet_authorities`` are files of the kubelet. ``organizations``
    are requested in the certificate in addition to the hub's own.
    """

    mode: BootstrapMode = BootstrapMode.TOKEN
    file: Path | None = None
    token: BootstrapToken | None = None
    pins: frozenset[str] = frozenset()
    skips_pins: bool = False
    kubelet_certificate: Path = Path("/var/lib/kubelet/pki/kubelet-client-current.pem")
    kubelet_authorities: Path = Path("/etc/kubernetes/pki/ca.crt")
    organizations: tuple[str, ...] = ()


class InterfaceSettings(NamedTuple):
    """The interface on which pods connect to the hub."""

    name: str
    address: Address


class ListenerSettings(NamedTuple):
    """The addresses and ports of the hub; without an ``interface`` pods use ``proxy_host``."""

    meta_host: str
    meta_port: int
    proxy_host: str
    proxy_port: int
    secure_port: int
    interface: InterfaceSettings | None


class HealthSettings(NamedTuple):
    """The health checks of API servers, which renew the node's Lease; times are in seconds.

    In each ``interval`` a server gets ``retries`` attempts, which share one ``timeout``, so that a
    silent server is detected in time. It is healthy again after ``threshold`` consecutive
    successes. The Lease is not renewed if the kubelet has not renewed its own for
    ``kubelet_grace``.
    """

    interval: float
    timeout: float
    retries: int
    threshold: int
    kubelet_grace: float


@dataclass(frozen=True, slots=True)
class Settings:
    """The whole command line.

    ``servers`` are the URLs of the API servers. ``root_dir`` is for keys and certificates,
    ``cache_dir`` for the cache, of at most ``cache_bytes``. ``max_requests`` and ``max_watches``
    limit concurrent requests and watches; 0 is no limit. ``min_watch_seconds`` is the minimum
    duration, in seconds, of an offline watch without a timeout. ``namespace`` is that of
    ``yurt-hub-cfg``. ``node_pool`` is empty if the pool is read from the API. ``disabled_filters``
    may be ``*`` for all.
    """

    node_name: str
    servers: tuple[str, ...]
    root_dir: Path
    cache_dir: Path
    cache_bytes: int
    listeners: ListenerSettings
    bootstrap: BootstrapSettings
    load_balancing: LoadBalancing
    health: HealthSettings
    max_requests: int
    max_watches: int
    min_watch_seconds: float
    token_placeholders: bool
    namespace: str
    node_pool: str
    pool_topology: bool
    disabled_filters: frozenset[str] = field(default=frozenset())
