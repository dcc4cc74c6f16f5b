"""Lists that are being received: in memory until a page is complete, then in one transaction.

A list may consist of several pages, each with a request of its own. The earlier pages are found by
the continue token of the next one, for as long as the API server may accept it (5 to 15 minutes,
the compaction interval of etcd). After that, and after a restart, the last page of a list removes
nothing. The same applies if its first pages are no longer in the file, because there was no room or
a new file was created.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from sqlite3 import Connection

from twisted.internet.interfaces import IReactorTime
from zope.interface import implementer

from yurttunnel.hub.cache import late, objects
from yurttunnel.hub.cache.interfaces import Collection, IIncomingList, Scope
from yurttunnel.hub.cache.queue import PendingWrite, Tombstone, WriteQueue
from yurttunnel.hub.cache.versions import Version, is_older, version_of
from yurttunnel.hub.cache.writes import OVERHEAD, Write, WriteResult, scope_size
from yurttunnel.hub.media.interfaces import Item, ListMeta
from yurttunnel.ops.bounded_dict import BoundedDict

MAX_LISTS = 32
"""Maximum number of lists with outstanding pages."""

MAX_NAMES = 200_000
"""Maximum number of objects in the pages of one list; a longer list removes nothing."""

PAGE_SECONDS = 900.0
"""How long a next page is expected, in seconds."""


class Pages:
    """The pages of one list, as a linked list.

    Below the version ``whole_from`` the last page is incomplete; 0 if it is complete.
    """

    def __init__(
        self, before: Pages | None, names: Sequence[tuple[str, str]], whole_from: int
    ) -> None:
        self._count: int = len(names) + (0 if before is None else before._count)
        self._is_broken = self._count > MAX_NAMES
        # Pages with too many names remove nothing, so no names are kept.
        self._before, self._names = (None, ()) if self._is_broken else (before, names)
        self._whole_from = whole_from
        # The row of their collection, once they are written.
        self._row: int | None = None

    @property
    def is_broken(self) -> bool:
        """Whether a page was lost."""
        return any(each._is_broken for each in self._all())

    @property
    def whole_from(self) -> int:
        """The version below which any of them is incomplete, 0 if all are complete."""
        return max(each._whole_from for each in self._all())

    def mark_incomplete(self, version: int) -> None:
        """Record that the last page is incomplete below that version, too; 0 has no effect."""
        self._whole_from = max(self._whole_from, version)

    def mark_lost(self) -> None:
        """Record that the last page is lost."""
        self._is_broken = True

    def mark_written(self, row: int) -> None:
        """Record that the last page was written to that row of ``collections``.

        Earlier pages in another row have been deleted with that row.
        """
        self._row = row
        if self._before is not None and self._before._row != row:
            self._is_broken = True

    def names(self) -> Iterator[tuple[str, str]]:
        """Yield the namespaces and names of all pages."""
        for each in self._all():
            yield from each._names

    def _all(self) -> Iterator[Pages]:
        """Yield all pages, the last first; not recursive, because there may be very many."""
        pages: Pages | None = self
        while pages is not None:
            yield pages
            pages = pages._before


_Expected = BoundedDict[tuple[Scope, str], tuple[Pages, float]]
"""The earlier pages by the continue token of the next page, and the end of their validity."""


class PagedLists:
    """The lists with outstanding pages."""

    def __init__(self, clock: IReactorTime) -> None:
        self._clock = clock
        # The expected pages; and the pages that were received last, which may be requested again.
        self._next = _Expected(MAX_LISTS)
        self._last = _Expected(MAX_LISTS)

    def find(self, scope: Scope, token: str) -> Pages | None:
        """Return the pages before the one that continues with ``token``."""
        key = scope, token
        pages, until = self._next.get(key) or self._last.get(key) or (None, 0.0)
        return pages if self._clock.seconds() < until else None

    def received(self, scope: Scope, token: str) -> None:
        """Record that the page that continues with ``token`` was received."""
        last = self._next.pop((scope, token), None)
        if last is not None:
            self._last[scope, token] = last

    def expect(self, scope: Scope, token: str, pages: Pages) -> None:
        """Record that a page that continues with ``token`` may follow."""
        self._next[scope, token] = pages, self._clock.seconds() + PAGE_SECONDS


class Page(Write):
    """A page to be written, with all ``pages`` so far if they are known."""

    is_list = True

    def __init__(
        self, scope: Scope, meta: ListMeta, items: Sequence[Item], size: int, pages: Pages | None
    ) -> None:
        self.size = size
        self._scope = scope
        self._meta = meta
        self._items = items
        self._pages = pages

    def execute(self, connection: Connection) -> WriteResult:
        version = version_of(self._meta.version)
        of = self._scope.collection
        collection = objects.upsert_collection(connection, of, self._meta.type, version)
        newer = late.newer_scopes(connection, collection, of, version)
        items = late.without_deleted(connection, collection, newer, self._items)
        incomplete = late.list_incomplete_below(newer, self._scope)
        mark_written = objects.put(connection, collection, items, version)
        if self._pages is not None:
            self._pages.mark_written(collection)
            if len(items) < len(self._items):
                # The newer scopes may no longer be known when the last page is written.
                self._pages.mark_incomplete(incomplete)
        if not self._meta.continue_token and self._pages is not None and not self._pages.is_broken:
            names = list(self._pages.names())
            objects.remove_others(connection, collection, self._scope, names, version)
            if incomplete and objects.absent(connection, collection, names):
                self._pages.mark_incomplete(incomplete)
            objects.mark_listed(
                connection,
                collection,
                self._scope,
                self._meta.columns,
                version,
                self._pages.whole_from,
            )
        return WriteResult(mark_written, len(self._items) - mark_written)

    def drop(self) -> Iterable[Collection]:
        if self._pages is not None:
            self._pages.mark_lost()
        return (self._scope.collection,)


@implementer(IIncomingList)
class Listing:
    """A list, or a page of it, that is being received."""

    def __init__(
        self,
        queue: WriteQueue,
        paged: PagedLists,
        incoming: IncomingLists,
        scope: Scope,
        continue_token: str,
        owner: str,
    ) -> None:
        self._queue = queue
        self._paged = paged
        self._incoming = incoming
        self.scope = scope
        self._continue_token = continue_token
        self.owner = owner
        self._items: list[Item] = []
        self._size = self._lag = 0
        self._reserved: PendingWrite | None = None
        self.is_over = False

    def add(self, items: Sequence[Item]) -> None:
        if self.is_over:
            return
        self._items += items
        size = sum(len(item.body) for item in items) + OVERHEAD * len(items)
        self._size += size
        self._queue.size += size
        self._incoming.make_room(self)

    def lag(self, size: int, ended: bool) -> bool:
        if self.is_over:
            return False
        self._queue.size += size - self._lag
        self._lag = size
        if ended and self._reserved is None:
            self._reserved = self._queue.reserve()
        self._incoming.make_room(self)
        return not self.is_over

    @property
    def used(self) -> int:
        """The memory that it takes, in bytes."""
        return self._size + self._lag

    def complete(self, meta: ListMeta) -> None:
        if self.is_over:
            return
        size = self._size + scope_size(self.scope)
        callback = partial(self._put, meta, self._items, size)
        self._release()
        reserved, self._reserved = self._reserved or self._queue.reserve(), None
        self._queue.fulfil(reserved, callback, size)

    def _put(self, meta: ListMeta, items: Sequence[Item], size: int) -> None:
        """Queue the page after all earlier writes."""
        tombstones = self._queue.tombstones_of(self.scope.collection)
        items, whole_from = _without_deleted(tombstones, self.scope, items)
        pages = self._pages([(item.namespace, item.name) for item in items], whole_from)
        self._paged.received(self.scope, self._continue_token)
        if pages is not None and meta.continue_token:
            self._paged.expect(self.scope, meta.continue_token, pages)
        elif pages is not None:
            since = _exited_since(tombstones, self.scope, version_of(meta.version), pages)
            pages.mark_incomplete(since)
        owner = self._queue.owner_of(self.scope.collection.client)
        self._queue.put_at_once(Page(self.scope, meta, items, size, pages), owner)

    def abandon(self) -> None:
        self._release()
        reserved, self._reserved = self._reserved, None
        if reserved is not None:
            self._queue.fulfil(reserved, lambda: None, 0)

    def _release(self) -> None:
        self.is_over = True
        self._incoming.discard(self)
        self._queue.size -= self.used
        self._items, self._size, self._lag = [], 0, 0

    def _pages(self, names: Sequence[tuple[str, str]], whole_from: int) -> Pages | None:
        """Return all pages so far, ``None`` if the earlier ones are not known."""
        if not self._continue_token:
            return Pages(None, names, whole_from)
        before = self._paged.find(self.scope, self._continue_token)
        return None if before is None else Pages(before, names, whole_from)


class IncomingLists:
    """The lists that are being received for a queue.

    If they do not fit together, the largest list of the owner that uses most is refused. So an
    owner that is alone may use all of the memory, and none can keep the others from theirs, for
    example by reading slowly.
    """

    def __init__(
        self, clock: IReactorTime, queue: WriteQueue, on_refused: Callable[[Scope], object]
    ) -> None:
        self._queue = queue
        self._paged = PagedLists(clock)
        self._on_refused = on_refused
        self._lists: set[Listing] = set()

    def begin(self, scope: Scope, continue_token: str, owner: str) -> Listing:
        """Begin a list, or a page of it."""
        listing = Listing(self._queue, self._paged, self, scope, continue_token, owner)
        self._lists.add(listing)
        return listing

    def discard(self, listing: Listing) -> None:
        """Remove a list that has ended."""
        self._lists.discard(listing)

    def make_room(self, listing: Listing) -> None:
        """Refuse lists until there is room for a list, or it is refused itself."""
        while not (listing.is_over or self._queue.has_room_for_lists()):
            used: Counter[str] = Counter()
            for each in self._lists:
                used[each.owner] += each.used
            refused = max(self._lists, key=lambda each: (used[each.owner], each.used))
            # It counts as waiting data until it is abandoned.
            self._on_refused(refused.scope)
            refused.abandon()


def _without_deleted(
    tombstones: Mapping[tuple[str, str], Tombstone], scope: Scope, items: Sequence[Item]
) -> tuple[Sequence[Item], int]:
    """Return the items without those that have been deleted at a newer version.

    Also return the version below which the scope may lack an item that has left another scope.
    """
    if tombstones.keys().isdisjoint((item.namespace, item.name) for item in items):
        return items, 0
    present: list[Item] = []
    whole_from = 0
    for item in items:
        end = tombstones.get((item.namespace, item.name))
        if end is None or not is_older(version_of(item.version), end.version):
            present.append(item)
        elif end.part is not None and not objects.is_within(scope, end.part):
            whole_from = max(whole_from, end.version)
    return present, whole_from


def _exited_since(
    tombstones: Mapping[tuple[str, str], Tombstone], scope: Scope, version: Version, pages: Pages
) -> int:
    """Return the version below which a list of ``version`` may be incomplete.

    The reason are objects that left another scope after their page was received.
    """
    left = {
        key: end.version
        for key, end in tombstones.items()
        if end.part is not None
        and is_older(version, end.version)
        and not objects.is_within(scope, end.part)
    }
    return max((left[name] for name in pages.names() if name in left), default=0) if left else 0
