"""The client of exec and attach, whatever it streams by.

At the end it gets all output, then the status on its error stream, then the end of every stream.
It then closes the connection, within a deadline.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from twisted.internet.interfaces import IPushProducer
from zope.interface import implementer

from yurtlab.node.interfaces import ICommandClient, ICommandSession
from yurtlab.node.streaming.flow import InputBudget, InputGate, Sources
from yurtlab.node.streaming.results import SizeReader, error_stream_content


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
        self._stdin: InputGate

    # -- ICommandClient, for the session -------------------------------------------------------

    def write_stdout(self, data: bytes) -> None:
        """Send output."""
        self._write(Channel.STDOUT, data)

    def write_stderr(self, data: bytes) -> None:
        """Send error output."""
        self._write(Channel.STDERR, data)

    def register_output(self, producer: IPushProducer) -> None:
        """Have ``producer``, one of perhaps several, paused while the client is slow."""
        self._channels.sources.add(producer)

    def pause_stdin(self) -> None:
        """Take no more input for now."""
        self._wants_stdin = False
        self._stdin.shut()

    def resume_stdin(self) -> None:
        """Take input again."""
        self._wants_stdin = True
        if self._ready and not self._finished:
            self._stdin.open()

    def finish(self, status: Mapping[str, Any]) -> None:
        """Send ``status`` after all output, and end."""
        if not self._finished:
            self._finished = True
            self._stdin.discard()
            self._channels.sources.clear()
            self._channels.finish(error_stream_content(self._protocol, status))

    # -- for the channels ----------------------------------------------------------------------

    def connect(self, channels: CommandChannels) -> None:
        """Be carried by ``channels``."""
        session = self._session
        self._channels = channels
        self._stdin = InputGate(channels.budget, session.stdin_received, session.stdin_ended)

    def ready(self) -> None:
        """All streams are there: let the session begin."""
        self._ready = True
        if self._early_size is not None:
            # First, so that the terminal has its size from the beginning.
            self._session.resized(*self._early_size)
        self._session.client_ready(self)
        if self._wants_stdin and not self._finished:
            self._stdin.open()

    def stdin_received(self, data: bytes) -> None:
        """Take input."""
        self._stdin.receive(data)

    def stdin_ended(self) -> None:
        """Take note of the end of the input."""
        self._stdin.finish()

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
            self._stdin.discard()
            self._session.client_lost()

    # -- helpers -------------------------------------------------------------------------------

    def _write(self, channel: Channel, data: bytes) -> None:
        if channel in self._outputs and data and not self._finished:
            self._channels.send(channel, data)
