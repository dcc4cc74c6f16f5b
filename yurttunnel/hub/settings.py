"""What the command line of the hub says, checked and converted."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from pathlib import Path

from yurttunnel.http.authority import Address
from yurttunnel.pki.discovery import BootstrapToken


class BootstrapMode(enum.Enum):
    """How a hub without a certificate proves that it is its node."""

    TOKEN = "token"
    KUBELET_CERTIFICATE = "kubeletcertificate"


class LoadBalancing(enum.Enum):
    """Which of the healthy API servers is asked: each in turn, or the first one of the list."""

    ROUND_ROBIN = "rr"
    PRIORITY = "priority"


@dataclass(frozen=True, slots=True)
class BootstrapSettings:
    """How the hub gets its first certificate.

    ``file`` is a kubeconfig with a token, ``token`` one that was given itself. ``pins`` are those
    of the cluster's authorities; there are none where they are not to be checked.
    ``kubelet_certificate`` and ``kubelet_authorities`` are files of the kubelet.
    ``organizations`` are wanted in the certificate beside those that a hub has.
    """

    mode: BootstrapMode = BootstrapMode.TOKEN
    file: Path | None = None
    token: BootstrapToken | None = None
    pins: frozenset[str] = frozenset()
    skips_pins: bool = False
    kubelet_certificate: Path = Path("/var/lib/kubelet/pki/kubelet-client-current.pem")
    kubelet_authorities: Path = Path("/etc/kubernetes/pki/ca.crt")
    organizations: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class InterfaceSettings:
    """The interface at which pods find the hub."""

    name: str
    address: Address


@dataclass(frozen=True, slots=True)
class ListenerSettings:
    """Where the hub listens; without an ``interface`` pods find it at ``proxy_host`` only."""

    meta_host: str
    meta_port: int
    proxy_host: str
    proxy_port: int
    secure_port: int
    interface: InterfaceSettings | None


@dataclass(frozen=True, slots=True)
class HealthSettings:
    """How the health of API servers is found out, by renewing the node's Lease; seconds.

    Within each ``interval`` a server has ``retries`` attempts, of ``timeout`` together, so that a
    silent one is noticed in time, and is healthy again after ``threshold`` checks that went well.
    The lease is not renewed when the kubelet has not asked for ``kubelet_grace``.
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
    are answered at a time, 0 for any number. ``least_watch`` is how many seconds a watch lasts
    offline that does not say it. ``namespace`` is where ``yurt-hub-cfg`` is; ``node_pool`` is empty
    when objects tell it. Filters are those that are not in ``disabled_filters``, where ``*`` is
    all of them.
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
    least_watch: float
    token_placeholders: bool
    namespace: str
    node_pool: str
    pool_topology: bool
    disabled_filters: frozenset[str] = field(default=frozenset())
