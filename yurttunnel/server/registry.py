"""Which session serves a destination: the connected nodes by their verified identifiers."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Iterator
from ipaddress import IPv4Address, IPv6Address, ip_address

from twisted.internet.interfaces import IReactorTime
from zope.interface import Attribute

from yurttunnel.tunnel.interfaces import IStreamOpener
from yurttunnel.tunnel.statistics import SessionSnapshot

_Address = IPv4Address | IPv6Address

# What a session may claim: a host name, an address, a network as (version, prefix length,
# leading bits), or, with None, everything that nobody else claims. One table holds all four
# because they never equal each other.
_Key = str | _Address | tuple[int, int, int] | None


class INodeSession(IStreamOpener):
    """The session of one node's agent, as the registry holds it."""

    node = Attribute("`str`: the node's name, from its verified certificate.")
    identifiers = Attribute("`Identifiers`: the destinations it serves.")
    draining = Attribute("`bool`: it refuses new streams.")

    def snapshot() -> SessionSnapshot:
        """Describe the session at this moment."""


class NodeNotConnected(Exception):
    """No connected agent serves ``host``.

    ``last_seen`` is when one did last, in seconds since the epoch by the server's clock, or
    ``None``.
    """

    def __init__(self, host: str, last_seen: float | None, now: float) -> None:
        super().__init__(host, last_seen, now)
        self.host = host
        self.last_seen = last_seen
        self._now = now

    def __str__(self) -> str:
        """Give the sentence for the person who asked for ``host``."""
        if self.last_seen is None:
            return (
                f"no agent is connected for {self.host}, "
                "and none has been since this server started"
            )
        ago = max(0, round(self._now - self.last_seen))
        when = datetime.datetime.fromtimestamp(self.last_seen, datetime.UTC)
        return (
            f"no agent is connected for {self.host}; "
            f"it was last seen {ago} s ago ({when:%Y-%m-%dT%H:%M:%SZ})"
        )


class SessionRegistry:
    """The sessions of all connected nodes, one for each node.

    ``max_remembered`` bounds the names and addresses of nodes that have gone and for which the
    time they were last seen is kept.
    """

    def __init__(self, clock: IReactorTime, max_remembered: int = 10_000) -> None:
        self._clock = clock
        self._max_remembered = max_remembered
        self._by_node: dict[str, INodeSession] = {}
        # Claimants of each key, the newest last.
        self._claims: dict[_Key, list[INodeSession]] = {}
        # For each version of IP how many keys there are of each prefix length.
        self._prefix_lengths: dict[int, Counter[int]] = {4: Counter(), 6: Counter()}
        self._last_seen: dict[str, float] = {}

    def add(self, session: INodeSession) -> INodeSession | None:
        """Serve through ``session`` from now on.

        Returns the session of the same node that it replaces, which the caller ends, or
        ``None``.
        """
        replaced = self._by_node.get(session.node)
        if replaced is not None:
            self._release(replaced)
        self._by_node[session.node] = session
        for key in _keys(session):
            claimants = self._claims.get(key)
            if claimants is not None:
                claimants.append(session)
                continue
            self._claims[key] = [session]
            if isinstance(key, tuple):
                self._prefix_lengths[key[0]][key[1]] += 1
        return replaced

    def remove(self, session: INodeSession) -> None:
        """Serve no longer through ``session``; one that has been replaced is ignored."""
        if self._by_node.get(session.node) is not session:
            return
        del self._by_node[session.node]
        self._release(session)
        self._remember(session)

    def find(self, host: str) -> INodeSession:
        """Give the session through which ``host`` (a name or an address) is reached.

        Exact names come first, then addresses in any spelling, then the narrowest network, then
        a default route; among claimants of the same the newest that does not drain, or, when all
        drain, the newest: it refuses, since a wider claim is another machine's. Raises
        :class:`NodeNotConnected`.
        """
        claimants = self._claims.get(host)
        if claimants is not None and not claimants[-1].draining:
            return claimants[-1]
        return self._search(_normalized(host), host)

    def _search(self, wanted: str | _Address, host: str) -> INodeSession:
        for key in self._keys_of_destination(wanted):
            claimants = self._claims.get(key)
            if claimants is not None:
                serving = (session for session in reversed(claimants) if not session.draining)
                return next(serving, claimants[-1])
        raise NodeNotConnected(host, self._last_seen.get(str(wanted)), self._clock.seconds())

    def _keys_of_destination(self, wanted: str | _Address) -> Iterator[_Key]:
        yield str(wanted)
        if not isinstance(wanted, str):
            yield wanted
            bits = int(wanted)
            for length in sorted(self._prefix_lengths[wanted.version], reverse=True):
                yield wanted.version, length, bits >> (wanted.max_prefixlen - length)
        yield None

    def _release(self, session: INodeSession) -> None:
        for key in _keys(session):
            claimants = self._claims[key]
            claimants.remove(session)
            if claimants:
                continue
            del self._claims[key]
            if isinstance(key, tuple):
                lengths = self._prefix_lengths[key[0]]
                lengths[key[1]] -= 1
                if not lengths[key[1]]:
                    del lengths[key[1]]

    def _remember(self, session: INodeSession) -> None:
        now = self._clock.seconds()
        for key in _keys(session):
            if isinstance(key, str | _Address):
                # Taken out first, so that the order of the table is the order of time.
                self._last_seen.pop(str(key), None)
                self._last_seen[str(key)] = now
        while len(self._last_seen) > self._max_remembered:
            del self._last_seen[next(iter(self._last_seen))]


def _keys(session: INodeSession) -> set[_Key]:
    """Give all that ``session`` claims; a node is always reached by its own name."""
    identifiers = session.identifiers
    keys: set[_Key] = {str(_normalized(host)) for host in (*identifiers.hosts, session.node)}
    keys.update(_unmapped(address) for address in identifiers.addresses)
    for network in identifiers.networks:
        shift = network.max_prefixlen - network.prefixlen
        keys.add((network.version, network.prefixlen, int(network.network_address) >> shift))
    if identifiers.default_route:
        keys.add(None)
    return keys


def _normalized(host: str) -> str | _Address:
    """Make one spelling of many: an address is parsed, a name loses its case and final dot."""
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    try:
        return _unmapped(ip_address(bare))
    except ValueError:
        return host.lower().removesuffix(".")


def _unmapped(address: _Address) -> _Address:
    """Give the IPv4 address that an IPv6 address of the form ``::ffff:a.b.c.d`` stands for."""
    return getattr(address, "ipv4_mapped", None) or address
