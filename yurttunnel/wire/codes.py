"""Why a dial failed, a stream ended or a session closed: one number for each reason.

The numbers are part of the wire format (``docs/protocol.md``, "Codes"). A peer may send a
number that this version does not know; :meth:`Code.from_wire` maps it to
:attr:`Code.INTERNAL` so that no frame is refused for it.
"""

from __future__ import annotations

import enum


class CodedError(Exception):
    """An exception that has one of these numbers, and a sentence for the reader."""

    def __init__(self, code: Code, text: str) -> None:
        super().__init__(code, text)
        self.code = code
        self.text = text

    def __str__(self) -> str:
        """Return the sentence and the code."""
        return f"{self.text} ({self.code.name})"


class Refused(CodedError):
    """The peer answered the HELLO with CLOSE: ``code`` says why, ``text`` in a sentence."""


class Code(enum.IntEnum):
    """A reason, as 16 bits on the wire."""

    DONE = 0
    """Nothing went wrong: both directions ended, or the session has been drained."""

    # What a dial can end with (FAIL).
    REFUSED = 1
    """The target's host answered that nobody listens there."""
    UNREACHABLE = 2
    """No route to the target, or its network answered with an error."""
    TIMEOUT = 3
    """The target did not answer within the deadline."""
    NAME_NOT_RESOLVED = 4
    """The target's name has no address where the dial was made."""
    DENIED = 5
    """The dialling side's policy forbids this destination."""
    OVERLOADED = 6
    """A limit was reached: streams, pending dials or memory. Trying later may work."""
    BAD_DESTINATION = 7
    """The destination cannot be understood."""

    # Why an open stream ended early (RESET).
    CANCELLED = 16
    """The side that opened the stream no longer wants it."""
    CONNECTION_LOST = 17
    """The socket behind the stream broke instead of ending."""

    # Why a session ended (CLOSE, GOAWAY), and with it every stream.
    GOING_AWAY = 32
    """The process stops or drains."""
    SESSION_LOST = 33
    """The peer did not come back in time, or came back as a new process."""
    REPLACED = 34
    """A newer session of the same node has taken over."""
    REVOKED = 35
    """The node's certificate has been revoked."""
    NOT_AUTHORIZED = 36
    """The certificate does not allow what the HELLO claims."""
    ALREADY_CONNECTED = 37
    """The peer has a session with this very process already, as its HELLO says, or is it."""

    # What no correct peer causes (CLOSE).
    PROTOCOL = 48
    """A frame that is malformed or not allowed in this state."""
    FLOW_CONTROL = 49
    """More data than credit was given for."""
    FRAME_TOO_LARGE = 50
    """A frame longer than the negotiated maximum."""
    VERSION = 51
    """No protocol version in common."""
    UNKNOWN_CRITICAL = 52
    """A frame type that must be understood and is not."""
    FLOOD = 53
    """More control frames than any honest peer needs."""
    INTERNAL = 54
    """A defect on the side that says so."""

    @classmethod
    def from_wire(cls, value: int) -> Code:
        """The code for ``value``; :attr:`INTERNAL` when this version does not know it."""
        try:
            return cls(value)
        except ValueError:
            return cls.INTERNAL
