"""Attach: clients at the standard input and output of a container's own process."""

from __future__ import annotations

from typing import Any

from twisted.internet.interfaces import IDelayedCall, IPushProducer, IReactorTime
from zope.interface import implementer

from yurtlab.node.command import internal_error, success
from yurtlab.node.interfaces import ICommandClient, ICommandSession
from yurtlab.node.processes import Process
from yurtlab.timers import cancel

STALL_SECONDS = 30.0
"""How long a client may take nothing and so hold the process up, before it is sent no more."""


@implementer(IPushProducer)
class Attachments:
    """All clients that are attached to a container, over all its runs.

    The process waits while one of its clients does not keep up, so that nothing is lost; how long
    one may hold up process and others is bounded. ``once``: the input ends with the first client
    that gave some (``stdinOnce``); else it stays open. In a ``terminal`` it ends only when the
    client says so, since the next may go on in it.
    """

    def __init__(self, clock: IReactorTime, once: bool, terminal: bool) -> None:
        self.clock = clock
        self._once = once
        self._terminal = terminal
        self._attached: list[Attachment] = []
        self._process: Process | None = None

    def process_started(self, process: Process) -> None:
        """A new run has begun."""
        self._process = process
        process.register_input(self)

    def process_ended(self) -> None:
        """The run has ended: so does everything that was attached to it."""
        self._process = None
        for attachment in tuple(self._attached):
            attachment.finish(success())

    def output(self, stream: str, data: bytes) -> None:
        """Send output of the process to all."""
        for attachment in tuple(self._attached):
            attachment.output(stream, data)

    # What clients do

    def add(self, attachment: Attachment) -> bool:
        """Take in a client; false when there is no process to be attached to any more."""
        if self._process is None:
            return False
        self._attached.append(attachment)
        return True

    def remove(self, attachment: Attachment) -> None:
        """Forget a client, for which the process may have waited."""
        if attachment in self._attached:
            self._attached.remove(attachment)
            self.balance()

    def balance(self) -> None:
        """Let the process write, or wait, as the clients are."""
        if self._process is None:
            return
        if any(one.paused for one in self._attached):
            self._process.pauseProducing()
        else:
            self._process.resumeProducing()

    def input(self, data: bytes) -> None:
        """Send ``data`` to the process."""
        if self._process is not None:
            self._process.write(data)

    def input_ended(self, lost: bool) -> None:
        """A client that gave input has ended it, or, with ``lost``, has gone."""
        if self._process is not None and self._once and not (lost and self._terminal):
            self._process.end_input()

    def resize(self, width: int, height: int) -> None:
        """Set the size of the terminal."""
        if self._process is not None:
            self._process.resize(width, height)

    # As the source of the process's input

    def pauseProducing(self) -> None:
        for attachment in self._attached:
            attachment.pause_input()

    def resumeProducing(self) -> None:
        for attachment in self._attached:
            attachment.resume_input()

    def stopProducing(self) -> None:
        """Take what comes and drop it: the process has closed its input."""
        self.resumeProducing()


@implementer(ICommandSession, IPushProducer)
class Attachment:
    """One client of attach; ``stdin``: it gives input.

    As a producer it is the process's output as far as this client goes.
    """

    def __init__(self, attachments: Attachments, stdin: bool) -> None:
        self._attachments = attachments
        self._stdin = stdin
        self._client: ICommandClient | None = None
        self._stall: IDelayedCall | None = None
        self.paused = False

    def client_ready(self, client: ICommandClient) -> None:
        """Begin to send what the process writes from now on."""
        self._client = client
        if self._attachments.add(self):
            client.register_output(self)
        else:
            self.finish(success())

    def stdin_received(self, data: bytes) -> None:
        if self._stdin:
            self._attachments.input(data)

    def stdin_ended(self) -> None:
        self._end_input(lost=False)

    def resized(self, width: int, height: int) -> None:
        self._attachments.resize(width, height)

    def client_lost(self) -> None:
        """Leave the process to itself and the others."""
        self._client = None
        self._leave()
        self._end_input(lost=True)

    def output(self, stream: str, data: bytes) -> None:
        """Send output."""
        if self._client is not None:
            self._client.write(stream, data)

    def finish(self, status: dict[str, Any]) -> None:
        """End with ``status``."""
        client, self._client = self._client, None
        self._leave()
        if client is not None:
            client.finish(status)

    def pause_input(self) -> None:
        """Have the client wait with its input."""
        if self._client is not None and self._stdin:
            self._client.pauseProducing()

    def resume_input(self) -> None:
        """Have it go on."""
        if self._client is not None and self._stdin:
            self._client.resumeProducing()

    def pauseProducing(self) -> None:
        """Have the process wait for this client, for some time."""
        if not self.paused and self._client is not None:
            self.paused = True
            self._stall = self._attachments.clock.callLater(STALL_SECONDS, self._stalled)
            self._attachments.balance()

    def resumeProducing(self) -> None:
        if self.paused:
            self._stop_waiting()
            self._attachments.balance()

    def stopProducing(self) -> None:
        self.resumeProducing()

    def _stalled(self) -> None:
        self.finish(
            internal_error(
                f"error attaching to container: the client has taken no output for"
                f" {STALL_SECONDS:g} s, and the process goes on without it"
            )
        )

    def _end_input(self, lost: bool) -> None:
        if self._stdin:
            self._stdin = False
            self._attachments.input_ended(lost)

    def _leave(self) -> None:
        self._stop_waiting()
        self._attachments.remove(self)

    def _stop_waiting(self) -> None:
        self.paused = False
        cancel(self._stall)
