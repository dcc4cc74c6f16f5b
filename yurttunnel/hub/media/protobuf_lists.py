"""Parsing and building of lists in Kubernetes protobuf."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from zope.interface import implementer

from yurttunnel.hub.media.interfaces import IListReader, IListWriter, Item, ListMeta, TypeMeta
from yurttunnel.hub.media.kinds import LIST, UNKNOWN, item_type, named
from yurttunnel.hub.media.protobuf_objects import (
    ENVELOPE_TAIL,
    MAGIC,
    METADATA,
    RAW,
    TYPE,
    check_content,
    decode_item,
    decode_type,
    envelope_head,
)
from yurttunnel.kube.protobuf_fields import (
    VARINT,
    BadBody,
    encode_bytes,
    encode_varint,
    fields,
    header,
    tag,
    text,
    varint,
)

MAX_FIELD: Final = 4096
"""Maximum length of a field of the envelope other than the list, in bytes."""

ITEMS = tag(2)
_VERSION, _CONTINUE, _REMAINING = tag(2), tag(3), 4 << 3 | VARINT


@implementer(IListReader)
class ProtobufListReader:
    """Parses one list: the fields of the envelope, one of which contains the fields of the list."""

    def __init__(self, transform: str, max_item: int) -> None:
        self._transform = transform
        self._max_item = max_item
        self._data = bytearray()
        self._has_begun = self._has_list = False
        # The end of the list, relative to the start of the data; None outside of the list.
        self._list_end: int | None = None
        self._type = self._item_type = UNKNOWN
        self._meta = ListMeta(UNKNOWN, "")

    def feed(self, data: bytes) -> Sequence[Item]:
        self._data += data
        items: list[Item] = []
        if not self._has_begun and not self._begin():
            return items
        at = 0
        while (found := self._next_field(at)) is not None:
            field, begin, at = found
            if self._list_end is None:
                at = self._take_of_envelope(field, begin, at)
            elif field == ITEMS:
                body = bytes(memoryview(self._data)[begin:at])
                items.append(named(decode_item(body, self._item_type)))
            elif field == METADATA:
                self._meta = _decode_meta(bytes(self._data[begin:at]))
            if at == self._list_end:
                self._list_end = None
        del self._data[:at]
        if self._list_end is not None:
            self._list_end -= at
        return items

    def finish(self) -> ListMeta:
        if self._data or self._list_end is not None or not self._has_list:
            raise BadBody("the list is not complete")
        return self._meta._replace(type=self._item_type)

    def _begin(self) -> bool:
        """Return whether the magic number is complete; raise :class:`BadBody` if it is wrong."""
        beginning = bytes(self._data[: len(MAGIC)])
        if not MAGIC.startswith(beginning):
            raise BadBody("the envelope of Kubernetes is missing")
        if beginning == MAGIC:
            del self._data[: len(MAGIC)]
            self._has_begun = True
        return self._has_begun

    def _next_field(self, at: int) -> tuple[int, int, int] | None:
        """Return the tag, start and end of the field at ``at``, if it is complete.

        For the field that contains the list, a complete header is enough.
        """
        try:
            field, begin, end = header(self._data, at)
        except IndexError:
            return None
        if self._list_end is None and field == RAW:
            return field, begin, end
        most = MAX_FIELD if self._list_end is None else self._max_item
        if end - begin > most:
            raise BadBody(f"a field has {end - begin} bytes, {most} at most are read")
        if self._list_end is not None and end > self._list_end:
            raise BadBody("an item is longer than its list")
        return (field, begin, end) if end <= len(self._data) else None

    def _take_of_envelope(self, field: int, begin: int, end: int) -> int:
        """Process a field of the envelope; return where to continue: in the list, or after it."""
        if field == RAW:
            if self._has_list or self._type == UNKNOWN:
                raise BadBody("the list is at the wrong place in its envelope")
            self._item_type = item_type(self._type, self._transform)
            self._has_list = True
            self._list_end = end
            return begin
        content = bytes(self._data[begin:end])
        if field == TYPE:
            self._type = decode_type(content, 0, len(content))
        else:
            check_content(field, content)
        return end


@implementer(IListWriter)
class ProtobufListWriter:
    """Builds one list."""

    tail = ENVELOPE_TAIL

    def __init__(self, meta: ListMeta, sizes: Sequence[int]) -> None:
        type = TypeMeta(meta.type.api_version, meta.type.kind + LIST)
        before = encode_bytes(1, _encode_meta(meta))
        length = len(before) + sum(sizes) + sum(len(_item_head(size)) for size in sizes)
        self.head = envelope_head(type, length) + before
        self.length = len(self.head) - len(before) + length + len(self.tail)

    def items(self, bodies: Iterable[bytes]) -> bytes:
        """Return the next items, each preceded by its length."""
        return b"".join(part for body in bodies for part in (_item_head(len(body)), body))


def _item_head(size: int) -> bytes:
    return encode_varint(ITEMS) + encode_varint(size)


def _decode_meta(data: bytes) -> ListMeta:
    version = token = ""
    remaining = None
    for field, begin, end in fields(data, 0, len(data)):
        if field == _VERSION:
            version = text(data, begin, end)
        elif field == _CONTINUE:
            token = text(data, begin, end)
        elif field == _REMAINING:
            remaining = varint(data, begin)[0]
    return ListMeta(UNKNOWN, version, token, remaining)


def _encode_meta(meta: ListMeta) -> bytes:
    # The API writes these strings even if they are empty.
    encoded = (
        encode_bytes(1, b"")
        + encode_bytes(2, meta.version.encode())
        + encode_bytes(3, meta.continue_token.encode())
    )
    if meta.remaining is not None:
        encoded += encode_varint(_REMAINING) + encode_varint(meta.remaining)
    return encoded
