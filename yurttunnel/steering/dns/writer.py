"""Writing changed objects, and recording why one cannot be written."""

from __future__ import annotations

from collections import Counter

from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from yurttunnel.kube.errors import (
    AlreadyExists,
    ApiError,
    ApiUnreachable,
    Conflict,
    NotAllowed,
    NotFound,
)
from yurttunnel.kube.interfaces import IKubeClient
from yurttunnel.kube.resources import Object, Resource
from yurttunnel.ops.clocks import time_of_day
from yurttunnel.ops.log import RateLimitedLog


class Writer:
    """Writes objects of ``namespace``.

    ``problems`` are sentences by the names of objects, ``writes`` counts successful writes by kind,
    and ``last_write`` is the time of the last one, in seconds since 1970.
    """

    _log = Logger()

    def __init__(self, clock: IReactorTime, client: IKubeClient, namespace: str) -> None:
        self._clock = clock
        self._client = client
        self._namespace = namespace
        self._limited = RateLimitedLog(clock, self._log)
        self.problems: dict[str, str] = {}
        # The names of objects whose last write was rejected because they had changed.
        self._changed: set[str] = set()
        self.writes: Counter[str] = Counter()
        self.last_write: float | None = None

    async def write(
        self, resource: Resource, name: str, old: Object | None, new: Object | None
    ) -> bool:
        """Update ``old`` to ``new``, or create it if ``old`` is ``None``.

        ``new`` is ``None`` if there is nothing to write. Return whether the object is as desired;
        it is not if it has changed since ``old``, and is left unchanged then.
        """
        try:
            if new is not None:
                await self._put(resource, old, new)
        except (ApiError, ApiUnreachable) as error:
            if isinstance(error, AlreadyExists | Conflict | NotFound) and name not in self._changed:
                # The cache that ``old`` is from will be updated before the next attempt.
                self._changed.add(name)
                return False
            if not isinstance(error, AlreadyExists | Conflict | NotFound):
                self._changed.discard(name)
            problem = self._problem(resource, name, error)
            self.problems[name] = problem
            self._limited.warn("{text}; retrying", text=problem)
            return False
        self.problems.pop(name, None)
        self._changed.discard(name)
        return True

    def forget(self) -> None:
        """Forget all problems."""
        self.problems.clear()
        self._changed.clear()

    async def _put(self, resource: Resource, old: Object | None, new: Object) -> None:
        if old is None:
            await self._client.create(resource, new, self._namespace)
        else:
            # Its resourceVersion is that of ``old``.
            await self._client.update(resource, new)
        self.writes[resource.kind] += 1
        self.last_write = time_of_day(self._clock)

    def _problem(self, resource: Resource, name: str, error: ApiError | ApiUnreachable) -> str:
        needed = ""
        if isinstance(error, NotAllowed) and error.status == 403:
            needed = ", for which the server needs the Role in deploy/overlays/dns/rbac.yaml"
        return f"{resource.kind} {self._namespace}/{name} cannot be written{needed}: {error}"
