"""The API server behind hub and nginx: ``driver/api.go`` in a process of its own."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.certificates import Authority
from benchmarks.hub import objects
from benchmarks.load import Driver
from benchmarks.processes import processor_seconds

SMALL_COST = 0.4e-3
"""CPU seconds that a small answer takes kube-apiserver, all in all."""

NAME = "kubernetes"
"""What its certificate is for, beside 127.0.0.1."""


class Api(Driver):
    """An API server with one node and so many pods; use it as a context manager.

    ``node`` is the JSON of the node.
    """

    def __init__(self, program: Path, directory: Path, authority: Authority, pods: int) -> None:
        self.node = objects.write(directory, pods)
        self._settings: dict[str, float] = {"spin": 0.0, "generation": 0, "rate": 0.0}
        super().__init__(program, authority.issue(NAME), directory)

    def set(self, **settings: float) -> None:
        """Change ``spin``, ``generation`` or ``rate``; see ``Settings`` of ``driver/api.go``."""
        self._settings |= settings
        self.ask(dict(self._settings))

    def change_all(self) -> None:
        """Give all pods other versions."""
        self.set(generation=self._settings["generation"] + 1)

    def calibrate(self, cost: float) -> None:
        """Have a small answer take :data:`SMALL_COST`, when it takes ``cost`` by itself."""
        self.set(spin=max(0.0, SMALL_COST - cost))

    def processor(self) -> float:
        """Return the CPU seconds that it has used."""
        return processor_seconds(self.pid)

    @contextmanager
    def black_hole(self) -> Iterator[None]:
        """Let nothing be answered, while the kernel goes on to take connections and bytes."""
        os.kill(self.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.pid, signal.SIGCONT)
