"""Desired state: made of what all sources say, anew when that or the node changes."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path

from twisted.application.service import MultiService
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from zope.interface import implementer

from yurttunnel.kube.interfaces import IInformers
from yurttunnel.ops.threads import Jobs
from yurttunnel.proxy.interfaces import IDesiredStateSource
from yurttunnel.proxy.node import ThisNode
from yurttunnel.proxy.sources import api, file
from yurttunnel.proxy.sources.broadcaster import Broadcaster
from yurttunnel.proxy.sources.config import EndpointsConfig, ServiceConfig
from yurttunnel.proxy.state.desired_state import Memory, desired_state
from yurttunnel.proxy.state.endpoint_slices import ENDPOINT_SLICES_SPEC
from yurttunnel.proxy.state.services import SERVICES_SPEC
from yurttunnel.proxy.state.virtual_services import DesiredState, Problem

MOST_LOGGED = 20
"""How many problems are logged one by one when they come up together."""


@implementer(IDesiredStateSource)
class Sources(MultiService):
    """The source ``api``, which follows ``informers``, and ``file``, which follows ``manifests``.

    Either may be left out; of an object that both have, the API's counts. ``threads(name)`` gives
    a thread to read files in, as :class:`~yurttunnel.ops.threads.JobThread` is one. Problems are
    logged when they come up, and are in the desired state as long as they last.
    """

    _log = Logger()

    def __init__(
        self,
        clock: IReactorTime,
        threads: Callable[[str], Jobs],
        node: ThisNode,
        informers: IInformers | None = None,
        manifests: Path | None = None,
    ) -> None:
        super().__init__()
        self.on_changed: list[Callable[[], object]] = []
        """Who is told when the desired state is another."""
        self._node = node
        self._informers = informers
        self._state: DesiredState | None = None
        # Of those that there are now.
        self._logged: frozenset[Problem] = frozenset()
        self._memory = Memory()
        self._broadcaster = Broadcaster(clock)
        self._broadcaster.add(self._update)
        self._services = ServiceConfig(self._broadcaster)
        self._endpoints = EndpointsConfig(self._broadcaster)
        self._file: file.FileSource | None = None
        node.on_changed.append(self._broadcaster.notify)
        if informers is not None:
            for source in (
                api.ApiSource(informers.informer(SERVICES_SPEC), self._services.channel(api.NAME)),
                api.ApiSource(
                    informers.informer(ENDPOINT_SLICES_SPEC), self._endpoints.channel(api.NAME)
                ),
            ):
                source.setServiceParent(self)
        if manifests is not None:
            self._file = file.FileSource(
                clock,
                threads("manifests"),
                manifests,
                self._services.channel(file.NAME),
                self._endpoints.channel(file.NAME),
                self._broadcaster.notify,
            )
            self._file.setServiceParent(self)

    def stopService(self) -> Deferred[None]:
        """Follow no more; the last state stays."""
        self._broadcaster.stop()
        stopped: Deferred[None] = super().stopService()
        return stopped

    def state(self) -> DesiredState | None:
        """See :class:`IDesiredStateSource`."""
        return self._state

    def problem(self) -> str | None:
        """See :class:`IDesiredStateSource`."""
        if self._informers is not None and (missing := self._informers.problem()) is not None:
            return missing
        if self._file is not None and self._file.problems:
            problem = self._file.problems[0]
            return f"{problem.what}: {problem.text}"
        if self._state is None:
            return "not all Services and their endpoints have been listed yet"
        return None

    def _update(self) -> None:
        incomplete = self._services.incomplete() or self._endpoints.incomplete()
        of_file = () if self._file is None else self._file.problems
        if incomplete or not self._node.looked:
            self._log_new(of_file)
            return
        state = desired_state(
            self._services.objects(), self._endpoints.objects(), self._node.facts, self._memory
        )
        if of_file:
            state = replace(state, problems=(*state.problems, *of_file))
        before, self._state = self._state, state
        if state == before:
            return
        self._log_new(state.problems)
        for changed in self.on_changed:
            changed()

    def _log_new(self, problems: Collection[Problem]) -> None:
        new = [problem for problem in problems if problem not in self._logged]
        self._logged = frozenset(problems)
        for problem in new[:MOST_LOGGED]:
            self._log.warn("{what}: {text}", what=problem.what, text=problem.text)
        if len(new) > MOST_LOGGED:
            self._log.warn(
                "{more} more problems with Services and EndpointSlices: see the status page",
                more=len(new) - MOST_LOGGED,
            )
