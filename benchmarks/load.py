"""The driver of the load: built from ``driver/``, started once, asked for one run after another."""

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
"""How long the driver may take for one run; its own deadlines are shorter."""


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
    """Compile the driver; it needs no module but Go's own library."""
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


class Driver:
    """The running driver; use it as a context manager.

    Its backend listens at ``address`` on ``plain_port``, with TLS, by ``identity``, on
    ``secure_port``, and sends back what comes by UDP to ``echo_port``. With ``objects``, a
    directory, it is no load but an API server of what is in there, on ``secure_port`` only.
    """

    def __init__(
        self,
        program: Path,
        identity: KeyPair,
        objects: Path | None = None,
        address: str = "127.0.0.1",
    ) -> None:
        arguments = ["-address", address]
        arguments += ["-certificate", str(identity.certificate), "-key", str(identity.key)]
        if objects is not None:
            arguments += ["-objects", str(objects)]
        self._process = subprocess.Popen(
            [str(program), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        ports = self._answer()
        self.plain_port: int = ports.get("plain", 0)
        self.secure_port: int = ports["secure"]
        self.echo_port: int = ports.get("echo", 0)

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
        """Have one command performed; raises :class:`BenchmarkFailed` when the driver could not."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command).encode() + b"\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        output = self._process.stdout
        assert output is not None
        # One line answers one command, so that nothing of it can be in the buffer before.
        if not select.select([output], [], [], ANSWER_SECONDS)[0]:
            raise BenchmarkFailed(f"the driver has not answered for {ANSWER_SECONDS:.0f} s")
        line = output.readline()
        if not line:
            raise BenchmarkFailed(f"the driver has ended with {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise BenchmarkFailed(f"the load failed: {answer['error']}")
        return answer
