"""The source ``file``: manifests that are looked at again and again."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from twisted.application.service import MultiService
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime

from yurttunnel.ops.reconciler import Reconciler
from yurttunnel.ops.threads import Jobs
from yurttunnel.proxy.sources.manifests import Manifests, read_manifests
from yurttunnel.proxy.sources.mux import Channel
from yurttunnel.proxy.sources.store import Kept, Operation, Update
from yurttunnel.proxy.state.endpoint_slices import EndpointSlice
from yurttunnel.proxy.state.services import Service
from yurttunnel.proxy.state.virtual_services import Problem

NAME = "file"

LOOK_SECONDS = 5.0
"""From one look to the next; as the oldest file source of kube-proxy had it."""


class FileSource(MultiService):
    """Sends what is in the file or directory ``path`` to the channels, and again when it changes.

    Files are read in ``thread``. Of an object that several have the first one counts. Nothing is
    sent before each of them could be read: what a former process has served stays. Later on, while
    it cannot be looked at them, or one of them cannot be read, what was there before stays.
    ``problems`` says so, and ``notify()`` is called when these are others.
    """

    def __init__(
        self,
        clock: IReactorTime,
        thread: Jobs,
        path: Path,
        services: Channel[Service],
        slices: Channel[EndpointSlice],
        notify: Callable[[], object],
    ) -> None:
        super().__init__()
        self.problems: tuple[Problem, ...] = ()
        self._thread = thread
        self._path = path
        self._services = services
        self._slices = slices
        self._notify = notify
        self._known: dict[Path, Manifests] = {}
        self._complete = False
        looks = Reconciler(clock, LOOK_SECONDS, f"reading {path}", self._look)
        looks.setServiceParent(self)

    def stopService(self) -> Deferred[None]:
        """Look no more."""
        self._thread.end()
        stopped: Deferred[None] = super().stopService()
        return stopped

    async def _look(self) -> bool:
        try:
            found = await self._thread.run(partial(read_manifests, self._path, self._known))
        except OSError as error:
            self._tell((Problem(f"file {self._path}", f"it cannot be read: {error.strerror}"),))
            return False
        self._known = found
        self._complete = self._complete or all(file.parsed for file in found.values())
        if self._complete:
            _set(self._services, [each for file in found.values() for each in file.services])
            _set(self._slices, [each for file in found.values() for each in file.slices])
        self._tell(tuple(problem for file in found.values() for problem in file.problems))
        return True

    def _tell(self, problems: tuple[Problem, ...]) -> None:
        if problems != self.problems:
            self.problems = problems
            self._notify()


def _set(channel: Channel[Kept], objects: list[Kept]) -> None:
    # Where several have a name, the last one would be kept.
    channel(Update(Operation.SET, objects[::-1]))
