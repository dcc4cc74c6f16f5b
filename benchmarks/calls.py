"""Count the function calls of the server, the agent and the hub for one dial and one request.

``python -m benchmarks.calls`` prints a line for each. Unlike times, the counts are the same on
every machine, except for the calls in each iteration of the reactor, of which a busy machine has a
few more. So they show the cost of a change that is too small to be measured as time. The number of
calls of Python functions is to be kept low; calls of C functions are printed as well. The clients
run one after the other, because clients that share an iteration of the reactor cost less. Only the
main thread is counted, so the hub's cache thread is not.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.bench import NEAR
from benchmarks.certificates import Authority, KeyPair
from benchmarks.hub.api import Api
from benchmarks.hub.hub import KUBELET, NODE_PATH, Hub
from benchmarks.hub.identity import prepare
from benchmarks.load import build
from benchmarks.processes import BenchmarkFailed, Program, working_directory
from benchmarks.tunnel import Agent, Server, Settings

WARM_UP = 20
"""The number of repetitions before the counting begins."""

_ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
_SECONDS = 10.0


class Backend:
    """The backend behind the tunnel: an echo server, and an HTTPS server."""

    def __init__(self, stack: ExitStack, pair: KeyPair) -> None:
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(pair.certificate, pair.key)
        self.echo_port = self._listen(stack, _echo)
        self.https_port = self._listen(stack, self._answer)

    def _listen(self, stack: ExitStack, serve: Callable[[socket.socket], None]) -> int:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        threading.Thread(target=_serve, args=(listener, serve), daemon=True).start()
        port: int = listener.getsockname()[1]
        return port

    def _answer(self, connection: socket.socket) -> None:
        with self._context.wrap_socket(connection, server_side=True) as secured:
            received = b""
            while data := secured.recv(65536):
                received += data
                while b"\r\n\r\n" in received:
                    received = received.partition(b"\r\n\r\n")[2]
                    secured.sendall(_ANSWER)


def _serve(listener: socket.socket, serve: Callable[[socket.socket], None]) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        threading.Thread(target=serve, args=(connection,), daemon=True).start()


def _echo(connection: socket.socket) -> None:
    with connection:
        while data := connection.recv(65536):
            connection.sendall(data)


def dial(server: Server, port: int) -> None:
    """Dial by CONNECT, have a few bytes echoed, and close."""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(_SECONDS)
        client.connect(str(server.socket))
        client.sendall(f"CONNECT {NEAR}:{port} HTTP/1.1\r\nHost: {NEAR}\r\n\r\n".encode())
        _read_until(client, b"\r\n\r\n")
        client.sendall(b"hello\n")
        _read_until(client, b"hello\n")
        client.shutdown(socket.SHUT_WR)
        if client.recv(1):
            raise BenchmarkFailed("more came back than had been sent")


def keep_alive(server: Server, port: int, stack: ExitStack) -> Callable[[], None]:
    """Connect to --secure-port; return a function that sends one request on the connection."""
    context = ssl.create_default_context(cafile=str(server.state / "ca.crt"))
    context.check_hostname = False
    context.load_cert_chain(server.state / "client.crt", server.state / "client.key")
    plain = socket.create_connection(("127.0.0.1", server.secure_port), _SECONDS)
    client = stack.enter_context(context.wrap_socket(plain))
    request = (
        f"GET /healthz HTTP/1.1\r\nHost: {NEAR}:{port}\r\nUser-Agent: kubectl\r\n"
        "Accept: application/json, */*\r\nAccept-Encoding: gzip\r\n\r\n"
    ).encode()

    def ask() -> None:
        client.sendall(request)
        _read_until(client, b"\r\n\r\nok")

    return ask


@contextmanager
def counted_hub(directory: Path, authority: Authority) -> Iterator[tuple[Hub, str]]:
    """Run a hub that is online with an API server in Go; yield it with the JSON of its node."""
    objects, state = directory / "objects", directory / "hub"
    objects.mkdir()
    state.mkdir()
    prepare(state, authority)
    api = Api(build(directory), objects, authority, pods=0)
    with api, Hub(state, api.port, "counted") as hub:
        hub.wait_until(hub.is_online, "it was online", interval=0.05)
        yield hub, api.node


def get_node(hub: Hub, node: str, stack: ExitStack) -> Callable[[], None]:
    """Connect to a hub as kubelet; return a function that gets the node on the connection."""
    address = "127.0.0.1", hub.port
    client = stack.enter_context(socket.create_connection(address, _SECONDS))
    request = (
        f"GET {NODE_PATH} HTTP/1.1\r\nHost: {address[0]}:{address[1]}\r\nUser-Agent: {KUBELET}\r\n"
        "Accept: application/json\r\nAccept-Encoding: gzip\r\n\r\n"
    ).encode()
    end = node[-16:].encode()

    def ask() -> None:
        client.sendall(request)
        _read_until(client, end)

    return ask


def _read_until(client: socket.socket, end: bytes) -> None:
    received = b""
    while not received.endswith(end):
        data = client.recv(65536)
        if not data:
            raise BenchmarkFailed(f"the connection was closed after {received!r}")
        received += data
    if received.startswith(b"HTTP/1.1 ") and not received.startswith(b"HTTP/1.1 200 "):
        raise BenchmarkFailed(f"this was answered: {received!r}")


def counted(program: Program) -> Counter[str]:
    """Return the calls of a program so far, by function; ``c`` is the total of all C functions."""
    path = program.log.parent / f"calls.{program.pid}"
    path.unlink(missing_ok=True)
    os.kill(program.pid, signal.SIGUSR1)
    program.wait_until(path.exists, "it told of its calls")
    return Counter(json.loads(path.read_text("utf-8")))


def measure(
    programs: dict[str, Program], act: Callable[[], None], times: int
) -> dict[str, Counter[str]]:
    """Return the calls of each program during ``times`` calls of ``act``, after a warm-up."""
    for _ in range(WARM_UP):
        act()
    # Wait for the calls that the last one still causes.
    time.sleep(0.2)
    before = {name: counted(program) for name, program in programs.items()}
    for _ in range(times):
        act()
    time.sleep(0.2)
    after = {name: counted(program) for name, program in programs.items()}
    return {name: after[name] - before[name] for name in programs}


def main(arguments: Sequence[str] | None = None) -> None:
    """Start everything, count, and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.calls", description=__doc__)
    parser.add_argument("--times", type=int, default=500, help="[default: %(default)s]")
    parser.add_argument(
        "--functions", type=int, default=0, help="name so many of those that were called most"
    )
    given = parser.parse_args(arguments)
    times: int = given.times
    with working_directory() as directory, ExitStack() as stack:
        authority = Authority(directory)
        backend = Backend(stack, authority.issue(NEAR))
        settings = Settings(reactor="counted")
        server = stack.enter_context(Server(directory, settings, authority.certificate))
        agent = stack.enter_context(Agent(directory, settings, NEAR, server, server.agent_port))
        tunnel: dict[str, Program] = {"server": server, "agent": agent}
        hub, node = stack.enter_context(counted_hub(directory, authority))

        def show(title: str, act: Callable[[], None], programs: dict[str, Program]) -> None:
            for name, calls in measure(programs, act, times).items():
                of_c = calls.pop("c")
                python = round(calls.total() / times)
                print(f"{title:30} {name:8} {python:5} of Python {round(of_c / times):5} of C")
                for function, count in calls.most_common(given.functions):
                    print(f"{count / times:10.1f}  {function}")

        show("CONNECT dial, echo and close", lambda: dial(server, backend.echo_port), tunnel)
        show("intercepted keep-alive GET", keep_alive(server, backend.https_port, stack), tunnel)
        show("GET of the node through a hub", get_node(hub, node, stack), {"hub": hub})


if __name__ == "__main__":
    main()
