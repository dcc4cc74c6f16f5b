"""The API server behind hub and nginx: ``driver/api.go`` in a process of its own."""

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
"""CPU seconds that a small answer takes kube-apiserver, all in all."""

CLOSING = 15.0
"""Seconds after which a proxy has to have closed the watches of clients that have gone."""

NAME = "kubernetes"
"""What its certificate is for, beside 127.0.0.1."""


class Api(load.Api):
    """An API server with one node and so many pods; use it as a context manager.

    ``node`` is the JSON of the node.
    """

    def __init__(self, program: Path, directory: Path, authority: Authority, pods: int) -> None:
        self.node = objects.write(directory, pods)
        self._settings: dict[str, float] = {"spin": 0.0, "generation": 0, "rate": 0.0}
        super().__init__(program, authority.issue(NAME), directory)

    def set(self, **settings: float) -> int:
        """Change ``spin``, ``generation`` or ``rate``; see ``Settings`` of ``driver/api.go``.

        Gives how many watches are open that get events.
        """
        self._settings |= settings
        return int(self.ask(dict(self._settings))["watches"])

    def no_watches(self) -> None:
        """Wait until the watches of clients that have gone are closed here, too.

        A client that closes may still read, until an event is sent to it.
        """
        deadline = time.monotonic() + CLOSING
        while left := self.set():
            if time.monotonic() > deadline:
                raise BenchmarkFailed(f"{left} watches of clients that have gone are still open")
            # Only asking tells; the kernel closes them in its own time.
            time.sleep(0.05)

    def change_all(self) -> None:
        """Give all pods other versions."""
        self.set(generation=self._settings["generation"] + 1)

    def calibrate(self, cost: float) -> None:
        """Have a small answer take :data:`SMALL_COST`, when it takes ``cost`` by itself."""
        self.set(spin=max(0.0, SMALL_COST - cost))

    @contextmanager
    def black_hole(self) -> Iterator[None]:
        """Let nothing be answered, while the kernel goes on to take connections and bytes."""
        os.kill(self.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.pid, signal.SIGCONT)
