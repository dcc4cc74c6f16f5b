"""The client of exec and attach, independent of the streaming protocol.

At the end all output is sent, then the status on its error stream, then the end of every stream.
The client must then close the connection, within a deadline.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from twisted.internet.interfaces import IPushProducer
from zope.interface import implementer

from yurtlab.node.interfaces import ICommandClient, ICommandSession
from yurtlab.node.streaming.connection import InputGate, Stream, StreamingConnection

MAX_SIZE_TEXT: Final = 256
"""The maximum length of a terminal's size; ``{"Width":80,"Height":24}`` is usual."""

_MAX_CELLS: Final = 0xFFFF


def error_stream_content(protocol: str, status: Mapping[str, Any]) -> bytes:
    """Return the message on the error stream for ``status``, a ``metav1.Status``.

    From v4 on it is JSON, before that the message of a failure as text.
    """
    if protocol.startswith(("v4.", "v5.")):
        return json.dumps(status).encode()
    if status.get("status") == "Success":
        return b""
    return str(status.get("message", "")).encode()


def resizes(protocol: str) -> bool:
    """Return whether this version of the SPDY protocol supports resizing a terminal."""
    return protocol.startswith(("v3.", "v4.", "v5."))


class SizeReader:
    """Parses sizes of a terminal: concatenated JSON objects, in any chunks.

    Like the kubelet it ignores everything after an invalid size.
    """

    def __init__(self) -> None:
        self._text = ""
        self._broken = False

    def feed(self, data: bytes) -> list[tuple[int, int]]:
        """Return the sizes, each width and height in characters, that ``data`` completes."""
        sizes: list[tuple[int, int]] = []
        if self._broken:
            return sizes
        self._text += data.decode("ascii", "replace")
        try:
            while text := self._text.lstrip():
                end = text.find("}") + 1
                if (end or len(text)) > MAX_SIZE_TEXT:
                    raise ValueError("too long for a size")
                if not end:
                    break
                sizes.append(_size(json.loads(text[:end])))
                self._text = text[end:]
        except ValueError:
            self._broken = True
            self._text = ""
        return sizes


def _size(value: Any) -> tuple[int, int]:
    """Parse a ``TerminalSize``, whose field names are case-insensitive in Go."""
    if not isinstance(value, dict):
        raise ValueError("no object")
    members = {str(name).lower(): member for name, member in value.items()}
    width, height = members.get("width", 0), members.get("height", 0)
    for cells in (width, height):
        if type(cells) is not int or not 0 <= cells <= _MAX_CELLS:
            raise ValueError(f"{cells!r} is no number of characters")
    return width, height


class Channel(enum.IntEnum):
    """The streams of a command, with their channel numbers in a WebSocket."""

    STDIN = 0
    STDOUT = 1
    STDERR = 2
    ERROR = 3
    RESIZE = 4


@dataclass(frozen=True, slots=True)
class CommandOptions:
    """The streams that a client of exec or attach requests."""

    stdin: bool
    stdout: bool
    stderr: bool
    tty: bool

    @property
    def outputs(self) -> frozenset[Channel]:
        """The output streams for the client; a terminal has no error output."""
        desired = {Channel.STDOUT: self.stdout, Channel.STDERR: self.stderr and not self.tty}
        return frozenset(channel for channel, is_wanted in desired.items() if is_wanted)

    @property
    def channels(self) -> set[Channel]:
        """All streams, except the one for sizes of the terminal."""
        return {Channel.ERROR, *self.outputs, *([Channel.STDIN] if self.stdin else ())}


@implementer(ICommandClient)
class CommandClient:
    """Connects the streams of a client, all on one ``connection``, to its session.

    No input is delivered before the session is ready, nor after the client has disconnected.
    """

    def __init__(
        self,
        connection: StreamingConnection,
        protocol: str,
        options: CommandOptions,
        session: ICommandSession,
    ) -> None:
        self._connection = connection
        self._protocol = protocol
        self._session = session
        self._outputs = options.outputs
        self._streams: dict[Channel, Stream] = {}
        self._sizes = SizeReader()
        self._early_size: tuple[int, int] | None = None
        self._ready = False
        self._finished = False
        self.stdin = InputGate(connection.budget)
        """The receiver of the client's input."""

    # -- ICommandClient, for the session -------------------------------------------------------

    def write(self, stream: str, data: bytes) -> None:
        channel = Channel[stream.upper()]
        if channel in self._outputs and data and not self._finished:
            self._streams[channel].write(data)

    def register_output(self, producer: IPushProducer) -> None:
        """Register ``producer``, one of possibly several, to be paused while the client is slow."""
        self._connection.sources.add(producer)

    def pauseProducing(self) -> None:
        self.stdin.shut()

    def resumeProducing(self) -> None:
        self.stdin.open()

    def stopProducing(self) -> None:
        self.resumeProducing()

    def finish(self, status: Mapping[str, Any]) -> None:
        """Send ``status`` after all output, end all streams, and wait for the client."""
        if self._finished:
            return
        self._finished = True
        self.stdin.discard()
        self._connection.sources.clear()
        content = error_stream_content(self._protocol, status)
        if content:
            self._streams[Channel.ERROR].write(content)
        for stream in self._streams.values():
            stream.finish()
        self._connection.linger()

    # -- for the connection --------------------------------------------------------------------

    def add(self, channel: Channel, stream: Stream) -> None:
        """Use ``stream`` for ``channel``."""
        self._streams[channel] = stream
        if channel is Channel.STDIN:
            stream.receive, stream.ended = self.stdin.receive, self.stdin.finish
            # A reset also ends the input.
            stream.was_reset = self.stdin.finish
        elif channel is Channel.RESIZE:
            stream.receive = self._resize_received

    def ready(self) -> None:
        """Start the session: all streams are open."""
        session = self._session
        self._ready = True
        if self._early_size is not None:
            # First, so that the terminal has its size from the beginning.
            session.resized(*self._early_size)
        session.client_ready(self)
        self.stdin.begin(session.stdin_received, session.stdin_ended)

    def lost(self) -> None:
        """Handle that the client has disconnected, or was aborted."""
        if not self._finished:
            self._finished = True
            self.stdin.discard()
            self._session.client_lost()

    def _resize_received(self, data: bytes) -> None:
        """Parse the terminal's size; before the session is ready the last one counts."""
        for size in self._sizes.feed(data):
            if not self._ready:
                self._early_size = size
            elif not self._finished:
                self._session.resized(*size)
