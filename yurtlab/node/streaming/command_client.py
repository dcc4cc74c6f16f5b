"""The client of exec and attach, whatever it streams by.

At the end it gets all output, then the status on its error stream, then the end of every stream.
It then closes the connection, within a deadline.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from twisted.internet.interfaces import IPushProducer
from zope.interface import implementer

from yurtlab.node.interfaces import ICommandClient, ICommandSession
from yurtlab.node.streaming.connection import InputBudget, InputGate, Sources

MAX_SIZE_TEXT: Final = 256
"""Characters that one size of a terminal may have; ``{"Width":80,"Height":24}`` is usual."""

_MAX_CELLS: Final = 0xFFFF


def error_stream_content(protocol: str, status: Mapping[str, Any]) -> bytes:
    """Return what the error stream says of ``status``, a ``metav1.Status``.

    v4 and later send it as JSON, earlier ones the message of a failure as text.
    """
    if protocol.startswith(("v4.", "v5.")):
        return json.dumps(status).encode()
    if status.get("status") == "Success":
        return b""
    return str(status.get("message", "")).encode()


def resizes(protocol: str) -> bool:
    """Return whether a terminal may change its size in this version of SPDY's protocols."""
    return protocol.startswith(("v3.", "v4.", "v5."))


class SizeReader:
    """Reads sizes of a terminal: JSON objects one behind the other, cut in any way.

    Like kubelet it takes note of nothing any more behind what is no size.
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
        decoder = json.JSONDecoder()
        while text := self._text.lstrip():
            end = text.find("}") + 1
            if (end or len(text)) > MAX_SIZE_TEXT:
                self._broken = True
                break
            if not end:
                break
            try:
                sizes.append(_size(decoder.decode(text[:end])))
            except ValueError:
                self._broken = True
                break
            self._text = text[end:]
        if self._broken:
            self._text = ""
        return sizes


def _size(value: Any) -> tuple[int, int]:
    """Read a ``TerminalSize``, whose names Go reads in any case."""
    if not isinstance(value, dict):
        raise ValueError("no object")
    members = {str(name).lower(): member for name, member in value.items()}
    width, height = members.get("width", 0), members.get("height", 0)
    for cells in (width, height):
        if type(cells) is not int or not 0 <= cells <= _MAX_CELLS:
            raise ValueError(f"{cells!r} is no number of characters")
    return width, height


class Channel(enum.IntEnum):
    """The streams of a command, with their numbers in a WebSocket."""

    STDIN = 0
    STDOUT = 1
    STDERR = 2
    ERROR = 3
    RESIZE = 4


@dataclass(frozen=True, slots=True)
class CommandOptions:
    """What a client of exec or attach wants to stream."""

    stdin: bool
    stdout: bool
    stderr: bool
    tty: bool

    @property
    def outputs(self) -> frozenset[Channel]:
        """The streams of output that the client gets; a terminal has no error output."""
        desired = {Channel.STDOUT: self.stdout, Channel.STDERR: self.stderr and not self.tty}
        return frozenset(channel for channel, is_wanted in desired.items() if is_wanted)


class CommandChannels(Protocol):
    """What carries the streams of a command."""

    sources: Sources
    budget: InputBudget

    def send(self, channel: Channel, data: bytes) -> None:
        """Send output."""

    def finish(self, content: bytes) -> None:
        """Send ``content`` on the error stream, end all streams, and wait for the client."""


@implementer(ICommandClient)
class CommandClient:
    """Between the channels of a client and its session.

    Nothing comes in before the session is ready, nor after the client has gone.
    """

    def __init__(self, protocol: str, options: CommandOptions, session: ICommandSession) -> None:
        self._protocol = protocol
        self._session = session
        self._outputs = options.outputs
        self._sizes = SizeReader()
        self._early_size: tuple[int, int] | None = None
        self._ready = False
        self._wants_stdin = True
        self._finished = False
        self._channels: CommandChannels
        self.stdin: InputGate
        """Takes what the client gives."""

    # -- ICommandClient, for the session -------------------------------------------------------

    def write(self, stream: str, data: bytes) -> None:
        channel = Channel[stream.upper()]
        if channel in self._outputs and data and not self._finished:
            self._channels.send(channel, data)

    def register_output(self, producer: IPushProducer) -> None:
        """Have ``producer``, one of perhaps several, paused while the client is slow."""
        self._channels.sources.add(producer)

    def pauseProducing(self) -> None:
        self._wants_stdin = False
        self.stdin.shut()

    def resumeProducing(self) -> None:
        self._wants_stdin = True
        if self._ready and not self._finished:
            self.stdin.open()

    def stopProducing(self) -> None:
        self.resumeProducing()

    def finish(self, status: Mapping[str, Any]) -> None:
        """Send ``status`` after all output, and end."""
        if not self._finished:
            self._finished = True
            self.stdin.discard()
            self._channels.sources.clear()
            self._channels.finish(error_stream_content(self._protocol, status))

    # -- for the channels ----------------------------------------------------------------------

    def connect(self, channels: CommandChannels) -> None:
        """Be carried by ``channels``."""
        session = self._session
        self._channels = channels
        self.stdin = InputGate(channels.budget, session.stdin_received, session.stdin_ended)

    def ready(self) -> None:
        """All streams are there: let the session begin."""
        self._ready = True
        if self._early_size is not None:
            # First, so that the terminal has its size from the beginning.
            self._session.resized(*self._early_size)
        self._session.client_ready(self)
        if self._wants_stdin and not self._finished:
            self.stdin.open()

    def resize_received(self, data: bytes) -> None:
        """Take what says how large the terminal is; before the session is ready the last counts."""
        for size in self._sizes.feed(data):
            if not self._ready:
                self._early_size = size
            elif not self._finished:
                self._session.resized(*size)

    def lost(self) -> None:
        """The client has gone, or was given up."""
        if not self._finished:
            self._finished = True
            self.stdin.discard()
            self._session.client_lost()
