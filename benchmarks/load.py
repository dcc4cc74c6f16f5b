"""The load: a Go program in ``driver/``, started once, which performs one run after another."""

from __future__ import annotations

import json
import select
import shutil
import subprocess
from pathlib import Path
from typing import Any, Self

from benchmarks.certificates import KeyPair
from benchmarks.processes import BenchmarkFailed

SOURCE = Path(__file__).resolve().parent / "driver"

ANSWER_SECONDS = 300.0
"""The time that the driver may take for one run; its own timeouts are shorter."""


def go_compiler() -> str:
    """Return the path of ``go``; raises :class:`BenchmarkFailed` without one."""
    path = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")
    if path is None:
        raise BenchmarkFailed(
            "the load needs a Go toolchain, 1.22 or newer, and there is no go in PATH "
            "(https://go.dev/dl/; Debian's golang-go when it is new enough)"
        )
    return path


def build(directory: Path) -> Path:
    """Compile the driver, which needs only Go's standard library."""
    program = directory / "driver"
    done = subprocess.run(
        [go_compiler(), "build", "-o", str(program), "."],
        cwd=SOURCE,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise BenchmarkFailed(f"go build of {SOURCE} failed:\n{done.stderr}")
    return program


class _Process:
    """A running program of the load; use it as a context manager."""

    def __init__(self, program: Path, *arguments: str) -> None:
        self._process = subprocess.Popen(
            [str(program), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self.ports: dict[str, int] = self._answer()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *reason: object) -> None:
        self._process.kill()
        self._process.communicate()

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self._process.pid

    def ask(self, command: dict[str, Any]) -> dict[str, Any]:
        """Send one command and return its result; raises :class:`BenchmarkFailed` if it fails."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command).encode() + b"\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        output = self._process.stdout
        assert output is not None
        # Each command is answered with one line, so the buffer is empty before.
        if not select.select([output], [], [], ANSWER_SECONDS)[0]:
            raise BenchmarkFailed(f"the driver has not answered for {ANSWER_SECONDS:.0f} s")
        line = output.readline()
        if not line:
            raise BenchmarkFailed(f"the driver has ended with {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise BenchmarkFailed(f"the load failed: {answer['error']}")
        return answer


class Api(_Process):
    """An API server for the objects in a directory, on ``port``, with ``identity``."""

    def __init__(self, program: Path, identity: KeyPair, objects: Path) -> None:
        super().__init__(program, *_identity(identity), "-objects", str(objects))
        self.port = self.ports["secure"]


class Backend(_Process):
    """The backend of the clients at ``address``: TCP on ``plain_port``, TLS on ``secure_port``.

    ``echo_port`` echoes UDP datagrams.
    """

    def __init__(self, program: Path, identity: KeyPair, address: str = "127.0.0.1") -> None:
        super().__init__(program, *_identity(identity), "-backend", address)
        self.plain_port = self.ports["plain"]
        self.secure_port = self.ports["secure"]
        self.echo_port = self.ports["echo"]

    def expect(self, streams: int, size: int) -> None:
        """Reserve memory for ``streams`` uploads of ``size`` bytes each."""
        self.ask({"streams": streams, "bytes": size})

    def received(self, streams: int, size: int) -> list[str]:
        """Return the SHA-256 of each upload."""
        digests: list[str] = self.ask({"streams": streams, "bytes": size, "over": True})["digests"]
        return digests


class Clients(_Process):
    """The clients: the driver without arguments."""

    def run(self, command: dict[str, Any], backend: Backend) -> dict[str, Any]:
        """Run one command of the clients; ``driver_cpu`` includes the backend.

        Raises :class:`BenchmarkFailed` if it fails, or if the backend did not receive what was
        uploaded.
        """
        uploads = command["work"] == "upload"
        if uploads:
            backend.expect(command["clients"], command["bytes"])
        result = self.ask({**command, "tested": [*command["tested"], backend.pid]})
        result["driver_cpu"] += result["tested_cpu"].pop(str(backend.pid))
        if uploads and result["digests"] != backend.received(command["clients"], command["bytes"]):
            raise BenchmarkFailed("what has arrived is not what was sent (SHA-256)")
        return result


def _identity(identity: KeyPair) -> tuple[str, ...]:
    return "-certificate", str(identity.certificate), "-key", str(identity.key)
