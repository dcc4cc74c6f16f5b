"""Attach: clients of the standard input and output of a container's own process."""

from __future__ import annotations

from typing import Any

from twisted.internet.interfaces import IDelayedCall, IPushProducer, IReactorTime
from zope.interface import implementer

from yurtlab.node.command import internal_error, success
from yurtlab.node.interfaces import ICommandClient, ICommandSession
from yurtlab.node.processes import Process
from yurtlab.timers import cancel

STALL_SECONDS = 30.0
"""The time for which a client that does not read may pause the process, before it is dropped."""


@implementer(IPushProducer)
class Attachments:
    """All clients that are attached to a container, over all its runs.

    The process is paused while one of its clients does not keep up, so that nothing is lost; the
    time for which one client may pause it is limited. With ``once`` the input ends with the first
    client that sent some (``stdinOnce``); otherwise it stays open. In a ``terminal`` it ends only
    when the client ends it, since the next client may continue.
    """

    def __init__(self, clock: IReactorTime, once: bool, terminal: bool) -> None:
        self.clock = clock
        self._once = once
        self._terminal = terminal
        self._attached: list[Attachment] = []
        self._process: Process | None = None

    def process_started(self, process: Process) -> None:
        """Start a new run."""
        self._process = process
        process.register_input(self)

    def process_ended(self) -> None:
        """End the run, and all clients that are attached to it."""
        self._process = None
        for attachment in tuple(self._attached):
            attachment.finish(success())

    def output(self, stream: str, data: bytes) -> None:
        """Send output of the process to all clients."""
        for attachment in tuple(self._attached):
            attachment.output(stream, data)

    # What clients do

    def add(self, attachment: Attachment) -> bool:
        """Add a client; return false if there is no process to attach to."""
        if self._process is None:
            return False
        self._attached.append(attachment)
        return True

    def remove(self, attachment: Attachment) -> None:
        """Remove a client, for which the process may have been paused."""
        if attachment in self._attached:
            self._attached.remove(attachment)
            self.update_flow()

    def update_flow(self) -> None:
        """Pause or resume the process's output according to its clients."""
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
        """Handle the end of a client's input; with ``lost`` the client has disconnected."""
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
        """Discard the input: the process has closed its end."""
        self.resumeProducing()


@implementer(ICommandSession, IPushProducer)
class Attachment:
    """A client of attach; with ``stdin`` it sends input.

    As a producer it stands for the process's output to this client.
    """

    def __init__(self, attachments: Attachments, stdin: bool) -> None:
        self._attachments = attachments
        self._stdin = stdin
        self._client: ICommandClient | None = None
        self._stall: IDelayedCall | None = None
        self.paused = False

    def client_ready(self, client: ICommandClient) -> None:
        """Start sending what the process writes from now on."""
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
        """Detach from the process, which goes on with the other clients."""
        self._client = None
        self._detach()
        self._end_input(lost=True)

    def output(self, stream: str, data: bytes) -> None:
        """Send output."""
        if self._client is not None:
            self._client.write(stream, data)

    def finish(self, status: dict[str, Any]) -> None:
        """End with ``status``."""
        client, self._client = self._client, None
        self._detach()
        if client is not None:
            client.finish(status)

    def pause_input(self) -> None:
        """Pause the client's input."""
        if self._client is not None and self._stdin:
            self._client.pauseProducing()

    def resume_input(self) -> None:
        """Resume the client's input."""
        if self._client is not None and self._stdin:
            self._client.resumeProducing()

    def pauseProducing(self) -> None:
        """Pause the process for this client, for a limited time."""
        if not self.paused and self._client is not None:
            self.paused = True
            self._stall = self._attachments.clock.callLater(STALL_SECONDS, self._stalled)
            self._attachments.update_flow()

    def resumeProducing(self) -> None:
        if self.paused:
            self._cancel_stall_timer()
            self._attachments.update_flow()

    def stopProducing(self) -> None:
        self.resumeProducing()

    def _stalled(self) -> None:
        self.finish(
            internal_error(
                f"error attaching to container: the client has read no output for"
                f" {STALL_SECONDS:g} s, and the process continues without it"
            )
        )

    def _end_input(self, lost: bool) -> None:
        if self._stdin:
            self._stdin = False
            self._attachments.input_ended(lost)

    def _detach(self) -> None:
        self._cancel_stall_timer()
        self._attachments.remove(self)

    def _cancel_stall_timer(self) -> None:
        self.paused = False
        cancel(self._stall)
