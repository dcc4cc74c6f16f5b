"""Keeps a cache in sync with the API by a list and then watches.

It works as ``k8s.io/client-go/tools/cache/reflector.go`` does, with one difference: while the API
is unreachable, watches are retried from the known version, without a new list, however long the
outage lasts.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from sys import intern
from typing import Any

from twisted.internet.defer import CancelledError
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import deferLater
from twisted.logger import Logger

from yurttunnel.kube.cache import Cache, Key
from yurttunnel.kube.errors import ApiError, ApiUnreachable, Expired, WatchInterrupted
from yurttunnel.kube.interfaces import IKubeClient, InformerSpec
from yurttunnel.kube.resources import Object
from yurttunnel.ops.backoff import Backoff
from yurttunnel.ops.clocks import time_of_day

PAGE_OBJECTS = 250
"""The page size of lists; the reactor does other work between pages."""

MIN_WATCH_SECONDS = 300.0
"""A watch lasts one to two times as long, as in client-go, so that clients do not reconnect
together."""

_RESPONSE_SECONDS = 35.0
"""A watch that has not failed by then has a response: the client's timeout is 30 s."""

_SHORT_WATCH_SECONDS = 1.0
"""A watch that ends sooner without an event is a failure, as in client-go, and so is one whose
connection is lost sooner."""

_INTERNAL = 500
_RETRIABLE_STATUSES = frozenset({429, _INTERNAL, 502, 503})
"""Statuses that do not invalidate the version from which a watch continues."""

_MAX_INTERNAL_ERRORS = 5
"""The number of 500 responses in a row after which a new list is made: the cause may be that one
version, for example an event that the API's store cannot decode."""

_MAX_RETRY_AFTER = 60.0


class Reflector:
    """Syncs the objects of ``spec`` into ``cache``; ``complete()`` is called after each list.

    Failures are not logged while ``is_outage()``, which is logged elsewhere.

    ``last_contact`` is when the API last responded, in seconds since 1970. ``failing_since`` is
    when it stopped responding, in the clock's seconds. ``error`` is the last error, ``None`` while
    there is none.
    """

    _log = Logger()

    def __init__(
        self,
        clock: IReactorTime,
        client: IKubeClient,
        spec: InformerSpec[Any],
        cache: Cache,
        complete: Callable[[], object],
        is_outage: Callable[[], bool],
    ) -> None:
        self._clock = clock
        self._client = client
        self._spec = spec
        self._cache = cache
        self._complete = complete
        self._is_outage = is_outage
        # The last error that was logged since the API responded.
        self._reported = ""
        self._what = described(spec)
        self._field_selector = _field_selector(spec)
        self._version: str | None = None
        self._events = 0
        self._backoff = Backoff()
        self._may_list_at_once = True
        self._internal_errors = 0
        self.last_contact: float | None = None
        self.failing_since: float | None = None
        self.error: Exception | None = None

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            try:
                if self._version is None:
                    await self._list()
                else:
                    await self._watch(self._version)
            except CancelledError:
                raise
            except Exception as error:
                # Defects are retried, too: a cache that is no longer updated would become stale
                # unnoticed.
                pause = self._failed(error)
                if pause > 0:
                    await deferLater(self._clock, pause)

    # -- lists ---------------------------------------------------------------------------------

    async def _list(self) -> None:
        listed: set[Key] = set()
        token = ""
        while True:
            page = await self._client.list(
                self._spec.resource,
                self._spec.namespace,
                label_selector=self._spec.label_selector,
                field_selector=self._field_selector,
                limit=PAGE_OBJECTS,
                continue_token=token,
            )
            version, token, items = self._read_page(page)
            self._contacted()
            listed.update(self._put_all(items))
            if not token:
                break
            await deferLater(self._clock, 0)
        await self._remove_all_except(listed)
        self._version = version
        self._complete()

    def _read_page(self, page: Object) -> tuple[str, str, list[Any]]:
        metadata = page.get("metadata")
        items = page.get("items")
        version = metadata.get("resourceVersion") if isinstance(metadata, dict) else None
        # Go encodes an empty list as null.
        items = [] if items is None and "items" in page else items
        if not isinstance(metadata, dict) or not version or not isinstance(items, list):
            raise ApiUnreachable(f"the answer to a list of {self._what} is not a list with version")
        return str(version), str(metadata.get("continue") or ""), items

    def _put_all(self, items: list[Any]) -> Iterator[Key]:
        for item in items:
            key = self._put(item)
            if key is not None:
                yield key

    async def _remove_all_except(self, listed: set[Key]) -> None:
        gone = self._cache.keys_except(listed)
        for start in range(0, len(gone), PAGE_OBJECTS):
            for key in gone[start : start + PAGE_OBJECTS]:
                self._cache.put(key, None)
            if start + PAGE_OBJECTS < len(gone):
                await deferLater(self._clock, 0)

    # -- watches -------------------------------------------------------------------------------

    async def _watch(self, version: str) -> None:
        began = self._clock.seconds()
        self._events = 0
        answered = self._clock.callLater(_RESPONSE_SECONDS, self._watch_is_healthy)
        try:
            await self._client.watch(
                self._spec.resource,
                self._changed,
                self._spec.namespace,
                label_selector=self._spec.label_selector,
                field_selector=self._field_selector,
                resource_version=version,
                timeout=random.uniform(MIN_WATCH_SECONDS, 2 * MIN_WATCH_SECONDS),
            )
            if not self._events and self._clock.seconds() - began < _SHORT_WATCH_SECONDS:
                raise ApiUnreachable(f"the watch of {self._what} ended as soon as it had begun")
            self._watch_is_healthy()
        except WatchInterrupted:
            if self._clock.seconds() - began < _SHORT_WATCH_SECONDS:
                raise
            # A load balancer may close a watch that is idle for some seconds; the API has
            # responded. It may close many at once when it restarts, hence the pause.
            self._watch_is_healthy()
            await deferLater(self._clock, self._backoff.next())
        finally:
            if answered.active():
                answered.cancel()

    def _changed(self, change: str, obj: Object) -> None:
        self._events += 1
        self._watch_is_healthy()
        if change == "DELETED":
            key = self._key(obj)
            if key is not None:
                self._cache.put(key, None)
        elif change in ("ADDED", "MODIFIED"):
            self._put(obj)
        version = _metadata(obj).get("resourceVersion")
        if isinstance(version, str) and version:
            self._version = version

    # -- objects -------------------------------------------------------------------------------

    def _put(self, obj: Any) -> Key | None:
        """Cache an object's value; return its key, or ``None`` without one."""
        key = self._key(obj)
        if key is None:
            return None
        # Objects of a list lack these fields, those of a watch have them; the values have to be
        # equal.
        obj.setdefault("kind", self._spec.resource.kind)
        obj.setdefault("apiVersion", self._spec.resource.api_version)
        try:
            value = self._spec.transform(obj)
        except Exception:
            # ``transform`` parses untrusted data; the other objects are still cached.
            self._log.failure(
                "{what}: {namespace}/{name} cannot be parsed; its previous state stays in use",
                what=self._what,
                namespace=key[0],
                name=key[1],
            )
        else:
            self._cache.put(key, value)
        return key

    def _key(self, obj: Any) -> Key | None:
        metadata = _metadata(obj)
        name, namespace = metadata.get("name"), metadata.get("namespace") or ""
        if isinstance(name, str) and name and isinstance(namespace, str):
            return intern(namespace), name
        self._log.warn(
            "{what}: an object without a name is ignored: {text}",
            what=self._what,
            text=repr(obj)[:200],
        )
        return None

    # -- good and bad times --------------------------------------------------------------------

    def _contacted(self) -> None:
        self.last_contact = time_of_day(self._clock)
        if self._reported:
            self._log.info("{what}: followed again", what=self._what)
        self._reported = ""
        self.error = self.failing_since = None

    def _watch_is_healthy(self) -> None:
        # A successful list is not enough: the watch after it may fail each time.
        self._contacted()
        self._backoff.reset()
        self._may_list_at_once = True
        self._internal_errors = 0

    def _failed(self, error: Exception) -> float:
        """Record a failure; return the seconds to wait before the next attempt."""
        if not isinstance(error, ApiError | ApiUnreachable):
            self._reported = "internal error"
            self._log.failure("{what}: internal error; retrying", what=self._what)
        elif str(error) != self._reported and not self._is_outage():
            self._reported = str(error)
            self._log.warn("{what}: watch failed, retrying: {error}", what=self._what, error=error)
        if self.failing_since is None:
            self.failing_since = self._clock.seconds()
        self.error = error
        if isinstance(error, ApiError) and not self._is_transient(error):
            self._version = None
        if isinstance(error, Expired) and self._may_list_at_once:
            self._may_list_at_once = False
            return 0.0
        pause = self._backoff.next()
        retry_after = getattr(error, "retry_after", None) or 0.0
        return max(pause, min(retry_after, _MAX_RETRY_AFTER))

    def _is_transient(self, error: ApiError) -> bool:
        """Return whether a watch may succeed from the known version."""
        self._internal_errors = self._internal_errors + 1 if error.status == _INTERNAL else 0
        if self._internal_errors == _MAX_INTERNAL_ERRORS:
            self._internal_errors = 0
            return False
        return error.status in _RETRIABLE_STATUSES


def described(spec: InformerSpec[Any]) -> str:
    """Describe the objects of an informer, for messages."""
    what = spec.resource.plural
    if spec.name is not None:
        return f"{what} {spec.namespace}/{spec.name}" if spec.namespace else f"{what} {spec.name}"
    return f"{what} in {spec.namespace}" if spec.namespace else what


def _field_selector(spec: InformerSpec[Any]) -> str:
    """Return the field selector; a role with ``resourceNames`` permits it for that name."""
    name = f"metadata.name={spec.name}" if spec.name is not None else ""
    return ",".join(filter(None, (name, spec.field_selector)))


def _metadata(obj: Any) -> dict[str, Any]:
    metadata = obj.get("metadata") if isinstance(obj, dict) else None
    return metadata if isinstance(metadata, dict) else {}
