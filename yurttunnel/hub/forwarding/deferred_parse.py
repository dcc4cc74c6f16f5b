"""Deferred parsing of lists: they are forwarded first, and parsed when the reactor has time.

Parsing a list of thousands of objects takes as long as forwarding it, and only the cache waits for
the result. So it is parsed in iterations of the reactor in which no more data arrives, one slice at
a time, and the rest after the end of the body.
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
from yurttunnel.hub.cache.interfaces import IIncomingList
from yurttunnel.hub.forwarding.caching import ICacher

SLICE = 128 * 1024
"""The number of bytes that are parsed in one iteration of the reactor, which takes about 2 ms for
JSON. Shorter bodies are parsed at their end."""

COMPRESSED_SLICE = 8 * 1024
"""The same for a gzip body; lists of pods are 10 to 25 times larger when decompressed."""


class IdleScheduler:
    """Schedules the parsing of lists while the reactor is idle; its creator must close it."""

    _log = Logger()

    def __init__(self, clock: IReactorTime) -> None:
        self._cooperator = Cooperator(
            terminationPredicateFactory=lambda: lambda: True,
            scheduler=lambda call: clock.callLater(0, call),
        )

    def schedule(self, steps: Iterator[None]) -> None:
        """Run ``steps``, one in each iteration of the reactor."""
        _ = self._cooperator.cooperate(steps).whenDone().addErrback(self._failed)

    def _failed(self, failure: Failure) -> None:
        if not failure.check(SchedulerStopped):
            self._log.failure("Defect: the deferred parsing of a list failed", failure)

    def close(self) -> None:
        """Stop running steps."""
        self._cooperator.stop()


@implementer(IBodySink)
class DeferredParse:
    """Forwards a body to ``sink``, and lets ``cacher`` read it for ``listing``.

    Each step on the ``scheduler`` reads ``slice`` bytes; ``on_error(error)`` is called once if the
    body cannot be parsed.
    """

    def __init__(
        self,
        sink: IBodySink,
        cacher: ICacher,
        on_error: Callable[[Exception], object],
        listing: IIncomingList,
        scheduler: IdleScheduler,
        slice: int,
    ) -> None:
        self._sink = sink
        self._forward = sink.write
        self._cacher = cacher
        self._on_error = on_error
        self._listing = listing
        self._scheduler = scheduler
        self._slice = slice
        self._pieces: deque[bytes] = deque()
        self._size = 0
        self._is_scheduled = self._data_arrived = self._has_ended = self._is_over = False

    def write(self, data: bytes) -> None:
        self._forward(data)
        if self._is_over:
            return
        self._pieces.append(data)
        self._size += len(data)
        self._data_arrived = True
        self._report_lag()
        if self._size > self._slice and not self._is_scheduled:
            self._is_scheduled = True
            self._scheduler.schedule(self._steps())

    def finish(self, trailers: Fields = ()) -> None:
        self._has_ended = True
        if not self._is_scheduled and not self._is_over:
            # A short body is read at its end.
            self._read()
        self._report_lag()
        self._sink.finish(trailers)

    def abandon(self) -> None:
        """Discard the data that has not been read."""
        self._is_over = True
        self._pieces.clear()
        self._size = 0
        self._cacher.abandon()

    def _report_lag(self) -> None:
        if not self._is_over and not self._listing.lag(self._size, self._has_ended):
            self.abandon()

    def _steps(self) -> Iterator[None]:
        while self._size > self._slice or (self._has_ended and not self._is_over):
            if self._has_ended or not self._data_arrived:
                self._read()
                self._report_lag()
            self._data_arrived = False
            yield
        self._is_scheduled = False

    def _read(self) -> None:
        """Read the next slice; after the last one, end the body."""
        try:
            left = self._slice
            while self._pieces and left:
                piece = self._pieces.popleft()
                if len(piece) > left:
                    self._pieces.appendleft(piece[left:])
                    piece = piece[:left]
                left -= len(piece)
                self._size -= len(piece)
                self._cacher.read(piece)
            if self._has_ended and not self._pieces:
                self._is_over = True
                self._cacher.end()
        except Exception as error:
            # The client gets the body regardless of any error.
            self.abandon()
            self._on_error(error)
