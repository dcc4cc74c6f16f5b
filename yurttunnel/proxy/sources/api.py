"""The source ``api``: what an informer follows.

It says nothing before it has listed all, and what it has said stays while the API is away: an
informer forgets nothing but what a list that is complete has not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic

from twisted.application.service import Service
from twisted.internet.defer import CancelledError, Deferred
from twisted.python.failure import Failure

from yurttunnel.kube.interfaces import IInformer
from yurttunnel.proxy.sources.mux import Channel
from yurttunnel.proxy.sources.store import Kept, Operation, Update

NAME = "api"


class ApiSource(Service, Generic[Kept]):
    """Sends what ``informer`` keeps to ``channel`` while it runs."""

    def __init__(self, informer: IInformer, channel: Channel[Kept]) -> None:
        self._informer = informer
        self._channel = channel
        self._endings: list[Callable[[], object]] = []

    def startService(self) -> None:
        """Wait for all, and follow the changes."""
        super().startService()
        listed: Deferred[None] = self._informer.when_synced()
        self._endings = [self._informer.add_handler(self._changed), listed.cancel]
        _ = listed.addCallbacks(self._complete, _ignore_cancellation)

    def stopService(self) -> None:
        """Follow no more."""
        super().stopService()
        for end in self._endings:
            end()

    def _complete(self, _: object) -> None:
        self._channel(Update(Operation.SET, list(self._informer.values())))

    def _changed(self, old: Kept | None, new: Kept | None) -> None:
        if not self._informer.synced:
            return
        if new is not None:
            self._channel(Update(Operation.ADD, [new]))
        elif old is not None:
            self._channel(Update(Operation.REMOVE, [old]))


def _ignore_cancellation(failure: Failure) -> None:
    failure.trap(CancelledError)
