"""Programs on machines of their own."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from twisted.internet.defer import Deferred

from tests.e2e.programs import Program


class MachineProgram(Program):
    """A program that runs, and is asked for its pages, in the block that ``place()`` begins."""

    def __init__(
        self,
        reactor,
        arguments: list[str],
        log_path: str,
        meta_port: int,
        meta_host: str,
        place: Callable[[], AbstractContextManager[None]],
    ) -> None:
        super().__init__(reactor, arguments, log_path, meta_port, meta_host=meta_host)
        self._place = place

    def start(self) -> None:
        """Start it there."""
        with self._place():
            super().start()

    async def get(self, path: str) -> tuple[int, str]:
        """Fetch a page of the meta server from there: status and body."""
        with self._place():
            # Up to its first wait, by which it has made its socket.
            response = Deferred.fromCoroutine(super().get(path))
        return await response
