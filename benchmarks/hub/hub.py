"""The hub under test: ``twist yurthub``, as it runs on a node."""

from __future__ import annotations

import http.client
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.hub.objects import NODE
from benchmarks.ports import free_ports
from benchmarks.processes import (
    BenchmarkFailed,
    peak_resident,
    processor_seconds,
    resident,
    with_descendants,
    written,
)
from benchmarks.tunnel import MetaProgram, twist

KUBELET = "kubelet/v1.34.0 (linux/amd64) kubernetes/0123456"
"""The User-Agent of the clients: responses to kubelet are cached."""

_FIELDS = {"User-Agent": KUBELET, "Accept": "application/json"}

NODE_PATH = f"/api/v1/nodes/{NODE}"

ANSWER_SECONDS = 60.0

QUIET = 0.5
"""The seconds without CPU usage after which a hub has written everything."""

MAX_WORK_SECONDS = 60.0
"""The timeout in seconds for a hub to finish its background work."""


class Hub(MetaProgram):
    """A hub for the API on ``api_port``; ``directory`` has its identity and its cache.

    ``first_answer`` is the time in seconds from its start until it responded to a GET of its node.
    """

    def __init__(self, directory: Path, api_port: int, reactor: str = "epoll") -> None:
        self.port, secure_port = free_ports.take(), free_ports.take()
        command = [
            sys.executable, *twist(reactor), "yurthub",
            "--node-name", NODE,
            "--server-addr", f"https://127.0.0.1:{api_port}",
            "--root-dir", str(directory),
            "--disk-cache-path", str(directory / "cache"),
            "--bind-proxy-address", "127.0.0.1",
            "--proxy-port", str(self.port),
            "--proxy-secure-port", str(secure_port),
            "--enable-dummy-if=false",
        ]  # fmt: skip
        super().__init__(command, directory / "hub.log", flag="--serve-port={}")
        try:
            self.first_answer = self.wait_until(self._answers, "it answered")
        except BaseException:
            self.stop()
            raise

    def _answers(self) -> bool:
        try:
            return self.ask(NODE_PATH)[0] == 200
        except OSError:
            return False

    def ask(self, path: str) -> tuple[int, bytes]:
        """Send a GET as kubelet on a new connection; raises ``OSError`` without a response."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=ANSWER_SECONDS)
        try:
            connection.request("GET", path, headers=_FIELDS)
            response = connection.getresponse()
            return response.status, response.read()
        except http.client.HTTPException as error:
            raise OSError(f"{path}: {error!r}") from None
        finally:
            connection.close()

    def is_online(self) -> bool:
        """Return whether the hub considers an API server healthy."""
        found = re.findall(r"(?m)^\w+_server_healthy\S* (\S+)$", self.get("/metrics")[1].decode())
        if not found:
            raise BenchmarkFailed("the hub does not tell whether its servers are healthy")
        return any(float(value) for value in found)

    def pids(self) -> list[int]:
        """Return the ids of its processes."""
        return with_descendants(self.pid)

    def processor(self) -> float:
        """Return the CPU seconds that it has used."""
        return self._sum(processor_seconds)

    def written(self) -> int:
        """Return the bytes that it has written to disk."""
        return int(self._sum(written))

    def resident(self) -> float:
        """Return its memory in MiB."""
        return self._sum(resident) / 2**20

    def peak(self) -> float:
        """Return its peak memory in MiB."""
        return self._sum(peak_resident) / 2**20

    def _sum(self, of: Callable[[int], float]) -> float:
        return sum(of(pid) for pid in self.pids())

    def finish_work(self) -> None:
        """Wait until its work after a response is done, such as writing the cache."""
        deadline = time.monotonic() + MAX_WORK_SECONDS
        while True:
            before = self.processor()
            # The condition is that nothing happens for this time.
            time.sleep(QUIET)
            if self.processor() - before < QUIET / 50:
                return
            if time.monotonic() > deadline:
                raise self.failed(f"has been at work for {MAX_WORK_SECONDS:.0f} s behind an answer")
