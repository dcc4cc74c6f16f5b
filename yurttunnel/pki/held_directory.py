"""The service by which a program has its state directory to itself."""

from __future__ import annotations

from pathlib import Path

from twisted.application.service import Service

from yurttunnel.pki.directory import StateDirectory


class HeldDirectory(Service):
    """Holds a state directory from its making on, so before anything in it is read.

    It is to be stopped when the process begins to end: while it drains, its successor may have the
    directory. Raises :class:`~yurttunnel.pki.directory.StateError`, also when another process has
    it.
    """

    def __init__(self, path: Path) -> None:
        self._directory = StateDirectory.open(path)
        self._release = self._directory.hold()

    def stopService(self) -> None:
        """Let go of it."""
        super().stopService()
        self._release()
