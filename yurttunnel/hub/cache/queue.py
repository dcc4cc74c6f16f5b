"""The queue of writes, ordered and with limited memory."""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import chain, islice
from typing import NamedTuple

from twisted.internet.defer import Deferred, succeed

from yurttunnel.hub.cache.events import StoreEvent
from yurttunnel.hub.cache.interfaces import Collection, Scope
from yurttunnel.hub.cache.versions import Version, is_older
from yurttunnel.hub.cache.writes import (
    MAX_BATCH_SIZE,
    Change,
    Changes,
    Key,
    MarkIncomplete,
    Write,
    in_all_forms,
)
from yurttunnel.ops.bounded_dict import BoundedDict

MAX_TOMBSTONES = 2_000
"""Maximum number of remembered deletions, which late lists and watches must not undo."""

MAX_INCOMPLETE = 10_000
"""Maximum number of collections recorded as incomplete while the disk accepts no writes; over it,
all collections are."""

MAX_PENDING = 1_000
"""Maximum number of changes that wait for lists being parsed, which takes a tenth of a second for a
large list."""

CHANGES_SECONDS = 0.2
"""How long changes are collected, in seconds, unless something else is written or read meanwhile; a
process that is killed may lose that much. Most are events of watches, which take half the time of
the writer thread that they take in transactions of 0.05 s (docs/performance.md)."""

MAX_DEFERRED = 32
MAX_DEFERRED_SIZE = 128 * 1024
"""Maximum number and size in bytes of deferred calls, which take a few milliseconds together."""

_LISTS_SHARE = 0.8
"""The share of the memory for lists; the rest is for changes."""


class PendingWrite:
    """A write that waits for lists that are still being parsed, or the write of such a list.

    ``callback`` is called once all earlier lists are parsed, and is ``None`` while it is not known;
    ``size`` is the memory that it takes, in bytes. If it ``is_ordered``, it never overtakes others.
    """

    def __init__(
        self, callback: Callable[[], object] | None = None, size: int = 0, is_ordered: bool = False
    ) -> None:
        self.callback = callback
        self.size = size
        self._is_ordered = is_ordered

    @property
    def must_wait(self) -> bool:
        """Whether it cannot be called before the earlier ones."""
        return self._is_ordered or self.callback is None


class Tombstone(NamedTuple):
    """The version at which an object was deleted; ``part`` is set if it only left that part."""

    version: int
    part: Scope | None


class WriteQueue:
    """The writes that wait, and those in progress.

    ``max_size`` is the limit of their memory in bytes, including lists that are being received.
    Over it the oldest writes are dropped, and ``on_drop`` is called with the number of objects or
    lists. A :class:`MarkIncomplete` in their place records that their collections are incomplete
    until they are listed again. ``uses_queue(client)`` returns whether a client uses this queue; it
    is also called in the writer thread. ``on_added`` is called when something was added, with the
    time in seconds within which it is to be written, or ``None`` for soon.

    ``owner_of(client)`` returns the account of a client, empty if it has no limit of its own. The
    writes of an account, except lists, may use as much memory as they leave free. Over it the
    account's oldest writes are dropped, so no account displaces the writes of others.
    """

    def __init__(
        self,
        max_size: int,
        on_added: Callable[[float | None], object],
        on_drop: Callable[[int], object],
        uses_queue: Callable[[str], bool],
        owner_of: Callable[[str], str] = lambda client: "",
    ) -> None:
        self.owner_of = owner_of
        self._max_size = max_size
        self._on_added = on_added
        self._on_drop = on_drop
        self._uses_queue = uses_queue
        # The waiting writes in their order, and those of each account. Not in a dict, which is slow
        # to find its first key after many deletions at its beginning.
        self._queued: OrderedDict[Write, None] = OrderedDict()
        self._by_owner: dict[str, OrderedDict[Write, None]] = {}
        self._taken: list[Write] = []
        self._postponed: list[Write] = []
        # The changes behind all other writes, by owner.
        self._last_changes: dict[str, Changes] = {}
        # The memory of each account's writes.
        self._used: Counter[str] = Counter()
        self._barriers: dict[int, list[Deferred[None]]] = {}
        self._pending: deque[PendingWrite] = deque()
        self._deferred: list[Callable[[], object]] = []
        self._deferred_size = 0
        self._tombstones = BoundedDict[Key, Tombstone](MAX_TOMBSTONES)
        # Those among the writes, of which there may be very many.
        self._markers: set[MarkIncomplete] = set()
        # The write behind lists that were overtaken by newer data, and its pending write.
        self._late_marker: MarkIncomplete | None = None
        self._late_pending: PendingWrite | None = None
        self.size = 0
        """Approximate memory of all writes in bytes."""

    def __bool__(self) -> bool:
        """Whether a write waits."""
        return bool(self._queued)

    @property
    def has_responses(self) -> bool:
        """Whether objects from responses of the API wait."""
        return any(write.is_list or isinstance(write, Changes) for write in self._queued)

    @property
    def is_busy(self) -> bool:
        """Whether a write waits or is in progress, or is still to be parsed."""
        return bool(self or self._taken or self._pending or self._deferred)

    @property
    def awaits_lists(self) -> bool:
        """Whether a list is still being parsed."""
        return bool(self._pending)

    def defer(self, call: Callable[[], object], size: int) -> None:
        """Call a function, which may queue writes, in its turn: before any other write is queued.

        It must not raise; ``size`` is the memory that it takes, in bytes.
        """
        if not self._deferred:
            self._on_added(CHANGES_SECONDS)
        self._deferred.append(call)
        self._deferred_size += size
        if len(self._deferred) >= MAX_DEFERRED or self._deferred_size >= MAX_DEFERRED_SIZE:
            self.call_deferred()

    def call_deferred(self) -> None:
        """Call the deferred functions."""
        calls, self._deferred, self._deferred_size = self._deferred, [], 0
        for call in calls:
            call()

    def put(self, write: Write, owner: str = "") -> None:
        """Queue a write of ``owner`` behind all earlier ones."""
        self.call_deferred()
        self._after_lists(partial(self.put_at_once, write, owner), write.size)

    def put_at_once(self, write: Write, owner: str = "") -> None:
        """Queue a write whose turn has come."""
        self._last_changes.clear()
        write.owner = owner
        self._append(write)
        self._on_added(None)
        self._charge(write, write.size)
        self._enforce_limits(owner)

    def change(self, key: Key, change: Change) -> None:
        """Queue a change of an object; changes that are known to be out of date are ignored."""
        self.call_deferred()
        if self._pending:
            size = 0 if change.item is None else len(change.item.body)
            self._after_lists(partial(self._change, key, change), size)
        else:
            self._change(key, change)

    def _change(self, key: Key, change: Change) -> None:
        tombstone, scope_exit = self._tombstones.get(key), change.scope_exit
        is_late = tombstone is not None and is_older(change.version, tombstone.version)
        if not is_late and change.item is None and isinstance(change.version, int):
            part = None if scope_exit is None else scope_exit.part
            self._tombstones[key] = Tombstone(change.version, part)
        owner = self.owner_of(key.collection.client)
        changes = None if is_late else self._target_of(key, change, owner)
        # What an object has left is written with its removal, in one transaction.
        target = changes or (self._last(owner) if scope_exit is not None else None)
        if target is None:
            return
        before = target.size
        if changes is not None:
            changes.put(key, change)
        if scope_exit is not None:
            target.add_exit(scope_exit)
        self._charge(target, target.size - before)
        self._enforce_limits(owner)

    def advance(self, scope: Scope, since: Version, version: Version) -> None:
        """Record that a scope is known from one version to another, given all earlier writes."""
        self.call_deferred()
        if self._pending:
            self._after_lists(partial(self._advance, scope, since, version))
        else:
            self._advance(scope, since, version)

    def _advance(self, scope: Scope, since: Version, version: Version) -> None:
        owner = self.owner_of(scope.collection.client)
        changes = self._last(owner)
        before = changes.size
        changes.advance(scope, since, version)
        self._charge(changes, changes.size - before)
        self._enforce_limits(owner)

    def tombstones_of(self, collection: Collection) -> Mapping[tuple[str, str], Tombstone]:
        """Return the recent deletions in a collection, by namespace and name.

        Older states of these objects must not be stored again.
        """
        return {
            (key.namespace, key.name): tombstone
            for key, tombstone in self._tombstones.items()
            if key.collection == collection
        }

    def is_incomplete(self, collection: Collection) -> bool:
        """Return whether a write of a collection was dropped and this is not on disk yet."""
        names = {collection, in_all_forms(*collection[:2])}
        return any(
            not names.isdisjoint(marker.collections) or marker.of_all is not None
            for marker in self._markers
        )

    def has_room_for_lists(self) -> bool:
        """Return whether lists that are being received may use more memory."""
        return self.size <= self._max_size * _LISTS_SHARE

    def take(self, max_size: int = MAX_BATCH_SIZE) -> list[Write]:
        """Take the next writes for one transaction; :meth:`done` or :meth:`put_back` must follow.

        These are at most ``max_size`` bytes, or a single write.
        """
        size = 0
        while self._queued and (not size or size + self._first().size <= max_size):
            write = self._first()
            size += write.size
            self._taken.append(write)
            self._remove(write)
        # Changes that are being written must not change.
        self._last_changes.clear()
        return list(self._taken)

    def done(self) -> None:
        """Remove the taken writes, which are done."""
        taken, self._taken = self._taken, []
        for write in taken:
            if write is self._late_marker:
                self._late_marker = None
            self._finish(write)

    def drop_taken(self) -> set[str]:
        """Drop the taken writes for lack of room; return the clients whose data is incomplete."""
        taken, self._taken = self._taken, []
        return {collection.client for write in taken for collection in self._drop(write)}

    def should_wait(self, max_size: int) -> bool:
        """Return whether the taken writes should wait for room.

        They should if they are changes of at most ``max_size`` bytes and no later write makes room:
        unlike lists, changes are not sent again, so they should not be dropped.
        """
        taken = [write for write in self._taken if write.size]
        return all(
            isinstance(each, Changes) and each.size <= max_size for each in taken
        ) and not any(_frees_space(each) for each in self._queued)

    def postpone(self) -> bool:
        """Postpone taken Events until :meth:`resume`; return whether there were any.

        There is no room for them, but their creators have been told that they are stored.
        """
        postponed = [write for write in self._taken if isinstance(write, StoreEvent)]
        self._postponed += postponed
        self._taken = [write for write in self._taken if write not in postponed]
        for write in postponed:
            self._fire_barriers(write)
        if postponed:
            self.put_back()
        return bool(postponed)

    def resume(self) -> None:
        """Queue the postponed writes behind all others."""
        self._last_changes.clear()
        for write in self._postponed:
            self._append(write)
        self._postponed.clear()

    @property
    def has_postponed(self) -> bool:
        """Whether Events were postponed because there was no room."""
        return bool(self._postponed)

    def put_back(self) -> None:
        """Queue the taken writes again, before all others: they could not be done now."""
        taken, self._taken = self._taken, []
        last = taken[-1] if taken else None
        if isinstance(last, MarkIncomplete) and last is not self._late_marker:
            # Merged with what was dropped since then, so that retries do not accumulate.
            self._mark_incomplete(last)
            taken.pop()
            self._markers.discard(last)
        for write in reversed(taken):
            self._prepend(write)
        self._last_changes.clear()
        self._enforce_limits()

    def reserve(self) -> PendingWrite:
        """Return the pending write of a list that was received and is still being parsed.

        All later writes wait for it.
        """
        self.call_deferred()
        pending = PendingWrite()
        self._pending.append(pending)
        return pending

    def fulfil(self, pending: PendingWrite, callback: Callable[[], object], size: int) -> None:
        """Set the callback of a reserved write, and run those whose predecessors are complete."""
        pending.callback, pending.size = callback, size
        self.size += size
        while self._pending and self._pending[0].callback is not None:
            self._run(self._pending.popleft())

    def _after_lists(self, callback: Callable[[], object], size: int = 0) -> None:
        """Call a function once all earlier lists have been parsed."""
        if not self._pending:
            callback()
            return
        self._pending.append(PendingWrite(callback, size))
        self.size += size
        if len(self._pending) > MAX_PENDING or self.size > self._max_size:
            # Late lists are corrected by their versions, if these can be compared.
            overtaken = self._pending
            self._pending = deque(pending for pending in overtaken if pending.must_wait)
            self._add_late_marker()
            for pending in overtaken:
                if not pending.must_wait:
                    self._run(pending)

    def _add_late_marker(self) -> None:
        """Add a marker after the pending lists, for dropped changes that have overtaken them."""
        for pending in reversed(self._pending):
            if pending is self._late_pending:
                return
            if pending.callback is None:
                break
        self._late_marker = MarkIncomplete(set())
        self._late_pending = PendingWrite(
            partial(self._put_late_marker, self._late_marker), is_ordered=True
        )
        self._pending.append(self._late_pending)

    def _put_late_marker(self, marker: MarkIncomplete) -> None:
        if self._queued or self._taken:
            self._markers.add(marker)
            self.put_at_once(marker)
        elif marker is self._late_marker:
            # The changes that overtook those lists have been written.
            self._late_marker = None

    def _run(self, pending: PendingWrite) -> None:
        self.size -= pending.size
        if pending.callback is not None:
            pending.callback()

    def barrier(self) -> Deferred[None]:
        """Return a Deferred that fires when all writes so far are done or dropped."""
        self.call_deferred()
        if not self._pending:
            return self._barrier()
        reached: Deferred[None] = Deferred()
        self._pending.append(PendingWrite(partial(reached.callback, None), is_ordered=True))
        return reached.addCallback(lambda _: self._barrier())

    def _barrier(self) -> Deferred[None]:
        backwards = chain(reversed(self._queued), reversed(self._taken))
        last = next((write for write in backwards if not isinstance(write, MarkIncomplete)), None)
        if last is None:
            return succeed(None)
        done: Deferred[None] = Deferred()
        self._barriers.setdefault(id(last), []).append(done)
        return done

    def _target_of(self, key: Key, change: Change, owner: str) -> Changes | None:
        """Return where a change belongs, ``None`` if a newer one is queued."""
        for write in reversed(self._queued):
            if not isinstance(write, Changes):
                # A list may contain the object, so a later change must not be written before it.
                break
            before = write.by_key.get(key)
            if before is None:
                continue
            if is_older(change.version, before.version):
                return None
            if change.item is None and change.version == before.version != "":
                # It has left a selection, but still exists.
                return None
            if isinstance(change.version, int) and isinstance(before.version, int):
                # Numbers are compared again when they are written, so the order does not matter.
                return write
            break
        return self._last(owner)

    def _last(self, owner: str) -> Changes:
        """Return the changes of an owner behind all other writes."""
        last = self._last_changes.get(owner)
        if last is None or last.size >= MAX_BATCH_SIZE:
            last = self._last_changes[owner] = Changes()
            last.owner = owner
            self._append(last)
            self._on_added(CHANGES_SECONDS)
        return last

    def _first(self) -> Write:
        return next(iter(self._queued))

    def _append(self, write: Write) -> None:
        self._queued[write] = self._by_owner.setdefault(write.owner, OrderedDict())[write] = None

    def _prepend(self, write: Write) -> None:
        self._append(write)
        self._queued.move_to_end(write, last=False)
        self._by_owner[write.owner].move_to_end(write, last=False)

    def _remove(self, write: Write) -> None:
        of_owner = self._by_owner[write.owner]
        del self._queued[write], of_owner[write]
        if not of_owner:
            del self._by_owner[write.owner]

    def _charge(self, write: Write, size: int) -> None:
        """Count memory that a write takes, or releases if it is negative."""
        self.size += size
        if write.owner and not write.is_list:
            self._used[write.owner] += size
            if not self._used[write.owner]:
                del self._used[write.owner]

    def _finish(self, write: Write) -> None:
        self._charge(write, -write.size)
        if isinstance(write, MarkIncomplete):
            self._markers.discard(write)
        self._fire_barriers(write)

    def _fire_barriers(self, write: Write) -> None:
        for barrier in self._barriers.pop(id(write), ()):
            barrier.callback(None)

    def _drop(self, write: Write) -> Iterable[Collection]:
        """Drop a write that is older than all queued ones of its owner.

        Return the incomplete collections.
        """
        if write is self._late_marker:
            self._late_marker = None
        if write is self._last_changes.get(write.owner):
            del self._last_changes[write.owner]
        incomplete = write.drop()
        self._mark_incomplete(
            write if isinstance(write, MarkIncomplete) else MarkIncomplete(set(incomplete))
        )
        self._finish(write)
        return incomplete

    def _mark_incomplete(self, more: MarkIncomplete) -> None:
        """Record collections as incomplete, before all queued writes."""
        if not more.collections and more.of_all is None:
            return
        if not self._begins_with_marker():
            first = MarkIncomplete(set())
            self._markers.add(first)
            self._prepend(first)
        if self._late_marker is not None:
            # Not in place, because the thread may be iterating over the set.
            self._late_marker.collections = set(self._late_marker.collections)
        for marker in (self._first(), self._late_marker):
            if isinstance(marker, MarkIncomplete):
                marker.collections |= more.collections
                if more.of_all is not None or len(marker.collections) > MAX_INCOMPLETE:
                    marker.collections, marker.of_all = set(), self._uses_queue

    def _begins_with_marker(self) -> bool:
        return bool(self._queued) and isinstance(self._first(), MarkIncomplete)

    def _enforce_limits(self, owner: str = "") -> None:
        """Enforce the limit of ``owner``, and that of all."""
        dropped = 0
        while self._used.get(owner, 0) > max(0, self._max_size - self.size):
            if owner not in self._by_owner:
                break
            dropped += self._drop_oldest(next(iter(self._by_owner[owner])))
        while self.size > self._max_size:
            oldest = islice(self._queued, 1 if self._begins_with_marker() else 0, None)
            write = next(oldest, None)
            if write is None:
                break
            dropped += self._drop_oldest(write)
        if dropped:
            self._on_drop(dropped)

    def _drop_oldest(self, oldest: Write) -> int:
        """Drop a queued write, or its oldest change; return how many of them."""
        if isinstance(oldest, Changes) and len(oldest.by_key) > 1:
            before = oldest.size
            self._mark_incomplete(MarkIncomplete({oldest.drop_oldest()}))
            self._charge(oldest, oldest.size - before)
            return 1
        self._remove(oldest)
        self._drop(oldest)
        return 0 if isinstance(oldest, MarkIncomplete) else 1


def _frees_space(write: Write) -> bool:
    """Return whether a write may free space: a list, a deletion, or an eviction."""
    if isinstance(write, Changes):
        return any(change.item is None for change in write.by_key.values())
    return not isinstance(write, MarkIncomplete | StoreEvent)
