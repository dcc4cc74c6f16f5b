"""Programs on separate machines."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from twisted.internet.defer import Deferred

from tests.e2e.programs import Program


class MachineProgram(Program):
    """A program that is started, and whose pages are requested, in the context ``place()``."""

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
        """Start the program on its machine."""
        with self._place():
            super().start()

    async def get(self, path: str) -> tuple[int, str]:
        """Request a page of the meta server on that machine; return status and body."""
        with self._place():
            # The context lasts until the first wait; the socket exists by then.
            response = Deferred.fromCoroutine(super().get(path))
        return await response
