"""Filtered JSON bodies, built from the parsed items of a body.

The caller parses a body, either to cache it or to serve it from the cache, passes the items to
these classes, and sends the result to the client. The cache has the unfiltered objects, so a filter
that is enabled later needs no new list from the cloud.

In a watch a hidden object becomes DELETED, whether or not the client has seen it: clients ignore
the deletion of an unknown object, so the hub need not track what each client has seen (like
upstream since openyurt #1995). An object that is no longer hidden keeps its event, ADDED or
MODIFIED, which client caches treat alike.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from yurttunnel.hub.filters.interfaces import Change
from yurttunnel.hub.media.interfaces import ICodec, Item, ListMeta, WatchEvent
from yurttunnel.hub.media.json_lists import list_members
from yurttunnel.hub.media.json_shapes import Objects

_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


def changed_body(change: Change, body: bytes) -> bytes | None:
    """Return an object, or an item of a list, after a change; ``None`` hides it.

    An object that cannot be parsed stays unchanged, so that it does not make a list unusable; if
    the change hides objects, it is hidden.
    """
    try:
        obj = _decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        obj = None
    if not isinstance(obj, dict):
        return None if change.hides else body
    found = change.make(obj)
    return None if found is None else _encode(found)


class ListChange:
    """Writes one list while its items arrive; the metadata of the list follow the items.

    The members of JSON objects have no order, so clients accept that.
    """

    def __init__(self, change: Change) -> None:
        self._change = change
        self._begun = False

    def items(self, items: Iterable[Item]) -> bytes:
        """Return the next piece of the body; it may be empty."""
        pieces = [
            body for item in items if (body := changed_body(self._change, item.body)) is not None
        ]
        if not pieces:
            return b""
        opening, self._begun = b"," if self._begun else b'{"items":[', True
        return opening + b",".join(pieces)

    def finish(self, meta: ListMeta) -> bytes:
        """Return the last piece."""
        list_fields = list_members(Objects().list_type(meta.type), meta)
        return (b"]," if self._begun else b'{"items":[],') + list_fields + b"}"


class WatchChange:
    """Writes the frames of one watch; ``codec`` is the JSON codec."""

    def __init__(self, codec: ICodec, change: Change) -> None:
        self._codec = codec
        self._change = change

    def events(self, events: Iterable[WatchEvent]) -> bytes:
        """Return the frames of the next events."""
        return b"".join(map(self._frame, events))

    def _frame(self, event: WatchEvent) -> bytes:
        item = event.item
        if item is None:
            return self._codec.watch_event(event.type, event.meta, event.status)
        if event.type == "BOOKMARK":
            return self._codec.bookmark(event.meta, item.version, event.initial_events_end)
        body = changed_body(self._change, item.body)
        if body is None:
            return self._codec.watch_event("DELETED", event.meta, item.body)
        return self._codec.watch_event(event.type, event.meta, body)
