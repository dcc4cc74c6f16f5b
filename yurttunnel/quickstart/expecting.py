"""What steps of the check wait for, and what they require of answers."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from typing import Any

PATIENCE = 15.0
"""Seconds for one step."""

_PIECE = 32 * 1024


class CheckFailed(Exception):
    """A step gave another result than it has to; one line that says which."""


def until(condition: Callable[[], Any], what: str) -> Any:
    """Ask ``condition`` until it is true, and give what it gave."""
    deadline = time.monotonic() + PATIENCE
    while not (result := condition()):
        if time.monotonic() > deadline:
            raise CheckFailed(f"after {PATIENCE:g} s it was still not so that {what}")
        time.sleep(0.05)
    return result


def require(seen: object, desired: object, what: str) -> None:
    """Require that both are equal."""
    if seen != desired:
        raise CheckFailed(f"{what}: {desired!r} was expected, {seen!r} came")


def echoed(connection: socket.socket, sent: bytes) -> bytes:
    """Send in pieces, each of which has come back before the next: no buffer has to hold all."""
    received = bytearray()
    for start in range(0, len(sent), _PIECE):
        connection.sendall(sent[start : start + _PIECE])
        while len(received) < min(start + _PIECE, len(sent)):
            piece = connection.recv(2 * _PIECE)
            if not piece:
                raise CheckFailed(f"the connection ended after {len(received)} bytes")
            received += piece
    return bytes(received)
