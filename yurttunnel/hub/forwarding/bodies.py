"""Response bodies on their way to the client: read while being forwarded, or changed.

An unchanged body is forwarded before it is read, except for a short one that arrived at once, which
is read first. A body that cannot be parsed is still forwarded, but not cached; only a body that
must be changed is aborted then.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from functools import partial

from zope.interface import implementer

from yurttunnel.http.fields import Fields
from yurttunnel.http.interfaces import IBodySink, IBodySource
from yurttunnel.hub.filters.bodies import ListChange, WatchChange, changed_body
from yurttunnel.hub.filters.interfaces import Change
from yurttunnel.hub.forwarding.caching import STATUS, ICacher, ListCacher, ObjectCacher, WatchCacher
from yurttunnel.hub.media.interfaces import ICodec
from yurttunnel.kube.protobuf_fields import BadBody

_MAX_INFLATED_PIECE = 256 * 1024
"""Maximum number of bytes that are decompressed at once, as a limit for zip bombs."""


@implementer(IBodySource)
class _Wrapped:
    """The body of ``source``, which passes through the ``_before`` of a subclass."""

    _source: IBodySource
    has_body: bool

    def deliver_body(self, sink: IBodySink) -> None:
        source = self._source
        # Looked up once, because they are called for each piece that does not fit into the buffer.
        self.pauseProducing = source.pauseProducing  # type: ignore[method-assign] # see above
        self.resumeProducing = source.resumeProducing  # type: ignore[method-assign] # see above
        source.deliver_body(self._before(sink))

    def take_whole(self) -> bytes | None:
        """See ``IBodySource``; the body has to pass through the sink's predecessor."""
        return None

    def _before(self, sink: IBodySink) -> IBodySink:
        """Return a sink that forwards its data to ``sink``."""
        raise NotImplementedError

    def pauseProducing(self) -> None:
        self._source.pauseProducing()

    def resumeProducing(self) -> None:
        self._source.resumeProducing()

    def stopProducing(self) -> None:
        self._source.stopProducing()


class WrappedBody(_Wrapped):
    """The body of ``source``, passed through the sink that ``wrap`` puts before its own."""

    def __init__(self, source: IBodySource, wrap: Callable[[IBodySink], IBodySink]) -> None:
        self._source = source
        self.has_body = source.has_body
        self._wrap = wrap

    def _before(self, sink: IBodySink) -> IBodySink:
        return self._wrap(sink)


@implementer(IBodySink)
class InlineParse(_Wrapped):
    """The body of ``source``, which ``cacher`` reads after it was forwarded.

    ``on_error(error)`` is called once if the body cannot be parsed.
    """

    _sink: IBodySink
    _forward: Callable[[bytes], object]

    def __init__(
        self, source: IBodySource, cacher: ICacher, on_error: Callable[[Exception], object]
    ) -> None:
        self._source = source
        self.has_body = source.has_body
        self._cacher: ICacher | None = cacher
        self._read = cacher.read
        self._on_error = on_error

    def _before(self, sink: IBodySink) -> IBodySink:
        self._sink = sink
        self._forward = sink.write
        return self

    def take_whole(self) -> bytes | None:
        body = self._source.take_whole()
        cacher = self._cacher
        if body is not None and cacher is not None:
            try:
                cacher.read(body)
                cacher.end()
            except Exception as error:
                # The client gets the body regardless of any error.
                self._fail(error)
        return body

    def write(self, data: bytes) -> None:
        self._forward(data)
        self._parse(data)

    def finish(self, trailers: Fields = ()) -> None:
        self._end()
        self._sink.finish(trailers)

    def _parse(self, data: bytes) -> None:
        if self._cacher is not None:
            try:
                self._read(data)
            except Exception as error:
                # The client gets the body regardless of any error.
                self._fail(error)

    def _end(self) -> None:
        if self._cacher is not None:
            try:
                self._cacher.end()
            except Exception as error:
                # As above.
                self._fail(error)

    def _fail(self, error: Exception) -> None:
        self._abandon()
        self._on_error(error)

    def _abandon(self) -> None:
        cacher, self._cacher = self._cacher, None
        if cacher is not None:
            cacher.abandon()


class BatchedParse(InlineParse):
    """The body of a watch, which ``cacher`` reads later, in calls by ``defer`` (``ICache.defer``).

    Most events arrive alone. If each were parsed on its arrival, the processor would have to load
    the parser into its caches each time, which takes longer than the parsing (docs/performance.md).
    """

    def __init__(
        self,
        source: IBodySource,
        cacher: ICacher,
        on_error: Callable[[Exception], object],
        defer: Callable[[Callable[[], object], int], object],
    ) -> None:
        super().__init__(source, cacher, on_error)
        self._defer = defer

    def write(self, data: bytes) -> None:
        self._forward(data)
        self._defer(partial(self._parse, data), len(data))

    def finish(self, trailers: Fields = ()) -> None:
        self._defer(self._end, 0)
        self._sink.finish(trailers)

    def abandon(self) -> None:
        """Stop reading, after the events that have been forwarded."""
        self._defer(self._abandon, 0)


_MAX_RATIO = 100
"""The maximum compression ratio of a piece: gzip compresses lists of pods 10 to 25 times
(kube-apiserver's level is 1), zip bombs a thousand times, which would block the reactor for
seconds."""

_MIN_INFLATED = 1024 * 1024
"""The number of bytes that any piece may be decompressed to, however short it is."""


class Decompressor:
    """Decompresses a gzip body for ``cacher``."""

    def __init__(self, cacher: ICacher) -> None:
        self._cacher = cacher
        self._inflating = zlib.decompressobj(zlib.MAX_WBITS | 16)

    def read(self, data: bytes) -> tuple[()]:
        """Process the next piece."""
        room = max(_MIN_INFLATED, _MAX_RATIO * len(data))
        while data:
            try:
                piece = self._inflating.decompress(data, _MAX_INFLATED_PIECE)
            except zlib.error as error:
                raise BadBody(f"it cannot be decompressed: {error}") from None
            room -= len(piece)
            if room < 0:
                raise BadBody(f"it is more than {_MAX_RATIO} times as long when decompressed")
            self._cacher.read(piece)
            data = self._inflating.unconsumed_tail
        return ()

    def end(self) -> object:
        """Process the end."""
        if not self._inflating.eof:
            raise BadBody("its compressed data is incomplete")
        return self._cacher.end()

    def abandon(self) -> None:
        """Discard the body."""
        self._cacher.abandon()


@implementer(IBodySink)
class ChangedBody:
    """Forwards a body to ``sink`` after filters have changed it.

    ``read`` returns the changed data of each piece, ``end`` that of the end. ``abort`` is called
    with their exceptions, and nothing more is forwarded.
    """

    def __init__(
        self,
        sink: IBodySink,
        read: Callable[[bytes], bytes],
        end: Callable[[], bytes],
        abort: Callable[[Exception], object],
    ) -> None:
        self._sink = sink
        self._read = read
        self._end = end
        self._abort = abort
        self._ended = False

    def write(self, data: bytes) -> None:
        if not self._ended:
            self._forward(lambda: self._read(data))

    def finish(self, trailers: Fields = ()) -> None:
        """See ``IBodySink``; trailers are omitted, because they do not apply to a changed body."""
        if not self._ended:
            self._forward(self._end)
        if not self._ended:
            self._sink.finish()

    def _forward(self, make: Callable[[], bytes]) -> None:
        try:
            piece = make()
        except Exception as error:
            # Filters are third-party code, and data that they do not return must stay hidden.
            self._ended = True
            self._abort(error)
            return
        if piece:
            self._sink.write(piece)


SinkWrapper = Callable[[IBodySink, Callable[[Exception], object]], IBodySink]
"""Wraps a sink; the wrapper calls the given function if the body has to be aborted."""


def changed_list(cacher: ListCacher, change: Change) -> SinkWrapper:
    """Return the change of a list."""
    made = ListChange(change)
    return lambda sink, abort: ChangedBody(
        sink, lambda data: made.items(cacher.read(data)), lambda: made.finish(cacher.end()), abort
    )


def changed_watch(cacher: WatchCacher, codec: ICodec, change: Change) -> SinkWrapper:
    """Return the change of a watch."""
    made = WatchChange(codec, change)

    def end() -> bytes:
        cacher.end()
        return b""

    return lambda sink, abort: ChangedBody(
        sink, lambda data: made.events(cacher.read(data)), end, abort
    )


def changed_object(cacher: ObjectCacher, change: Change) -> SinkWrapper:
    """Return the change of a single object; an object that a filter hides is aborted."""

    def read(data: bytes) -> bytes:
        cacher.read(data)
        return b""

    def end() -> bytes:
        meta, found = cacher.take_whole()
        body = found if meta.kind == STATUS else changed_body(change, found)
        if body is None:
            raise BadBody("a filter hides it")
        return body

    return lambda sink, abort: ChangedBody(sink, read, end, abort)
