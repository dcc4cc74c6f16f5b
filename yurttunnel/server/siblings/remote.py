"""Nodes that a sibling has: ways to them through the session with that sibling."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from twisted.internet.defer import Deferred, fail
from twisted.internet.interfaces import IReactorTime
from twisted.python.failure import Failure
from zope.interface import implementer

from yurttunnel.pki.identity import Identifiers
from yurttunnel.server.node_session import dial_code, open_by_two_ways
from yurttunnel.server.registry import INodeSession, SessionRegistry
from yurttunnel.server.siblings.feed import MAX_NODES, NodeEntry
from yurttunnel.tunnel.errors import StreamFailed
from yurttunnel.tunnel.interfaces import IStream
from yurttunnel.tunnel.session import TunnelSession
from yurttunnel.tunnel.shares import OTHER, Holder
from yurttunnel.tunnel.statistics import SessionSnapshot
from yurttunnel.wire.codes import Code


class RemoteNodes:
    """The nodes that one sibling has, by its word, over one session with it.

    They are in ``registry``; while the session has no connection as those to be chosen last,
    which fail at once. ``drains`` is told of ways by which nothing new will be opened.
    """

    def __init__(
        self,
        clock: IReactorTime,
        registry: SessionRegistry,
        tunnel: TunnelSession,
        drains: Callable[[frozenset[INodeSession]], object],
    ) -> None:
        self.clock = clock
        self.registry = registry
        self.tunnel = tunnel
        self.reachable = True
        self.dials: set[Deferred[IStream]] = set()
        self._drains = drains
        self._nodes: dict[int, RemoteNodeSession] = {}

    def told(self, entry: NodeEntry | int) -> None:
        """Take what the sibling says of a node; raises ``ValueError`` when there are too many."""
        number = entry if isinstance(entry, int) else entry.number
        node = self._nodes.get(number)
        if node is not None and isinstance(entry, NodeEntry) and node.is_same(entry):
            self._set_drains(node, entry.draining)
        else:
            former = self._nodes.pop(number, None)
            if isinstance(entry, NodeEntry):
                if len(self._nodes) >= MAX_NODES:
                    raise ValueError(f"it has more than {MAX_NODES} nodes")
                self._nodes[number] = node = RemoteNodeSession(self, entry)
                self.registry.add_remote(node)
            # Only now: a node that claims something else is reached all the time.
            if former is not None:
                self._forget(former)
        if isinstance(entry, NodeEntry) and not entry.draining:
            self.registry.remote_serves(entry.node)

    def connection_lost(self) -> None:
        """Use none of the nodes until the sibling is back, and end the dials that wait.

        A sibling that has died would have them all wait for nothing.
        """
        self.reachable = False
        self._all_drain()
        for dial in list(self.dials):
            dial.cancel()

    def resumed(self) -> None:
        """Use the nodes again: the session goes on."""
        self.reachable = True
        for node in list(self._nodes.values()):
            if not node.drains:
                self.registry.remote_serves(node.node)

    def going_away(self) -> None:
        """Have what is idle on the way to the nodes closed: nothing new is opened there."""
        self._all_drain()

    def clear(self) -> None:
        """Forget all nodes: the session is over, and what was open in it has ended with it."""
        self.reachable = False
        self.forget()

    def forget(self) -> None:
        """Forget all nodes; the session goes on with its streams."""
        nodes, self._nodes = self._nodes, {}
        for node in nodes.values():
            self.registry.remove_remote(node)

    # -- helpers -------------------------------------------------------------------------------

    def _set_drains(self, node: RemoteNodeSession, drains: bool) -> None:
        """Note whether nothing new is to be opened by a way."""
        begins = drains and not node.drains
        node.drains = drains
        if begins:
            self._drains(frozenset({node}))

    def _all_drain(self) -> None:
        self._drains(frozenset(self._nodes.values()))

    def _forget(self, node: RemoteNodeSession) -> None:
        self.registry.remove_remote(node)
        self._set_drains(node, True)


@implementer(INodeSession)
class RemoteNodeSession:
    """The way to one node by a sibling that has a session with its agent."""

    def __init__(self, siblings: RemoteNodes, entry: NodeEntry) -> None:
        self.node = entry.node
        self.identifiers: Identifiers = entry.identifiers
        self.drains = entry.draining
        self._number = entry.number
        self._nodes = siblings

    def is_same(self, entry: NodeEntry) -> bool:
        """Return whether ``entry`` is about this node, and it is found by the same identifiers."""
        return (entry.node, entry.identifiers) == (self.node, self.identifiers)

    @property
    def draining(self) -> bool:
        """Whether new streams go another way where there is one."""
        nodes = self._nodes
        return self.drains or nodes.tunnel.going_away or not nodes.reachable

    @property
    def connected(self) -> bool:
        """Whether the sibling can be asked now."""
        return self._nodes.reachable

    def open_stream(
        self, host: str, port: int, timeout: float, request_id: str, holder: Holder = OTHER
    ) -> Deferred[IStream]:
        """Have the sibling open a stream; if it has lost the node, try another way, once."""
        nodes = self._nodes
        return open_by_two_ways(
            nodes.registry, nodes.clock, self, host, port, timeout, request_id, holder
        )

    def open_here(
        self, host: str, port: int, timeout: float, request_id: str, holder: Holder = OTHER
    ) -> Deferred[IStream]:
        """Have the sibling open a stream, which is of the same holder's share there."""
        nodes = self._nodes
        if not nodes.reachable:
            return fail(StreamFailed(Code.SESSION_LOST, self._lost()))
        target = f"{self._number}/{holder}/{host}"
        dial = nodes.tunnel.open_stream(target, port, timeout, request_id, holder)
        nodes.dials.add(dial)
        return dial.addBoth(self._dial_ended, dial)

    def snapshot(self) -> SessionSnapshot:
        """Describe the session with the sibling, as that by which the node is reached."""
        return replace(self._nodes.tunnel.snapshot(), node=self.node)

    def _dial_ended(self, result: IStream | Failure, dial: Deferred[IStream]) -> IStream | Failure:
        nodes = self._nodes
        nodes.dials.discard(dial)
        given_up = not nodes.reachable
        if given_up and isinstance(result, Failure) and dial_code(result) is Code.CANCELLED:
            return Failure(StreamFailed(Code.SESSION_LOST, self._lost()))
        return result

    def _lost(self) -> str:
        tunnel = self._nodes.tunnel
        return (
            f"the server {tunnel.peer_name} at {tunnel.description.address}, by which node"
            f" {self.node} was reached, cannot be reached itself"
        )
