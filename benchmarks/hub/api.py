"""The API server behind the hub and nginx: ``driver/api.go`` in a separate process."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks import load
from benchmarks.certificates import Authority
from benchmarks.hub import objects
from benchmarks.processes import BenchmarkFailed

SMALL_COST = 0.4e-3
"""The CPU seconds of kube-apiserver for a small response."""

CLOSING = 15.0
"""The timeout in seconds for a proxy to close the watches of disconnected clients."""

NAME = "kubernetes"
"""The name in its certificate, in addition to 127.0.0.1."""


class Api(load.Api):
    """An API server with one node and ``pods`` pods; use it as a context manager.

    ``node`` is the JSON of the node.
    """

    def __init__(self, program: Path, directory: Path, authority: Authority, pods: int) -> None:
        self.node = objects.write(directory, pods)
        self._settings: dict[str, float] = {"spin": 0.0, "generation": 0, "rate": 0.0}
        super().__init__(program, authority.issue(NAME), directory)

    def set(self, **settings: float) -> int:
        """Change ``spin``, ``generation`` or ``rate``; see ``Settings`` of ``driver/api.go``.

        Returns the number of open watches that get events.
        """
        self._settings |= settings
        return int(self.ask(dict(self._settings))["watches"])

    def no_watches(self) -> None:
        """Wait until the watches of disconnected clients are closed at the API server.

        A client that has ended its direction may still read, until an event is sent to it.
        """
        deadline = time.monotonic() + CLOSING
        while left := self.set():
            if time.monotonic() > deadline:
                raise BenchmarkFailed(f"{left} watches of clients that have gone are still open")
            # The number can only be polled; the kernel closes the connections eventually.
            time.sleep(0.05)

    def change_all(self) -> None:
        """Change the resource versions of all pods."""
        self.set(generation=self._settings["generation"] + 1)

    def calibrate(self, cost: float) -> None:
        """Make a small response cost :data:`SMALL_COST`, if it costs ``cost`` by itself."""
        self.set(spin=max(0.0, SMALL_COST - cost))

    @contextmanager
    def black_hole(self) -> Iterator[None]:
        """Respond to nothing, while the kernel still accepts connections and bytes."""
        os.kill(self.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.pid, signal.SIGCONT)
