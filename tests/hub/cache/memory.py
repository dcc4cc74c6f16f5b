"""A cache in memory, with the contract of the real one, but without files and threads."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from twisted.internet.defer import succeed
from zope.interface import implementer

from yurttunnel.hub.cache.interfaces import (
    CachedDocument,
    Collection,
    ICache,
    ICachedList,
    IIncomingList,
    Scope,
    Stored,
    StoredEvent,
)
from yurttunnel.hub.cache.selectors import changing_part, has_one_name, selector
from yurttunnel.hub.media.interfaces import Item, ListMeta, TypeMeta
from yurttunnel.ops.clocks import time_of_day

PIECE = 256 * 1024
"""Bytes that are read at once."""


@dataclass
class Objects:
    """The state of one collection."""

    type: TypeMeta
    items: dict[tuple[str, str], Item] = field(default_factory=dict)
    listed: dict[Scope, int] = field(default_factory=dict)
    whole_from: dict[Scope, int] = field(default_factory=dict)
    version: int = 0
    columns: bytes = b""

    def put(self, item, listed=0):
        """Store an item, unless the stored one is newer, and newer than a list that contains it."""
        key = item.namespace, item.name
        self.version = max(self.version, int(item.version))
        old = self.items.get(key)
        if old is None or int(old.version) <= max(int(item.version), listed):
            self.items[key] = item

    def known(self, scope):
        """Return the versions up to which a scope is known."""
        return [
            version
            for wide, version in self.listed.items()
            if is_within(scope, wide) and version >= self.whole_from.get(wide, 0)
        ]

    def newer(self, version):
        """Return the listed scopes that are known beyond a version."""
        return {scope: known for scope, known in self.listed.items() if known > version}

    def has_ended(self, item, newer):
        """Return whether an item of a late list was deleted, according to newer scopes."""
        return item[:2] not in self.items and any(
            int(item.version) < known and selector(scope)(item) for scope, known in newer.items()
        )

    def lack_ended(self, scope, newer):
        """Mark a scope as incomplete for objects that have left a newer one, and may exist."""
        for other, known in newer.items():
            whole_from = self.whole_from.get(other, 0)
            apart = scope.namespace and other.namespace not in ("", scope.namespace)
            is_known = known >= whole_from and is_within(scope, changing_part(other))
            if not apart and not is_known:
                self.mark_incomplete(scope, max(known, whole_from))

    def leave(self, scope, item):
        """Remove an object from a scope, and mark other scopes that had it as incomplete."""
        part = changing_part(scope)
        for other in self.listed:
            if selector(other)(item) and not is_within(other, part):
                self.mark_incomplete(other, int(item.version))

    def mark_incomplete(self, scope, version):
        """Mark a scope as incomplete until it is known up to a version."""
        self.whole_from[scope] = max(self.whole_from.get(scope, 0), version)


@implementer(ICache)
class MemoryCache:
    """See ``ICache``; all Deferreds have fired. ``trouble`` is the result of ``problem``.

    ``listed`` counts the open snapshots.
    """

    def __init__(self, clock):
        self.trouble = None
        self.is_crowded = False
        self.listed = 0
        self.replacements = 0
        self.on_replaced = []
        self._clock = clock
        self._collections: dict[Collection, Objects] = {}
        self._pages: dict[tuple[Scope, str], set[tuple[str, str]]] = {}
        self._documents: dict[tuple[str, str, str], CachedDocument] = {}
        self._events: dict[int, StoredEvent] = {}
        self._event_id = 0
        self._tokens: dict[bytes, tuple[str, float]] = {}

    def defer(self, client, call, size):
        """See ``ICache``."""
        call()

    def upsert(self, collection, meta, item):
        """See ``ICache``."""
        self.upsert_collection(collection, meta).put(item)

    def upsert_collection(self, collection, meta):
        """Return the state of a collection."""
        found = self._collections.setdefault(collection, Objects(meta))
        found.type = meta
        return found

    def remove(self, scope, item):
        """See ``ICache``."""
        self._remove(scope.collection, item.namespace, item.name, item.version)
        if scope.collection in self._collections and item.version:
            self._collections[scope.collection].leave(scope, item)

    def _remove(self, collection, namespace, name, version):
        objects = self._collections.get(collection)
        item = objects.items.get((namespace, name)) if objects else None
        if item and (not version or int(item.version) < int(version)):
            del objects.items[namespace, name]
        if objects and version:
            objects.version = max(objects.version, int(version))

    def remove_object(self, client, resource, namespace, name, version=""):
        """See ``ICache``."""
        for collection in self._collections:
            if collection[:2] == (client, resource):
                self._remove(collection, namespace, name, version)

    def mark_changed(self, client, resource, namespace, version, name=""):
        """See ``ICache``."""
        for collection, objects in self._collections.items():
            if collection[:2] == (client, resource):
                if all(scope.namespace not in ("", namespace) for scope in objects.listed):
                    objects.items.pop((namespace, name), None)
                for scope in objects.listed:
                    if not namespace or scope.namespace in ("", namespace):
                        before = objects.whole_from.get(scope, 0)
                        since = int(version) if version else objects.listed[scope] + 1
                        objects.whole_from[scope] = max(before, since)

    def advance(self, scope, since, version):
        """See ``ICache``."""
        objects = self._collections.get(scope.collection)
        if objects:
            objects.version = max(objects.version, int(version))
            if objects.listed.get(scope, -1) >= int(since):
                objects.listed[scope] = max(objects.listed[scope], int(version))

    def record_use(self, collection):
        """See ``ICache``; nothing is evicted for its age here."""

    def evict(self, caches):
        """See ``ICache``."""
        for key in [key for key in self._collections if not caches(key[0].partition(" ")[0])]:
            del self._collections[key]

    def begin_list(self, scope, continue_token):
        """See ``ICache``."""
        before = self._pages.get((scope, continue_token)) if continue_token else set()
        return Listing(self, scope, before)

    def complete(self, scope, items, before, meta):
        """Add a page; ``before`` has the keys of the earlier pages, if they are known."""
        objects = self.upsert_collection(scope.collection, meta.type)
        objects.version = max(objects.version, int(meta.version))
        newer = objects.newer(int(meta.version))
        for item in items:
            if not objects.has_ended(item, newer):
                objects.put(item, int(meta.version))
        if before is None:
            return
        keys = before | {(item.namespace, item.name) for item in items}
        if meta.continue_token:
            self._pages[scope, meta.continue_token] = keys
            return
        selects = selector(scope)
        for key, item in list(objects.items.items()):
            if key not in keys and selects(item) and int(item.version) <= int(meta.version):
                del objects.items[key]
                objects.leave(scope, item._replace(version=meta.version))
        if not keys <= objects.items.keys():
            objects.lack_ended(scope, newer)
        objects.listed[scope] = max(objects.listed.get(scope, 0), int(meta.version))
        objects.columns = meta.columns

    def get(self, collection, namespace, name):
        """See ``ICache``."""
        objects = self._collections.get(collection)
        item = objects.items.get((namespace, name)) if objects else None
        return succeed(None if item is None else Stored(objects.type, item))

    def list(self, scope):
        """See ``ICache``."""
        objects = self._collections.get(scope.collection)
        if objects is None:
            return succeed(None)
        selects = selector(scope)
        items = [item for _, item in sorted(objects.items.items()) if selects(item)]
        known = objects.known(scope)
        version = max(known, default=objects.version)
        if not known and items and has_one_name(scope):
            version = min(int(item.version) for item in items)
        meta = ListMeta(objects.type, str(version), columns=objects.columns)
        self.listed += 1
        return succeed(CachedList(self, meta, bool(known), items))

    def known_version(self, scope):
        """See ``ICache``."""
        objects = self._collections.get(scope.collection)
        known = objects.known(scope) if objects else []
        return succeed(str(max(known)) if known else None)

    def store_document(self, client, path, form, document):
        """See ``ICache``."""
        self._documents[client, path, form] = document

    def document(self, client, path, form):
        """See ``ICache``."""
        return succeed(self._documents.get((client, path, form)))

    def store_event(self, path, content_type, body, token, owner=""):
        """See ``ICache``."""
        self._event_id += 1
        event = StoredEvent(self._event_id, path, content_type, body, token, owner)
        self._events[self._event_id] = event

    def event_problem(self, token):
        """See ``ICache``; there is no room for accounts while the cache ``is_crowded``."""
        return "there is no room" if token and self.is_crowded else self.trouble

    def stored_events(self, most):
        """See ``ICache``."""
        return succeed(list(self._events.values())[:most])

    def delete_event(self, id):
        """See ``ICache``."""
        self._events.pop(id, None)

    def store_token(self, digest, owner, until):
        """See ``ICache``."""
        self._tokens[digest] = owner, until

    def token_owner(self, digest):
        """See ``ICache``."""
        owner, until = self._tokens.get(digest, (None, -math.inf))
        return succeed(owner if time_of_day(self._clock) < until else None)

    def delete_token(self, digest):
        """See ``ICache``."""
        self._tokens.pop(digest, None)

    def problem(self):
        """See ``ICache``."""
        return self.trouble


@implementer(IIncomingList)
class Listing:
    """A page that is being received."""

    def __init__(self, cache, scope, before):
        self._cache = cache
        self._scope = scope
        self._before = before
        self._items = []

    def add(self, items):
        """See ``IIncomingList``."""
        self._items += items

    def lag(self, size, ended):
        """See ``IIncomingList``; there is always room, and reads do not wait."""
        return True

    def complete(self, meta):
        """See ``IIncomingList``."""
        self._cache.complete(self._scope, self._items, self._before, meta)

    def abandon(self):
        """See ``IIncomingList``."""
        self._items = []


@implementer(ICachedList)
class CachedList:
    """A list that is being read."""

    def __init__(self, cache, meta, complete, items):
        self.meta = meta
        self.complete = complete
        self.sizes = [len(item.body) for item in items]
        self._cache = cache
        self._items = items

    def read(self):
        """See ``ICachedList``."""
        piece, size = [], 0
        while self._items and size < PIECE:
            piece.append(self._items.pop(0))
            size += len(piece[-1].body)
        return succeed(piece)

    def close(self):
        """See ``ICachedList``."""
        self._cache.listed -= 1


def is_within(scope, listed):
    """Return whether a scope is part of another one."""
    return all(wide in ("", narrow) for wide, narrow in zip(listed[1:], scope[1:], strict=True))
