"""Lists that are read behind: their bytes go to the client, and are cut when there is time for it.

To cut a list of thousands of objects takes as long as to pass it on, and only the cache waits for
that. So what has come is cut in turns of the reactor in which no more of it comes, a slice in each,
and the rest after the end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import Cooperator, SchedulerStopped
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from yurttunnel.http.fields import Fields
from yurttunnel.http.interfaces import IBodySink
from yurttunnel.hub.cache.interfaces import IListing
from yurttunnel.hub.forwarding.keeping import IKeeper

SLICE = 128 * 1024
"""Bytes that are cut in one turn of the reactor, which takes some 2 ms as JSON; less than that is
cut with the end of the body."""

COMPRESSED_SLICE = 8 * 1024
"""The same of a body in gzip, of which lists of pods have 10 to 25 times as much."""


class Turns:
    """Gives each list that is read behind its turns; whoever made it closes it."""

    _log = Logger()

    def __init__(self, clock: IReactorTime) -> None:
        self._cooperator = Cooperator(
            terminationPredicateFactory=lambda: lambda: True,
            scheduler=lambda call: clock.callLater(0, call),
        )

    def take(self, steps: Iterator[None]) -> None:
        """Take ``steps``, one a turn."""
        _ = self._cooperator.cooperate(steps).whenDone().addErrback(self._failed)

    def _failed(self, failure: Failure) -> None:
        if not failure.check(SchedulerStopped):
            self._log.failure("Defect: a list could not be read behind its client", failure)

    def close(self) -> None:
        """Take no more turns."""
        self._cooperator.stop()


@implementer(IBodySink)
class ReadBehind:
    """Passes a body on to ``sink``, and has ``keeper`` read it for ``listing``.

    It reads ``slice`` bytes in each of its ``turns``; ``unread(error)`` is called once when it
    cannot be read.
    """

    def __init__(
        self,
        sink: IBodySink,
        keeper: IKeeper,
        unread: Callable[[Exception], object],
        listing: IListing,
        turns: Turns,
        slice: int,
    ) -> None:
        self._sink = sink
        self._pass_on = sink.write
        self._keeper = keeper
        self._unread = unread
        self._listing = listing
        self._turns = turns
        self._slice = slice
        self._pieces: deque[bytes] = deque()
        self._size = 0
        self._has_turns = self._more_has_come = self._has_ended = self._is_over = False

    def write(self, data: bytes) -> None:
        """See ``IBodySink``."""
        self._pass_on(data)
        if self._is_over:
            return
        self._pieces.append(data)
        self._size += len(data)
        self._more_has_come = True
        self._note_lag()
        if self._size > self._slice and not self._has_turns:
            self._has_turns = True
            self._turns.take(self._steps())

    def finish(self, trailers: Fields = ()) -> None:
        """See ``IBodySink``."""
        self._has_ended = True
        if not self._has_turns and not self._is_over:
            # What is short is there with its end.
            self._read()
        self._note_lag()
        self._sink.finish(trailers)

    def abandon(self) -> None:
        """Forget what has come."""
        self._is_over = True
        self._pieces.clear()
        self._size = 0
        self._keeper.abandon()

    def _note_lag(self) -> None:
        if not self._is_over and not self._listing.lag(self._size, self._has_ended):
            self.abandon()

    def _steps(self) -> Iterator[None]:
        while self._size > self._slice or (self._has_ended and not self._is_over):
            if self._has_ended or not self._more_has_come:
                self._read()
                self._note_lag()
            self._more_has_come = False
            yield
        self._has_turns = False

    def _read(self) -> None:
        """Read the next slice, and the end behind the last one."""
        try:
            left = self._slice
            while self._pieces and left:
                piece = self._pieces.popleft()
                if len(piece) > left:
                    self._pieces.appendleft(piece[left:])
                    piece = piece[:left]
                left -= len(piece)
                self._size -= len(piece)
                self._keeper.read(piece)
            if self._has_ended and not self._pieces:
                self._is_over = True
                self._keeper.end()
        except Exception as error:
            # Whatever is wrong with it, its client gets it all the same.
            self.abandon()
            self._unread(error)
