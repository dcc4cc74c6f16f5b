"""The source ``file``: manifests that are checked periodically."""

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
from yurttunnel.proxy.state.virtual_services import Problem

CHECK_SECONDS = 5.0
"""The interval of the checks, as in the earliest file source of kube-proxy."""


class FileSource(MultiService):
    """Follows the file or directory ``path``; calls ``notify()`` when the content has changed.

    ``manifests`` are by file; if several files have the same object, the first one counts. They are
    read in ``thread``. The source is ``complete`` once each file has been read: until then, what a
    previous process served stays. Later, if the files cannot be checked or read, the previous
    content stays in use, and ``problems`` reports it.
    """

    def __init__(
        self, clock: IReactorTime, thread: Jobs, path: Path, notify: Callable[[], object]
    ) -> None:
        super().__init__()
        self.complete = False
        self.problems: tuple[Problem, ...] = ()
        self._thread = thread
        self._path = path
        self._notify = notify
        self.manifests: dict[Path, Manifests] = {}
        checks = Reconciler(clock, CHECK_SECONDS, f"reading {path}", self._check)
        checks.setServiceParent(self)

    def stopService(self) -> Deferred[None]:
        """Stop the checks."""
        self._thread.end()
        stopped: Deferred[None] = super().stopService()
        return stopped

    async def _check(self) -> bool:
        before = self.complete, self.manifests, self.problems
        try:
            found = await self._thread.run(partial(read_manifests, self._path, self.manifests))
        except OSError as error:
            why = f"it cannot be read: {error.strerror}"
            self.problems = (Problem(f"file {self._path}", why),)
            is_read = False
        else:
            is_read = True
            self.manifests = found
            self.complete = self.complete or all(file.parsed for file in found.values())
            self.problems = tuple(problem for file in found.values() for problem in file.problems)
        if before != (self.complete, self.manifests, self.problems):
            self._notify()
        return is_read
