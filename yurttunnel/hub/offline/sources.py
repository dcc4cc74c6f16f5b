"""From what is kept an answer in some form can be made.

What the API answered in the very form is best. Where a client never asked for that, Tables and
metadata are made of whole objects: kubectl asks for Tables, which few others do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from yurttunnel.hub.filters.bodies import changed_body
from yurttunnel.hub.filters.interfaces import Change
from yurttunnel.hub.media.forms import media_for
from yurttunnel.hub.media.interfaces import IMedia, Item, ListMeta, TypeMeta
from yurttunnel.hub.media.tables import Conversion, conversion
from yurttunnel.hub.request.accept import json_forms
from yurttunnel.hub.request.requests import Form


class Source(NamedTuple):
    """Objects that are kept in a form, and how a client gets them.

    ``media`` writes what it gets. ``change`` is what filters change of each object, and ``make``
    makes the client's form of it.
    """

    kept: Form
    media: IMedia
    change: Change | None
    make: Conversion | None

    @property
    def is_as_kept(self) -> bool:
        """Bodies are as they are kept, so that their sizes are known."""
        return self.change is None and self.make is None

    def type(self, kept: TypeMeta) -> TypeMeta:
        """Return the type of what the client gets."""
        return kept if self.make is None else self.make.type

    def columns(self, kept: bytes) -> bytes:
        """Return the columns of the Table that the client gets, if it gets one."""
        return kept if self.make is None else self.make.columns

    def meta(self, kept: ListMeta) -> ListMeta:
        """Return what the client gets beside the items of a list."""
        return kept._replace(type=self.type(kept.type), columns=self.columns(kept.columns))

    def body(self, item: Item) -> bytes | None:
        """Return an item as the client gets it; ``None`` when it is hidden."""
        if self.change is not None:
            body = changed_body(self.change, item.body)
            if body is None:
                return None
            item = item._replace(body=body)
        return item.body if self.make is None else self.make.body(item)

    def bodies(self, items: Sequence[Item]) -> list[bytes]:
        """Return those that are not hidden."""
        return [body for item in items if (body := self.body(item)) is not None]


def sources(forms: Sequence[Form], change: Change | None, now: float) -> Iterator[Source]:
    """Return what an answer in one of ``forms`` can be made from, the best first.

    ``now`` is in seconds since 1970, for the ages in Tables.
    """
    for form in forms if change is None else json_forms(forms):
        media = media_for(form)
        if media is None:
            continue
        yield Source(form, media, change, None)
        for kept in (Form("json"), Form("protobuf")) if form.transform else ():
            make = conversion(kept, form, now)
            # Filters look into JSON only.
            if make is not None and (change is None or kept.media == "json"):
                yield Source(kept, media, change, make)
