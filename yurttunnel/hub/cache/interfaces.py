"""The interface of the cache: written while responses are forwarded, and read while offline.

Writes are queued, and done later in their order by a thread of the cache. Reads see all earlier
writes. Online, clients do not wait for the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from twisted.internet.defer import Deferred
from zope.interface import Attribute, Interface

from yurttunnel.hub.media.interfaces import Item, ListMeta, TypeMeta


class CacheFailed(Exception):
    """The cache cannot be used; the message is one line with the file and the fix."""


class Collection(NamedTuple):
    """The objects of one resource as one client has seen them, in one form.

    ``client`` is a component, followed by the owner of its token unless that is the node.
    ``resource`` and ``form`` are the strings of
    :class:`~yurttunnel.hub.request.requests.ResourceType` and ``Form``. ``view`` is the part of a
    field selector that cannot be evaluated here; results of such a selector are cached separately.
    """

    client: str
    resource: str
    form: str
    view: str = ""


class Scope(NamedTuple):
    """The objects that a list returns: a collection, or the part in a namespace and with selectors.

    The selectors are strings that :mod:`yurttunnel.hub.cache.selectors` can evaluate.
    """

    collection: Collection
    namespace: str = ""
    label_selector: str = ""
    field_selector: str = ""


class Stored(NamedTuple):
    """A cached object."""

    meta: TypeMeta
    item: Item


class IIncomingList(Interface):
    """A list, or one page of it, that is being received."""

    def add(items: Sequence[Item]) -> None:
        """Add the next items."""

    def lag(size: int, ended: bool) -> bool:
        """Record that ``size`` bytes of the body have arrived whose items have not been added yet.

        They count as data that waits. If the body has ``ended``, reads of the cache wait for the
        items. Return whether there is room for the list; if not, it is abandoned.
        """

    def complete(meta: ListMeta) -> None:
        """End the page.

        The last page removes the objects of the scope that are not in any page, and makes
        everything visible at once. Objects that a list with a selector removes may still exist, as
        with :meth:`ICache.remove`. Pages of a list that is never completed only update the objects
        that they contain.

        A list of an API server that lags may be older than the known state of other scopes; it does
        not restore objects that were removed from these.
        """

    def abandon() -> None:
        """Discard the list: its body was incomplete, or is not usable."""


class ICachedList(Interface):
    """A cached list: a snapshot that later writes do not change."""

    meta: ListMeta = Attribute(
        "`ListMeta`: with the version up to which everything is known. For an incomplete list it is"
        " the version of the object if the scope has one name, the oldest if several namespaces"
        " have that name, and otherwise the newest version seen of its collection."
    )
    complete: bool = Attribute(
        "`bool`: the whole scope was listed, and is known; otherwise objects may be missing."
    )
    sizes: Sequence[int] = Attribute(
        "`Sequence[int]`: the sizes of the items in bytes, by namespace and name."
    )

    def read() -> Deferred[Sequence[Item]]:
        """Return the next items, about 256 KiB; none at the end.

        Fails with :class:`CacheFailed`, also after a timeout, and if the snapshot has been closed
        because of its age (2 minutes), or to make room for writes.
        """

    def close() -> None:
        """Close the snapshot; to be called once, also after the last item."""


class StoredEvent(NamedTuple):
    """An Event that could not be sent: the request, with its token and the owner of the token.

    Token and owner are empty for the node.
    """

    id: int
    path: str
    content_type: str
    body: bytes
    token: str
    owner: str


class CachedDocument(NamedTuple):
    """A response that is not an object: discovery, versions, OpenAPI."""

    content_type: str
    body: bytes


class ICache(Interface):
    """The last state that clients have seen; see the module.

    Deferreds fail with :class:`CacheFailed` if the file cannot be read, or after a timeout.
    """

    replacements = Attribute(
        """How often a file without the earlier lists was opened since the start, because the last
        one was damaged, removed or replaced, or of another version. The first file of a node does
        not count."""
    )

    on_replaced = Attribute("""The callbacks, without arguments, for its changes.""")

    def defer(client: str, call: Callable[[], object], size: int) -> None:
        """Call a function, which writes for a client, in its turn: before any other write or read.

        Functions of many responses are called together, which is faster than one by one, with
        other work in between. ``size`` is the memory that the function takes, in bytes.
        """

    def upsert(collection: Collection, meta: TypeMeta, item: Item) -> None:
        """Store an object, unless its version is lower than the stored one."""

    def remove(scope: Scope, item: Item) -> None:
        """Record that a watch has reported the deletion of an object from its scope.

        ``item`` is the last state of the object, with the version of its deletion; a stored object
        that is not older stays. Without a version, any stored object is removed.

        A watch with a selector also reports a deletion when an object no longer matches. The object
        may still exist, so other scopes that contained it are incomplete until they are known up to
        that version; their list or watch then reports what has become of the object.
        """

    def remove_object(
        client: str, resource: str, namespace: str, name: str, version: str = ""
    ) -> None:
        """Remove an object from all forms and views that are cached for a client.

        The strings are those of :class:`Collection`; with ``version``, only older objects are
        removed.
        """

    def mark_changed(
        client: str, resource: str, namespace: str, version: str, name: str = ""
    ) -> None:
        """Record that unknown changes of a client's objects have version ``version`` or later.

        Lists of them are incomplete until they are known up to that version; if it is not a number,
        until they are known up to a newer one than now, or are listed again if theirs is not one.
        If only the object ``name`` has changed, it is removed where nothing was listed with it.
        """

    def advance(scope: Scope, since: str, version: str) -> None:
        """Record that a watch of a scope has reported all changes up to ``version``.

        The watch began at version ``since``. If lists and watches of exactly this scope cover all
        earlier changes, later reads of it return at least ``version``. If they do not, changes
        before the watch may be missing, and the call has no effect. Versions that are not numbers
        cannot be compared: then the call has an effect if the scope was listed. If nothing is known
        of the collection, the effect is undefined.
        """

    def record_use(collection: Collection) -> None:
        """Record a request for the collection: a watch may have no events for weeks."""

    def evict(caches: Callable[[str], bool]) -> None:
        """Evict the clients for whose component ``caches`` is false; documents stay."""

    def begin_list(scope: Scope, continue_token: str) -> IIncomingList:
        """Begin a page of a list; the token is the request's, empty for the first page."""

    def get(collection: Collection, namespace: str, name: str) -> Deferred[Stored | None]:
        """Return an object."""

    def list(scope: Scope) -> Deferred[ICachedList | None]:
        """Return the cached part of a scope; ``None`` if nothing of its collection is known."""

    def known_version(scope: Scope) -> Deferred[str | None]:
        """Return the version up to which a scope is known, ``None`` if it may be incomplete.

        This is the version of :meth:`list` if that is complete, without the list.
        """

    def store_document(client: str, path: str, form: str, document: CachedDocument) -> None:
        """Cache a response that is not an object.

        ``client`` is empty: every authenticated user may read documents, so all clients share them.
        ``form`` is that of ``document_form`` (:mod:`yurttunnel.hub.request.accept`).
        """

    def document(client: str, path: str, form: str) -> Deferred[CachedDocument | None]:
        """Return a response that is not an object."""

    def store_event(path: str, content_type: str, body: bytes, token: str, owner: str = "") -> None:
        """Store an Event to be sent later; over the limit the oldest are evicted."""

    def event_problem(token: str) -> str | None:
        """Return why an Event with that token, or of the node without one, cannot be stored."""

    def stored_events(most: int) -> Deferred[Sequence[StoredEvent]]:
        """Return the oldest events that have not been sent."""

    def delete_event(id: int) -> None:
        """Delete an event: it has been sent, or never will be."""

    def store_token(digest: bytes, owner: str, until: float) -> None:
        """Record that the API has accepted a token (its SHA-256), and the token's owner."""

    def token_owner(digest: bytes) -> Deferred[str | None]:
        """Return the owner of a token, if the API has ever accepted it and it has not expired."""

    def delete_token(digest: bytes) -> None:
        """Delete a token: the API no longer accepts it."""

    def problem() -> str | None:
        """Return why nothing can be cached now, or why data of the node's own clients could not be
        cached at the last write; for ``/readyz``.
        """
