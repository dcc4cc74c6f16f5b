"""Codes for the reasons why a dial failed, a stream ended or a session closed.

The numbers are part of the wire format (``docs/protocol.md``, "Codes"). A peer may send a
number that this version does not know; :meth:`Code.from_wire` maps it to
:attr:`Code.INTERNAL` so that the frame is still accepted.
"""

from __future__ import annotations

import enum


class CodedError(Exception):
    """An exception with a code and a message."""

    def __init__(self, code: Code, text: str) -> None:
        super().__init__(code, text)
        self.code = code
        self.text = text

    def __str__(self) -> str:
        """Return the message and the name of the code."""
        return f"{self.text} ({self.code.name})"


class Refused(CodedError):
    """The peer answered the HELLO with CLOSE, with ``code`` and ``text`` as the reason."""


class Code(enum.IntEnum):
    """A reason, as 16 bits on the wire."""

    DONE = 0
    """No error: both directions ended, or the session was drained."""

    # Why a dial failed (FAIL).
    REFUSED = 1
    """The target's host refused the connection: nothing listens on the port."""
    UNREACHABLE = 2
    """No route to the target, or its network returned an error."""
    TIMEOUT = 3
    """The target did not respond within the deadline."""
    NAME_NOT_RESOLVED = 4
    """The target's name does not resolve where the dial was made."""
    DENIED = 5
    """The policy of the dialing side forbids this destination."""
    OVERLOADED = 6
    """A limit was reached: streams, pending dials or memory. A retry later may succeed."""
    BAD_DESTINATION = 7
    """The destination is malformed."""

    # Why an open stream ended early (RESET).
    CANCELLED = 16
    """The side that opened the stream no longer wants it."""
    CONNECTION_LOST = 17
    """The socket behind the stream broke instead of ending."""

    # Why a session and all its streams ended (CLOSE, GOAWAY).
    GOING_AWAY = 32
    """The process stops or drains."""
    SESSION_LOST = 33
    """The peer did not reconnect in time, or reconnected as a new process."""
    REPLACED = 34
    """A newer session of the same node has taken over."""
    REVOKED = 35
    """The node's certificate has been revoked."""
    NOT_AUTHORIZED = 36
    """The certificate does not allow what the HELLO claims."""
    ALREADY_CONNECTED = 37
    """The peer already has a session with this process, as its HELLO says, or is this process."""

    # Errors that no correct peer causes (CLOSE).
    PROTOCOL = 48
    """A frame that is malformed or not allowed in this state."""
    FLOW_CONTROL = 49
    """More data than credit was granted for."""
    FRAME_TOO_LARGE = 50
    """A frame longer than the negotiated maximum."""
    VERSION = 51
    """No protocol version in common."""
    UNKNOWN_CRITICAL = 52
    """A critical frame of an unknown type."""
    FLOOD = 53
    """More control frames than a legitimate peer needs."""
    INTERNAL = 54
    """A defect on the side that sends this code."""

    @classmethod
    def from_wire(cls, value: int) -> Code:
        """Return the code for ``value``, or :attr:`INTERNAL` if this version does not know it."""
        try:
            return cls(value)
        except ValueError:
            return cls.INTERNAL
