"""What the command line of the agent says, checked and converted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

from yurttunnel.agent.policy import Pattern
from yurttunnel.http.authority import Address
from yurttunnel.ops.private_files import read_trusted
from yurttunnel.pki.identity import Identifiers
from yurttunnel.pki.token import BadToken, JoinToken

_MOST_OF_TOKEN = 4096
"""Bytes; a token has 120."""


@dataclass(frozen=True, slots=True)
class StandaloneSettings:
    """What is particular to ``--standalone``.

    ``join_token`` and ``join_token_file`` are both ``None`` when an agent is started that is
    enrolled already.
    """

    state_dir: Path
    join_token: str | None
    join_token_file: Path | None

    @property
    def has_join_token(self) -> bool:
        """Whether a token is named, or a file of one."""
        return self.join_token is not None or self.join_token_file is not None

    def read_join_token(self) -> JoinToken:
        """Return the join token that is named; raises :class:`BadToken` that says where it is."""
        if self.join_token_file is None:
            return JoinToken.parse(self.join_token or "")
        try:
            content = read_trusted(self.join_token_file, _MOST_OF_TOKEN)
            return JoinToken.parse(content.decode("ascii", "replace"))
        except (OSError, BadToken) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise BadToken(f"--join-token-file {self.join_token_file}: {reason}") from None


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """What is particular to a cluster.

    The API is asked as ``kube_config`` says, or, when that is ``None``, with the service account
    of the pod; at ``apiserver_addr``, ``https://HOST:PORT``, if there is one. ``namespace`` is
    where the server's service is.
    """

    kube_config: Path | None
    apiserver_addr: str | None
    cert_dir: Path
    namespace: str


@dataclass(frozen=True, slots=True)
class Settings:
    """What the agent's command line says; times are in seconds.

    ``mode`` says whether there is a cluster, and has what is particular to it. ``servers`` are
    ``(host, port)``; there are none when they are to be found in the cluster.
    ``server_connections`` is with how many servers to have a session, ``None`` for all.
    ``own_addresses`` are the node ip and the addresses among the identifiers. With
    ``keep_default_destinations`` false the ``allowed_destinations`` are all that may be
    connected to.
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
    """As :func:`~yurttunnel.tunnel.direct.reactor.with_transports` takes it."""
    meta_host: str
    meta_port: int

    @property
    def own_addresses(self) -> frozenset[Address]:
        """The node's own addresses."""
        return self.identifiers.addresses | {self.node_ip}

    @property
    def own_names(self) -> Mapping[str, Sequence[Address]]:
        """The names that mean this node, as ``NodeResolver`` takes them."""
        names: dict[str, Sequence[Address]] = {
            # RFC 6761 section 6.3: never a question for a name server.
            "localhost": (ip_address("127.0.0.1"), ip_address("::1")),
        }
        for name in {self.node_name, *self.identifiers.hosts}:
            names[name] = (self.node_ip,)
        return names
