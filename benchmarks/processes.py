"""Programs that a benchmark starts, monitors through ``/proc`` and stops."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Self

STOP_SECONDS = 15.0
"""The time for a program to exit after SIGTERM."""


class BenchmarkFailed(Exception):
    """A measurement failed; the message says why and what to do."""


WITH_PARENT = ("setpriv", "--pdeathsig", "TERM")
"""The command prefix (util-linux) that ends a program with the benchmark, however that ends."""


class Program:
    """One process; use it as a context manager. Its output goes to ``log``."""

    def __init__(
        self, command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self.log = log
        self._command = command
        self._environment = {**os.environ, **(environment or {})}
        # An installed program has compiled modules from its second start on.
        self._environment.pop("PYTHONDONTWRITEBYTECODE", None)
        self._launch()

    def _launch(self) -> None:
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(
                [*WITH_PARENT, *self._command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=self.log.parent,
                env=self._environment,
                # Ctrl-C is for the benchmark, which stops its programs in order.
                start_new_session=True,
            )
        self.started = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *reason: object) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self._process.pid

    def wait_until(
        self, ready: Callable[[], bool], what: str, seconds: float = 20.0, interval: float = 0.005
    ) -> float:
        """Wait until ``ready()``, checked every ``interval`` seconds.

        Returns the seconds since the start of the program; raises :class:`BenchmarkFailed`.
        """
        deadline = time.monotonic() + seconds
        while not ready():
            if self._process.poll() is not None:
                raise self.failed(f"ended with {self._process.returncode}, before {what}")
            if time.monotonic() > deadline:
                raise self.failed(f"waited {seconds:.0f} s in vain: {what}")
            time.sleep(interval)
        return time.monotonic() - self.started

    def failed(self, what: str) -> BenchmarkFailed:
        """Return an exception with the end of the log in its message."""
        end = self.log.read_text("utf-8", "replace")[-2000:]
        return BenchmarkFailed(f"{self.log.stem}: {what}; its log ends:\n{end}")

    def kill(self) -> None:
        """Kill the process."""
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """Terminate the process; kill it if it does not exit in time."""
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()


@contextmanager
def working_directory() -> Iterator[Path]:
    """Create a temporary directory, and remove it with everything in it."""
    with tempfile.TemporaryDirectory(prefix="yurttunnel-benchmark-") as name:
        yield Path(name)


def children(parent: int) -> list[int]:
    """Return the ids of the child processes of ``parent`` (proc(5), stat, field 4)."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if int(fields[1]) == parent:
                found.append(int(entry.name))
    return found


def with_descendants(parent: int) -> list[int]:
    """Return the ids of a process and all its descendants."""
    found = [parent]
    for child in children(parent):
        found += with_descendants(child)
    return found


def written(pid: int) -> int:
    """Return the bytes that a process has written to disk (proc(5), io, write_bytes)."""
    for line in Path(f"/proc/{pid}/io").read_text().splitlines():
        if line.startswith("write_bytes:"):
            return int(line.split()[1])
    raise BenchmarkFailed(f"the kernel does not say what process {pid} has written")


def resident(pid: int) -> int:
    """Return the resident memory of a process in bytes (proc(5), statm, field 2)."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def peak_resident(pid: int) -> int:
    """Return the peak resident memory of a process in bytes (proc(5), status, VmHWM)."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise BenchmarkFailed(f"the kernel does not say how much memory process {pid} has had")


def processor_seconds(pid: int) -> float:
    """Return the CPU time of all threads of a process (proc(5), schedstat, field 1)."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9
