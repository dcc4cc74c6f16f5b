"""The quickstart as a process, and kubectl in all installed versions."""

from __future__ import annotations

import glob
import os
import re
import shutil
import struct
import subprocess
import sys
import termios
from collections.abc import Callable
from fcntl import ioctl
from pathlib import Path

from twisted.internet.defer import Deferred
from twisted.internet.error import ProcessExitedAlready
from twisted.internet.protocol import ProcessProtocol
from twisted.internet.task import deferLater

from benchmarks.ports import free_ports
from tests.e2e import stopwatch
from tests.e2e.programs import ROOT, STOP_SECONDS, Program
from tests.e2e.stopwatch import Alarm, Deadline
from yurttunnel.quickstart.options import PORT_COUNT
from yurttunnel.quickstart.service import CHECK_SECONDS, REACHABLE_SECONDS

SDK_DIRECTORIES = ("/usr/lib/google-cloud-sdk/bin", os.path.expanduser("~/google-cloud-sdk/bin"))
"""The directories in which the Google Cloud SDK has versions of kubectl, as kubectl.1.NN."""

KUBECTL_GOGC = "1000"
"""Go's GOGC for kubectl, with which it ends before its first garbage collection; with the default
of 100 a quarter of its CPU time would be collections."""

CHECK_TIMEOUT = REACHABLE_SECONDS + CHECK_SECONDS + STOP_SECONDS
"""The timeout for a quickstart that checks itself: by then it has failed with a reason. Its
programs wait for processors, too, and that time is not measured."""


def find_kubectls() -> dict[str, str]:
    """Return the paths of kubectl by version, as ``1.30``: from KUBECTL (colon-separated) or PATH.

    In addition to PATH, the directories of the Google Cloud SDK are searched for all versions.
    """
    asked = os.environ.get("KUBECTL")
    if asked:
        candidates = asked.split(os.pathsep)
    else:
        found = shutil.which("kubectl")
        candidates = [found] if found else []
        for folder in SDK_DIRECTORIES:
            candidates += sorted(glob.glob(f"{folder}/kubectl.1.[0-9]*"))
    versions: dict[str, str] = {}
    for candidate in candidates:
        version = _version(candidate)
        if version:
            versions.setdefault(version, candidate)
    return dict(sorted(versions.items(), key=lambda item: _as_numbers(item[0])))


def _terminal(columns: int, rows: int) -> tuple[int, int, str]:
    """Open a terminal for a process; return both ends and the name.

    Its size is set before the process starts: kubectl reads it once then, and drops later changes
    until a pod has its first size.
    """
    near, far = os.openpty()
    _resize(near, columns, rows)
    return near, far, os.ttyname(far)


def _resize(terminal: int, columns: int, rows: int) -> None:
    ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def _version(path: str) -> str | None:
    named = re.search(r"kubectl\.(1\.\d+)$", path)
    if named:
        return named[1]
    try:
        output = subprocess.run(
            [path, "version", "--client"], capture_output=True, timeout=30, text=True
        ).stdout
    except OSError:
        return None
    match = re.search(r"v(1\.\d+)\.", output)
    return match[1] if match else None


def _as_numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in version.split("."))


class Quickstart(Program):
    """``twist yurttunnel-quickstart`` on free ports, with its state in the test's directory.

    ``proxied`` is called with the server's port for agents, and returns the port to dial.
    """

    def __init__(
        self,
        reactor,
        directory: str,
        *flags: str,
        proxied: Callable[[int], int] | None = None,
    ) -> None:
        self.first_port = free_ports.take_row(PORT_COUNT)
        self.state = os.path.join(directory, "Q")
        self.kubeconfig = os.path.join(self.state, "kubeconfig")
        self.directory = directory
        arguments = ["yurttunnel-quickstart", "--port", str(self.first_port)]
        arguments += ["--state-dir", self.state, *flags]
        if proxied is not None:
            arguments += ["--tunnelserver-addr", f"127.0.0.1:{proxied(self.first_port + 2)}"]
        log_path = os.path.join(directory, "quickstart.log")
        super().__init__(reactor, arguments, log_path, self.first_port + 5)

    async def wait_for_instructions(self, seconds: float = 30.0) -> None:
        """Wait until it prints its instructions: then the node is reachable through the tunnel."""
        deadline = Deadline(self._reactor, seconds)
        while "KUBECONFIG=" not in self.log:
            if not self.running:
                raise self.failed("ended before it was ready")
            if deadline.passed:
                raise self.failed(f"was not ready in {seconds} s")
            await deferLater(self._reactor, 0.02)


class Kubectl:
    """One kubectl against one quickstart."""

    def __init__(self, reactor, path: str, quickstart: Quickstart) -> None:
        self._reactor = reactor
        self.path = path
        self._home = os.path.join(quickstart.directory, "home")
        os.makedirs(self._home, exist_ok=True)
        self.environment = {
            "PATH": os.environ["PATH"],
            "HOME": self._home,
            "KUBECONFIG": quickstart.kubeconfig,
            "TERM": "xterm",
            "GOGC": KUBECTL_GOGC,
        }

    def add_plugin(self, programs: Path) -> None:
        """Create a directory on its PATH with the plugin, its completion, and this kubectl."""
        programs.mkdir()
        for name, function in (
            ("kubectl-yurttunnel", "main"),
            ("kubectl_complete-yurttunnel", "complete"),
        ):
            plugin = programs / name
            plugin.write_text(
                f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(ROOT)!r})\n"
                f"from yurttunnel.cli.main import {function}\n{function}()\n"
            )
            plugin.chmod(0o755)
        (programs / "kubectl").symlink_to(self.path)
        self.environment["PATH"] = f"{programs}:{self.environment['PATH']}"

    def start(self, *arguments: str, tty: tuple[int, int] | None = None) -> Running:
        """Start kubectl; ``tty`` is the size of its terminal in columns and rows."""
        running = Running(self._reactor, [self.path, *arguments])
        terminal = False if tty is None else _terminal(*tty)
        self._reactor.spawnProcess(
            running, self.path, running.command, env=self.environment, usePTY=terminal
        )
        return running

    async def run(
        self, *arguments: str, stdin: bytes | None = None, seconds: float = 60.0
    ) -> Finished:
        """Run kubectl, and wait for its end."""
        running = self.start(*arguments)
        if stdin is not None:
            running.transport.write(stdin)
        running.transport.closeStdin()
        return await running.finished(seconds)

    async def output(self, *arguments: str, stdin: bytes | None = None, seconds: float = 60.0):
        """Run kubectl, which must succeed; return its output."""
        finished = await self.run(*arguments, stdin=stdin, seconds=seconds)
        if finished.status != 0:
            raise KubectlFailed(f"{' '.join(arguments)}: {finished}")
        return finished.out.decode()


class KubectlFailed(Exception):
    """kubectl did not do what the test expects."""


class Finished:
    """A program's output and exit status; ``status`` is negative for a signal."""

    def __init__(self, out: bytes, error: bytes, status: int) -> None:
        self.out = out
        self.error = error
        self.status = status

    def __repr__(self) -> str:
        return f"status {self.status}\n{self.out[-2000:]!r}\n{self.error[-2000:]!r}"


class Running(ProcessProtocol):
    """A running program: its output so far, and its input."""

    def __init__(self, reactor, command: list[str]) -> None:
        self._reactor = reactor
        self.command = command
        self.out = bytearray()
        self.error = bytearray()
        self._ended: Deferred[int] = Deferred()

    def connectionMade(self) -> None:
        """Register it, so that the time that it waits for processors is not counted."""
        stopwatch.programs.add(self)

    def outReceived(self, data: bytes) -> None:
        """Store output."""
        self.out += data

    def errReceived(self, data: bytes) -> None:
        """Store error output."""
        self.error += data

    def processEnded(self, reason) -> None:
        """Report its exit status."""
        status = reason.value.exitCode
        self._ended.callback(-reason.value.signal if status is None else status)

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return not self._ended.called

    @property
    def pid(self) -> int:
        """The id of its process."""
        return self.transport.pid

    def resize(self, columns: int, rows: int) -> None:
        """Set the size of the program's terminal, which sends it SIGWINCH."""
        _resize(self.transport.fileno(), columns, rows)

    async def wait_for_output(self, pattern: str, seconds: float = 20.0) -> re.Match:
        """Wait until the output has a match of ``pattern``."""
        deadline = Deadline(self._reactor, seconds)
        while True:
            match = re.search(pattern, self.out.decode("utf-8", "replace"))
            if match:
                return match
            if deadline.passed or not self.running:
                raise KubectlFailed(
                    f"{' '.join(self.command[1:])}: {pattern!r} was not said"
                    f"\n{bytes(self.out[-2000:])!r}\n{bytes(self.error[-2000:])!r}"
                )
            await deferLater(self._reactor, 0.02)

    async def reported_size(self, size: str) -> re.Match | None:
        """Query the terminal's size (``ROWS COLUMNS``) in the shell; ``None`` if it differs.

        kubectl sends the size separately from the input, so the shell may get it later.
        """
        self.transport.write(b"stty size\n")
        try:
            return await self.wait_for_output(size, 1)
        except KubectlFailed:
            return None

    async def finished(self, seconds: float = 60.0) -> Finished:
        """Wait for the end; at the timeout, kill it and raise an error."""
        alarm = Alarm(self._reactor, seconds, self.kill)
        status = await self._ended
        alarm.cancel()
        if not alarm.has_rung:
            return Finished(bytes(self.out), bytes(self.error), status)
        raise KubectlFailed(
            f"{' '.join(self.command[1:])}: not over in {seconds} s"
            f"\n{bytes(self.out[-2000:])!r}\n{bytes(self.error[-2000:])!r}"
        )

    def signal(self, name: str) -> None:
        """Send a signal, for example INT."""
        self.transport.signalProcess(name)

    def kill(self) -> None:
        """Kill it if it still runs."""
        try:
            self.transport.signalProcess("KILL")
        except ProcessExitedAlready:
            return
