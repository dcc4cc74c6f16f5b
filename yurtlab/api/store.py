"""The objects of the API, in memory, with their versions and the history for watches.

The store handles what all kinds have in common: names, versions, the metadata that only a server
may set, conflicts. The rules of a single kind are applied before it is called.

Everything runs in the reactor's thread and no method waits, so a caller that reads an object and
writes it back immediately cannot conflict with another.
"""

from __future__ import annotations

import copy
import random
import uuid
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from yurtlab.api import errors
from yurtlab.api.resources import Resource
from yurttunnel.ops.clocks import timestamp

Object = dict[str, Any]
"""An object of the API, as decoded from JSON."""

ADDED = "ADDED"
MODIFIED = "MODIFIED"
DELETED = "DELETED"

MAX_OBJECTS = 50_000
"""The maximum number of objects of a kind: enough for tests with large clusters."""

_Key = tuple[str, str]
_Objects = list[Object]
_Events = list["Event"]

# k8s.io/apimachinery pkg/util/rand and k8s.io/apiserver pkg/storage/names: no vowels and no
# digits that look like letters, and a name that still fits in a DNS label.
_SUFFIX_LETTERS = "bcdfghjklmnpqrstvwxz2456789"
_SUFFIX_LENGTH = 5
_MAX_BASE_LENGTH = 63 - _SUFFIX_LENGTH

_SERVER_METADATA = (
    "uid",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "generation",
    "name",
    "namespace",
    "generateName",
)
"""Metadata that an update cannot change."""


@dataclass(frozen=True, slots=True)
class Event:
    """A change: ``type`` is ADDED, MODIFIED or DELETED, ``previous`` the object before it.

    The objects belong to the store: they are to be read only.
    """

    version: int
    kind: Resource
    type: str
    object: Object
    previous: Object | None


@dataclass(frozen=True, eq=False, slots=True)
class _Watcher:
    """A callback for changes after the version ``known``."""

    callback: Callable[[Event], object]
    known: int


class Store:
    """All objects.

    Bodies are copied on the way in and out: later changes by a caller do not affect the store.
    ``namespace`` is ``None`` (or empty) for kinds that are not namespaced, and for a list of all
    namespaces. All methods raise :class:`ApiError`.

    ``history`` is the number of changes to keep for watches that begin in the past.
    """

    _log = Logger()

    def __init__(self, clock: IReactorTime, history: int = 1000) -> None:
        self._clock = clock
        # Higher than the versions of an earlier run, so that a client which resumes from one gets
        # Expired, instead of missing changes.
        self._version = int(clock.seconds() * 1000)
        self._objects: dict[Resource, dict[_Key, Object]] = {}
        self._history: deque[Event] = deque(maxlen=history)
        self._last_dropped_version = self._version
        self._watchers: dict[Resource, list[_Watcher]] = {}
        self._undelivered: deque[Event] = deque()
        self._delivering = False

    @property
    def version(self) -> int:
        """The ``resourceVersion`` of the last change of any object."""
        return self._version

    def get(self, kind: Resource, namespace: str | None, name: str) -> Object:
        """Return an object; raise NotFound if it does not exist."""
        return copy.deepcopy(self._stored(kind, namespace, name))

    def find(self, kind: Resource, namespace: str | None, name: str) -> Object | None:
        """Return an object, or ``None`` if it does not exist."""
        return copy.deepcopy(self._objects.get(kind, {}).get((namespace or "", name)))

    def list(self, kind: Resource, namespace: str | None = None) -> _Objects:
        """Return the objects of a namespace, or all, sorted by namespace and name."""
        return [copy.deepcopy(one) for one in self._in_order(kind, namespace)]

    def view(self, kind: Resource, namespace: str | None = None) -> _Objects:
        """Return the objects of a namespace, or all, without copying: they are read-only."""
        return list(self._in_order(kind, namespace))

    def create(
        self, kind: Resource, namespace: str | None, body: Object, dry_run: bool = False
    ) -> Object:
        """Add an object and return it as stored; raise AlreadyExists if the name is taken.

        Without a name, one is generated from ``generateName``. A ``dry_run`` does everything but
        store it.
        """
        created = _copy_as(kind, body)
        metadata = created["metadata"]
        if not metadata.get("name"):
            metadata["name"] = self._generated_name(kind, namespace, metadata["generateName"])
        objects = self._objects.setdefault(kind, {})
        key = (namespace or "", metadata["name"])
        if key in objects:
            raise errors.already_exists(kind.group, kind.plural, metadata["name"])
        if not dry_run:
            self._make_room(kind, metadata["name"])
        if namespace:
            metadata["namespace"] = namespace
        metadata["uid"] = str(uuid.uuid4())
        metadata["creationTimestamp"] = timestamp(self._clock.seconds())
        metadata.pop("deletionTimestamp", None)
        metadata.pop("deletionGracePeriodSeconds", None)
        metadata.pop("generation", None)
        if kind.counts_generations:
            metadata["generation"] = 1
        if not dry_run:
            self._commit(kind, key, ADDED, created, None)
        return copy.deepcopy(created)

    def replace(
        self,
        kind: Resource,
        namespace: str | None,
        name: str,
        body: Object,
        subresource: str | None = None,
        dry_run: bool = False,
    ) -> Object:
        """Replace an existing object and return it as stored.

        A ``resourceVersion`` in ``body`` that differs from the stored one is a Conflict.
        If the kind has a status, only a ``subresource`` changes it, and that changes nothing
        else. Writing identical content is no change.
        """
        current = self._stored(kind, namespace, name)
        self._check_preconditions(kind, current, body)
        if subresource is not None:
            updated = {**copy.deepcopy(current), "status": copy.deepcopy(body.get("status", {}))}
        else:
            updated = _copy_as(kind, body)
            for key in _SERVER_METADATA:
                _copy_field(current["metadata"], updated["metadata"], key)
            if kind.has_status:
                _copy_field(current, updated, "status")
            if kind.counts_generations and updated.get("spec") != current.get("spec"):
                updated["metadata"]["generation"] = current["metadata"]["generation"] + 1
        return self._update(kind, current, updated, dry_run)

    def update_status(
        self, kind: Resource, namespace: str | None, name: str, status: Object
    ) -> Object:
        """Replace the status of an object, whatever its version, and return it as stored."""
        return self.replace(kind, namespace, name, {"status": status}, "status")

    def mark_deleted(
        self, kind: Resource, namespace: str | None, name: str, grace: int, dry_run: bool = False
    ) -> Object:
        """Mark an object for deletion in ``grace`` seconds; the component that runs it removes it.

        A later request can only shorten the time.
        """
        current = self._stored(kind, namespace, name)
        updated = copy.deepcopy(current)
        metadata = updated["metadata"]
        if grace < metadata.get("deletionGracePeriodSeconds", grace + 1):
            metadata["deletionTimestamp"] = timestamp(self._clock.seconds() + grace)
            metadata["deletionGracePeriodSeconds"] = grace
        return self._update(kind, current, updated, dry_run)

    def adopt(self, kind: Resource, body: Object) -> None:
        """Add or replace an object from another API, with its metadata except for the version.

        Writing identical content is no change.
        """
        adopted = _copy_as(kind, body)
        metadata = adopted["metadata"]
        key = (metadata.get("namespace", ""), metadata["name"])
        current = self._objects.setdefault(kind, {}).get(key)
        if current is None:
            self._make_room(kind, metadata["name"])
            self._commit(kind, key, ADDED, adopted, None)
        else:
            self._update(kind, current, adopted, dry_run=False)

    def remove(
        self, kind: Resource, namespace: str | None, name: str, dry_run: bool = False
    ) -> Object:
        """Remove an object and return it; raise NotFound if it does not exist."""
        current = self._stored(kind, namespace, name)
        removed = copy.deepcopy(current)
        if not dry_run:
            self._commit(kind, (namespace or "", name), DELETED, removed, current)
        return copy.deepcopy(removed)

    def watch(
        self, kind: Resource, callback: Callable[[str, Object], object]
    ) -> Callable[[], None]:
        """Call ``callback(type, object)`` for each change; the returned function stops that.

        First, before this returns, it is called with ADDED for each existing object. Changes that a
        callback makes are delivered after the current one. Exceptions of a callback are logged.
        """
        version = self._version
        for one in self.list(kind):
            callback(ADDED, one)
        return self.follow(
            kind, lambda event: callback(event.type, copy.deepcopy(event.object)), version
        )

    def follow(
        self, kind: Resource, callback: Callable[[Event], object], since: int | None = None
    ) -> Callable[[], None]:
        """Call ``callback`` for each change of ``kind`` from now on, or ``since`` a version.

        Past changes are delivered before this returns. Raises Expired if they are not kept.
        """
        for event in self._events_since(kind, since):
            callback(event)
        watchers = self._watchers.setdefault(kind, [])
        watcher = _Watcher(callback, self._version)
        watchers.append(watcher)

        def stop() -> None:
            if watcher in watchers:
                watchers.remove(watcher)

        return stop

    def _stored(self, kind: Resource, namespace: str | None, name: str) -> Object:
        try:
            return self._objects[kind][namespace or "", name]
        except KeyError:
            raise errors.not_found(kind.group, kind.plural, name) from None

    def _in_order(self, kind: Resource, namespace: str | None) -> Iterator[Object]:
        for (its_namespace, _), one in sorted(
            self._objects.get(kind, {}).items(), key=lambda item: item[0]
        ):
            if not namespace or its_namespace == namespace:
                yield one

    def _generated_name(self, kind: Resource, namespace: str | None, base: str) -> str:
        taken = self._objects.get(kind, {})
        while True:
            suffix = "".join(random.choices(_SUFFIX_LETTERS, k=_SUFFIX_LENGTH))
            name = base[:_MAX_BASE_LENGTH] + suffix
            if (namespace or "", name) not in taken:
                return name

    def _make_room(self, kind: Resource, name: str) -> None:
        objects = self._objects[kind]
        if kind.keep_at_most is not None and len(objects) >= kind.keep_at_most:
            # Objects are replaced in place, so the first is the oldest.
            namespace, oldest = next(iter(objects))
            self.remove(kind, namespace, oldest)
        elif len(objects) >= MAX_OBJECTS:
            text = f"there are {MAX_OBJECTS} {kind.plural} already, which is the limit here"
            raise errors.forbidden(kind.group, kind.plural, name, text)

    def _check_preconditions(self, kind: Resource, current: Object, body: Object) -> None:
        desired, actual = body.get("metadata") or {}, current["metadata"]
        name = actual["name"]
        if desired.get("uid") not in (None, "", actual["uid"]):
            text = (
                f"Precondition failed: UID in precondition: {desired['uid']},"
                f" UID in object meta: {actual['uid']}"
            )
            raise errors.conflict(kind.group, kind.plural, name, text)
        if desired.get("resourceVersion") not in (None, "", actual["resourceVersion"]):
            raise errors.modified(kind.group, kind.plural, name)

    def _update(self, kind: Resource, current: Object, updated: Object, dry_run: bool) -> Object:
        updated["metadata"]["resourceVersion"] = current["metadata"]["resourceVersion"]
        if not dry_run and updated != current:
            metadata = current["metadata"]
            key = (metadata.get("namespace", ""), metadata["name"])
            self._commit(kind, key, MODIFIED, updated, current)
        return copy.deepcopy(updated)

    def _commit(
        self, kind: Resource, key: _Key, change: str, changed: Object, previous: Object | None
    ) -> None:
        self._version += 1
        changed["metadata"]["resourceVersion"] = str(self._version)
        if change == DELETED:
            del self._objects[kind][key]
        else:
            self._objects[kind][key] = changed
        if len(self._history) == self._history.maxlen:
            self._last_dropped_version = self._history[0].version
        event = Event(self._version, kind, change, changed, previous)
        self._history.append(event)
        self._undelivered.append(event)
        self._deliver()

    def _deliver(self) -> None:
        """Deliver each change to all watchers before the next one, also if callbacks make some."""
        if self._delivering:
            return
        self._delivering = True
        try:
            while self._undelivered:
                self._notify(self._undelivered.popleft())
        finally:
            self._delivering = False

    def _notify(self, event: Event) -> None:
        watchers = self._watchers.get(event.kind, [])
        for watcher in tuple(watchers):
            # An earlier callback may have stopped it, and it may have begun after the change.
            if watcher not in watchers or event.version <= watcher.known:
                continue
            try:
                watcher.callback(event)
            except Exception:
                # The other watchers still get the change.
                self._log.failure("a watcher of {plural} failed", plural=event.kind.plural)

    def _events_since(self, kind: Resource, since: int | None) -> _Events:
        if since is None or since == self._version:
            return []
        if not self._last_dropped_version <= since < self._version:
            raise errors.expired(f"too old resource version: {since} ({self._version})")
        return [event for event in self._history if event.kind is kind and event.version > since]


def _copy_as(kind: Resource, body: Object) -> Object:
    """Copy ``body`` with the fields in the usual order, without those that are not stored."""
    rest = {key: value for key, value in body.items() if key not in ("kind", "apiVersion")}
    metadata = rest.pop("metadata", None) or {}
    ours = {key: value for key, value in metadata.items() if key != "managedFields"}
    return copy.deepcopy(
        {"kind": kind.kind, "apiVersion": kind.api_version, "metadata": ours, **rest}
    )


def _copy_field(current: Object, updated: Object, key: str) -> None:
    if key in current:
        updated[key] = copy.deepcopy(current[key])
    else:
        updated.pop(key, None)
