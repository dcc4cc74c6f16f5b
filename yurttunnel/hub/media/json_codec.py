"""The API's bodies in JSON."""

from __future__ import annotations

from collections.abc import Sequence

from zope.interface import implementer

from yurttunnel.hub.media.interfaces import (
    Deletion,
    ICodec,
    IListReader,
    IListWriter,
    Item,
    IWatchReader,
    ListMeta,
    TypeMeta,
)
from yurttunnel.hub.media.json_lists import JsonListReader, JsonListWriter
from yurttunnel.hub.media.json_shapes import Objects
from yurttunnel.hub.media.json_text import SPACE, checked
from yurttunnel.hub.media.json_watches import JsonWatchReader, event_form


@implementer(ICodec)
class JsonCodec:
    """The JSON codec for one shape."""

    content_type = b"application/json"
    watch_content_type = b"application/json"
    lists_need_sizes = False

    def __init__(self, shape: Objects) -> None:
        self._shape = shape

    def list_reader(self, max_item: int) -> IListReader:
        return JsonListReader(self._shape, max_item)

    def watch_reader(self, max_item: int) -> IWatchReader:
        return JsonWatchReader(self._shape, max_item)

    def read_object(self, body: bytes) -> tuple[TypeMeta, Item]:
        return checked(self._shape.object, body.strip(SPACE))

    def deletion(self, body: bytes, type: TypeMeta) -> Deletion:
        return checked(lambda item: self._shape.deletion(item, type), body)

    def object(self, meta: TypeMeta, body: bytes, columns: bytes = b"") -> bytes:
        return self._shape.object_form(meta, body, columns) + b"\n"

    def list_writer(self, meta: ListMeta, sizes: Sequence[int]) -> IListWriter:
        return JsonListWriter(self._shape, meta, sizes)

    def watch_event(self, type: str, meta: TypeMeta, body: bytes, columns: bytes = b"") -> bytes:
        return event_form(type, self._shape.object_form(meta, body, columns))

    def bookmark(self, meta: TypeMeta, version: str, initial_events_end: bool) -> bytes:
        return event_form("BOOKMARK", self._shape.bookmark_form(meta, version, initial_events_end))
