"""How long clients of a Service wait for its first bytes, whoever gives them."""

from __future__ import annotations

import socket
import time
from concurrent.futures import ThreadPoolExecutor

from benchmarks.processes import BenchmarkFailed

_QUESTION = b"GET /once HTTP/1.1\r\nHost: bench\r\n\r\n"

_PATIENCE = 30.0
"""Seconds that a client waits for."""


def dial_all(where: tuple[str, int], clients: int, at_once: int) -> list[float]:
    """Have clients connect and ask; return the seconds of each until it was answered.

    Raises :class:`BenchmarkFailed` where one of them was not.
    """
    with ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(lambda _: _dial(where), range(clients)))


def _dial(where: tuple[str, int]) -> float:
    begun = time.monotonic()
    try:
        with socket.create_connection(where, _PATIENCE) as client:
            client.sendall(_QUESTION)
            answer = client.recv(1)
    except OSError as error:
        raise BenchmarkFailed(f"a client has failed: {error}") from None
    if not answer:
        raise BenchmarkFailed("a client got no answer")
    return time.monotonic() - begun
