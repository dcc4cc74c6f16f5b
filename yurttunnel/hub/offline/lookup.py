"""The cached data that a request is served from.

A client is served from the responses that it has received itself, with the newest data that can be
converted to an accepted form. kubectl on the node is the exception, because it requests many things
only once: without data of its own it gets the kubelet's, as both have the node's identity, with a
warning that it may be incomplete. The hub's pages only use the kubelet's data.

An empty list means that there are no objects, so it is served only if the API has returned one; and
the kubelet never gets an empty list of pods, because it would stop all running pods.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from twisted.internet.interfaces import IReactorTime

from yurttunnel.http.shared_limit import SharedLimit
from yurttunnel.hub.cache.interfaces import Collection, ICache, ICachedList, Scope
from yurttunnel.hub.cache.selectors import PODS, scope_of
from yurttunnel.hub.cache.store import MAX_CONCURRENT_READS
from yurttunnel.hub.cache.versions import version_of
from yurttunnel.hub.filters.interfaces import IFilters
from yurttunnel.hub.media.interfaces import Item, TypeMeta
from yurttunnel.hub.offline.failures import OfflineFailures
from yurttunnel.hub.offline.owners import NODE
from yurttunnel.hub.offline.sources import Source, sources
from yurttunnel.hub.policy import Policy
from yurttunnel.hub.request.callers import PAGES
from yurttunnel.hub.request.requests import ApiRequest, Caller, Form, HubCall
from yurttunnel.kube.selectors import FieldTerm
from yurttunnel.ops.clocks import time_of_day

KUBELET = "kubelet"
KUBECTL = "kubectl"


class FoundObject(NamedTuple):
    """An object in the client's form."""

    source: Source
    type: TypeMeta
    item: Item
    columns: bytes


class FoundList(NamedTuple):
    """A list in the client's form, to be closed; ``warning`` says what may be missing."""

    source: Source
    cached_list: ICachedList
    warning: str


class Lookup:
    """Finds objects and lists. All methods raise ``RequestFailed`` if they find nothing."""

    def __init__(
        self,
        clock: IReactorTime,
        cache: ICache,
        policy: Policy,
        filters: IFilters,
        failures: OfflineFailures,
    ) -> None:
        self._clock = clock
        self._cache = cache
        self._policy = policy
        self._filters = filters
        self._failures = failures
        # The lists that pods in networks of their own read, or wait for.
        self._places = SharedLimit(MAX_CONCURRENT_READS, minimum=1)

    @contextmanager
    def reading(self, call: HubCall) -> Iterator[None]:
        """Count a list as being read; its client may be slow.

        A pod may read as many lists as it leaves free for others, and at least one.
        """
        share_holder = call.share_holder
        if share_holder is None:
            yield
            return
        if not self._places.has_room_for(share_holder):
            raise self._failures.unavailable("this client reads too many lists at a time")
        self._places.add(share_holder, 1)
        try:
            yield
        finally:
            self._places.add(share_holder, -1)

    def sources(self, call: HubCall) -> list[Source]:
        """Return the sources that a response can be built from."""
        change = self._filters.change_for(call.caller, call.request)
        found = list(sources(call.forms, change, time_of_day(self._clock)))
        if not found:
            raise self._failures.not_acceptable()
        return found

    async def object(self, call: HubCall, owner: str) -> FoundObject:
        """Return an object."""
        request = call.request
        sources = self.sources(call)
        for client, _ in self._clients(call, owner):
            found, without = [], []
            for source in sources:
                collection = scope_of(client, request, source.stored).collection
                one = await self._object(source, collection, request.namespace, request.name)
                if one is not None:
                    found.append(one)
                elif not source.stored.transform:
                    without.append(collection)
            if found:
                newest = max(found, key=lambda one: number(one.item.version))
                is_gone = await self._is_deleted(newest.item, without)
                if is_gone or newest.source.body(newest.item) is None:
                    raise self._failures.not_found(request)
                return newest
        raise await self._absent(call, owner)

    async def list(self, call: HubCall, owner: str) -> FoundList:
        """Return a list."""
        request, caller = call.request, call.caller
        is_kubelets = request.resource == PODS and caller.component == KUBELET and owner == NODE
        sources = self.sources(call)
        for client, warning in self._clients(call, owner):
            for source in await self._best_first(client, request, sources):
                scope = scope_of(client, request, source.stored)
                may_be_some = warning != "" or await self._has_one_object(scope, request.name)
                cached_list = await self._cache.list(scope)
                if cached_list is None:
                    continue
                is_some = may_be_some and len(cached_list.sizes) > 0
                is_whole = cached_list.complete and not (is_kubelets and not cached_list.sizes)
                if (is_whole or is_some) and _is_shown(source, cached_list.meta.columns):
                    return FoundList(source, cached_list, warning)
                cached_list.close()
        if not self._policy.caches(caller, request):
            raise self._failures.not_cached(request, caller.component)
        raise self._failures.not_listed(request)

    async def type(self, call: HubCall, owner: str) -> TypeMeta | None:
        """Return the type of a list in the best form, if it is known."""
        client = self._policy.client(call.caller, owner)
        cached_list = await self._cache.list(
            scope_of(client, call.request, self.sources(call)[0].stored)
        )
        if cached_list is None:
            return None
        cached_list.close()
        return cached_list.meta.type

    def _clients(self, call: HubCall, owner: str) -> Iterator[tuple[str, str]]:
        """Return the clients whose collections are searched, each with a warning."""
        component = call.caller.component
        if component != PAGES:
            yield self._policy.client(call.caller, owner), ""
        if component in (KUBECTL, PAGES) and owner == NODE:
            # Pages show no warning, and never a partial list.
            warning = self._failures.partial if component == KUBECTL else ""
            yield self._policy.client(Caller(KUBELET), NODE), warning

    async def _best_first(
        self, client: str, request: ApiRequest, sources: Sequence[Source]
    ) -> Sequence[Source]:
        """Return the sources in order of preference: complete lists first, then the newest.

        Each list is closed before the next is read: if requests held one list while waiting for
        another, they could block each other.
        """
        if len(sources) == 1:
            return sources
        ranks: dict[Form, tuple[bool, int]] = {}
        for stored in {source.stored for source in sources}:
            cached_list = await self._cache.list(scope_of(client, request, stored))
            if cached_list is not None:
                cached_list.close()
                ranks[stored] = cached_list.complete, number(cached_list.meta.version)
        known = [source for source in sources if source.stored in ranks]
        return sorted(known, key=lambda source: ranks[source.stored], reverse=True)

    async def _is_deleted(self, item: Item, without: Iterable[Collection]) -> bool:
        """Return whether a collection without the object is complete, and newer than the object.

        This happens if the client has used another form since, for example because filters now
        apply to it.
        """
        name = str(FieldTerm("metadata.name", True, item.name))
        selectors = [name]
        if item.node:
            # A pod never changes its node, which is the kubelet's selector for lists.
            selectors.append(str(FieldTerm("spec.nodeName", True, item.node)))
        for collection in set(without):
            for fields in selectors:
                version = await self._cache.known_version(
                    Scope(collection, item.namespace, "", fields)
                )
                if version is not None and number(version) > number(item.version):
                    return True
        return False

    async def _has_one_object(self, scope: Scope, name: str) -> bool:
        """Return whether a list with this name can have only one object.

        Each namespace may have an object of this name, so without a namespace the object must be
        cluster-scoped.
        """
        if name == "" or scope.namespace != "":
            return name != ""
        return await self._cache.get(scope.collection, "", name) is not None

    async def _object(
        self, source: Source, collection: Collection, namespace: str, name: str
    ) -> FoundObject | None:
        if source.stored.transform != "Table":
            stored = await self._cache.get(collection, namespace, name)
            if stored is None:
                return None
            columns = source.columns(b"")
            return FoundObject(source, source.type(stored.meta), stored.item, columns)
        # The columns are stored with the list.
        cached_list = await self._cache.list(_scope_of_object(collection, namespace, name))
        if cached_list is None:
            return None
        try:
            items = await cached_list.read()
        finally:
            cached_list.close()
        if not items or not cached_list.meta.columns:
            return None
        return FoundObject(source, cached_list.meta.type, items[0], cached_list.meta.columns)

    async def _absent(self, call: HubCall, owner: str) -> Exception:
        """Return the failure for a missing object: it does not exist, or it is not known."""
        request, caller = call.request, call.caller
        client = self._policy.client(caller, owner)
        for source in self.sources(call):
            collection = scope_of(client, request, source.stored).collection
            scope = _scope_of_object(collection, request.namespace, request.name)
            if await self._cache.known_version(scope) is not None:
                return self._failures.not_found(request)
        if not self._policy.caches(caller, request):
            return self._failures.not_cached(request, caller.component)
        return self._failures.not_seen(request)


def _scope_of_object(collection: Collection, namespace: str, name: str) -> Scope:
    return Scope(collection, namespace, "", str(FieldTerm("metadata.name", True, name)))


def number(version: str) -> int:
    """Return a version as a number; all versions that are not numbers are 0."""
    found = version_of(version)
    return found if isinstance(found, int) else 0


def _is_shown(source: Source, columns: bytes) -> bool:
    """Return whether a list can be served; a Table without known columns cannot."""
    return source.stored.transform != "Table" or columns != b""
