"""What is to be intercepted, as data: which addresses and ports, and where they lead to."""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address

Address = IPv4Address | IPv6Address

SET_NAMES = {4: "YURTTUNNEL-EDGE4", 6: "YURTTUNNEL-EDGE6"}
"""The kernel's sets of the addresses of edge nodes, by the version of IP."""


class Match(enum.Enum):
    """How connections are recognised that are meant for nodes behind the tunnel."""

    EDGE_SET = "edge-set"
    """By their destination, which is in a set of the addresses of edge nodes."""

    CLOUD_RETURN = "cloud-return"
    """By their port alone, but for the addresses of cloud nodes: as yurttunnel 1.2 did."""


@dataclass(frozen=True, slots=True)
class Target:
    """A listener of the server.

    ``address`` is ``None`` where it listens on every address of the family: connections then stay
    on the machine where they are (``REDIRECT``).
    """

    address: Address | None
    port: int


@dataclass(frozen=True, slots=True)
class Interception:
    """What is wanted of one family of addresses (``version`` is 4 or 6).

    ``edge`` are the addresses of nodes behind the tunnel, and ``cloud`` those of the others; no
    address is in both. ``ports`` says where connections of this machine's own programs lead, by
    the port that they ask for, and ``pod_ports`` the same for those that come from elsewhere
    through this machine, such as pods: it is empty unless ``--intercept-pods`` is given. ``notes``
    are sentences about addresses that are left out; they make no difference to what is wanted.
    """

    version: int
    match: Match
    edge: frozenset[Address] = frozenset()
    cloud: frozenset[Address] = frozenset()
    ports: Mapping[int, Target] = field(default_factory=dict)
    pod_ports: Mapping[int, Target] = field(default_factory=dict)
    notes: tuple[str, ...] = field(default=(), compare=False)

    @property
    def is_nothing(self) -> bool:
        """Whether there is nothing to intercept: no node is behind the tunnel, or no port."""
        return not (self.edge and (self.ports or self.pod_ports))

    def all_ports(self) -> Collection[int]:
        """Return the ports that are intercepted, of whichever origin."""
        return self.ports.keys() | self.pod_ports.keys()

    def intercepts(self, address: Address) -> bool:
        """Return whether connections to ``address`` are led to the server, on these ports."""
        if self.is_nothing or address.is_loopback:
            return False
        if self.match is Match.EDGE_SET:
            return address in self.edge
        return address not in self.cloud
