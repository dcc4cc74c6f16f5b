"""One session with a sibling, seen from the side that dials: its list of nodes, and its end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime, IStreamClientEndpoint
from twisted.python.failure import Failure

from yurttunnel.server.registry import INodeSession, SessionRegistry
from yurttunnel.server.siblings.feed import FEED_HOST, FEED_PORT, FeedReader, NodeEntry
from yurttunnel.server.siblings.remote import RemoteNodes
from yurttunnel.server.siblings.replicas import Address
from yurttunnel.server.siblings.settings import SiblingSettings
from yurttunnel.tunnel.errors import StreamFailed
from yurttunnel.tunnel.interfaces import IStream
from yurttunnel.tunnel.session import SessionContext, TunnelSession
from yurttunnel.wire.codes import Code

BELIEVED = 60.0
"""Seconds for which nodes are there whose list has ended with a session that ends its streams; what
becomes of them later nobody tells, and a stream may last for days."""

FEED_TIMEOUT = 10.0
"""Seconds in which a sibling has to begin its list of nodes."""


@dataclass(frozen=True, slots=True)
class SiblingContext:
    """What the clients of one server share.

    ``endpoint(address)`` leads to a sibling's port, TLS included. ``drains`` is told of ways
    to nodes by which nothing new will be opened, ``found`` is called when it has turned out where
    an address leads, and ``closed`` when a session is over.
    """

    sessions: SessionContext
    registry: SessionRegistry
    process: bytes
    settings: SiblingSettings
    endpoint: Callable[[Address], IStreamClientEndpoint]
    drains: Callable[[frozenset[INodeSession]], object]
    found: Callable[[], object]
    closed: Callable[[], object]


class SiblingSession:
    """One session with a sibling, ``tunnel``, and the ``nodes`` that are known by it."""

    def __init__(self, clock: IReactorTime, tunnel: TunnelSession, nodes: RemoteNodes) -> None:
        self._clock = clock
        self.tunnel = tunnel
        self.nodes = nodes
        self._reader = FeedReader(self._told, self._feed_failed)
        self._feed: Deferred[IStream] | None = None
        self._left = False
        self._forgetting: IDelayedCall | None = None

    def ask_for_nodes(self) -> None:
        """Ask for the list of nodes."""
        self._feed = self.tunnel.open_stream(FEED_HOST, FEED_PORT, FEED_TIMEOUT, "nodes")
        _ = self._feed.addCallbacks(self._feed_opened, self._feed_refused)

    def leave(self) -> None:
        """Choose the nodes last, and end the list, which would keep the session from ending."""
        self._left = True
        self._reader.end()
        if self._feed is not None:
            self._feed.cancel()
        self.nodes.going_away()
        self._forgetting = self._clock.callLater(BELIEVED, self.nodes.forget)

    def ended(self) -> None:
        """Forget the nodes: the session is over."""
        if self._forgetting is not None and self._forgetting.active():
            self._forgetting.cancel()
        self.nodes.clear()

    def go_away(self, text: str) -> None:
        """Want no new streams from the sibling, and end with the last one."""
        self.tunnel.go_away(text)

    def _feed_opened(self, stream: IStream) -> None:
        self._feed = None
        stream.attach(self._reader)

    def _feed_refused(self, reason: Failure) -> None:
        self._feed = None
        error = reason.value
        text = error.text if isinstance(error, StreamFailed) else reason.getErrorMessage()
        self._feed_failed(f"it was refused: {text}")

    def _told(self, entry: NodeEntry | int) -> None:
        try:
            self.nodes.told(entry)
        except ValueError as error:
            self._feed_failed(str(error))

    def _feed_failed(self, text: str) -> None:
        # When the session ends the list does, and that is no failure.
        if not (self._left or self.tunnel.closed or self.tunnel.going_away):
            self.tunnel.close(Code.PROTOCOL, f"the sibling's list of nodes: {text}")
