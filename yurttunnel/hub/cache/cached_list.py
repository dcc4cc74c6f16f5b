"""A cached list that is being read, in the reactor thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NoReturn, TypeVar

from twisted.internet.defer import Deferred, TimeoutError, fail
from twisted.internet.interfaces import IReactorTime
from twisted.python.failure import Failure
from zope.interface import implementer

from yurttunnel.hub.cache.interfaces import CacheFailed, ICachedList
from yurttunnel.hub.cache.reading import Snapshot
from yurttunnel.hub.media.interfaces import Item, ListMeta

MAX_AGE = 120.0
"""Maximum age of a snapshot in seconds; the log of the file grows as long as one is open."""

READ_TIMEOUT = 10.0
"""The timeout of a read, or of a piece of a list, in seconds."""

_Result = TypeVar("_Result")


def with_timeout(clock: IReactorTime, reading: Deferred[_Result]) -> Deferred[_Result]:
    """Add a timeout to a read, which then fails with :class:`CacheFailed`."""
    return reading.addTimeout(READ_TIMEOUT, clock).addErrback(_explain)


def _explain(failure: Failure) -> NoReturn:
    failure.trap(TimeoutError)
    raise CacheFailed("the disk did not return the cached data in time")


@implementer(ICachedList)
class CachedList:
    """See :class:`ICachedList`; ``read`` runs a function in the thread; ``on_closed`` is called
    once."""

    def __init__(
        self,
        clock: IReactorTime,
        read: Callable[[Callable[[], Sequence[Item]]], Deferred[Sequence[Item]]],
        snapshot: Snapshot,
        complete: bool,
        on_closed: Callable[[CachedList, Snapshot], object],
    ) -> None:
        self._clock = clock
        self._in_reader = read
        self._snapshot = snapshot
        self._on_closed = on_closed
        self._is_closed = False
        self._timer = clock.callLater(MAX_AGE, self._close)
        self.meta: ListMeta = snapshot.meta
        self.complete: bool = complete
        self.sizes: Sequence[int] = snapshot.sizes

    def read(self) -> Deferred[Sequence[Item]]:
        if self._is_closed:
            return fail(CacheFailed("a list was not read to its end in time"))
        return with_timeout(self._clock, self._in_reader(self._snapshot.read))

    def close(self) -> None:
        if not self._is_closed:
            self._timer.cancel()
            self._close()

    def _close(self) -> None:
        self._is_closed = True
        self._on_closed(self, self._snapshot)
