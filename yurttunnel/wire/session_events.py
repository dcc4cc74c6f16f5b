"""What a session tells its owner, and the states in which it is."""

from __future__ import annotations

import enum
from typing import Protocol

from yurttunnel.wire.codes import Code, CodedError
from yurttunnel.wire.stream import Stream


class SessionState(enum.Enum):
    """Whether the session has a connection, waits for one, or is over."""

    DETACHED = "detached"
    ATTACHED = "attached"
    CLOSED = "closed"


class SessionEvents(Protocol):
    """What happens to a session, told to its owner."""

    def stream_requested(self, stream: Stream) -> None:
        """The peer sent OPEN: set ``stream.events`` and ``stream.deliver``, answer later."""

    def connection_silent(self) -> None:
        """Nothing came for too long: drop the connection, then call ``detach``."""

    def timer_moved(self, when: float) -> None:
        """Call :meth:`Session.tick` at ``when``, which is earlier than asked for before."""

    def peer_going_away(self, code: Code, text: str) -> None:
        """The peer wants no new streams that have another way; those that are open go on."""

    def servers_told(self, servers: int) -> None:
        """The peer, a server, says that there are so many servers now, itself included."""

    def no_stream_left(self) -> None:
        """No stream is open while one of the sides goes away; some may still come."""

    def deliver_failed(self, stream: Stream, error: Exception) -> None:
        """``stream.deliver`` or an event of it raised ``error``; the stream has been reset."""

    def session_closed(self, code: Code, text: str, by_peer: bool) -> None:
        """The session is over, and every stream with it; called once."""


class OpenRefused(CodedError):
    """This side cannot open a stream now; ``code`` and ``text`` say why."""
