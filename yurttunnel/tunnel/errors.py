"""What callers of the tunnel have to expect."""

from __future__ import annotations

from yurttunnel.wire.codes import CodedError


class StreamFailed(CodedError):
    """A stream could not be opened, or ended before both directions had ended.

    ``code`` says why in one word of the protocol, ``text`` in a sentence for the person who
    wanted the stream.
    """
