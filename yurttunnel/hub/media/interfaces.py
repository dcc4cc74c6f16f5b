"""The seam between the media types of the API and those who keep, change or rebuild bodies.

A body is read in pieces of any size, as it passes. What is cut out of it are items: an object in
the form that it has within a list, as bytes, with what is needed to find it again. In JSON that is
the object without ``kind`` and ``apiVersion`` at its beginning, in Kubernetes protobuf the message
without its envelope. :class:`TypeMeta` goes with the collection.

Readers raise :class:`BadBody` for what they cannot read; whoever reads passes the body on as it is,
and keeps nothing of it.
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
    """An object, and what of it is looked at.

    ``version`` is its resourceVersion. ``node`` is ``spec.nodeName``, cut out of pods only.
    ``body`` is in the form of a list's item.
    """

    namespace: str
    name: str
    version: str
    labels: Mapping[str, str]
    node: str
    body: bytes


class ListMeta(NamedTuple):
    """What a list says beside its items; ``columns`` are the column definitions of a Table."""

    type: TypeMeta
    version: str
    continue_token: str = ""
    remaining: int | None = None
    columns: bytes = b""


class WatchEvent(NamedTuple):
    """An event of a watch.

    ``type`` is ADDED, MODIFIED, DELETED, BOOKMARK or ERROR; ``item`` is ``None`` for the last,
    whose ``status`` is the ``Status`` as it was in the frame. A bookmark's item has only a version;
    ``initial_events_end`` is its annotation (``k8s.io/initial-events-end``, KEP-3157).
    """

    type: str
    meta: TypeMeta
    item: Item | None
    initial_events_end: bool = False
    status: bytes = b""


class IListReader(Interface):
    """Cuts one list."""

    def feed(data: bytes) -> Sequence[Item]:
        """Take the next piece; return the items that are complete with it."""

    def finish() -> ListMeta:
        """Take the end; raises :class:`BadBody` when the list is not complete."""


class IWatchReader(Interface):
    """Cuts the frames of one watch."""

    def feed(data: bytes) -> Sequence[WatchEvent]:
        """Take the next piece; return the events that are complete with it."""


class IListWriter(Interface):
    """Builds one list whose items are known by their sizes, so that it can be streamed."""

    length: int = Attribute("`int`: bytes of the whole body.")
    head: bytes = Attribute("`bytes`: what comes before the first item.")
    tail: bytes = Attribute("`bytes`: what comes behind the last item.")

    def items(bodies: Iterable[bytes]) -> bytes:
        """Return the next items, as they follow one another in the body."""


class IMedia(Interface):
    """One form (:class:`yurttunnel.hub.request.requests.Form`) of the API's bodies."""

    content_type: bytes = Attribute("`bytes`: of objects and lists.")
    watch_content_type: bytes = Attribute("`bytes`: of watches.")
    lists_need_sizes: bool = Attribute(
        "`bool`: a list says first how long it is, so that the sizes of its items have to be known."
    )

    def list_reader(max_item: int) -> IListReader:
        """Return a reader of one list; an item of more bytes than ``max_item`` is a bad body."""

    def watch_reader(max_item: int) -> IWatchReader:
        """Return a reader of one watch."""

    def read_object(body: bytes) -> tuple[TypeMeta, Item]:
        """Read one object; a ``Status`` is one, too, with the kind that says so.

        What clients send may leave out its type, which is then empty.
        """

    def is_held(body: bytes, type: TypeMeta) -> bool:
        """Return whether an item that was deleted is there still.

        It is for as long as it has a time to end (``deletionGracePeriodSeconds``) or finalizers
        (``BeforeDelete`` of k8s.io/apiserver pkg/registry/rest/delete.go). A Namespace has others
        in its ``spec`` (k8s.io/kubernetes pkg/registry/core/namespace/storage/storage.go).
        """

    def object(meta: TypeMeta, body: bytes, columns: bytes = b"") -> bytes:
        """Return an item as an object of its own; ``columns`` are a Table's, if they are known."""

    def list_writer(meta: ListMeta, sizes: Sequence[int]) -> IListWriter:
        """Return a writer of a list whose items have these sizes; ``meta.type`` is the items'."""

    def watch_event(type: str, meta: TypeMeta, body: bytes, columns: bytes = b"") -> bytes:
        """Return a frame: ADDED, MODIFIED or DELETED, or ERROR with a ``Status`` as its body.

        ``columns`` are a Table's, which stand in the first event of a watch only.
        """

    def bookmark(meta: TypeMeta, version: str, initial_events_end: bool) -> bytes:
        """Return a frame: a bookmark."""
