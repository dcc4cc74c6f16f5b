"""The desired state, computed from all sources when these or the node change."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from twisted.application.service import MultiService
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from zope.interface import implementer

from yurttunnel.kube.cache import Key
from yurttunnel.kube.informer import once_synced
from yurttunnel.kube.interfaces import IInformer, IInformers
from yurttunnel.ops.reconciler import Reconciler
from yurttunnel.ops.slices import in_slices, visit
from yurttunnel.ops.threads import Jobs
from yurttunnel.proxy.interfaces import IDesiredStateSource
from yurttunnel.proxy.node import ThisNode
from yurttunnel.proxy.sources.manifests import FileSource
from yurttunnel.proxy.state.desired_state import ServiceStateCache, desired_state
from yurttunnel.proxy.state.endpoint_slices import ENDPOINT_SLICES_SPEC, EndpointSlice
from yurttunnel.proxy.state.services import SERVICES_SPEC, Service
from yurttunnel.proxy.state.virtual_services import DesiredState, Problem

PERIOD_SECONDS = 900.0
"""How often the state is recomputed without a change, as in kube-proxy (its
``config-sync-period``)."""

SPACING_SECONDS = 0.2
"""The minimum time between two computations under continuous changes. Each takes 15 ms of processor
time for 1,000 Services."""

BURST = 8
"""The number of computations that may follow one another at once after a quiet time."""

MAX_LOGGED = 20
"""The maximum number of new problems that are logged one by one."""

_Object = TypeVar("_Object", Service, EndpointSlice)


@implementer(IDesiredStateSource)
class Sources(MultiService):
    """Combines the API, which ``informers`` watch, and the files in ``manifests``.

    Either may be omitted; if both have an object, the API's counts. There is no state before each
    source is complete. What the API has listed stays while it is unreachable: an informer drops an
    object only when a complete list does not contain it. Files are read in ``thread``. Problems are
    logged when they occur, and stay in the desired state until they are solved.
    """

    _log = Logger()

    def __init__(
        self,
        clock: IReactorTime,
        thread: Jobs,
        node: ThisNode,
        informers: IInformers | None = None,
        manifests: Path | None = None,
    ) -> None:
        super().__init__()
        self.on_changed: list[Callable[[], object]] = []
        """Callbacks for a change of the desired state."""
        self._clock = clock
        self._node = node
        self._informers = informers
        self._watched: list[IInformer] = []
        self._remove_handlers: list[Callable[[], object]] = []
        self._state: DesiredState | None = None
        # The current problems.
        self._logged: frozenset[Problem] = frozenset()
        self._cache = ServiceStateCache()
        self._file: FileSource | None = None
        self._updates = Reconciler(
            clock,
            PERIOD_SECONDS,
            "computing the desired state",
            self._update,
            spacing=SPACING_SECONDS,
            burst=BURST,
        )
        self._updates.setServiceParent(self)
        node.on_changed.append(self._notify)
        if informers is not None:
            specs = (SERVICES_SPEC, ENDPOINT_SLICES_SPEC)
            self._watched = [informers.informer(spec) for spec in specs]
        if manifests is not None:
            self._file = FileSource(clock, thread, manifests, self._notify)
            self._file.setServiceParent(self)

    def startService(self) -> None:
        super().startService()
        self._remove_handlers = [each.add_handler(self._notify) for each in self._watched]
        for each in self._watched:
            # The list may be empty, and then there is no other notification.
            once_synced(each, self._notify)

    def stopService(self) -> Deferred[None]:
        """Stop watching; the last state stays."""
        for remove in self._remove_handlers:
            remove()
        stopped: Deferred[None] = super().stopService()
        return stopped

    def state(self) -> DesiredState | None:
        return self._state

    def problem(self) -> str | None:
        if self._informers is not None and (missing := self._informers.problem()) is not None:
            return missing
        if self._file is not None and self._file.problems:
            problem = self._file.problems[0]
            return f"{problem.what}: {problem.text}"
        if self._state is None:
            return "not all Services and their endpoints have been listed yet"
        return None

    def _notify(self, *_: object) -> None:
        """Recompute the state soon, once for all changes until then."""
        self._updates.trigger()

    async def _update(self) -> None:
        try:
            await self._recompute()
        except CancelledError:
            raise
        except Exception:
            # Whatever the error is, later changes must still be reported.
            self._log.failure("Defect: a listener of the desired state failed")

    async def _recompute(self) -> None:
        file_problems = () if self._file is None else self._file.problems
        is_listed = all(each.synced for each in self._watched)
        is_read = self._file is None or self._file.complete
        if not (is_listed and is_read and self._node.addresses_read):
            self._log_new(file_problems)
            return
        state = await in_slices(self._clock, self._computed())
        if file_problems:
            state = replace(state, problems=(*state.problems, *file_problems))
        before, self._state = self._state, state
        if state == before:
            return
        self._log_new(state.problems)
        for changed in self.on_changed:
            changed()

    def _computed(self) -> Generator[str, None, DesiredState]:
        """Return the state for the objects of all sources; of several objects with the same name,
        the last one counts.
        """
        services: dict[Key, Service] = {}
        slices: dict[Key, EndpointSlice] = {}
        if self._file is not None:
            for each in reversed(self._file.manifests.values()):
                yield from _add(services, reversed(each.services))
                yield from _add(slices, reversed(each.slices))
        if self._watched:
            of_services, of_slices = self._watched
            yield from _add(services, list(of_services.values()))
            yield from _add(slices, list(of_slices.values()))
        return (
            yield from desired_state(
                services.values(), slices.values(), self._node.facts, self._cache
            )
        )

    def _log_new(self, problems: Collection[Problem]) -> None:
        new = [problem for problem in problems if problem not in self._logged]
        self._logged = frozenset(problems)
        for problem in new[:MAX_LOGGED]:
            self._log.warn("{what}: {text}", what=problem.what, text=problem.text)
        if len(new) > MAX_LOGGED:
            self._log.warn(
                "{more} more problems with Services and EndpointSlices: see the status page",
                more=len(new) - MAX_LOGGED,
            )


def _add(found: dict[Key, _Object], objects: Iterable[_Object]) -> Generator[str, None, None]:
    """Add objects by name."""
    yield from visit(objects, lambda each: found.__setitem__((each.namespace, each.name), each))
