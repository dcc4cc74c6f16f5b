"""HTTP requests to a kubelet through the server at a constant rate, in a separate process.

It is caller and kubelet, with blocking sockets only, so that the load of a test's own process does
not affect it.

``request_load.py PORT NODE CALLERS RATE`` runs ``CALLERS`` callers, each with its own connection,
which send ``RATE`` requests/s in total, or as many as possible. It prints ``connected`` before the
first request, then for each line of its input the requests/s since the previous line, and exits at
the end of its input. A wrong answer, or one that takes longer than :data:`SECONDS`, ends it with a
message and status 1.
"""

from __future__ import annotations

import socket
import sys
import threading
import time
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait

SECONDS = 20
"""The timeout of an answer, in seconds."""

MAX_LATENESS = 1.0
"""A caller that is later than this, in seconds, skips the requests that it has missed."""

_END = b"\r\n\r\n"


def serve(connection: socket.socket) -> None:
    """Respond to each request with its target."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    data = b""
    with connection:
        while more := connection.recv(4096):
            data += more
            while _END in data:
                head, _, data = data.partition(_END)
                target = head.split(b" ", 2)[1]
                answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s"
                connection.sendall(answer % (len(target), target))


def accept(listener: socket.socket) -> None:
    """Serve each connection in a separate thread."""
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=serve, args=(connection,), daemon=True).start()


def ask(connection: socket.socket, host: bytes, target: bytes) -> None:
    """Send a request, and wait for the complete response, which must be its target."""
    connection.sendall(b"GET %s HTTP/1.1\r\nHost: %s\r\n\r\n" % (target, host))
    data = b""
    while _END not in data or len(data.partition(_END)[2]) < len(target):
        more = connection.recv(4096)
        if not more:
            raise SystemExit(f"{target!r} was cut off after {data!r}")
        data += more
    head, _, body = data.partition(_END)
    if body != target or not head.startswith(b"HTTP/1.1 200 "):
        raise SystemExit(f"{target!r} was answered with {data!r}")


class Load:
    """The callers, and the number of requests of each."""

    def __init__(self, port: int, host: bytes, callers: int, rate: float) -> None:
        self._host = host
        self._interval = callers / rate
        self._counts = [0] * callers
        self.ended = threading.Event()
        self.connections = [
            socket.create_connection(("127.0.0.1", port), SECONDS) for _ in range(callers)
        ]

    def call(self, number: int) -> None:
        """Send the requests of one caller."""
        connection = self.connections[number]
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        due = time.monotonic() + self._interval * number / len(self._counts)
        while not self.ended.wait(max(due - time.monotonic(), 0)):
            ask(connection, self._host, b"/%d/%d" % (number, self._counts[number]))
            self._counts[number] += 1
            due = max(due + self._interval, time.monotonic() - MAX_LATENESS)

    def tell(self) -> None:
        """Print the rate for each line of the input, until it ends."""
        before, since = 0, time.monotonic()
        for _ in sys.stdin:
            count, now = sum(self._counts), time.monotonic()
            print(f"{(count - before) / (now - since):.0f} requests/s", flush=True)
            before, since = count, now
        self.ended.set()


def main(port: str, node: str, callers: str, rate: str) -> None:
    """Run the load."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=1000)
    threading.Thread(target=accept, args=(listener,), daemon=True).start()
    host = f"{node}:{listener.getsockname()[1]}".encode()
    load = Load(int(port), host, int(callers), float(rate))
    print("connected", flush=True)
    with ThreadPoolExecutor(int(callers)) as pool:
        running = [pool.submit(load.call, number) for number in range(int(callers))]
        threading.Thread(target=load.tell, daemon=True).start()
        wait(running, return_when=FIRST_EXCEPTION)
        load.ended.set()
        for each in running:
            each.result()


if __name__ == "__main__":
    main(*sys.argv[1:])
