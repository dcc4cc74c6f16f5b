"""Interactive echoes through a CONNECT socket, in a separate process.

It is target and client, with blocking sockets only, so that the load of a test's own process does
not count as latency of the tunnel.

``echo_probe.py SOCKET SECONDS`` runs echoes for that time. It sends each message through the
tunnel and then directly, which measures the latency of the machine at that moment. It prints the
round trips in seconds as JSON: lists ``tunnel`` and ``direct``.
"""

from __future__ import annotations

import json
import socket
import struct
import sys
import threading
import time

INTERVAL = 0.005
"""The interval between messages, in seconds."""

SECONDS = 20
"""The timeout of an answer, in seconds."""


def serve(connection: socket.socket) -> None:
    """Echo the data of one connection until its end."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with connection:
        while data := connection.recv(4096):
            connection.sendall(data)


def receive(connection: socket.socket, ending: bytes | None, length: int) -> bytes:
    """Receive up to ``ending``, or ``length`` bytes."""
    data = b""
    while (ending and not data.endswith(ending)) or (not ending and len(data) < length):
        more = connection.recv(1 if ending else length - len(data))
        if not more:
            raise SystemExit(f"cut off after {data!r}")
        data += more
    return data


def accept(listener: socket.socket) -> None:
    """Echo each connection in a separate thread."""
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=serve, args=(connection,), daemon=True).start()


def round_trip(connection: socket.socket, message: bytes) -> float:
    """Send a message; return the round trip in seconds."""
    started = time.perf_counter()
    connection.sendall(message)
    answer = receive(connection, None, len(message))
    seconds = time.perf_counter() - started
    if answer != message:
        raise SystemExit(f"{message!r} came back altered")
    return seconds


def listen() -> int:
    """Start the target; return its port."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=1000)
    threading.Thread(target=accept, args=(listener,), daemon=True).start()
    return int(listener.getsockname()[1])


def dial(socket_path: str, port: int) -> socket.socket:
    """Return a connection to the target through the CONNECT socket."""
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(SECONDS)
    connection.connect(socket_path)
    authority = f"127.0.0.1:{port}"
    connection.sendall(f"CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n\r\n".encode())
    head = receive(connection, b"\r\n\r\n", 0)
    if not head.startswith(b"HTTP/1.1 200"):
        raise SystemExit(head.decode())
    return connection


def measure(socket_path: str, seconds: float) -> dict[str, list[float]]:
    """Make round trips through the CONNECT socket, and directly, for ``seconds``."""
    port = listen()
    with (
        dial(socket_path, port) as own,
        socket.create_connection(("127.0.0.1", port), SECONDS) as direct,
    ):
        direct.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        samples: dict[str, list[float]] = {"tunnel": [], "direct": []}
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            message = struct.pack("!Q", len(samples["tunnel"])) * 8
            samples["tunnel"].append(round_trip(own, message))
            samples["direct"].append(round_trip(direct, message))
            time.sleep(INTERVAL)
    return samples


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], float(sys.argv[2]))))
