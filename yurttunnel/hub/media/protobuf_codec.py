"""The API's bodies in Kubernetes protobuf: objects, and watches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

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
    WatchEvent,
)
from yurttunnel.hub.media.kinds import EVENT_TYPES, checked_type, named, transformed_type
from yurttunnel.hub.media.protobuf_lists import ProtobufListReader, ProtobufListWriter
from yurttunnel.hub.media.protobuf_objects import (
    MEDIA_TYPE,
    bookmark_form,
    decode_item,
    deletion_of,
    ends_initial_events,
    envelope,
    open_envelope,
)
from yurttunnel.kube.protobuf_fields import BadBody, encode_bytes, fields, tag, text

LENGTH: Final = 4
"""The size in bytes of the length before each frame (pkg/util/framer of k8s.io/apimachinery)."""

_TYPE, _OBJECT = tag(1), tag(2)
_RAW = tag(1)


@implementer(IWatchReader)
class ProtobufWatchReader:
    """Parses the frames of one watch, each of which contains a ``WatchEvent`` of meta/v1."""

    def __init__(self, transform: str, max_item: int) -> None:
        self._transform = transform
        self._max_item = max_item
        self._data = bytearray()

    def feed(self, data: bytes) -> Sequence[WatchEvent]:
        self._data += data
        events = []
        at = 0
        while len(self._data) - at >= LENGTH:
            begin = at + LENGTH
            length = int.from_bytes(self._data[at:begin])
            if length > self._max_item:
                raise BadBody(f"an event has {length} bytes, {self._max_item} at most are read")
            if begin + length > len(self._data):
                break
            at = begin + length
            events.append(self._event(bytes(memoryview(self._data)[begin:at])))
        del self._data[:at]
        return events

    def _event(self, frame: bytes) -> WatchEvent:
        event, envelope = _decode_event(frame)
        type, body = open_envelope(envelope)
        if event not in EVENT_TYPES:
            raise BadBody(f"an event is of the unknown type {event[:20]!r}")
        if event == "ERROR":
            return WatchEvent(event, checked_type(type, ""), None, status=body)
        item = decode_item(body, checked_type(type, self._transform))
        if event == "BOOKMARK":
            mark = Item("", "", item.version, {}, "", b"")
            return WatchEvent(event, type, mark, ends_initial_events(body))
        return WatchEvent(event, type, named(item))


def _decode_event(frame: bytes) -> tuple[str, bytes]:
    """Return the type and the object's envelope of a ``WatchEvent``."""
    event, envelope = "", b""
    for field, begin, end in fields(frame, 0, len(frame)):
        if field == _TYPE:
            event = text(frame, begin, end)
        elif field == _OBJECT:
            for inner, start, stop in fields(frame, begin, end):
                if inner == _RAW:
                    envelope = frame[start:stop]
    return event, envelope


def _event_form(type: str, envelope: bytes) -> bytes:
    event = encode_bytes(1, type.encode()) + encode_bytes(2, encode_bytes(1, envelope))
    return len(event).to_bytes(LENGTH) + event


@implementer(ICodec)
class ProtobufCodec:
    """The codec for Kubernetes protobuf, for complete objects or only their metadata."""

    content_type = MEDIA_TYPE.encode()
    watch_content_type = content_type + b";stream=watch"
    lists_need_sizes = True

    def __init__(self, transform: str = "") -> None:
        self._transform = transform

    def list_reader(self, max_item: int) -> IListReader:
        return ProtobufListReader(self._transform, max_item)

    def watch_reader(self, max_item: int) -> IWatchReader:
        return ProtobufWatchReader(self._transform, max_item)

    def read_object(self, body: bytes) -> tuple[TypeMeta, Item]:
        type, message = open_envelope(body)
        return type, decode_item(message, transformed_type(type, self._transform))

    def deletion(self, body: bytes, type: TypeMeta) -> Deletion:
        return deletion_of(body, type)

    def object(self, meta: TypeMeta, body: bytes, columns: bytes = b"") -> bytes:
        return envelope(meta, body)

    def list_writer(self, meta: ListMeta, sizes: Sequence[int]) -> IListWriter:
        return ProtobufListWriter(meta, sizes)

    def watch_event(self, type: str, meta: TypeMeta, body: bytes, columns: bytes = b"") -> bytes:
        return _event_form(type, envelope(meta, body))

    def bookmark(self, meta: TypeMeta, version: str, initial_events_end: bool) -> bytes:
        return _event_form("BOOKMARK", envelope(meta, bookmark_form(version, initial_events_end)))
