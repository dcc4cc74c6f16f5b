"""What callers of the tunnel have to expect."""

from __future__ import annotations

from yurttunnel.wire.codes import Code


class StreamFailed(Exception):
    """A stream could not be opened, or ended before both directions had ended.

    ``code`` says why in one word of the protocol, ``text`` in a sentence for the person who
    wanted the stream.
    """

    def __init__(self, code: Code, text: str) -> None:
        super().__init__(code, text)
        self.code = code
        self.text = text

    def __str__(self) -> str:
        """Give the sentence and the code."""
        return f"{self.text} ({self.code.name})"
