"""What of the cache answers a request.

A client is answered from what it was told itself, by the newest of it that a form it accepts can be
made from. People at the node are the exception: kubectl asks for many things once, so where it has
nothing of its own it gets what kubelet knows, both having the node's identity, and is warned that
this may be a part. The hub's pages have that alone.

An empty list says that there is nothing, so it is given only when that was the API's answer; and
kubelet never gets one of pods, because it would end all that run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from twisted.internet.interfaces import IReactorTime

from yurttunnel.http.places import Places
from yurttunnel.hub.cache.interfaces import Collection, ICache, IListed, Scope
from yurttunnel.hub.cache.selectors import PODS, scope_of
from yurttunnel.hub.cache.store import MOST_LISTED
from yurttunnel.hub.cache.versions import version_of
from yurttunnel.hub.filters.interfaces import IFilters
from yurttunnel.hub.media.interfaces import Item, TypeMeta
from yurttunnel.hub.offline.owners import NODE
from yurttunnel.hub.offline.refusals import Refusals
from yurttunnel.hub.offline.sources import Source, sources
from yurttunnel.hub.policy import Policy
from yurttunnel.hub.request.callers import PAGES
from yurttunnel.hub.request.requests import ApiRequest, Caller, Form, HubCall
from yurttunnel.kube.selectors import FieldTerm
from yurttunnel.ops.clocks import time_of_day

KUBELET = "kubelet"
PEOPLE = "kubectl"


class FoundObject(NamedTuple):
    """An object as the client gets it."""

    source: Source
    type: TypeMeta
    item: Item
    columns: bytes


class FoundList(NamedTuple):
    """A list, to be closed, and how the client gets it; ``warning`` says what it may lack."""

    source: Source
    listed: IListed
    warning: str


class Lookup:
    """Finds objects and lists. All raise ``RequestFailed`` for what cannot be answered."""

    def __init__(
        self,
        clock: IReactorTime,
        cache: ICache,
        policy: Policy,
        filters: IFilters,
        refusals: Refusals,
    ) -> None:
        self._clock = clock
        self._cache = cache
        self._policy = policy
        self._filters = filters
        self._refusals = refusals
        # Of lists that pods with a network of their own read, or wait for.
        self._places = Places(MOST_LISTED, least=1)

    @contextmanager
    def reading(self, call: HubCall) -> Iterator[None]:
        """Count a list that is to be read, by a client that may take it slowly.

        A pod has as many as it leaves free, so that others find some; and one in any case.
        """
        holder = call.holder
        if holder is None:
            yield
            return
        if not self._places.has_one_for(holder):
            raise self._refusals.unavailable("this client reads too many lists at a time")
        self._places.count(holder, 1)
        try:
            yield
        finally:
            self._places.count(holder, -1)

    def sources(self, call: HubCall) -> list[Source]:
        """Return what an answer can be made from."""
        change = self._filters.change_for(call.caller, call.request)
        found = list(sources(call.forms, change, time_of_day(self._clock)))
        if not found:
            raise self._refusals.not_acceptable()
        return found

    async def object(self, call: HubCall, owner: str) -> FoundObject:
        """Return an object."""
        request = call.request
        sources = self.sources(call)
        for client, _ in self._clients(call, owner):
            found, lacking = [], []
            for source in sources:
                collection = scope_of(client, request, source.kept).collection
                one = await self._object(source, collection, request.namespace, request.name)
                if one is not None:
                    found.append(one)
                elif not source.kept.transform:
                    lacking.append(collection)
            if found:
                newest = max(found, key=lambda one: number(one.item.version))
                is_gone = await self._has_gone(newest.item, lacking)
                if is_gone or newest.source.body(newest.item) is None:
                    raise self._refusals.not_found(request)
                return newest
        raise await self._absent(call, owner)

    async def list(self, call: HubCall, owner: str) -> FoundList:
        """Return a list."""
        request, caller = call.request, call.caller
        is_kubelets = request.resource == PODS and caller.component == KUBELET and owner == NODE
        sources = self.sources(call)
        for client, warning in self._clients(call, owner):
            for source in await self._best_first(client, request, sources):
                scope = scope_of(client, request, source.kept)
                may_be_some = warning != "" or await self._is_one(scope, request.name)
                listed = await self._cache.list(scope)
                if listed is None:
                    continue
                is_some = may_be_some and len(listed.sizes) > 0
                is_whole = listed.complete and not (is_kubelets and not listed.sizes)
                if (is_whole or is_some) and _is_shown(source, listed.meta.columns):
                    return FoundList(source, listed, warning)
                listed.close()
        if not self._policy.keeps(caller, request):
            raise self._refusals.not_kept(request, caller.component)
        raise self._refusals.never_listed(request)

    async def type(self, call: HubCall, owner: str) -> TypeMeta | None:
        """Return the type of what a list in the best form would have, if that is known."""
        client = self._policy.client(call.caller, owner)
        listed = await self._cache.list(scope_of(client, call.request, self.sources(call)[0].kept))
        if listed is None:
            return None
        listed.close()
        return listed.meta.type

    def _clients(self, call: HubCall, owner: str) -> Iterator[tuple[str, str]]:
        """Return whose collections are looked into, and what is to be warned of."""
        component = call.caller.component
        if component != PAGES:
            yield self._policy.client(call.caller, owner), ""
        if component in (PEOPLE, PAGES) and owner == NODE:
            # Nobody is warned by a page: a part is not shown there.
            warning = self._refusals.partial if component == PEOPLE else ""
            yield self._policy.client(Caller(KUBELET), NODE), warning

    async def _best_first(
        self, client: str, request: ApiRequest, sources: Sequence[Source]
    ) -> Sequence[Source]:
        """Return sources in another order: whole lists first, and the newest of them.

        Each is closed before the next is read: who waits for one while having another may do so for
        those who do the same.
        """
        if len(sources) == 1:
            return sources
        ranks: dict[Form, tuple[bool, int]] = {}
        for kept in {source.kept for source in sources}:
            listed = await self._cache.list(scope_of(client, request, kept))
            if listed is not None:
                listed.close()
                ranks[kept] = listed.complete, number(listed.meta.version)
        known = [source for source in sources if source.kept in ranks]
        return sorted(known, key=lambda source: ranks[source.kept], reverse=True)

    async def _has_gone(self, item: Item, lacking: Iterable[Collection]) -> bool:
        """Return whether a collection that lacks an object is whole, and newer than it.

        So it is where the client has asked in another form since, as when filters are for it now.
        """
        name = str(FieldTerm("metadata.name", True, item.name))
        selectors = [name]
        if item.node:
            # A pod stays on its node, by which kubelet lists.
            selectors.append(str(FieldTerm("spec.nodeName", True, item.node)))
        for collection in set(lacking):
            for fields in selectors:
                version = await self._cache.known_to(Scope(collection, item.namespace, "", fields))
                if version is not None and number(version) > number(item.version):
                    return True
        return False

    async def _is_one(self, scope: Scope, name: str) -> bool:
        """Return whether one object is all that a list by this name can have.

        Each namespace may have one, so without a namespace it has to be an object that has none.
        """
        if name == "" or scope.namespace != "":
            return name != ""
        return await self._cache.get(scope.collection, "", name) is not None

    async def _object(
        self, source: Source, collection: Collection, namespace: str, name: str
    ) -> FoundObject | None:
        if source.kept.transform != "Table":
            stored = await self._cache.get(collection, namespace, name)
            if stored is None:
                return None
            columns = source.columns(b"")
            return FoundObject(source, source.type(stored.meta), stored.item, columns)
        # The columns stand with the list.
        listed = await self._cache.list(_scope_of_object(collection, namespace, name))
        if listed is None:
            return None
        try:
            items = await listed.read()
        finally:
            listed.close()
        if not items or not listed.meta.columns:
            return None
        return FoundObject(source, listed.meta.type, items[0], listed.meta.columns)

    async def _absent(self, call: HubCall, owner: str) -> Exception:
        """Return the failure of an object that is not there: it is known not to be, or not."""
        request, caller = call.request, call.caller
        client = self._policy.client(caller, owner)
        for source in self.sources(call):
            collection = scope_of(client, request, source.kept).collection
            scope = _scope_of_object(collection, request.namespace, request.name)
            if await self._cache.known_to(scope) is not None:
                return self._refusals.not_found(request)
        if not self._policy.keeps(caller, request):
            return self._refusals.not_kept(request, caller.component)
        return self._refusals.not_seen(request)


def _scope_of_object(collection: Collection, namespace: str, name: str) -> Scope:
    return Scope(collection, namespace, "", str(FieldTerm("metadata.name", True, name)))


def number(version: str) -> int:
    """Return a version as a number; those that are none are all the same."""
    found = version_of(version)
    return found if isinstance(found, int) else 0


def _is_shown(source: Source, columns: bytes) -> bool:
    """Return whether a list can be read; a Table cannot whose columns are not known."""
    return source.kept.transform != "Table" or columns != b""
