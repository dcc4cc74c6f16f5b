"""Bodies in JSON as a filter leaves them, made of what was cut out of them.

Whoever cuts a body, to keep what comes or to give what was kept, hands the pieces here and writes
to the client what is returned. The cache has objects as the API gave them: so a filter that is
configured later needs no list from the cloud.

In a watch an object that is hidden becomes DELETED, whether the client has seen it or not: clients
ignore that of what they do not know, and nobody has to remember what each has seen (upstream does
so since openyurt #1995). One that is no longer hidden comes as it is, ADDED or MODIFIED, which are
the same to caches of clients.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from yurttunnel.hub.filters.interfaces import Change
from yurttunnel.hub.media.interfaces import IMedia, Item, ListMeta, WatchEvent
from yurttunnel.hub.media.json_lists import list_members
from yurttunnel.hub.media.json_shapes import Objects

_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


def changed_body(change: Change, body: bytes) -> bytes | None:
    """Return an object, or an item of a list, as a client sees it; ``None`` hides it.

    What cannot be read stays as it is, as one object that is odd does not take a list away; where
    some are to be hidden, it is.
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
    """Writes one list, as its items come; what the list says of itself follows them.

    Members of JSON objects have no order, so clients find it there as well.
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
        said = list_members(Objects().list_type(meta.type), meta)
        return (b"]," if self._begun else b'{"items":[],') + said + b"}"


class WatchChange:
    """Writes the frames of one watch in ``media``, which is JSON."""

    def __init__(self, media: IMedia, change: Change) -> None:
        self._media = media
        self._change = change

    def events(self, events: Iterable[WatchEvent]) -> bytes:
        """Return the frames of the next events."""
        return b"".join(map(self._frame, events))

    def _frame(self, event: WatchEvent) -> bytes:
        item = event.item
        if item is None:
            return self._media.watch_event(event.type, event.meta, event.status)
        if event.type == "BOOKMARK":
            return self._media.bookmark(event.meta, item.version, event.initial_events_end)
        body = changed_body(self._change, item.body)
        if body is None:
            return self._media.watch_event("DELETED", event.meta, item.body)
        return self._media.watch_event(event.type, event.meta, body)
