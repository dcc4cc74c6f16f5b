"""The seam of the cache: what is written while answers pass, and what is read without the cloud.

Writes are told and done later, in their order, by a thread of the cache's own; what is read sees
what was told before. What a client sees online does not wait for any of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from twisted.internet.defer import Deferred
from zope.interface import Attribute, Interface

from yurttunnel.hub.media.interfaces import Item, ListMeta, TypeMeta


class CacheFailed(Exception):
    """The cache cannot be used; one line that names the file, and what to do."""


class Collection(NamedTuple):
    """The objects of one resource as one client knows them, in one form.

    ``client`` is its component, and who owns its token when that is not the node. ``resource`` and
    ``form`` are the texts of :class:`~yurttunnel.hub.request.requests.ResourceType` and ``Form``.
    ``view`` is the part of a field selector that cannot be evaluated here: what was selected so is
    kept apart.
    """

    client: str
    resource: str
    form: str
    view: str = ""


class Scope(NamedTuple):
    """What a list is about: a collection, or what of it is in a namespace and selected.

    The selectors are texts that :mod:`yurttunnel.hub.cache.selectors` can evaluate.
    """

    collection: Collection
    namespace: str = ""
    label_selector: str = ""
    field_selector: str = ""


class Stored(NamedTuple):
    """One object that is kept."""

    meta: TypeMeta
    item: Item


class IListing(Interface):
    """A list, or one page of it, on its way into the cache."""

    def add(items: Sequence[Item]) -> None:
        """Take the next items."""

    def lag(size: int, ended: bool) -> bool:
        """Take it that ``size`` bytes of the body have come whose items have not.

        They count as what waits to be written. If the body has ``ended``, whoever reads the cache
        waits for them. Return whether there is room for the list; if not, it is abandoned.
        """

    def complete(meta: ListMeta) -> None:
        """Take the end of the page.

        With the last page what the scope had, and the pages do not, is removed, and all becomes
        visible at once. What is removed so by a list with a selector may be there still, as with
        :meth:`ICache.remove`. The pages of a list that never comes to its end change nothing but
        the objects that they have.

        Of an API server that lags it may be older than what is known of other scopes: it does not
        bring back what has gone from those.
        """

    def abandon() -> None:
        """The body broke off, or is of no use: forget it."""


class IListed(Interface):
    """A list that is read: a snapshot, however it changes meanwhile."""

    meta: ListMeta = Attribute(
        "`ListMeta`: with the version up to which all is known. If it is not complete, that is the"
        " version of the object where the scope has one name, the oldest where several namespaces"
        " have one, and else the largest one that was ever seen of its collection."
    )
    complete: bool = Attribute(
        "`bool`: all of the scope was listed once, and is known; else it may lack some."
    )
    sizes: Sequence[int] = Attribute(
        "`Sequence[int]`: bytes of each item, in the order of their namespaces and names."
    )

    def read() -> Deferred[Sequence[Item]]:
        """Return the next items, some 256 KiB of them; none at the end.

        Fails with :class:`CacheFailed`, also when that takes too long, and when the snapshot has
        ended for its age (2 minutes), or for want of room for what is written meanwhile.
        """

    def close() -> None:
        """End the snapshot; called once, also after the last item."""


class KeptEvent(NamedTuple):
    """An Event that could not be sent: what was asked, with the token and whose that is.

    Both are empty for the node.
    """

    id: int
    path: str
    content_type: str
    body: bytes
    token: str
    owner: str


class KeptDocument(NamedTuple):
    """An answer that is no object: discovery, versions, OpenAPI."""

    content_type: str
    body: bytes


class ICache(Interface):
    """What clients last saw; see the module.

    What returns a Deferred fails with :class:`CacheFailed` when the file cannot be read, or when
    that takes too long.
    """

    def upsert(collection: Collection, meta: TypeMeta, item: Item) -> None:
        """Take an object; one with a lower version than what is there changes nothing."""

    def remove(scope: Scope, item: Item) -> None:
        """Take it that an object has gone from a scope, as a watch of that tells.

        ``item`` is the object as it last was there, in the version at which it went; what is not
        older stays. Without a version it goes whatever is there.

        A watch with a selector tells of what leaves the selection as of an end. The object may be
        there still, so another scope that had it is not complete before it is known up to that
        version; a list or a watch of it tells then what has become of the object.
        """

    def forget_object(
        client: str, resource: str, namespace: str, name: str, version: str = ""
    ) -> None:
        """Take the end of an object in all forms and views that a client knows it in.

        The texts are those of :class:`Collection`; with ``version`` only what is older goes.
        """

    def see(scope: Scope, since: str, version: str) -> None:
        """Take it that a watch of a scope has told of all that happened in it up to ``version``.

        The watch began at the version ``since``. If lists and watches of just this scope have told
        of all up to there, what is read of it then has no version from before ``version``; else
        what happened before the watch may be missing, and this does not count. Versions that are no
        numbers cannot be compared: of a scope that was listed it counts then. If nothing is known
        of the collection, whether it counts is open.
        """

    def use(collection: Collection) -> None:
        """Take it that its client asks for it: a watch may have nothing to tell for weeks."""

    def forget(keeps: Callable[[str], bool]) -> None:
        """Forget the clients whose component is not one that ``keeps``; documents stay."""

    def begin_list(scope: Scope, continue_token: str) -> IListing:
        """Return where the items of a page go; the token is the request's, empty for the first."""

    def get(collection: Collection, namespace: str, name: str) -> Deferred[Stored | None]:
        """Return an object."""

    def list(scope: Scope) -> Deferred[IListed | None]:
        """Return what there is of a scope; ``None`` when nothing of its collection is known."""

    def known_to(scope: Scope) -> Deferred[str | None]:
        """Return up to which version all of a scope is known, ``None`` when it may lack something.

        That is the version of :meth:`list` where it is complete, without the list.
        """

    def keep_document(client: str, path: str, form: str, document: KeptDocument) -> None:
        """Take an answer that is no object.

        ``client`` is empty: whoever the API knows may read them, so all share what is there.
        ``form`` is that of ``document_form`` (:mod:`yurttunnel.hub.request.accept`).
        """

    def document(client: str, path: str, form: str) -> Deferred[KeptDocument | None]:
        """Return an answer that is no object."""

    def keep_event(path: str, content_type: str, body: bytes, token: str, owner: str = "") -> None:
        """Take an Event to be sent later; beyond the bound the oldest ones go."""

    def event_problem(token: str) -> str | None:
        """Return why no Event can be kept of one with that token, or of the node without any."""

    def kept_events(most: int) -> Deferred[Sequence[KeptEvent]]:
        """Return the oldest events that were not sent."""

    def drop_event(id: int) -> None:
        """Forget an event: it has been sent, or never will be."""

    def accept_token(digest: bytes, owner: str, until: float) -> None:
        """Take it that the API has accepted a token (its SHA-256), and whose it is."""

    def token_owner(digest: bytes) -> Deferred[str | None]:
        """Return whose token that is, if the API has ever accepted it and it has not expired."""

    def refuse_token(digest: bytes) -> None:
        """Forget a token: the API does not accept it any more."""

    def problem() -> str | None:
        """Return why nothing can be kept at this time, or what the node's own need was not when
        something was kept last; for ``/readyz``.
        """
