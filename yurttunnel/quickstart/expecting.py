"""Waiting for conditions, and assertions, in steps of the check."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from typing import Any

PATIENCE = 15.0
"""The timeout of a step, in seconds."""

_PIECE = 32 * 1024


class CheckFailed(Exception):
    """A step had an unexpected result; the message has one line about it."""


def until(condition: Callable[[], Any], what: str) -> Any:
    """Poll ``condition`` until its result is true, and return the result."""
    deadline = time.monotonic() + PATIENCE
    while not (result := condition()):
        if time.monotonic() > deadline:
            raise CheckFailed(f"after {PATIENCE:g} s it was still not so that {what}")
        time.sleep(0.05)
    return result


def require(seen: object, desired: object, what: str) -> None:
    """Raise :class:`CheckFailed` unless both are equal."""
    if seen != desired:
        raise CheckFailed(f"{what}: {desired!r} was expected, {seen!r} came")


def echoed(connection: socket.socket, sent: bytes) -> bytes:
    """Send in pieces, each after the echo of the last one: no buffer needs to hold all."""
    received = bytearray()
    for start in range(0, len(sent), _PIECE):
        connection.sendall(sent[start : start + _PIECE])
        while len(received) < min(start + _PIECE, len(sent)):
            piece = connection.recv(2 * _PIECE)
            if not piece:
                raise CheckFailed(f"the connection ended after {len(received)} bytes")
            received += piece
    return bytes(received)
