"""What is to be intercepted, as data: addresses, ports, and their targets."""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address
from typing import NamedTuple

Address = IPv4Address | IPv6Address

SET_NAMES = {4: "YURTTUNNEL-EDGE4", 6: "YURTTUNNEL-EDGE6"}
"""The kernel's sets of the addresses of edge nodes, by the version of IP."""


class Match(enum.Enum):
    """How connections to nodes behind the tunnel are recognized."""

    EDGE_SET = "edge-set"
    """By their destination, which is in a set of the addresses of edge nodes."""

    CLOUD_RETURN = "cloud-return"
    """By their port only, except for the addresses of cloud nodes, as in yurttunnel 1.2."""


class Target(NamedTuple):
    """A listener of the server.

    ``address`` is ``None`` if it listens on all addresses of the family: rules then redirect to the
    port without naming an address (``REDIRECT``).
    """

    address: Address | None
    port: int


@dataclass(frozen=True, slots=True)
class Interception:
    """The desired interception of one address family (``version`` is 4 or 6).

    ``edge`` are the addresses of nodes behind the tunnel, and ``cloud`` those of the others; no
    address is in both. ``ports`` has the targets of connections of this machine's own programs, by
    their destination port, and ``pod_ports`` the same for forwarded connections, such as those of
    pods: it is empty without ``--intercept-pods``. ``notes`` are sentences about omitted addresses;
    they are ignored in comparisons.
    """

    version: int
    match: Match
    edge: frozenset[Address] = frozenset()
    cloud: frozenset[Address] = frozenset()
    ports: Mapping[int, Target] = field(default_factory=dict)
    pod_ports: Mapping[int, Target] = field(default_factory=dict)
    notes: tuple[str, ...] = field(default=(), compare=False)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to intercept: no node is behind the tunnel, or no port is."""
        return not (self.edge and (self.ports or self.pod_ports))

    def all_ports(self) -> Collection[int]:
        """Return the ports that are intercepted, for any origin."""
        return self.ports.keys() | self.pod_ports.keys()

    def intercepts(self, address: Address) -> bool:
        """Return whether connections to ``address`` on these ports are redirected to the server."""
        if self.is_empty or address.is_loopback:
            return False
        if self.match is Match.EDGE_SET:
            return address in self.edge
        return address not in self.cloud
