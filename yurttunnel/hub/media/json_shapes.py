"""The two shapes of JSON: objects in lists of items, and rows in Tables.

A row of a Table has cells, and in ``object`` the metadata of the object (``TableRow`` of meta/v1).
A single object is a Table with one row. The column definitions are in a list, and in the first
event of a watch.
"""

from __future__ import annotations

from typing import Final

import msgspec

from yurttunnel.hub.media.interfaces import Deletion, Item, TypeMeta
from yurttunnel.hub.media.json_objects import (
    decode_object,
    deletion_of,
    ends_initial_events,
    object_form,
)
from yurttunnel.hub.media.json_text import text_form
from yurttunnel.hub.media.kinds import (
    INITIAL_EVENTS_END,
    LIST,
    NotAList,
    checked_type,
    item_type,
    transformed_type,
)
from yurttunnel.kube.protobuf_fields import BadBody

TABLE: Final = "Table"
PARTIAL: Final = "PartialObjectMetadata"


class Objects:
    """Complete objects, or only their metadata if ``transform`` says so."""

    items = "items"
    """The member that has the items of a list."""

    def __init__(self, transform: str = "") -> None:
        self._transform = transform

    def item(self, body: bytes, type: TypeMeta) -> Item:
        """Parse an item of a list; ``type`` is its type as far as it is known.

        Raises :class:`msgspec.DecodeError`.
        """
        return decode_object(body, type)[1]

    def item_type(self, list_type: TypeMeta) -> TypeMeta:
        """Return the type of a list's items; raise :class:`BadBody` for any other kind of list."""
        return item_type(list_type, self._transform)

    def list_type(self, type: TypeMeta) -> TypeMeta:
        """Return the type of a list of such items."""
        return TypeMeta(type.api_version, type.kind + LIST)

    def object(self, body: bytes) -> tuple[TypeMeta, Item]:
        """Parse a single object, or a ``Status``.

        Raises :class:`msgspec.DecodeError`, and :class:`BadBody` for an object of another
        transform.
        """
        type, item = decode_object(body)
        return transformed_type(type, self._transform), item

    def bookmark(self, body: bytes) -> tuple[TypeMeta, str, bool]:
        """Return the type, the version, and whether the initial events end with this bookmark.

        Raises :class:`msgspec.DecodeError`.
        """
        type, item = decode_object(body)
        return checked_type(type, self._transform), item.version, ends_initial_events(body)

    def deletion(self, body: bytes, type: TypeMeta) -> Deletion:
        """Return the state of an item's deletion; raise :class:`msgspec.DecodeError`."""
        return deletion_of(body, type)

    def object_form(self, type: TypeMeta, body: bytes, columns: bytes) -> bytes:
        """Return an item as a complete object."""
        return object_form(type, body)

    def bookmark_form(self, type: TypeMeta, version: str, initial_events_end: bool) -> bytes:
        """Return the object of a bookmark."""
        annotations = ""
        if initial_events_end:
            annotations = f',"annotations":{{"{INITIAL_EVENTS_END}":"true"}}'
        return (
            b'{"kind":%b,"apiVersion":%b,"metadata":{"resourceVersion":%b,'
            b'"creationTimestamp":null%b}}'
        ) % (
            text_form(type.kind),
            text_form(type.api_version),
            text_form(version),
            annotations.encode(),
        )


class _Row(msgspec.Struct, gc=False):
    object: msgspec.Raw = msgspec.Raw()


class _Table(msgspec.Struct, gc=False, rename="camel"):
    kind: str = ""
    api_version: str = ""
    rows: list[msgspec.Raw] | None = None


_decode_row = msgspec.json.Decoder(_Row).decode
_decode_table = msgspec.json.Decoder(_Table).decode


class Tables(Objects):
    """Rows of Tables; their type is the type of the Table."""

    items = "rows"

    def __init__(self) -> None:
        super().__init__(TABLE)

    def item(self, body: bytes, type: TypeMeta) -> Item:
        """Parse a row; its object's metadata identifies it."""
        return decode_object(_shown(body))[1]._replace(body=body)

    def item_type(self, list_type: TypeMeta) -> TypeMeta:
        """Return the type of a Table, which is also the type of its rows."""
        if list_type.kind != TABLE:
            raise NotAList(f"kind {list_type.kind[:60]!r} is not a {TABLE}")
        return checked_type(list_type, TABLE)

    def list_type(self, type: TypeMeta) -> TypeMeta:
        return type

    def object(self, body: bytes) -> tuple[TypeMeta, Item]:
        """Parse a Table with a single row, or a ``Status``."""
        type, rows = self._table(body)
        if type.kind != TABLE:
            return super().object(body)
        if len(rows) != 1:
            raise BadBody(f"the {TABLE} of one object has {len(rows)} rows")
        return checked_type(type, TABLE), self.item(bytes(rows[0]), type)

    def bookmark(self, body: bytes) -> tuple[TypeMeta, str, bool]:
        """Parse a bookmark from the object of its row."""
        type, rows = self._table(body)
        if type.kind != TABLE or len(rows) != 1:
            raise BadBody(f"a bookmark is not a {TABLE} with one row")
        shown = _shown(rows[0])
        version = decode_object(shown)[1].version
        return checked_type(type, TABLE), version, ends_initial_events(shown)

    def deletion(self, body: bytes, type: TypeMeta) -> Deletion:
        """Return the state of the deletion of a row's object."""
        return deletion_of(_shown(body), type)

    def object_form(self, type: TypeMeta, body: bytes, columns: bytes) -> bytes:
        """Return a Table with one row, or a ``Status``."""
        if type.kind != TABLE:
            return super().object_form(type, body, columns)
        return b'{"kind":%b,"apiVersion":%b,"metadata":{},"columnDefinitions":%b,"rows":[%b]}' % (
            text_form(type.kind),
            text_form(type.api_version),
            columns or b"null",
            body,
        )

    def bookmark_form(self, type: TypeMeta, version: str, initial_events_end: bool) -> bytes:
        shown = TypeMeta(type.api_version, PARTIAL)
        row = b'{"cells":[],"object":%b}' % super().bookmark_form(
            shown, version, initial_events_end
        )
        return self.object_form(type, row, b"")

    def _table(self, body: bytes) -> tuple[TypeMeta, list[msgspec.Raw]]:
        table = _decode_table(body)
        return TypeMeta(table.api_version, table.kind), table.rows or []


def _shown(row: bytes | msgspec.Raw) -> bytes:
    """Return the object of a row."""
    shown = bytes(_decode_row(row).object)
    if shown in (b"", b"null"):
        raise BadBody(f"a row of a {TABLE} has no object")
    return shown
