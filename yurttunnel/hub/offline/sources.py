"""The cached forms that a response can be built from.

The best source is a response of the API in the requested form. Without one, Tables and metadata are
built from complete objects: kubectl requests Tables, which few other clients do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from yurttunnel.hub.filters.bodies import changed_body
from yurttunnel.hub.filters.interfaces import Change
from yurttunnel.hub.media.codecs import codec_for
from yurttunnel.hub.media.interfaces import ICodec, Item, ListMeta, TypeMeta
from yurttunnel.hub.media.tables import Conversion, conversion
from yurttunnel.hub.request.accept import json_forms
from yurttunnel.hub.request.requests import Form


class Source(NamedTuple):
    """Objects that are cached in one form, and their conversion for a client.

    ``codec`` is the codec of the response. ``change`` is what filters change in each object, and
    ``make`` converts it to the client's form.
    """

    stored: Form
    codec: ICodec
    change: Change | None
    make: Conversion | None

    @property
    def is_as_stored(self) -> bool:
        """Whether bodies are sent as they are cached, so that their sizes are known."""
        return self.change is None and self.make is None

    def type(self, stored: TypeMeta) -> TypeMeta:
        """Return the type of the response."""
        return stored if self.make is None else self.make.type

    def columns(self, stored: bytes) -> bytes:
        """Return the columns of the response if it is a Table."""
        return stored if self.make is None else self.make.columns

    def meta(self, stored: ListMeta) -> ListMeta:
        """Return the metadata of the response to a list."""
        return stored._replace(type=self.type(stored.type), columns=self.columns(stored.columns))

    def body(self, item: Item) -> bytes | None:
        """Return an item in the client's form; ``None`` if it is hidden."""
        if self.change is not None:
            body = changed_body(self.change, item.body)
            if body is None:
                return None
            item = item._replace(body=body)
        return item.body if self.make is None else self.make.body(item)

    def bodies(self, items: Sequence[Item]) -> list[bytes]:
        """Return the items that are not hidden."""
        return [body for item in items if (body := self.body(item)) is not None]


def sources(forms: Sequence[Form], change: Change | None, now: float) -> Iterator[Source]:
    """Return the sources for a response in one of ``forms``, the best first.

    ``now`` is in seconds since 1970, for the ages in Tables.
    """
    for form in forms if change is None else json_forms(forms):
        codec = codec_for(form)
        if codec is None:
            continue
        yield Source(form, codec, change, None)
        for stored in (Form("json"), Form("protobuf")) if form.transform else ():
            make = conversion(stored, form, now)
            # Filters can process JSON only.
            if make is not None and (change is None or stored.encoding == "json"):
                yield Source(stored, codec, change, make)
