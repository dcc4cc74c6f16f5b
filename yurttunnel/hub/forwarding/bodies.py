"""Bodies of answers on their way to the client: read along as they are, or changed.

What passes as it is goes to the client first, save for what has come whole, which is short: it is
read before. What cannot be read is passed on all the same, and nothing of it is kept; only a body
that is to be changed breaks off then.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable

from zope.interface import implementer

from yurttunnel.http.fields import Fields
from yurttunnel.http.interfaces import IBodySink, IBodySource
from yurttunnel.hub.filters.bodies import ListChange, WatchChange, changed_body
from yurttunnel.hub.filters.interfaces import Change
from yurttunnel.hub.forwarding.keeping import (
    STATUS,
    IKeeper,
    ListKeeper,
    ObjectKeeper,
    WatchKeeper,
)
from yurttunnel.hub.media.interfaces import IMedia
from yurttunnel.kube.protobuf_fields import BadBody

_INFLATED_AT_ONCE = 256 * 1024
"""Bytes: what a bomb of zeros is inflated to at a time is bounded."""


@implementer(IBodySource)
class _Passed:
    """The body of ``source``, on its way through ``_before`` of a subclass."""

    def __init__(self, source: IBodySource) -> None:
        self._source = source
        self.has_body = source.has_body

    def deliver_body(self, sink: IBodySink) -> None:
        """See ``IBodySource``."""
        source = self._source
        # Found once, as they are called for each piece that does not fit.
        self.pauseProducing = source.pauseProducing  # type: ignore[method-assign] # see above
        self.resumeProducing = source.resumeProducing  # type: ignore[method-assign] # see above
        source.deliver_body(self._before(sink))

    def take_whole(self) -> bytes | None:
        """See ``IBodySource``; it has to go through what is before its sink."""
        return None

    def _before(self, sink: IBodySink) -> IBodySink:
        """Return what passes on to ``sink`` what is written to it."""
        raise NotImplementedError

    def pauseProducing(self) -> None:
        """See ``IPushProducer``."""
        self._source.pauseProducing()

    def resumeProducing(self) -> None:
        """See ``IPushProducer``."""
        self._source.resumeProducing()

    def stopProducing(self) -> None:
        """See ``IPushProducer``."""
        self._source.stopProducing()


class PassedBody(_Passed):
    """The body of ``source``, which goes through what ``between`` puts before its sink."""

    def __init__(self, source: IBodySource, between: Callable[[IBodySink], IBodySink]) -> None:
        super().__init__(source)
        self._between = between

    def _before(self, sink: IBodySink) -> IBodySink:
        return self._between(sink)


@implementer(IBodySink)
class ReadAlong(_Passed):
    """The body of ``source``, which ``keeper`` reads when it has been passed on.

    ``unread(error)`` is called once when it cannot be read.
    """

    _sink: IBodySink
    _pass_on: Callable[[bytes], object]

    def __init__(
        self, source: IBodySource, keeper: IKeeper, unread: Callable[[Exception], object]
    ) -> None:
        super().__init__(source)
        self._keeper: IKeeper | None = keeper
        self._read = keeper.read
        self._unread = unread

    def _before(self, sink: IBodySink) -> IBodySink:
        self._sink = sink
        self._pass_on = sink.write
        return self

    def take_whole(self) -> bytes | None:
        """See ``IBodySource``."""
        body = self._source.take_whole()
        if body is not None:
            self._have_read(body)
            self._end()
        return body

    def write(self, data: bytes) -> None:
        """See ``IBodySink``."""
        self._pass_on(data)
        self._have_read(data)

    def finish(self, trailers: Fields = ()) -> None:
        """See ``IBodySink``."""
        self._end()
        self._sink.finish(trailers)

    def _have_read(self, data: bytes) -> None:
        if self._keeper is not None:
            try:
                self._read(data)
            except Exception as error:
                # Whatever is wrong with it, its client gets it all the same.
                self._give_up(error)

    def _end(self) -> None:
        if self._keeper is not None:
            try:
                self._keeper.end()
            except Exception as error:
                # As above.
                self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        keeper, self._keeper = self._keeper, None
        assert keeper is not None
        keeper.abandon()
        self._unread(error)


_MOST_RATIO = 100
"""How much more a piece may be inflated to: lists of pods have 10 to 25 times their bytes in gzip
(kube-apiserver's level is 1), a bomb a thousand times. To read that would take the reactor
seconds."""

_LEAST_ROOM = 1024 * 1024
"""Bytes to which any piece may be inflated, however short it is."""


class Inflated:
    """Reads a body in gzip for ``keeper``."""

    def __init__(self, keeper: IKeeper) -> None:
        self._keeper = keeper
        self._inflating = zlib.decompressobj(zlib.MAX_WBITS | 16)

    def read(self, data: bytes) -> tuple[()]:
        """Take the next piece."""
        room = max(_LEAST_ROOM, _MOST_RATIO * len(data))
        while data:
            try:
                piece = self._inflating.decompress(data, _INFLATED_AT_ONCE)
            except zlib.error as error:
                raise BadBody(f"its compression cannot be read: {error}") from None
            room -= len(piece)
            if room < 0:
                raise BadBody(f"it is {_MOST_RATIO} times as long without its compression")
            self._keeper.read(piece)
            data = self._inflating.unconsumed_tail
        return ()

    def end(self) -> object:
        """Take the end."""
        if not self._inflating.eof:
            raise BadBody("its compression breaks off")
        return self._keeper.end()

    def abandon(self) -> None:
        """Forget the body."""
        self._keeper.abandon()


@implementer(IBodySink)
class Changed:
    """Passes on to ``sink`` what filters make of a body.

    ``read`` makes it of each piece, ``end`` of the end. With what they raise ``broken`` is called,
    and nothing more is passed on.
    """

    def __init__(
        self,
        sink: IBodySink,
        read: Callable[[bytes], bytes],
        end: Callable[[], bytes],
        broken: Callable[[Exception], object],
    ) -> None:
        self._sink = sink
        self._read = read
        self._end = end
        self._broken = broken
        self._ended = False

    def write(self, data: bytes) -> None:
        """See ``IBodySink``."""
        if not self._ended:
            self._pass_on(lambda: self._read(data))

    def finish(self, trailers: Fields = ()) -> None:
        """See ``IBodySink``; what the trailers say is not true any more."""
        if not self._ended:
            self._pass_on(self._end)
        if not self._ended:
            self._sink.finish()

    def _pass_on(self, make: Callable[[], bytes]) -> None:
        try:
            piece = make()
        except Exception as error:
            # Filters are anybody's code, and what they do not pass on has to be hidden.
            self._ended = True
            self._broken(error)
            return
        if piece:
            self._sink.write(piece)


Between = Callable[[IBodySink, Callable[[Exception], object]], IBodySink]
"""Puts something before a sink, which calls the function when the body has to break off."""


def changed_list(keeper: ListKeeper, change: Change) -> Between:
    """Return what changes a list."""
    made = ListChange(change)
    return lambda sink, broken: Changed(
        sink,
        lambda data: made.items(keeper.read(data)),
        lambda: made.finish(keeper.end()),
        broken,
    )


def changed_watch(keeper: WatchKeeper, media: IMedia, change: Change) -> Between:
    """Return what changes a watch."""
    made = WatchChange(media, change)

    def end() -> bytes:
        keeper.end()
        return b""

    return lambda sink, broken: Changed(
        sink, lambda data: made.events(keeper.read(data)), end, broken
    )


def changed_object(keeper: ObjectKeeper, change: Change) -> Between:
    """Return what changes one object; one that is to be hidden breaks off."""

    def read(data: bytes) -> bytes:
        keeper.read(data)
        return b""

    def end() -> bytes:
        meta, found = keeper.take_whole()
        body = found if meta.kind == STATUS else changed_body(change, found)
        if body is None:
            raise BadBody("a filter hides it")
        return body

    return lambda sink, broken: Changed(sink, read, end, broken)
