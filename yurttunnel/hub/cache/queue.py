"""The queue of writes, ordered and with limited memory."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import chain
from typing import NamedTuple

from twisted.internet.defer import Deferred, succeed

from yurttunnel.hub.cache.events import Keep
from yurttunnel.hub.cache.interfaces import Collection, Scope
from yurttunnel.hub.cache.versions import Version, is_older
from yurttunnel.hub.cache.writes import MOST_IN_ONE, Change, Changes, Key, Unlist, Write

MOST_GONE = 2_000
"""Maximum number of remembered deletions, which late lists and watches must not undo."""

MOST_LACKING = 10_000
"""Maximum number of collections recorded as incomplete while the disk accepts no writes; over it,
all collections are."""

MOST_IN_LINE = 1_000
"""Maximum number of changes that wait for lists being parsed, which takes a tenth of a second for a
large list."""

_FOR_LISTS = 0.8
"""The share of the memory for lists; the rest is for changes."""


class Place:
    """A place in the line behind lists that are still being parsed, or of such a list.

    ``told`` is the function to call at its turn, ``None`` while it is not known; ``size`` is the
    memory that it takes, in bytes. If it ``waits``, it is called only at its turn.
    """

    def __init__(
        self, told: Callable[[], object] | None = None, size: int = 0, waits: bool = False
    ) -> None:
        self.told = told
        self.size = size
        self._waits = waits

    @property
    def stays(self) -> bool:
        """Whether it cannot be called before its turn."""
        return self._waits or self.told is None


class Gone(NamedTuple):
    """The version at which an object was deleted; ``part`` is set if it only left that part."""

    version: int
    part: Scope | None


class WriteQueue:
    """The writes that wait, and those in progress.

    ``most`` is the limit of their memory in bytes, including lists that are being received. Over it
    the oldest writes are dropped, and ``on_drop`` is called with the number of objects or lists. An
    :class:`Unlist` in their place records that their collections are incomplete until they are
    listed again. ``has(client)`` returns whether a client uses this queue; it is also called in the
    writer thread. ``on_come`` is called when something was added.
    """

    def __init__(
        self,
        most: int,
        on_come: Callable[[], object],
        on_drop: Callable[[int], object],
        has: Callable[[str], bool],
    ) -> None:
        self._most = most
        self._on_come = on_come
        self._on_drop = on_drop
        self._has = has
        self._waiting: deque[Write] = deque()
        self._taken: list[Write] = []
        self._postponed: list[Write] = []
        self._open: Changes | None = None
        self._marks: dict[int, list[Deferred[None]]] = {}
        self._line: deque[Place] = deque()
        self._gone: OrderedDict[Key, Gone] = OrderedDict()
        # Those among the writes, of which there may be very many.
        self._unlists: set[Unlist] = set()
        # The write behind lists that were overtaken by newer data, and its place in the line.
        self._behind_late: Unlist | None = None
        self._late_place: Place | None = None
        self.size = 0
        """Approximate memory of all writes in bytes."""

    def __bool__(self) -> bool:
        """Whether a write waits."""
        return bool(self._waiting)

    @property
    def is_busy(self) -> bool:
        """Whether a write waits or is in progress, or a list is still being parsed."""
        return bool(self or self._taken or self._line)

    def put(self, write: Write) -> None:
        """Queue a write behind all earlier ones."""
        self._stand_in_line(partial(self.put_at_once, write), write.size)

    def put_at_once(self, write: Write) -> None:
        """Queue a write whose turn has come."""
        self._open = None
        self._waiting.append(write)
        self.size += write.size
        self._bound()

    def change(self, key: Key, change: Change) -> None:
        """Queue a change of an object; changes that are known to be out of date are ignored."""
        size = 0 if change.item is None else len(change.item.body)
        self._stand_in_line(partial(self._change, key, change), size)

    def _change(self, key: Key, change: Change) -> None:
        gone, left = self._gone.get(key), change.left
        is_late = gone is not None and is_older(change.version, gone.version)
        if not is_late and change.item is None and isinstance(change.version, int):
            self._note_gone(key, Gone(change.version, None if left is None else left.part))
        changes = None if is_late else self._place(key, change)
        # What an object has left is written with its removal, in one transaction.
        there = changes or (self._last() if left is not None else None)
        if there is None:
            return
        self.size -= there.size
        if changes is not None:
            changes.put(key, change)
        if left is not None:
            there.leave(left)
        self.size += there.size
        self._bound()

    def see(self, scope: Scope, since: Version, version: Version) -> None:
        """Record that a scope is known from one version to another, given all earlier writes."""
        self._stand_in_line(partial(self._see, scope, since, version))

    def _see(self, scope: Scope, since: Version, version: Version) -> None:
        changes = self._last()
        self.size -= changes.size
        changes.see(scope, since, version)
        self.size += changes.size
        self._bound()

    def gone_of(self, collection: Collection) -> Mapping[tuple[str, str], Gone]:
        """Return the recent deletions in a collection, by namespace and name.

        Older states of these objects must not be stored again.
        """
        return {
            (key.namespace, key.name): gone
            for key, gone in self._gone.items()
            if key.collection == collection
        }

    def is_lacking(self, collection: Collection) -> bool:
        """Return whether a write of a collection was dropped and this is not on disk yet."""
        return any(
            collection in unlist.collections or unlist.of_all is not None
            for unlist in self._unlists
        )

    def lists_have_room(self) -> bool:
        """Return whether lists that are being received may use more memory."""
        return self.size <= self._most * _FOR_LISTS

    def take(self, most: int = MOST_IN_ONE) -> list[Write]:
        """Take the next writes for one transaction; :meth:`done` or :meth:`put_back` must follow.

        These are at most ``most`` bytes, or a single write.
        """
        size = 0
        while self._waiting and (not size or size + self._waiting[0].size <= most):
            size += self._waiting[0].size
            self._taken.append(self._waiting.popleft())
        if not self._waiting:
            self._open = None
        return list(self._taken)

    def done(self) -> None:
        """Remove the taken writes, which are done."""
        taken, self._taken = self._taken, []
        for write in taken:
            if write is self._behind_late:
                self._behind_late = None
            self._end(write)

    def give_up(self) -> set[str]:
        """Drop the taken writes for lack of room; return the clients whose data is incomplete."""
        taken, self._taken = self._taken, []
        return {collection.client for write in taken for collection in self._drop(write)}

    def has_to_wait(self, most: int) -> bool:
        """Return whether the taken writes should wait for room.

        They should if they are changes of at most ``most`` bytes and no later write makes room:
        unlike lists, changes are not sent again, so they should not be dropped.
        """
        taken = [write for write in self._taken if write.size]
        return all(isinstance(each, Changes) and each.size <= most for each in taken) and not any(
            _makes_room(each) for each in self._waiting
        )

    def postpone(self) -> bool:
        """Postpone taken Events until :meth:`resume`; return whether there were any.

        There is no room for them, but their creators have been told that they are stored.
        """
        postponed = [write for write in self._taken if isinstance(write, Keep)]
        self._postponed += postponed
        self._taken = [write for write in self._taken if write not in postponed]
        for write in postponed:
            self._fire_marks(write)
        if postponed:
            self.put_back()
        return bool(postponed)

    def resume(self) -> None:
        """Queue the postponed writes behind all others."""
        self._open = None
        self._waiting += self._postponed
        self._postponed.clear()

    @property
    def has_postponed(self) -> bool:
        """Whether Events were postponed because there was no room."""
        return bool(self._postponed)

    def put_back(self) -> None:
        """Queue the taken writes again, before all others: they could not be done now."""
        taken, self._taken = self._taken, []
        last = taken[-1] if taken else None
        if isinstance(last, Unlist) and last is not self._behind_late:
            # Merged with what was dropped since then, so that retries do not accumulate.
            self._lack(last)
            taken.pop()
            self._unlists.discard(last)
        self._waiting.extendleft(reversed(taken))
        self._open = None
        self._bound()

    def expect(self) -> Place:
        """Return the place of a list that was received and is still being parsed.

        All later writes are behind it.
        """
        place = Place()
        self._line.append(place)
        return place

    def fill(self, place: Place, told: Callable[[], object], size: int) -> None:
        """Set the function that is called at the turn of a place."""
        self._on_come()
        place.told, place.size = told, size
        self.size += size
        while self._line and self._line[0].told is not None:
            self._tell(self._line.popleft())

    def _stand_in_line(self, told: Callable[[], object], size: int = 0) -> None:
        """Call a function once all earlier lists have been parsed."""
        self._on_come()
        if not self._line:
            told()
            return
        self._line.append(Place(told, size))
        self.size += size
        if len(self._line) > MOST_IN_LINE or self.size > self._most:
            # Late lists are corrected by their versions, if these can be compared.
            line = self._line
            self._line = deque(place for place in line if place.stays)
            self._mark_late()
            for place in line:
                if not place.stays:
                    self._tell(place)

    def _mark_late(self) -> None:
        """Put an Unlist behind the lists in line, for dropped changes that have overtaken them."""
        for place in reversed(self._line):
            if place is self._late_place:
                return
            if place.told is None:
                break
        self._behind_late = Unlist(set())
        self._late_place = Place(partial(self._put_late, self._behind_late), waits=True)
        self._line.append(self._late_place)

    def _put_late(self, unlist: Unlist) -> None:
        if self._waiting or self._taken:
            self._unlists.add(unlist)
            self.put_at_once(unlist)
        elif unlist is self._behind_late:
            # The changes that overtook those lists have been written.
            self._behind_late = None

    def _tell(self, place: Place) -> None:
        self.size -= place.size
        if place.told is not None:
            place.told()

    def mark(self) -> Deferred[None]:
        """Return a Deferred that fires when all writes so far are done or dropped."""
        if not self._line:
            return self._mark()
        told: Deferred[None] = Deferred()
        self._line.append(Place(partial(told.callback, None), waits=True))
        return told.addCallback(lambda _: self._mark())

    def _mark(self) -> Deferred[None]:
        backwards = chain(reversed(self._waiting), reversed(self._taken))
        last = next((write for write in backwards if not isinstance(write, Unlist)), None)
        if last is None:
            return succeed(None)
        done: Deferred[None] = Deferred()
        self._marks.setdefault(id(last), []).append(done)
        return done

    def _note_gone(self, key: Key, gone: Gone) -> None:
        self._gone[key] = gone
        self._gone.move_to_end(key)
        if len(self._gone) > MOST_GONE:
            self._gone.popitem(last=False)

    def _place(self, key: Key, change: Change) -> Changes | None:
        """Return where a change belongs, ``None`` if a newer one is queued."""
        for write in reversed(self._waiting):
            if not isinstance(write, Changes):
                # A list may contain the object, so a later change must not be written before it.
                break
            before = write.of.get(key)
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
        return self._last()

    def _last(self) -> Changes:
        """Return the changes at the end of the queue."""
        if self._open is None or self._open.size >= MOST_IN_ONE:
            self._open = Changes()
            self._waiting.append(self._open)
        return self._open

    def _end(self, write: Write) -> None:
        self.size -= write.size
        if isinstance(write, Unlist):
            self._unlists.discard(write)
        self._fire_marks(write)

    def _fire_marks(self, write: Write) -> None:
        for mark in self._marks.pop(id(write), ()):
            mark.callback(None)

    def _drop(self, write: Write) -> Iterable[Collection]:
        """Drop a write that is older than all queued ones; return the incomplete collections."""
        if write is self._behind_late:
            self._behind_late = None
        if write is self._open:
            self._open = None
        lacking = write.drop()
        self._lack(write if isinstance(write, Unlist) else Unlist(set(lacking)))
        self._end(write)
        return lacking

    def _lack(self, more: Unlist) -> None:
        """Record collections as incomplete, before all queued writes."""
        if not more.collections and more.of_all is None:
            return
        if not self._unlists_first():
            first = Unlist(set())
            self._unlists.add(first)
            self._waiting.appendleft(first)
        if self._behind_late is not None:
            # Not in place, because the thread may be iterating over the set.
            self._behind_late.collections = set(self._behind_late.collections)
        for unlist in (self._waiting[0], self._behind_late):
            if isinstance(unlist, Unlist):
                unlist.collections |= more.collections
                if more.of_all is not None or len(unlist.collections) > MOST_LACKING:
                    unlist.collections, unlist.of_all = set(), self._has

    def _unlists_first(self) -> bool:
        return bool(self._waiting) and isinstance(self._waiting[0], Unlist)

    def _bound(self) -> None:
        dropped = 0
        while self.size > self._most:
            place = 1 if self._unlists_first() else 0
            if place == len(self._waiting):
                break
            oldest = self._waiting[place]
            if isinstance(oldest, Changes) and len(oldest.of) > 1:
                self.size -= oldest.size
                self._lack(Unlist({oldest.drop_oldest()}))
                self.size += oldest.size
                dropped += 1
            else:
                del self._waiting[place]
                self._drop(oldest)
                dropped += not isinstance(oldest, Unlist)
        if dropped:
            self._on_drop(dropped)


def _makes_room(write: Write) -> bool:
    """Return whether a write may free space: a list, a deletion, or an eviction."""
    if isinstance(write, Changes):
        return any(change.item is None for change in write.of.values())
    return not isinstance(write, Unlist | Keep)
