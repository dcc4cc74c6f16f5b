"""The settings of the agent, parsed from its command line and checked."""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple

from yurttunnel.agent.policy import Pattern
from yurttunnel.http.authority import Address
from yurttunnel.ops.private_files import read_trusted
from yurttunnel.pki.identity import Identifiers
from yurttunnel.pki.token import BadToken, JoinToken

_MAX_TOKEN_BYTES = 4096
"""Bytes; a token has 120."""


class StandaloneSettings(NamedTuple):
    """The settings of ``--standalone``.

    ``join_token`` and ``join_token_file`` are both ``None`` if an agent that is enrolled already is
    started.
    """

    state_dir: Path
    join_token: str | None
    join_token_file: Path | None

    @property
    def has_join_token(self) -> bool:
        """Whether a token, or a file with one, is given."""
        return self.join_token is not None or self.join_token_file is not None

    def read_join_token(self) -> JoinToken:
        """Return the given join token; raises :class:`BadToken`, which names its source."""
        if self.join_token_file is None:
            return JoinToken.parse(self.join_token or "")
        try:
            content = read_trusted(self.join_token_file, _MAX_TOKEN_BYTES)
            return JoinToken.parse(content.removeprefix(BOM_UTF8).decode("ascii", "replace"))
        except (OSError, BadToken) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise BadToken(f"--join-token-file {self.join_token_file}: {reason}") from None


class ClusterSettings(NamedTuple):
    """The settings of a cluster.

    The credentials for the API are those in ``kube_config``, or, if that is ``None``, the service
    account of the pod; ``apiserver_addr``, ``https://HOST:PORT``, overrides the address.
    ``namespace`` is that of the servers' service.
    """

    kube_config: Path | None
    apiserver_addr: str | None
    cert_dir: Path
    namespace: str


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of the agent; times are in seconds.

    ``mode`` has the settings of the standalone mode or of the cluster. ``servers`` are ``(host,
    port)``, and empty if they are discovered in the cluster. ``server_connections`` is the desired
    number of servers with sessions, ``None`` for all. ``own_addresses`` are the node IP and the
    addresses among the identifiers. If ``keep_default_destinations`` is false, only
    ``allowed_destinations`` may be connected to.
    """

    mode: StandaloneSettings | ClusterSettings
    node_name: str
    node_ip: Address
    identifiers: Identifiers
    servers: tuple[tuple[str, int], ...]
    server_connections: int | None
    allowed_destinations: tuple[Pattern, ...]
    keep_default_destinations: bool
    resume_window: float
    drain_timeout: float
    transport: str
    """As in :func:`~yurttunnel.tunnel.direct.reactor.with_transports`."""
    meta_host: str
    meta_port: int

    @property
    def own_addresses(self) -> frozenset[Address]:
        """The node's own addresses."""
        return self.identifiers.addresses | {self.node_ip}

    @property
    def own_names(self) -> Mapping[str, Sequence[Address]]:
        """The names of this node, in the form for ``NodeResolver``."""
        names: dict[str, Sequence[Address]] = {
            # RFC 6761 section 6.3: never sent to a name server.
            "localhost": (ip_address("127.0.0.1"), ip_address("::1"))
        }
        for name in {self.node_name, *self.identifiers.hosts}:
            names[name] = (self.node_ip,)
        return names
