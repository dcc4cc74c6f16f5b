"""Exec: a command in a container for one client."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from zope.interface import implementer

from yurtlab.node import leftovers
from yurtlab.node.interfaces import ICommandClient, ICommandSession
from yurtlab.node.processes import Exit, Process, Program, StartFailed


def success() -> dict[str, Any]:
    """Return the status of success."""
    return {"metadata": {}, "status": "Success"}


def exit_code(code: int) -> dict[str, Any]:
    """Return the status of a command that exited with ``code``."""
    if code == 0:
        return success()
    return {
        "metadata": {},
        "status": "Failure",
        "message": f"command terminated with non-zero exit code: exit status {code}",
        "reason": "NonZeroExitCode",
        "details": {"causes": [{"reason": "ExitCode", "message": str(code)}]},
    }


def internal_error(text: str) -> dict[str, Any]:
    """Return the status of an internal error."""
    return {
        "metadata": {},
        "status": "Failure",
        "message": f"Internal error occurred: {text}",
        "reason": "InternalError",
        "details": {"causes": [{"message": text}]},
        "code": 500,
    }


DISCONNECT_GRACE_SECONDS = 2.0
"""The time for a command to end after its client has disconnected, before it is killed."""


@implementer(ICommandSession)
class Command:
    """Runs ``program`` for its client, until either ends.

    ``over()`` is called once: when the process has ended, or could not be started, or when the
    client disconnected before that.
    """

    def __init__(self, reactor: Any, program: Program, over: Callable[[], object]) -> None:
        self._reactor = reactor
        self._program = program
        self._over: Callable[[], object] | None = over
        self._client: ICommandClient | None = None
        self._process: Process | None = None

    def client_ready(self, client: ICommandClient) -> None:
        self._client = client
        try:
            process = Process(self._reactor, self._program, self._output, self._ended, self._exited)
        except StartFailed as failed:
            client.finish(internal_error(f"error executing command in container: {failed}"))
            self._is_over()
            return
        self._process = process
        client.register_output(process)
        process.register_input(client)

    def stdin_received(self, data: bytes) -> None:
        if self._process is not None:
            self._process.write(data)

    def stdin_ended(self) -> None:
        if self._process is not None:
            self._process.end_input()

    def resized(self, width: int, height: int) -> None:
        """Set the terminal's size; before the process has started, set its initial size."""
        if self._process is None:
            self._program = replace(self._program, size=(width, height))
        else:
            self._process.resize(width, height)

    def client_lost(self) -> None:
        self._client = None
        if self._process is None:
            self._is_over()
        else:
            self._process.abandon(DISCONNECT_GRACE_SECONDS)

    def _output(self, stream: str, data: bytes) -> None:
        if self._client is not None:
            self._client.write(stream, data)

    def _exited(self, pid: int) -> None:
        """Kill the command's leftovers if its client is gone; otherwise they may stay."""
        if self._client is None:
            leftovers.kill_session(pid)

    def _ended(self, end: Exit) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.finish(exit_code(end.code))
        self._is_over()

    def _is_over(self) -> None:
        over, self._over = self._over, None
        if over is not None:
            over()
