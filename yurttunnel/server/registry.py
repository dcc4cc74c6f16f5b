"""The registry: maps destinations to sessions by the verified identifiers of connected nodes."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from zope.interface import Attribute

from yurttunnel.http.authority import Address, BadAuthority, canonical_host
from yurttunnel.http.errors import RequestFailed
from yurttunnel.ops.bounded_dict import BoundedDict
from yurttunnel.ops.clocks import time_of_day
from yurttunnel.tunnel.interfaces import IStream, IStreamOpener
from yurttunnel.tunnel.shares import OTHER, Holder
from yurttunnel.tunnel.statistics import SessionSnapshot

_MAX_NAMED = 5
"""The maximum number of nodes named in one message."""


@dataclass(frozen=True, slots=True)
class _NodeName:
    """The name of the node itself, which takes precedence over other claims to that name."""

    name: str


# A claim of a session: its node's own name, further host names, an address, a network as (version,
# prefix length, leading bits), or, as None, everything that nobody else claims. One table holds all
# of them because they never equal each other.
_Key = _NodeName | str | Address | tuple[int, int, int] | None


class INodeSession(IStreamOpener):
    """A route to one node, as the registry holds it.

    It is a session of this server with the node's agent, or one of a sibling.
    """

    node = Attribute("`str`: the node's name, from its verified certificate.")
    identifiers = Attribute("`Identifiers`: the destinations it serves.")
    draining = Attribute("`bool`: whether new streams prefer another route.")
    connected = Attribute("`bool`: whether it has a connection, so that it can respond now.")

    def open_without_fallback(
        host: str, port: int, timeout: float, request_id: str, holder: Holder = OTHER
    ) -> Deferred[IStream]:
        """Open a stream like ``open_stream``, but over this route only.

        ``open_stream`` tries another route to the node, once, if this one is lost.
        """

    def snapshot() -> SessionSnapshot:
        """Return a snapshot of the session."""


class NodeNotConnected(RequestFailed):
    """No connected agent serves ``host``.

    ``last_seen`` is when one last did, in seconds since the epoch by the server's clock, or
    ``None``.
    """

    last_seen: float | None = None

    def __init__(self, host: str, last_seen: float | None, now: float) -> None:
        if last_seen is None:
            when = ", and none has been since this server started"
        else:
            ago = max(0, round(now - last_seen))
            moment = datetime.datetime.fromtimestamp(last_seen, datetime.UTC)
            when = f"; it was last seen {ago} s ago ({moment:%Y-%m-%dT%H:%M:%SZ})"
        super().__init__(503, f"no agent is connected for {host}{when}")
        self.last_seen = last_seen


class AmbiguousAddress(NodeNotConnected):
    """Several nodes have the requested address."""

    def __init__(self, host: str, nodes: list[str]) -> None:
        listed = ", ".join(nodes[:_MAX_NAMED])
        more = len(nodes) - _MAX_NAMED
        others = f" and {more} more" if more > 0 else ""
        RequestFailed.__init__(
            self,
            400,
            f"{host} is the address of several nodes: {listed}{others};"
            " request one of them by its name",
        )


class SessionRegistry:
    """The routes to all connected nodes: this server's own sessions, and those of its siblings.

    A node may have several *direct* sessions, for example while one agent drains beside its
    successor. The fittest of them serves, see :meth:`find`, and only it claims the identifiers; it
    is chosen again after each change. *Remote* sessions, those of siblings, serve what no direct
    one does. ``max_remembered`` limits the names and addresses of gone nodes whose time of last
    contact is stored.
    """

    def __init__(self, clock: IReactorTime, max_remembered: int = 10_000) -> None:
        self._clock = clock
        # The direct sessions of each node, the newest last, and which of them serves.
        self._direct: dict[str, list[INodeSession]] = {}
        self._serving: dict[str, INodeSession] = {}
        self._remote: set[INodeSession] = set()
        self.on_direct_changed: list[Callable[[str], object]] = []
        """Callbacks for each node with a direct session that was added, changed or removed."""
        self.on_remote_removed: list[Callable[[str], object]] = []
        """Callbacks for each node to which a route through a sibling was removed."""
        self.on_remote_available: list[Callable[[str], object]] = []
        """Callbacks for each node that has become available through a sibling."""
        self.belongs_to_other_node: Callable[[str, str], bool] = lambda node, host: False
        """Whether a host or address belongs to a node other than the given one, whatever the
        latter's certificate contains: certificates outlive their contents."""
        self.nodes_with_address: Callable[[Address], Collection[str]] = lambda address: ()
        """Returns the nodes that have an address, connected or not, if that is known."""
        # The claimants of each key: remote ones, then direct ones, in both the newest last.
        self._claims: dict[_Key, list[INodeSession]] = {}
        # The number of keys of each prefix length, by IP version.
        self._prefix_lengths: dict[int, Counter[int]] = {4: Counter(), 6: Counter()}
        self._last_seen = BoundedDict[str, float](max_remembered)

    def add(self, session: INodeSession) -> list[INodeSession]:
        """Serve through ``session`` from now on, if it is the fittest.

        Returns the older sessions of the same node, the oldest first. The caller ends them unless
        they end by themselves; until then they serve if this one does not.
        """
        sessions = self._direct.setdefault(session.node, [])
        older = list(sessions)
        sessions.append(session)
        self.direct_changed(session.node)
        return older

    def remove(self, session: INodeSession) -> None:
        """Stop serving through ``session``; an unknown one is ignored."""
        sessions = self._direct.get(session.node, [])
        if session not in sessions:
            return
        sessions.remove(session)
        if not sessions:
            del self._direct[session.node]
        if self._serving.get(session.node) is session:
            self._record_last_seen(session)
            self.direct_changed(session.node)

    def add_remote(self, session: INodeSession) -> None:
        """Serve through a session of a sibling, if no direct one does."""
        if session not in self._remote:
            self._remote.add(session)
            self._claim(session)

    def remove_remote(self, session: INodeSession) -> None:
        """Stop serving through a session of a sibling; an unknown one is ignored.

        ``session`` must have the identifiers with which it was added.
        """
        if session in self._remote:
            self._remote.remove(session)
            self._release(session)
            self._record_last_seen(session)
            for callback in list(self.on_remote_removed):
                callback(session.node)

    def remote_available(self, node: str) -> None:
        """Notify subscribers that ``node`` is available through a sibling, newly or again."""
        for callback in list(self.on_remote_available):
            callback(node)

    @property
    def remote_nodes(self) -> int:
        """The number of nodes that are reachable only through siblings."""
        return len({session.node for session in self._remote} - self._direct.keys())

    def direct_nodes(self) -> list[str]:
        """Return the names of the nodes with direct sessions."""
        return list(self._direct)

    def direct(self, node: str) -> INodeSession | None:
        """Return the direct session that serves ``node``, spelled as in its certificate.

        ``None`` if there is none.
        """
        return self._serving.get(node)

    def direct_sessions(self, node: str) -> list[INodeSession]:
        """Return all direct sessions with ``node``, the newest last."""
        return list(self._direct.get(node, ()))

    def reachable_nodes(self) -> list[str]:
        """Return the names of all reachable nodes, sorted."""
        return sorted({*self._direct, *(session.node for session in self._remote)})

    def route(self, node: str) -> INodeSession | None:
        """Return the route to ``node`` itself, a direct one if there is one."""
        claimants = self._claims.get(_NodeName(node))
        return claimants[-1] if claimants else None

    def is_reachable(self, node: str) -> bool:
        """Return whether there is a route to the node of that name, direct or through a sibling."""
        return _NodeName(node) in self._claims

    def direct_changed(self, node: str) -> None:
        """Choose again which direct session serves, and notify subscribers.

        Call this when a session has begun to drain, or has lost or regained its connection.
        """
        serving = self._serving.pop(node, None)
        chosen = max(reversed(self._direct.get(node, ())), key=_fitness, default=None)
        if chosen is not None:
            self._serving[node] = chosen
        if chosen is not serving:
            if serving is not None:
                self._release(serving)
            if chosen is not None:
                self._claim(chosen)
        for callback in list(self.on_direct_changed):
            callback(node)

    def find(self, host: str) -> INodeSession:
        """Return the session through which ``host`` (a name or an address) is reached.

        A node's own name has the highest precedence, then other exact names, then addresses in any
        spelling, then the narrowest network, then a default route. Among claimants of the same key
        it is the newest that is connected and not draining, direct ones before remote ones;
        otherwise one that may reconnect soon; otherwise a draining one, which serves until its
        successor is there: a wider claim belongs to another machine. Raises
        :class:`NodeNotConnected`, and :class:`AmbiguousAddress` if several nodes have an address.
        Claims for which :attr:`belongs_to_other_node` is true do not count.
        """
        claimants = self._claims.get(_NodeName(host))
        if claimants is not None:
            newest = claimants[-1]
            if newest.connected and not newest.draining:
                return newest
        try:
            desired = canonical_host(host)
        except BadAuthority:
            raise NodeNotConnected(host, None, time_of_day(self._clock)) from None
        return self._search(desired, host)

    def find_or_none(self, host: str) -> INodeSession | None:
        """Return the result of :meth:`find`, ``None`` if it raises."""
        try:
            return self.find(host)
        except NodeNotConnected:
            return None

    def find_another(self, session: INodeSession) -> INodeSession | None:
        """Return the best other route to the node of ``session``, if any; see :meth:`find`."""
        routes = [*self._claims.get(_node_key(session), ()), *self._direct.get(session.node, ())]
        others = [
            route
            for route in reversed(routes)
            if route.node == session.node and route is not session
        ]
        return max(others, key=_fitness, default=None)

    def _search(self, desired: str | Address, host: str) -> INodeSession:
        for key in self._keys_of_destination(desired):
            claimants = [
                claimant
                for claimant in self._claims.get(key, ())
                if not self.belongs_to_other_node(claimant.node, str(desired))
            ]
            if key is desired:
                self._check_unambiguous(desired, claimants)
            if claimants:
                return max(reversed(claimants), key=_fitness)
        raise NodeNotConnected(host, self._last_seen.get(str(desired)), time_of_day(self._clock))

    def _check_unambiguous(self, desired: str | Address, claimants: list[INodeSession]) -> None:
        """Raise :class:`AmbiguousAddress` if several nodes have an address.

        Which of them is meant is unknown, and responses of the wrong one would be trusted: also if
        it replaces one that is away. A connected node reports itself whether it still has the
        address. Loopback addresses are every node's own.
        """
        if isinstance(desired, str) or desired.is_loopback:
            return
        nodes = {claimant.node for claimant in claimants}
        nodes.update(
            node for node in self.nodes_with_address(desired) if not self.is_reachable(node)
        )
        if len(nodes) > 1:
            raise AmbiguousAddress(str(desired), sorted(nodes))

    def _keys_of_destination(self, desired: str | Address) -> Iterator[_Key]:
        yield _NodeName(str(desired))
        yield str(desired)
        if not isinstance(desired, str):
            yield desired
            bits = int(desired)
            for length in sorted(self._prefix_lengths[desired.version], reverse=True):
                yield desired.version, length, bits >> (desired.max_prefixlen - length)
        yield None

    def _claim(self, session: INodeSession) -> None:
        for key in _keys(session):
            claimants = self._claims.get(key)
            if claimants is None:
                self._claims[key] = [session]
                if isinstance(key, tuple):
                    self._prefix_lengths[key[0]][key[1]] += 1
            elif session in self._remote:
                remote = sum(claimant in self._remote for claimant in claimants)
                claimants.insert(remote, session)
            else:
                claimants.append(session)

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

    def _record_last_seen(self, session: INodeSession) -> None:
        now = time_of_day(self._clock)
        for key in _keys(session):
            name = key.name if isinstance(key, _NodeName) else key
            if isinstance(name, str | Address) and not self.belongs_to_other_node(
                session.node, str(name)
            ):
                self._last_seen[str(name)] = now


def _fitness(session: INodeSession) -> tuple[bool, bool]:
    """Rank a route to a node; of equal ranks the newest is chosen."""
    return not session.draining, session.connected


def _keys(session: INodeSession) -> set[_Key]:
    """Return all claims of ``session``; a node is always reachable by its own name."""
    identifiers = session.identifiers
    keys: set[_Key] = {_node_key(session), *identifiers.hosts, *identifiers.addresses}
    for network in identifiers.networks:
        shift = network.max_prefixlen - network.prefixlen
        keys.add((network.version, network.prefixlen, int(network.network_address) >> shift))
    if identifiers.default_route:
        keys.add(None)
    return keys


def _node_key(session: INodeSession) -> _NodeName:
    return _NodeName(session.node)
