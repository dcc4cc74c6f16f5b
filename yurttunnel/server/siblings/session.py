"""The dialing side of a session with a sibling: the sibling's nodes, and the session's end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from twisted.internet.defer import Deferred, fail
from twisted.internet.interfaces import IDelayedCall
from twisted.python.failure import Failure
from zope.interface import implementer

from yurttunnel.pki.identity import Identifiers
from yurttunnel.server.node_session import dial_error_code, open_with_fallback
from yurttunnel.server.registry import INodeSession, SessionRegistry
from yurttunnel.server.siblings.feed import (
    FEED_HOST,
    FEED_PORT,
    MAX_NODES,
    BadEntry,
    FeedReader,
    NodeEntry,
)
from yurttunnel.tunnel.interfaces import IStream, StreamFailed
from yurttunnel.tunnel.session import TunnelSession
from yurttunnel.tunnel.shares import OTHER, Holder
from yurttunnel.tunnel.statistics import SessionSnapshot
from yurttunnel.wire.codes import Code

STALE_NODES_TTL = 60.0
"""Seconds for which nodes remain known after their list has ended with a session that is ending;
nothing reports their changes any more, and a stream may last for days."""

FEED_TIMEOUT = 10.0
"""The timeout in seconds for a sibling to start its list of nodes."""


class SiblingSession:
    """One session with a sibling, ``tunnel``, and the nodes that the sibling reports.

    They are registered in ``registry``. While the session has no connection they are chosen last,
    and their dials fail at once. ``on_draining`` is called with routes over which nothing new will
    be opened.
    """

    def __init__(
        self,
        registry: SessionRegistry,
        tunnel: TunnelSession,
        on_draining: Callable[[frozenset[INodeSession]], object],
    ) -> None:
        self.registry = registry
        self.tunnel = tunnel
        self.reachable = True
        self.dials: set[Deferred[IStream]] = set()
        self._on_draining = on_draining
        self._nodes: dict[int, RemoteNodeSession] = {}
        self._reader = FeedReader(self._apply_entry, self._feed_failed)
        self._feed: Deferred[IStream] | None = None
        self._draining = False
        self._removal_call: IDelayedCall | None = None

    def request_nodes(self) -> None:
        """Request the list of nodes."""
        self._feed = self.tunnel.open_stream(FEED_HOST, FEED_PORT, FEED_TIMEOUT, "nodes")
        _ = self._feed.addCallbacks(self._feed_opened, self._feed_refused)

    def connection_lost(self) -> None:
        """Stop using the nodes until the sibling is back, and cancel pending dials.

        If the sibling has died, they would all wait in vain.
        """
        self.reachable = False
        self._report_all_draining()
        for dial in list(self.dials):
            dial.cancel()

    def resumed(self) -> None:
        """Use the nodes again, after the session was resumed."""
        self.reachable = True
        for node in list(self._nodes.values()):
            if not node.reported_draining:
                self.registry.remote_available(node.node)

    def drain(self) -> None:
        """Give the nodes the lowest priority; end the list, which would keep the session open."""
        self._draining = True
        self._reader.end()
        if self._feed is not None:
            self._feed.cancel()
        self._report_all_draining()
        self._removal_call = self.tunnel.clock.callLater(STALE_NODES_TTL, self._remove_nodes)

    def ended(self) -> None:
        """Remove the nodes: the session has ended, and its streams with it."""
        if self._removal_call is not None and self._removal_call.active():
            self._removal_call.cancel()
        self.reachable = False
        self._remove_nodes()

    # -- the list of nodes ---------------------------------------------------------------------

    def _feed_opened(self, stream: IStream) -> None:
        self._feed = None
        stream.attach(self._reader)

    def _feed_refused(self, reason: Failure) -> None:
        self._feed = None
        error = reason.value
        text = error.text if isinstance(error, StreamFailed) else reason.getErrorMessage()
        self._feed_failed(f"it was refused: {text}")

    def _feed_failed(self, text: str) -> None:
        # The list ends with its session, which is not a failure.
        if not (self._draining or self.tunnel.closed or self.tunnel.draining):
            self.tunnel.close(Code.PROTOCOL, f"the sibling's list of nodes: {text}")

    def _apply_entry(self, entry: NodeEntry | int) -> None:
        """Apply a sibling's report of a node; raises ``BadEntry`` if there are too many."""
        number = entry if isinstance(entry, int) else entry.number
        node = self._nodes.get(number)
        if node is not None and isinstance(entry, NodeEntry) and node.is_same(entry):
            self._set_draining(node, entry.draining)
        else:
            former = self._nodes.pop(number, None)
            if isinstance(entry, NodeEntry):
                if len(self._nodes) >= MAX_NODES:
                    raise BadEntry(f"it has more than {MAX_NODES} nodes")
                self._nodes[number] = node = RemoteNodeSession(self, entry)
                self.registry.add_remote(node)
            # Removed last, so that a node whose identifiers change stays reachable throughout.
            if former is not None:
                self.registry.remove_remote(former)
                self._set_draining(former, True)
        if isinstance(entry, NodeEntry) and not entry.draining:
            self.registry.remote_available(entry.node)

    def _remove_nodes(self) -> None:
        nodes, self._nodes = self._nodes, {}
        for node in nodes.values():
            self.registry.remove_remote(node)

    def _set_draining(self, node: RemoteNodeSession, draining: bool) -> None:
        """Set whether a route is draining, and report it if it begins."""
        begins = draining and not node.reported_draining
        node.reported_draining = draining
        if begins:
            self._on_draining(frozenset({node}))

    def _report_all_draining(self) -> None:
        self._on_draining(frozenset(self._nodes.values()))


@implementer(INodeSession)
class RemoteNodeSession:
    """The route to one node through a sibling that has a session with its agent."""

    def __init__(self, sibling: SiblingSession, entry: NodeEntry) -> None:
        self.node = entry.node
        self.identifiers: Identifiers = entry.identifiers
        self.reported_draining = entry.draining
        self._number = entry.number
        self._sibling = sibling

    def is_same(self, entry: NodeEntry) -> bool:
        """Return whether ``entry`` has the name and the identifiers of this node."""
        return (entry.node, entry.identifiers) == (self.node, self.identifiers)

    @property
    def draining(self) -> bool:
        """Whether new streams take another route if there is one."""
        sibling = self._sibling
        return self.reported_draining or sibling.tunnel.draining or not sibling.reachable

    @property
    def connected(self) -> bool:
        """Whether the sibling is reachable now."""
        return self._sibling.reachable

    def open_stream(
        self, host: str, port: int, timeout: float, request_id: str, holder: Holder = OTHER
    ) -> Deferred[IStream]:
        """Open a stream through the sibling; if it has lost the node, try another route, once."""
        registry, clock = self._sibling.registry, self._sibling.tunnel.clock
        return open_with_fallback(registry, clock, self, host, port, timeout, request_id, holder)

    def open_without_fallback(
        self, host: str, port: int, timeout: float, request_id: str, holder: Holder = OTHER
    ) -> Deferred[IStream]:
        """Open a stream through the sibling, where the same holder's share is charged."""
        sibling = self._sibling
        if not sibling.reachable:
            return fail(StreamFailed(Code.SESSION_LOST, self._lost()))
        target = f"{self._number}/{holder}/{host}"
        dial = sibling.tunnel.open_stream(target, port, timeout, request_id, holder)
        sibling.dials.add(dial)
        return dial.addBoth(self._dial_ended, dial)

    def snapshot(self) -> SessionSnapshot:
        return replace(self._sibling.tunnel.snapshot(), node=self.node)

    def _dial_ended(self, result: IStream | Failure, dial: Deferred[IStream]) -> IStream | Failure:
        sibling = self._sibling
        sibling.dials.discard(dial)
        cancelled = not sibling.reachable
        if cancelled and isinstance(result, Failure) and dial_error_code(result) is Code.CANCELLED:
            return Failure(StreamFailed(Code.SESSION_LOST, self._lost()))
        return result

    def _lost(self) -> str:
        tunnel = self._sibling.tunnel
        return (
            f"the server {tunnel.peer_name} at {tunnel.description.address}, by which node"
            f" {self.node} was reached, cannot be reached itself"
        )
