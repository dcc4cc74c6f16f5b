"""The exception that callers of the tunnel have to handle."""

from __future__ import annotations

from yurttunnel.wire.codes import CodedError


class StreamFailed(CodedError):
    """A stream could not be opened, or ended before both directions had ended.

    ``code`` is the reason as a code of the protocol, ``text`` a message for the user who requested
    the stream.
    """
