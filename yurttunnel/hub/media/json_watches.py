"""Watches in JSON: a sequence of events, with or without line breaks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from typing import Final, Literal

import msgspec
from zope.interface import implementer

from yurttunnel.hub.media.interfaces import Item, IWatchReader, WatchEvent
from yurttunnel.hub.media.json_objects import decode_object
from yurttunnel.hub.media.json_shapes import Objects
from yurttunnel.hub.media.json_text import spaced, text_form
from yurttunnel.hub.media.json_values import ValueReader
from yurttunnel.hub.media.kinds import checked_type, named
from yurttunnel.kube.protobuf_fields import BadBody

SEQUEL: Final = b"}\n"
"""The end of an event of kube-apiserver."""

_SPACE = re.compile(spaced(b"_"))


class _Event(msgspec.Struct, gc=False):
    type: Literal["ADDED", "MODIFIED", "DELETED", "BOOKMARK", "ERROR"]
    object: msgspec.Raw


_decode_event = msgspec.json.Decoder(_Event).decode


@implementer(IWatchReader)
class JsonWatchReader:
    """Parses the events of one watch."""

    def __init__(self, shape: Objects, max_item: int) -> None:
        self._text = bytearray()
        self._events = ValueReader(partial(_event, shape), max_item, SEQUEL)

    def feed(self, data: bytes) -> Sequence[WatchEvent]:
        text = self._text
        text += data
        events = []
        at = _begin(text, 0)
        while at < len(text):
            # The next event may take any time, so no event waits for its successor.
            value = self._events.read(text, at, may_be_last=True)
            if value is None:
                break
            events.append(value.content)
            at = _begin(text, value.end)
        del text[:at]
        return events


def _begin(text: bytearray, at: int) -> int:
    """Return the start of the next event."""
    found = _SPACE.match(text, at)
    assert found is not None, "it matches nothing, too"
    begin = found.end()
    if begin < len(text) and text[begin] != ord("{"):
        raise BadBody("there is data that is not an event")
    return begin


def _event(shape: Objects, text: bytes) -> WatchEvent:
    event = _decode_event(text)
    body = bytes(event.object)
    match event.type:
        case "BOOKMARK":
            type, version, ends = shape.bookmark(body)
            return WatchEvent(event.type, type, Item("", "", version, {}, "", b""), ends)
        case "ERROR":
            return WatchEvent(
                event.type, checked_type(decode_object(body)[0], ""), None, status=body
            )
    type, item = shape.object(body)
    return WatchEvent(event.type, checked_type(type, ""), named(item))


def event_form(type: str, body: bytes) -> bytes:
    """Return the frame of an event with an object."""
    return b'{"type":%b,"object":%b}\n' % (text_form(type), body)
