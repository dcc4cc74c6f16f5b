"""Informers: caches that watch resources, each once in a process."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Collection
from typing import Any

from twisted.application.service import MultiService, Service
from twisted.internet.defer import CancelledError, Deferred, succeed
from twisted.internet.interfaces import IReactorTime
from twisted.python.failure import Failure
from zope.interface import implementer

from yurttunnel.kube.cache import Cache
from yurttunnel.kube.interfaces import IInformer, IInformers, IKubeClient, InformerSpec
from yurttunnel.kube.reflector import Reflector, described

STALE_SECONDS = 60.0
"""How long the API may fail to respond before this is reported."""


@implementer(IInformer)
class Informer(Service):
    """Watches the objects of ``spec`` while it runs; its cache stays when it is stopped."""

    def __init__(
        self,
        clock: IReactorTime,
        client: IKubeClient,
        spec: InformerSpec[Any],
        is_outage: Callable[[], bool],
    ) -> None:
        self.spec = spec
        self.synced = False
        self._clock = clock
        self._cache = Cache(described(spec))
        self._reflector = Reflector(clock, client, spec, self._cache, self._complete, is_outage)
        self._waiting: list[Deferred[None]] = []
        self._following: Deferred[None] | None = None

    def startService(self) -> None:
        super().startService()
        following = Deferred.fromCoroutine(self._reflector.run())
        self._following = following.addErrback(_ignore_cancellation)

    def stopService(self) -> None:
        """Stop watching; a pending :meth:`when_synced` fails with ``CancelledError``."""
        super().stopService()
        following, self._following = self._following, None
        if following is not None:
            following.cancel()
        for waiting in tuple(self._waiting):
            waiting.cancel()

    @property
    def error(self) -> Exception | None:
        """Why the API cannot be watched at present; ``None`` without an error."""
        return self._reflector.error

    def get(self, name: str, namespace: str | None = None) -> Any | None:
        return self._cache.get((namespace or "", name))

    def values(self) -> Collection[Any]:
        """Return a live view of all cached values."""
        return self._cache.values()

    def when_synced(self) -> Deferred[None]:
        if self.synced:
            return succeed(None)
        waiting: Deferred[None] = Deferred(self._waiting.remove)
        self._waiting.append(waiting)
        return waiting

    def add_handler(
        self, changed: Callable[[Any | None, Any | None], object]
    ) -> Callable[[], None]:
        return self._cache.add_handler(changed)

    def incomplete(self) -> str | None:
        """Return what is missing, and why; ``None`` once the cache has been synced."""
        if self.synced:
            return None
        error = self._reflector.error
        return described(self.spec) + (f" ({error})" if error is not None else "")

    def failing_since(self) -> float | None:
        """Return when the API last responded, in seconds since 1970.

        ``None`` if it responds, has failed for less than :data:`STALE_SECONDS`, or has never
        responded.
        """
        failing_since = self._reflector.failing_since
        if failing_since is None:
            return None
        if self._clock.seconds() - failing_since <= STALE_SECONDS:
            return None
        return self._reflector.last_contact

    def _complete(self) -> None:
        self.synced = True
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            each.callback(None)


@implementer(IInformers)
class Informers(MultiService):
    """The informers of a process; those added while it runs are started at once.

    Their failures are not logged while ``is_outage()``, which is logged elsewhere.
    """

    def __init__(
        self,
        clock: IReactorTime,
        client: IKubeClient,
        is_outage: Callable[[], bool] = lambda: False,
    ) -> None:
        super().__init__()
        self._is_outage = is_outage
        self._clock = clock
        self._client = client
        self._informers: dict[InformerSpec[Any], Informer] = {}

    def informer(self, spec: InformerSpec[Any]) -> IInformer:
        informer = self._informers.get(spec)
        if informer is None:
            informer = Informer(self._clock, self._client, spec, self._is_outage)
            self._informers[spec] = informer
            informer.setServiceParent(self)
        return informer

    def when_synced(self) -> Deferred[None]:
        return Deferred.fromCoroutine(_all_synced(tuple(self._informers.values())))

    def problem(self) -> str | None:
        """Return the result of :meth:`incomplete`, or else of :meth:`stale_informers`."""
        return self.incomplete() or self.stale_informers()

    def incomplete(self) -> str | None:
        """Return which caches have never been synced, so that their users cannot work yet."""
        missing = sorted(filter(None, (each.incomplete() for each in self._informers.values())))
        if not missing:
            return None
        return f"the API has not yet listed all {', '.join(missing)}"

    def stale_informers(self) -> str | None:
        """Return since when the API has not responded; the cached state stays in use."""
        found = {
            described(each.spec): since
            for each in self._informers.values()
            if (since := each.failing_since()) is not None
        }
        if not found:
            return None
        last = datetime.datetime.fromtimestamp(min(found.values()), datetime.UTC)
        return (
            f"the API has not been heard of since {last:%Y-%m-%d %H:%M:%S} UTC about"
            f" {', '.join(sorted(found))}; what was known then stays in use"
        )


async def _all_synced(informers: tuple[Informer, ...]) -> None:
    for informer in informers:
        await informer.when_synced()


def once_synced(informer: IInformer, call: Callable[[], object]) -> None:
    """Call ``call()`` once an informer is synced, unless it is stopped before."""
    _ = informer.when_synced().addCallbacks(lambda _: call(), _ignore_cancellation)


def _ignore_cancellation(failure: Failure) -> None:
    failure.trap(CancelledError)
