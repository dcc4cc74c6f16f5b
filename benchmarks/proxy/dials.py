"""Clients that measure the time until the first byte from a Service."""

from __future__ import annotations

import socket
import time
from concurrent.futures import ThreadPoolExecutor

from benchmarks.processes import BenchmarkFailed

_REQUEST = b"GET /once HTTP/1.1\r\nHost: bench\r\n\r\n"

_TIMEOUT = 30.0
"""The timeout of a client in seconds."""


def dial_all(where: tuple[str, int], clients: int, at_once: int) -> list[float]:
    """Run clients that connect and send a request; return the seconds until each response.

    Raises :class:`BenchmarkFailed` if a client gets none.
    """
    with ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(lambda _: _dial(where), range(clients)))


def _dial(where: tuple[str, int]) -> float:
    begun = time.monotonic()
    try:
        with socket.create_connection(where, _TIMEOUT) as client:
            client.sendall(_REQUEST)
            answer = client.recv(1)
    except OSError as error:
        raise BenchmarkFailed(f"a client has failed: {error}") from None
    if not answer:
        raise BenchmarkFailed("a client got no answer")
    return time.monotonic() - begun
