"""Waiting for conditions, and assertions, in steps of the check."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from typing import Any

NAMESPACE = "default"
STEP_SECONDS = 15.0
"""The timeout of a step, in seconds."""

_CHUNK = 32 * 1024


class CheckFailed(Exception):
    """A step had an unexpected result; the message has one line about it."""


def poll_until(condition: Callable[[], Any], what: str) -> Any:
    """Poll ``condition`` until its result is true, and return the result."""
    deadline = time.monotonic() + STEP_SECONDS
    while not (result := condition()):
        if time.monotonic() > deadline:
            raise CheckFailed(f"timed out after {STEP_SECONDS:g} s, waiting until {what}")
        # The check is a process of its own, which may block.
        time.sleep(0.05)
    return result


def require(actual: object, expected: object, what: str) -> None:
    """Raise :class:`CheckFailed` unless both are equal."""
    if actual != expected:
        raise CheckFailed(f"{what}: {expected!r} was expected, {actual!r} came")


def echo(connection: socket.socket, sent: bytes) -> bytes:
    """Send in pieces, each after the echo of the last one: no buffer needs to hold all."""
    received = bytearray()
    for start in range(0, len(sent), _CHUNK):
        connection.sendall(sent[start : start + _CHUNK])
        while len(received) < min(start + _CHUNK, len(sent)):
            piece = connection.recv(2 * _CHUNK)
            if not piece:
                raise CheckFailed(f"the connection ended after {len(received)} bytes")
            received += piece
    return bytes(received)
