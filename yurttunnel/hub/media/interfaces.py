"""The interface between the API's media types and the code that caches or changes bodies.

Bodies are parsed as a stream, in pieces of any size. The parsed items are objects in the form that
they have in a list, as bytes, with the fields that are needed to find them again. In JSON this is
the object without ``kind`` and ``apiVersion`` at its start, in Kubernetes protobuf the message
without its envelope. The :class:`TypeMeta` is stored with the collection.

Readers raise :class:`BadBody` for a body that they cannot parse; the caller forwards the body
unchanged, and does not cache it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from zope.interface import Attribute, Interface


class TypeMeta(NamedTuple):
    """The kind of an object (``Pod``, also for a list of pods) and its API version."""

    api_version: str
    kind: str


class Item(NamedTuple):
    """An object, and the fields of it that the hub uses.

    ``version`` is its resourceVersion. ``node`` is ``spec.nodeName``, and is parsed only for pods.
    ``body`` is in the form of a list's item.
    """

    namespace: str
    name: str
    version: str
    labels: Mapping[str, str]
    node: str
    body: bytes


class Deletion(NamedTuple):
    """The state of an object's deletion.

    It ``has_begun`` if the object has a ``deletionTimestamp``, and ``is_pending`` as long as the
    object has a grace period (``deletionGracePeriodSeconds``) or finalizers (``BeforeDelete`` of
    k8s.io/apiserver pkg/registry/rest/delete.go). A Namespace has more finalizers in its ``spec``
    (k8s.io/kubernetes pkg/registry/core/namespace/storage/storage.go).
    """

    has_begun: bool
    is_pending: bool


class ListMeta(NamedTuple):
    """The fields of a list besides its items; ``columns`` are the column definitions of a Table."""

    type: TypeMeta
    version: str
    continue_token: str = ""
    remaining: int | None = None
    columns: bytes = b""


class WatchEvent(NamedTuple):
    """An event of a watch.

    ``type`` is ADDED, MODIFIED, DELETED, BOOKMARK or ERROR. ``item`` is ``None`` for ERROR;
    ``status`` is then the ``Status`` from the frame. The item of a bookmark has only a version;
    ``initial_events_end`` is its annotation (``k8s.io/initial-events-end``, KEP-3157).
    """

    type: str
    meta: TypeMeta
    item: Item | None
    initial_events_end: bool = False
    status: bytes = b""


class IListReader(Interface):
    """Parses one list."""

    def feed(data: bytes) -> Sequence[Item]:
        """Parse the next piece; return the items that it completes."""

    def finish() -> ListMeta:
        """End the body; raise :class:`BadBody` if the list is incomplete."""


class IWatchReader(Interface):
    """Parses the frames of one watch."""

    def feed(data: bytes) -> Sequence[WatchEvent]:
        """Parse the next piece; return the events that it completes."""


class IListWriter(Interface):
    """Builds one list from the sizes of its items, so that it can be streamed."""

    length: int = Attribute("`int`: bytes of the whole body.")
    head: bytes = Attribute("`bytes`: the data before the first item.")
    tail: bytes = Attribute("`bytes`: the data after the last item.")

    def items(bodies: Iterable[bytes]) -> bytes:
        """Return the next items as they appear in the body."""


class ICodec(Interface):
    """The codec of one form (:class:`yurttunnel.hub.request.requests.Form`) of the API's bodies."""

    content_type: bytes = Attribute("`bytes`: of objects and lists.")
    watch_content_type: bytes = Attribute("`bytes`: of watches.")
    lists_need_sizes: bool = Attribute(
        "`bool`: the length of a list comes first, so the sizes of its items must be known."
    )

    def list_reader(max_item: int) -> IListReader:
        """Return a reader of one list; an item over ``max_item`` bytes raises :class:`BadBody`."""

    def watch_reader(max_item: int) -> IWatchReader:
        """Return a reader of one watch."""

    def read_object(body: bytes) -> tuple[TypeMeta, Item]:
        """Parse one object, or a ``Status``, which its kind identifies.

        Clients may omit the type of an object; it is then empty.
        """

    def deletion(body: bytes, type: TypeMeta) -> Deletion:
        """Return the state of an item's deletion."""

    def object(meta: TypeMeta, body: bytes, columns: bytes = b"") -> bytes:
        """Return an item as a complete object; ``columns`` are a Table's, if known."""

    def list_writer(meta: ListMeta, sizes: Sequence[int]) -> IListWriter:
        """Return a writer of a list with items of these sizes; ``meta.type`` is the items' type."""

    def watch_event(type: str, meta: TypeMeta, body: bytes, columns: bytes = b"") -> bytes:
        """Return a frame: ADDED, MODIFIED or DELETED, or ERROR with a ``Status`` as its body.

        ``columns`` are a Table's; only the first event of a watch has them.
        """

    def bookmark(meta: TypeMeta, version: str, initial_events_end: bool) -> bytes:
        """Return the frame of a bookmark."""
