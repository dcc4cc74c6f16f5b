"""The two programs as real processes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

from twisted.internet.defer import Deferred
from twisted.internet.endpoints import TCP4ClientEndpoint
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.task import deferLater

from benchmarks.ports import free_ports
from tests.e2e import stopwatch
from tests.e2e.fork_server import Forked, fork_server
from tests.e2e.stopwatch import Deadline, within

ROOT = Path(__file__).resolve().parents[2]

READY_SECONDS = 20.0
"""The timeout for a program to become ready on a busy machine; an idle one takes less than 1 s."""

SHELL_READY_SECONDS = 60.0
"""The same for a program started from a shell, whose wait for processors is not measured."""

STOP_SECONDS = 10.0
"""The time from SIGTERM to a program's end, beyond its --drain-timeout."""

UNLIMITED_DRAIN = 120.0
"""The --drain-timeout of programs that should end with their last stream, on a busy machine too."""

MEBIBYTE = 1024 * 1024

WINDOWS = 24 * MEBIBYTE
"""The maximum total of the grown windows of a session's streams: half of its budget, which is 3/4
of the session's window of 64 MiB (docs/protocol.md, section 6). The other half is for new ones."""

UNACKNOWLEDGED = 16 * MEBIBYTE
"""The maximum of a session's unacknowledged data (section 8)."""

FIRST_WINDOW = 64 * 1024
"""The initial window of a stream."""

SOURCE_BUFFER = 128 * 1024
"""The buffer of a stream beside its window: 64 KiB until its source is paused, and one read."""

OTHER_GROWTH = 16 * MEBIBYTE
"""Growth of a process that is not buffers of streams: allocator, TLS, lazily imported modules."""


def max_growth(streams: int) -> int:
    """Return the bytes by which a process may grow with that many streams, stalled or not."""
    windows = min(WINDOWS + streams * FIRST_WINDOW, 2 * WINDOWS)
    return windows + UNACKNOWLEDGED + streams * SOURCE_BUFFER + OTHER_GROWTH


class ProgramFailed(Exception):
    """A program did not do what a test needs; the text includes the end of its log."""


class Program:
    """One ``twist`` command.

    ``arguments`` begin with the command's name, ``log_path`` is the file for standard output and
    error, and ``prefix`` a command that starts the interpreter (``setpriv ...``). The meta port is
    on ``meta_host``.
    """

    def __init__(
        self,
        reactor,
        arguments: list[str],
        log_path: str,
        meta_port: int,
        prefix: tuple[str, ...] = (),
        meta_host: str = "127.0.0.1",
    ) -> None:
        self.arguments = arguments
        self.log_path = log_path
        self.meta_port = meta_port
        self.meta_host = meta_host
        self._reactor = reactor
        self._prefix = prefix
        self._module = "twisted"
        self._environment: dict[str, str] = {}
        self._process: subprocess.Popen | Forked | None = None
        self._started = 0.0

    def run_under(self, *prefix: str) -> None:
        """Start it by a program that executes it, such as ``unshare``."""
        self._prefix = prefix

    def prepend_path(self, directory: Path) -> None:
        """Prepend a directory to its PATH."""
        self._environment["PATH"] = f"{directory}:{os.environ['PATH']}"

    def disable_fork_server(self) -> None:
        """Start a new interpreter, with its own imports and command line."""
        self.run_under("env")

    def use_pod_limits(self) -> None:
        """Set a soft limit of open files far below the hard limit, as container runtimes do."""
        self.run_under("sh", "-c", 'ulimit -Sn 256; exec "$0" "$@"')

    def use_yurttunnel_command(self) -> None:
        """Run it by the command ``yurttunnel`` instead of ``twist``."""
        self._module = "yurttunnel.cli"
        self.arguments[0] = self.arguments[0].removeprefix("yurttunnel-").removeprefix("yurt")

    def start(self) -> None:
        """Start the process, with a working directory outside the checkout."""
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "PYTHONWARNINGS": "default",
            "PYTHONFAULTHANDLER": "1",
            **self._environment,
        }
        # In an installation the modules are compiled from the second start on.
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        directory = os.path.dirname(self.log_path)
        command = [self._module, *self.arguments]
        self._started = self._reactor.seconds()
        stopwatch.programs.add(self)
        with open(self.log_path, "ab") as log:
            if not self._prefix:
                file = log.fileno()
                self._process = fork_server().start(command, file, file, directory, environment)
                return
            self._process = subprocess.Popen(
                [*self._prefix, sys.executable, "-m", *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=directory,
                env=environment,
            )

    @property
    def pid(self) -> int:
        """The id of the process."""
        assert self._process is not None
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the process has been started and has not ended."""
        return self._process is not None and self._process.poll() is None

    @property
    def log(self) -> str:
        """The program's output so far."""
        try:
            return Path(self.log_path).read_text("utf-8", "replace")
        except FileNotFoundError:
            return ""

    def failed(self, what: str) -> ProgramFailed:
        """Return an exception with the text ``what`` and the end of the log."""
        end = self.log[-4000:]
        return ProgramFailed(f"{' '.join(self.arguments)}: {what}\n--- end of its log\n{end}")

    async def ready(self, seconds: float = READY_SECONDS) -> float:
        """Wait until the status of ``/readyz`` is 200; return the seconds since the start."""
        deadline = Deadline(self._reactor, seconds)
        answer = "no answer"
        while not deadline.passed:
            if not self.running:
                raise self.failed(f"ended with {self._process.returncode} before it was ready")
            try:
                status, answer = await self.get("/readyz")
            except Exception as reason:
                status, answer = 0, str(reason)
            if status == 200:
                return self._reactor.seconds() - self._started
            await deferLater(self._reactor, 0.02)
        raise self.failed(f"not ready after {seconds} s: {answer}")

    async def get(self, path: str) -> tuple[int, str]:
        """Fetch a page of the meta server; return status and body."""
        page = _Page(path)
        endpoint = TCP4ClientEndpoint(self._reactor, self.meta_host, self.meta_port)
        await endpoint.connect(Factory.forProtocol(lambda: page))
        return await within(self._reactor, 20, page.done)

    async def wait_for_agent(self, seconds: float = READY_SECONDS) -> None:
        """Wait until the server has an agent."""
        deadline = Deadline(self._reactor, seconds)
        while not await self.agents():
            if deadline.passed:
                raise self.failed(f"no agent was listed within {seconds} s")
            await deferLater(self._reactor, 0.02)

    async def agents(self) -> list[dict]:
        """Return the entries of ``/agents``."""
        status, body = await self.get("/agents")
        if status != 200:
            raise self.failed(f"/agents answered {status}: {body}")
        return json.loads(body)

    async def metric(self, name: str, **labels: str) -> float:
        """Return the sum of the samples with this name and these labels; 0 without any."""
        status, body = await self.get("/metrics")
        if status != 200:
            raise self.failed(f"/metrics answered {status}: {body}")
        total = 0.0
        for line in body.splitlines():
            match = re.fullmatch(r"([a-zA-Z_:]\w*)(?:\{(.*)\})? (\S+)", line)
            if match is None or match[1] != name:
                continue
            found = dict(re.findall(r'(\w+)="([^"]*)"', match[2] or ""))
            if all(found.get(key) == value for key, value in labels.items()):
                total += float(match[3])
        return total

    async def ended(self, seconds: float) -> int:
        """Wait until the process has ended; return its exit status, negative for a signal."""
        assert self._process is not None
        deadline = Deadline(self._reactor, seconds)
        while self._process.poll() is None:
            if deadline.passed:
                raise self.failed(f"still runs after {seconds} s")
            await deferLater(self._reactor, 0.02)
        return self._process.returncode

    def signal(self, number: int) -> None:
        """Send a signal to the process, if it runs."""
        if self.running:
            os.kill(self.pid, number)

    async def stop(self, seconds: float = STOP_SECONDS) -> int:
        """Send SIGTERM, and wait for the end; at the timeout, send SIGKILL and raise an error."""
        self.signal(signal.SIGTERM)
        try:
            return await self.ended(seconds)
        except ProgramFailed:
            self.kill()
            raise

    def kill(self) -> None:
        """Kill the process."""
        self.signal(signal.SIGKILL)
        if self._process is not None:
            self._process.wait(STOP_SECONDS)

    def descriptors(self) -> dict[str, str]:
        """Return the open descriptors of the process: the number, and the target of the link."""
        directory = f"/proc/{self.pid}/fd"
        found = {}
        for number in os.listdir(directory):
            try:
                found[number] = os.readlink(f"{directory}/{number}")
            except FileNotFoundError:
                continue
        return found

    def threads(self) -> int:
        """Return the number of threads."""
        return len(os.listdir(f"/proc/{self.pid}/task"))

    def waited(self) -> float:
        """Return the seconds for which the process waited for a processor."""
        return stopwatch.waited(self.pid)

    def resident(self) -> int:
        """Return the resident memory of the process in bytes."""
        fields = Path(f"/proc/{self.pid}/statm").read_text().split()
        return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")

    def forbidden_log_lines(self) -> list[str]:
        """Return lines of the log that no program may ever write."""
        marks = ("Traceback (most recent", "Unhandled", "Unexpected error", "Fatal Python error")
        marks += ("ResourceWarning", "DeprecationWarning")
        # "sys:1:" is the prefix of the interpreter's own warnings at its end.
        return [
            line
            for line in self.log.splitlines()
            if any(mark in line for mark in marks) and not line.startswith("sys:1:")
        ]


class _Page(Protocol):
    """One GET, without keep-alive."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._data = b""
        self.done: Deferred[tuple[int, str]] = Deferred()

    def connectionMade(self) -> None:
        request = f"GET {self._path} HTTP/1.0\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        self.transport.write(request.encode())

    def dataReceived(self, data: bytes) -> None:
        self._data += data

    def connectionLost(self, reason) -> None:
        if self.done.called:
            return
        head, _, body = self._data.partition(b"\r\n\r\n")
        words = head.split(b" ")
        if len(words) < 2:
            self.done.errback(reason)
        else:
            self.done.callback((int(words[1]), body.decode("utf-8", "replace")))


class Server(Program):
    """``twist yurttunnel-server --standalone`` on free ports."""

    def __init__(
        self, reactor, directory: str, *, extra: tuple[str, ...] = (), drain: float | None = 2,
        state: str = "S", prefix: tuple[str, ...] = (),
    ) -> None:  # fmt: skip
        self.state = os.path.join(directory, state)
        self.socket_path = os.path.join(self.state, "connect.sock")
        self.agent_port = free_ports.take()
        self.secure_port = free_ports.take()
        self.insecure_port = free_ports.take()
        meta_port = free_ports.take()
        arguments = [
            "yurttunnel-server", "--standalone",
            "--state-dir", self.state,
            "--bind-address", "127.0.0.1",
            "--tunnel-agent-connect-port", str(self.agent_port),
            "--secure-port", str(self.secure_port),
            "--insecure-port", str(self.insecure_port),
            "--meta-port", str(meta_port),
            "--connect-endpoint", f"unix:{self.socket_path}",
            *(() if drain is None else ("--drain-timeout", str(drain))),
            *extra,
        ]  # fmt: skip
        log_path = os.path.join(directory, f"server-{state}.log")
        super().__init__(reactor, arguments, log_path, meta_port, prefix)

    @property
    def token_path(self) -> str:
        """The path of the server's join token."""
        return os.path.join(self.state, "join-token")


class Agent(Program):
    """``twist yurttunnel-agent --standalone`` for one node."""

    def __init__(
        self, reactor, directory: str, *, server_port: int, token_path: str | None,
        node: str = "edge-1", extra: tuple[str, ...] = (), drain: float | None = 2,
        state: str = "A", prefix: tuple[str, ...] = (),
    ) -> None:  # fmt: skip
        self.node = node
        self.state = os.path.join(directory, state)
        meta_port = free_ports.take()
        arguments = [
            "yurttunnel-agent", "--standalone",
            "--state-dir", self.state,
            "--node-name", node,
            "--node-ip", "127.0.0.1",
            "--tunnelserver-addr", f"127.0.0.1:{server_port}",
            "--meta-port", str(meta_port),
            *(() if token_path is None else ("--join-token-file", token_path)),
            *(() if drain is None else ("--drain-timeout", str(drain))),
            *extra,
        ]  # fmt: skip
        log_path = os.path.join(directory, f"agent-{state}.log")
        super().__init__(reactor, arguments, log_path, meta_port, prefix)


class Tunnel:
    """A server and one agent, node ``edge-1`` with the address 127.0.0.1.

    ``forwards`` are targets' ports, each of which gets a forward (:attr:`forward_ports`, in the
    same order); ``proxied`` is called with the server's agent port, and returns the port to dial.
    """

    def __init__(
        self, reactor, directory: str, *, forwards: tuple[int, ...] = (), proxied=None,
        server_extra: tuple[str, ...] = (), agent_extra: tuple[str, ...] = (),
        drain: float | None = 2,
    ) -> None:  # fmt: skip
        self._reactor = reactor
        self._directory = directory
        self.forward_ports = [free_ports.take() for _ in forwards]
        for listen, target in zip(self.forward_ports, forwards, strict=True):
            forward = f"127.0.0.1:{listen}=edge-1/127.0.0.1:{target}"
            server_extra = (*server_extra, "--forward", forward)
        self.server = Server(reactor, directory, extra=server_extra, drain=drain)
        agent_port = self.server.agent_port
        self.agent = Agent(
            reactor,
            directory,
            server_port=proxied(agent_port) if proxied else agent_port,
            token_path=self.server.token_path,
            extra=agent_extra,
            drain=drain,
        )
        self.others: list[Program] = []

    @property
    def socket_path(self) -> str:
        """The path of the CONNECT socket."""
        return self.server.socket_path

    async def start(self) -> None:
        """Start both, and wait until they are ready."""
        self.server.start()
        await self.server.ready()
        self.agent.start()
        await self.agent.ready()
        await self.server.wait_for_agent()

    def another_agent(self, **options) -> Agent:
        """Prepare another agent of this server; it is stopped and checked with the others."""
        options.setdefault("server_port", self.server.agent_port)
        options.setdefault("token_path", self.server.token_path)
        agent = Agent(self._reactor, self._directory, **options)
        self.others.append(agent)
        return agent

    def another_server(self, **options) -> Server:
        """Prepare another server; it is stopped and checked with the others."""
        server = Server(self._reactor, self._directory, **options)
        self.others.append(server)
        return server

    def successor(self) -> Program:
        """Prepare another process with the server's command line, state and ports.

        Only the meta port differs, because the old process still serves its own while it drains.
        """
        server = self.server
        meta_port = free_ports.take()
        log_path = f"{server.log_path.removesuffix('.log')}-successor.log"
        arguments = [*server.arguments, "--meta-port", str(meta_port)]
        successor = Program(self._reactor, arguments, log_path, meta_port)
        self.others.append(successor)
        return successor

    async def has_no_stream(self) -> bool:
        """Return whether the server reports no stream."""
        return await self.server.metric("yurttunnel_server_open_streams") == 0

    async def stop_and_check(self) -> None:
        """Stop the running programs, and require clean exits and logs without forbidden lines."""
        problems = []
        for program in (*self.others, self.agent, self.server):
            if program.running:
                try:
                    status = await program.stop()
                except ProgramFailed as reason:
                    problems.append(str(reason))
                else:
                    if status not in (0, -signal.SIGTERM):
                        problems.append(str(program.failed(f"SIGTERM gave exit status {status}")))
            forbidden_log_lines = program.forbidden_log_lines()
            if forbidden_log_lines:
                problems.append(
                    str(program.failed("complains:\n" + "\n".join(forbidden_log_lines)))
                )
        if problems:
            raise ProgramFailed("\n".join(problems))
