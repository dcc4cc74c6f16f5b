"""What a name means on the agent's node: its own names are itself, others are looked up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from ipaddress import ip_address

from twisted.internet.address import IPv4Address as IPv4Endpoint
from twisted.internet.address import IPv6Address as IPv6Endpoint
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import (
    IAddress,
    IHostnameResolver,
    IHostResolution,
    IResolutionReceiver,
)
from zope.interface import implementer

from yurttunnel.agent.policy import Address

MOST_LOOKUPS = 64
"""Lookups in flight. The system's resolver works in threads that cannot be interrupted, so a
lookup counts until it ends, even when nobody waits for it any longer."""


class TooManyLookups(Exception):
    """No lookup was begun, because :data:`MOST_LOOKUPS` others have not ended."""


class NodeResolver:
    """Finds the addresses of names as seen from the node.

    ``own_names`` maps the node's own names, in lower case and without final dot, to addresses
    of the node: they are known without a lookup, so that reaching a node by its name works
    where no name server knows it.
    """

    def __init__(
        self,
        name_resolver: IHostnameResolver,
        own_names: Mapping[str, Sequence[Address]],
        most_lookups: int = MOST_LOOKUPS,
    ) -> None:
        self._name_resolver = name_resolver
        self._own_names = dict(own_names)
        self._most_lookups = most_lookups
        self.lookups = 0

    def known(self, name: str) -> Sequence[Address] | None:
        """Give the addresses of one of the node's own names, ``None`` for other names."""
        return self._own_names.get(name)

    def look_up(self, name: str) -> Deferred[list[Address]]:
        """Look ``name`` up, without blocking.

        Fires with the addresses in the order in which the system prefers them, none when the
        name has none; fails with :class:`TooManyLookups`. There is no deadline here: whoever
        waits cancels the Deferred when time is up.
        """
        found: Deferred[list[Address]] = Deferred()
        if self.lookups >= self._most_lookups:
            found.errback(TooManyLookups(f"{self.lookups} name lookups are in progress"))
            return found
        self.lookups += 1
        receiver = _AddressCollector(self, found)
        self._name_resolver.resolveHostName(receiver, name)
        return found


@implementer(IResolutionReceiver)
class _AddressCollector:
    """Collects the answers of one lookup."""

    def __init__(self, resolver: NodeResolver, found: Deferred[list[Address]]) -> None:
        self._resolver = resolver
        self._found = found
        self._addresses: list[Address] = []

    def resolutionBegan(self, resolution: IHostResolution) -> None:
        """Do nothing: there is nothing to cancel in a thread."""

    def addressResolved(self, address: IAddress) -> None:
        """Keep one address."""
        if isinstance(address, IPv4Endpoint | IPv6Endpoint):
            scope = getattr(address, "scopeID", 0)
            zone = f"%{scope}" if scope and "%" not in address.host else ""
            answer = ip_address(address.host + zone)
            if answer not in self._addresses:
                self._addresses.append(answer)

    def resolutionComplete(self) -> None:
        """Hand the addresses over, unless nobody waits for them any longer."""
        self._resolver.lookups -= 1
        if not self._found.called:
            self._found.callback(self._addresses)
