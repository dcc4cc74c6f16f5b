"""What a name means on the agent's node: its own names are itself, others are looked up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from ipaddress import ip_address

from twisted.internet.address import IPv4Address as IPv4Endpoint
from twisted.internet.address import IPv6Address as IPv6Endpoint
from twisted.internet.defer import Deferred, fail
from twisted.internet.interfaces import (
    IAddress,
    IHostnameResolver,
    IHostResolution,
    IResolutionReceiver,
)
from zope.interface import implementer

from yurttunnel.http.authority import Address

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
        self._shared: dict[str, _Lookup] = {}

    def known(self, name: str) -> Sequence[Address] | None:
        """Return the addresses of one of the node's own names, ``None`` for other names."""
        return self._own_names.get(name)

    def look_up(self, name: str) -> Deferred[list[Address]]:
        """Look ``name`` up, without blocking.

        Those who ask for the same name at a time share a lookup. Fires with the addresses in the
        order in which the system prefers them, none when the name has none; fails with
        :class:`TooManyLookups`. There is no deadline here: whoever waits cancels the Deferred when
        time is up.
        """
        shared = self._shared.get(name)
        if shared is not None:
            return shared.wait()
        if self.lookups >= self._most_lookups:
            return fail(TooManyLookups(f"{self.lookups} name lookups are in progress"))
        self.lookups += 1
        lookup = self._shared[name] = _Lookup(self, name)
        found = lookup.wait()
        self._name_resolver.resolveHostName(lookup, name)
        return found

    def ended(self) -> None:
        """Make room for another lookup; lookups call this once."""
        self.lookups -= 1

    def share_no_more(self, name: str, lookup: _Lookup) -> None:
        """Have the next one who asks for ``name`` not wait for ``lookup``, which may hang."""
        if self._shared.get(name) is lookup:
            del self._shared[name]


@implementer(IResolutionReceiver)
class _Lookup:
    """One lookup, and those who wait for it."""

    def __init__(self, resolver: NodeResolver, name: str) -> None:
        self._resolver = resolver
        self._name = name
        self._waiting: list[Deferred[list[Address]]] = []
        self._addresses: list[Address] = []

    def wait(self) -> Deferred[list[Address]]:
        """Return what fires with the addresses; cancelling it leaves the others as they are."""
        found: Deferred[list[Address]] = Deferred(self._given_up)
        self._waiting.append(found)
        return found

    def resolutionBegan(self, resolution: IHostResolution) -> None:
        """Do nothing: there is nothing to cancel in a thread."""

    def addressResolved(self, address: IAddress) -> None:
        if isinstance(address, IPv4Endpoint | IPv6Endpoint):
            scope = getattr(address, "scopeID", 0)
            zone = f"%{scope}" if scope and "%" not in address.host else ""
            answer = ip_address(address.host + zone)
            if answer not in self._addresses:
                self._addresses.append(answer)

    def resolutionComplete(self) -> None:
        """Hand the addresses over to those who still wait for them."""
        self._resolver.ended()
        self._resolver.share_no_more(self._name, self)
        waiting, self._waiting = self._waiting, []
        for found in waiting:
            # Whoever was called before may have had this one give up.
            if not found.called:
                found.callback(list(self._addresses))

    def _given_up(self, found: Deferred[list[Address]]) -> None:
        if found in self._waiting:
            self._waiting.remove(found)
        if not self._waiting:
            self._resolver.share_no_more(self._name, self)
