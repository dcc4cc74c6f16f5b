"""What is wanted of the firewall, made of the nodes, the ports and the command line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from yurttunnel.steering.interception import Match, Target


@dataclass(frozen=True, slots=True)
class Listeners:
    """Where the server listens for connections that are led to it, in one family of addresses.

    ``secure`` takes HTTPS, ``insecure`` HTTP, and ``passthrough`` whatever it is; that is ``None``
    without ``--passthrough-port``.
    """

    secure: Target
    insecure: Target
    passthrough: Target | None = None


@dataclass(frozen=True, slots=True)
class SteeringSettings:
    """What the command line says; ``period`` is in seconds.

    ``listeners`` are by the version of IP. ``match`` is ``None`` where the kernel decides:
    ``EDGE_SET`` if it has sets of addresses, else ``CLOUD_RETURN``. ``passthrough_ports`` are
    those that lead to ``Listeners.passthrough``.
    """

    listeners: Mapping[int, Listeners]
    match: Match | None
    pods: bool
    passthrough_ports: frozenset[int]
    period: float
