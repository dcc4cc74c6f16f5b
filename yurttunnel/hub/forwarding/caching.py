"""Readers that parse the body of a response while it is forwarded, and cache its contents.

Each reads one body: ``read`` processes the next piece and returns what it completes, ``end`` the
end, and ``abandon`` discards a body that is incomplete or not usable. The first two raise
:class:`BadBody`. Without a cache they only parse, for filters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from yurttunnel.http.shared_limit import SharedLimit
from yurttunnel.hub.cache.interfaces import CachedDocument, Collection, ICache, IIncomingList, Scope
from yurttunnel.hub.cache.versions import successor
from yurttunnel.hub.media.interfaces import (
    ICodec,
    IListReader,
    Item,
    IWatchReader,
    ListMeta,
    TypeMeta,
    WatchEvent,
)
from yurttunnel.hub.media.kinds import is_namespace
from yurttunnel.hub.request.requests import ResourceType
from yurttunnel.kube.protobuf_fields import BadBody

ItemPredicate = Callable[[Item], bool]
"""Returns whether an object may be cached."""

_UPDATES = frozenset({"update", "patch"})

_NAMESPACES = str(ResourceType("", "v1", "namespaces"))

STATUS = "Status"
"""The kind of the object that describes a result, instead of the requested object."""

MAX_ITEM = 8 * 1024 * 1024
"""Maximum size of an object in bytes; etcd accepts 1.5 MiB of protobuf
(``--max-request-bytes``)."""

MAX_DOCUMENT = 32 * 1024 * 1024
"""Maximum size of a document in bytes; OpenAPI v2 has about 5 MiB without custom resources."""

MAX_BUFFERED_DOCUMENTS = 2 * MAX_DOCUMENT
"""Maximum size in bytes of all incomplete documents, which slow clients keep in memory."""


class IAbandonable(Protocol):
    """A reader that can be stopped before the end of its body."""

    def abandon(self) -> None:
        """Discard the body."""


class ICacher(IAbandonable, Protocol):
    """Reads one body; see the module."""

    def read(self, data: bytes) -> Sequence[object]:
        """Process the next piece."""

    def end(self) -> object:
        """Process the end."""


class ListCacher:
    """Caches the items of a list, or of one page; ``listing`` is ``None`` without a cache."""

    def __init__(
        self, reader: IListReader, listing: IIncomingList | None, should_cache: ItemPredicate | None
    ):
        self._reader = reader
        self._listing = listing
        self._should_cache = should_cache

    def read(self, data: bytes) -> Sequence[Item]:
        """Process the next piece; return the items that it completes."""
        items = self._reader.feed(data)
        if items and self._listing is not None:
            should_cache = self._should_cache
            self._listing.add(items if should_cache is None else list(filter(should_cache, items)))
        return items

    def end(self) -> ListMeta:
        """Process the end; return the metadata of the list."""
        meta = self._reader.finish()
        if self._listing is not None:
            self._listing.complete(meta)
            self._listing = None
        return meta

    def abandon(self) -> None:
        """Discard the list."""
        listing, self._listing = self._listing, None
        if listing is not None:
            listing.abandon()


class DeletedListCacher:
    """Reads the response to a deletecollection: the objects as they were before the deletion.

    Calls ``on_deleted`` with each object, and ``on_end`` with the version of the list if it has
    any. Some of the objects may still exist, with finalizers or a grace period. The version is
    empty if the list is incomplete, or is a Status.
    """

    def __init__(
        self,
        reader: IListReader,
        on_deleted: Callable[[Item], object],
        on_end: Callable[[str], object],
    ) -> None:
        self._reader = reader
        self._on_deleted = on_deleted
        self._on_end = on_end
        self._is_empty = True

    def read(self, data: bytes) -> Sequence[Item]:
        """Process the next piece; return the items that it completes."""
        items = self._reader.feed(data)
        for item in items:
            self._is_empty = False
            self._on_deleted(item)
        return items

    def end(self) -> ListMeta:
        """Process the end; return the metadata of the list."""
        meta = self._reader.finish()
        if not self._is_empty:
            self._on_end(meta.version)
        return meta

    def abandon(self) -> None:
        """Record that more objects may have been deleted."""
        self._on_end("")


class WatchCacher:
    """Caches the events of a watch of a scope; ``cache`` is ``None`` if nothing is cached.

    A watch that begins with all objects (``sendInitialEvents``, KEP-3157) begins with a list.
    ``since`` is the version from which it reports all changes, empty if that is not known, or not
    yet.
    """

    def __init__(
        self,
        reader: IWatchReader,
        cache: ICache | None,
        scope: Scope,
        should_cache: ItemPredicate | None,
        begins_with_list: bool,
        since: str,
    ) -> None:
        self._reader = reader
        self._cache = cache
        self._scope = scope
        self._since = since
        self._should_cache = should_cache
        self._listing: IIncomingList | None = None
        if cache is not None:
            cache.record_use(scope.collection)
            if begins_with_list:
                self._listing = cache.begin_list(scope, "")

    def read(self, data: bytes) -> Sequence[WatchEvent]:
        """Process the next piece; return the events that it completes."""
        events = self._reader.feed(data)
        if self._cache is not None:
            version = ""
            for event in events:
                if event.item is not None:
                    version = event.item.version
                    self._cache_event(self._cache, event, event.item)
            if version and self._since:
                self._cache.advance(self._scope, self._since, version)
        return events

    def _cache_event(self, cache: ICache, event: WatchEvent, item: Item) -> None:
        if event.type == "BOOKMARK":
            if event.initial_events_end and self._listing is not None:
                self._listing.complete(ListMeta(event.meta, item.version))
                self._listing = None
                self._since = item.version
        elif event.type == "DELETED":
            cache.remove(self._scope, item)
        elif self._should_cache is None or self._should_cache(item):
            if self._listing is not None:
                self._listing.add([item])
            else:
                cache.upsert(self._scope.collection, event.meta, item)

    def end(self) -> None:
        """Process the end; cached events stay."""
        self.abandon()

    def abandon(self) -> None:
        """Discard an incomplete list."""
        listing, self._listing = self._listing, None
        if listing is not None:
            listing.abandon()


class _Buffering:
    """Buffers a body of at most ``_max_size`` bytes in ``_pieces``, which subclasses set."""

    _max_size: int
    _size = 0
    _pieces: list[bytes]

    def read(self, data: bytes) -> Sequence[object]:
        """Buffer the next piece; return nothing."""
        self._size += len(data)
        if self._size > self._max_size:
            self._pieces.clear()
            raise BadBody(f"it has more than {self._max_size} bytes")
        self._pieces.append(data)
        return ()

    def abandon(self) -> None:
        """Discard the body."""
        self._pieces.clear()

    def _body(self) -> bytes:
        return self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)


def _is_never(body: bytes) -> bool:
    return False


class ObjectCacher(_Buffering):
    """Caches the object in the response to ``verb``; after its deletion, calls ``on_deleted``.

    The argument is the version below which the object was deleted, empty if the response is a
    Status. Otherwise the response to a ``delete`` has the last state of the object, with the
    version that watches report for the deletion. An update that removes the last finalizer deletes
    the object as well; its response has the version before the deletion
    (``ShouldDeleteDuringUpdate`` of k8s.io/apiserver pkg/registry/generic/registry/store.go).
    """

    _max_size = MAX_ITEM

    def __init__(
        self,
        codec: ICodec,
        cache: ICache | None,
        collection: Collection,
        should_cache: ItemPredicate | None,
        verb: str,
        on_deleted: Callable[[str], object],
    ) -> None:
        self._pieces = []
        self._codec = codec
        self._cache = cache
        self._collection = collection
        self._should_cache = should_cache
        self._verb = verb
        self._on_deleted = on_deleted
        self.is_recent: Callable[[bytes], bool] = _is_never
        """Returns whether a body need not be parsed."""

    def end(self) -> None:
        """Process the end."""
        if not self.is_recent(self._body()):
            self.take_whole()

    def take_whole(self) -> tuple[TypeMeta, bytes]:
        """Process the end; return the type and the whole body."""
        body = self._body()
        meta, item = self._codec.read_object(body)
        if meta.kind != STATUS and not item.name:
            raise BadBody("it is an object without a name")
        cache = self._cache
        if cache is None:
            return meta, body
        deleted_below = self._deleted_below(meta, item)
        if deleted_below is not None:
            self._on_deleted(deleted_below)
        elif meta.kind != STATUS and (self._should_cache is None or self._should_cache(item)):
            cache.upsert(self._collection, meta, item)
        return meta, body

    def _deleted_below(self, meta: TypeMeta, item: Item) -> str | None:
        """Return the argument of ``on_deleted``, ``None`` if the object exists."""
        if meta.kind == STATUS:
            return "" if self._verb == "delete" else None
        if self._collection.resource == _NAMESPACES and not is_namespace(meta):
            # A Table or PartialObjectMetadata does not show the finalizers in its spec.
            return None
        if self._verb == "delete":
            is_pending = self._codec.deletion(item.body, meta).is_pending
            return None if is_pending else item.version
        if self._verb in _UPDATES and self._codec.deletion(item.body, meta) == (True, False):
            return successor(item.version)
        return None


class DocumentCacher(_Buffering):
    """Caches a document; while incomplete, it is charged to ``share_holder`` in ``places``."""

    _max_size = MAX_DOCUMENT

    def __init__(
        self,
        cache: ICache,
        path: str,
        form: str,
        content_type: str,
        places: SharedLimit,
        share_holder: str | None,
    ) -> None:
        self._pieces = []
        self._cache = cache
        self._path = path
        self._form = form
        self._content_type = content_type
        self._places = places
        self._holder = share_holder
        self._charged = 0

    def read(self, data: bytes) -> Sequence[object]:
        if not self._places.has_room_for(self._holder):
            raise BadBody("this and other incomplete documents are too large together")
        self._charge(self._charged + len(data))
        return super().read(data)

    def end(self) -> None:
        """Process the end."""
        document = CachedDocument(self._content_type, self._body())
        self._charge(0)
        self._cache.store_document("", self._path, self._form, document)

    def abandon(self) -> None:
        super().abandon()
        self._charge(0)

    def _charge(self, size: int) -> None:
        self._places.add(self._holder, size - self._charged)
        self._charged = size
