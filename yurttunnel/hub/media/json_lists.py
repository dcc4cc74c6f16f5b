"""Parsing and building of lists and Tables in JSON."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final

import msgspec
from zope.interface import implementer

from yurttunnel.hub.media.interfaces import IListReader, IListWriter, Item, ListMeta, TypeMeta
from yurttunnel.hub.media.json_shapes import Objects
from yurttunnel.hub.media.json_text import SPACE, STRING, checked, spaced, text_form
from yurttunnel.hub.media.json_values import ValueReader, may_be_last
from yurttunnel.hub.media.kinds import LIST, named
from yurttunnel.kube.protobuf_fields import BadBody

SEQUEL: Final = 11
"""The number of bytes at the start of an item that are used to find the next item: ``{"metadata"``
or ``{"cells":["`` in all lists of kube-apiserver."""

MAX_BETWEEN: Final = 1024
"""Maximum length of a member's name, or of white space, in bytes."""

_OPEN = re.compile(spaced(rb"_\{"))
_MEMBER = re.compile(spaced(rb"_(%b)_:_(?=\S)" % STRING), re.DOTALL)
_AFTER_MEMBER = re.compile(spaced(rb"_([,}])"))
_FIRST_ITEM = re.compile(spaced(rb"_(?:(\])|(?=\{))"))
_AFTER_ITEM = re.compile(spaced(rb"_(?:(\])|,_(?=\{))"))


class _Meta(msgspec.Struct, rename={"version": "resourceVersion", "token": "continue"}):
    version: str = ""
    token: str = ""
    remainingItemCount: int | None = None


_decode_text = msgspec.json.Decoder(str).decode
_decode_meta = msgspec.json.Decoder(_Meta | None).decode
_decode_any = msgspec.json.Decoder(msgspec.Raw).decode


@implementer(IListReader)
class JsonListReader:
    """Parses one list; each step parses the next token and returns whether it was complete."""

    def __init__(self, shape: Objects, max_item: int) -> None:
        self._shape = shape
        self._max_item = max_item
        self._text = bytearray()
        self._at = 0
        self._may_be_last = False
        self._step: Callable[[JsonListReader], bool] = JsonListReader._open
        self._member = ""
        self._member_reader = ValueReader(_decode_any, max_item)
        self._items: list[Item] = []
        self._item_reader: ValueReader[Item] | None = None
        self._api_version = self._kind = ""
        self._meta = _Meta()
        self._columns = b""

    def feed(self, data: bytes) -> Sequence[Item]:
        self._text += data
        self._may_be_last = may_be_last(data, self._may_be_last)
        self._items = []
        is_complete = True
        while is_complete:
            is_complete = self._step(self)
        del self._text[: self._at]
        self._at = 0
        return self._items

    def finish(self) -> ListMeta:
        if self._step is not JsonListReader._end:
            raise BadBody("the list is not complete")
        type = self._shape.item_type(TypeMeta(self._api_version, self._kind))
        if self._item_reader is None:
            raise BadBody(f"the list has no {self._shape.items}")
        meta = self._meta
        return ListMeta(type, meta.version, meta.token, meta.remainingItemCount, self._columns)

    def _match(self, pattern: re.Pattern[bytes]) -> re.Match[bytes] | None:
        """Return the next match, ``None`` if more data is needed; raise :class:`BadBody`."""
        found = pattern.match(self._text, self._at)
        end = len(self._text) if found is None else found.end()
        if end - self._at > MAX_BETWEEN:
            raise BadBody("this is not a list in JSON")
        if found is not None:
            self._at = end
        return found

    def _open(self) -> bool:
        if self._match(_OPEN) is None:
            return False
        self._step = JsonListReader._next_member
        return True

    def _next_member(self) -> bool:
        found = self._match(_MEMBER)
        if found is None:
            return False
        self._member = checked(_decode_text, found[1])
        self._step = JsonListReader._value
        if self._member == self._shape.items:
            self._begin_items()
        return True

    def _begin_items(self) -> None:
        if self._item_reader is not None:
            raise BadBody(f"the list has {self._shape.items} twice")
        known = TypeMeta(self._api_version, self._kind.removesuffix(LIST))
        decode = partial(self._shape.item, type=known)
        self._item_reader = ValueReader(decode, self._max_item)
        if self._text[self._at] == ord("["):
            self._at += 1
            self._step = JsonListReader._first_item

    def _value(self) -> bool:
        value = self._member_reader.read(self._text, self._at, self._may_be_last)
        if value is None:
            return False
        self._at = value.end
        self._take(value.text)
        self._step = JsonListReader._after_member
        return True

    def _take(self, value: bytes) -> None:
        """Process the value of a member; unknown members are ignored."""
        match self._member:
            case "kind":
                self._kind = checked(_decode_text, value)
            case "apiVersion":
                self._api_version = checked(_decode_text, value)
            case "metadata":
                self._meta = checked(_decode_meta, value) or _Meta()
            case "columnDefinitions" if value != b"null":
                self._columns = value
            case self._shape.items if value != b"null":
                raise BadBody(f"{self._member} of the list is not an array")

    def _after_member(self) -> bool:
        found = self._match(_AFTER_MEMBER)
        if found is None:
            return False
        is_last = found[1] == b"}"
        self._step = JsonListReader._end if is_last else JsonListReader._next_member
        return True

    def _first_item(self) -> bool:
        return self._begin_item(self._match(_FIRST_ITEM))

    def _begin_item(self, found: re.Match[bytes] | None) -> bool:
        if found is None:
            return False
        is_end = found[1] is not None
        self._step = JsonListReader._after_member if is_end else JsonListReader._item
        return True

    def _item(self) -> bool:
        assert self._item_reader is not None, "there are no items without their member"
        value = self._item_reader.read(self._text, self._at, self._may_be_last)
        if value is None:
            return False
        self._at = value.end
        self._items.append(named(value.content))
        self._step = JsonListReader._after_item
        return True

    def _after_item(self) -> bool:
        end = self._at
        found = self._match(_AFTER_ITEM)
        assert self._item_reader is not None, "there are no items without their member"
        if found is not None and not self._item_reader.sequel:
            self._item_reader.sequel = b"}" + self._text[end : self._at + SEQUEL]
        return self._begin_item(found)

    def _end(self) -> bool:
        if self._text[self._at :].strip(SPACE):
            raise BadBody("there is data after the list")
        self._at = len(self._text)
        return False


@implementer(IListWriter)
class JsonListWriter:
    """Builds one list."""

    def __init__(self, shape: Objects, meta: ListMeta, sizes: Sequence[int]) -> None:
        type = shape.list_type(meta.type)
        columns = b'"columnDefinitions":%b,' % meta.columns if meta.columns else b""
        self.head = b'{%b,%b"%b":[' % (list_members(type, meta), columns, shape.items.encode())
        self.tail = b"]}\n"
        commas = max(len(sizes) - 1, 0)
        self.length = len(self.head) + sum(sizes) + commas + len(self.tail)
        self._separator = b""

    def items(self, bodies: Iterable[bytes]) -> bytes:
        """Return the next items, preceded by a comma unless they are the first."""
        joined = b",".join(bodies)
        if not joined:
            return b""
        separator, self._separator = self._separator, b","
        return separator + joined


def list_members(type: TypeMeta, meta: ListMeta) -> bytes:
    """Return the members of a list other than its items, in JSON."""
    members: dict[str, str | int] = {"resourceVersion": meta.version}
    if meta.continue_token:
        members["continue"] = meta.continue_token
    if meta.remaining is not None:
        members["remainingItemCount"] = meta.remaining
    return b'"kind":%b,"apiVersion":%b,"metadata":%b' % (
        text_form(type.kind),
        text_form(type.api_version),
        msgspec.json.encode(members),
    )
