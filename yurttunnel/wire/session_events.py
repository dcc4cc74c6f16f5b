"""The states of a session, and the events that it reports to its owner."""

from __future__ import annotations

import enum
from typing import Protocol

from yurttunnel.wire.codes import Code, CodedError
from yurttunnel.wire.stream import Stream


class SessionState(enum.Enum):
    """Whether the session has a connection, waits for one, or has ended."""

    DETACHED = "detached"
    ATTACHED = "attached"
    CLOSED = "closed"


# Unpacked once, like the states of streams.
DETACHED, ATTACHED, ENDED = SessionState


class SessionEvents(Protocol):
    """The events of a session, implemented by its owner."""

    def stream_requested(self, stream: Stream) -> None:
        """Handle an OPEN: set ``stream.events`` and ``stream.deliver``, and answer later."""

    def connection_silent(self) -> None:
        """Handle a dead connection: drop it, then call ``detach``."""

    def timer_moved(self, when: float) -> None:
        """Call :meth:`Session.tick` at ``when``, which is earlier than the time set before."""

    def goaway_received(self, code: Code, text: str) -> None:
        """Handle GOAWAY: open new streams elsewhere if possible; open streams continue."""

    def servers_received(self, servers: int) -> None:
        """Handle SERVERS: the peer, a server, reports the number of servers, including itself."""

    def no_stream_left(self) -> None:
        """Handle that no stream is open after a GOAWAY of either side; new ones may follow."""

    def deliver_failed(self, stream: Stream, error: Exception) -> None:
        """Handle an ``error`` of ``stream.deliver`` or an event; the stream has been reset."""

    def session_closed(self, code: Code, text: str, by_peer: bool) -> None:
        """Handle the end of the session and all its streams; called once."""


class OpenRefused(CodedError):
    """This side cannot open a stream now, for the reason in ``code`` and ``text``."""
