"""Requests for objects: dispatches by method, path and query, and responds."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial

from twisted.internet.interfaces import IReactorTime

from yurtlab.api import errors
from yurtlab.api.access import User
from yurtlab.api.negotiation import (
    MAX_BODY_BYTES,
    Form,
    choose_form,
    content_type,
    decode_body,
    decode_object,
)
from yurtlab.api.node_proxy import NodeProxy
from yurtlab.api.objects import PATCH_TYPES, Objects, VirtualKind, WriteResult
from yurtlab.api.options import (
    DeleteOptions,
    Query,
    WriteOptions,
    delete_options,
    first,
    flag,
    number,
    selection,
    write_options,
)
from yurtlab.api.resources import NAMESPACES, PODS, SERVICE_ACCOUNTS, SERVICES, Resource, Target
from yurtlab.api.responses import Page, Responder, deleted_status
from yurtlab.api.store import Object, Store
from yurtlab.api.watching import Watch, WatchRequest
from yurttunnel.http.interfaces import IExchange
from yurttunnel.http.request_body import BodyTooLarge, read_body

WATCH_SECONDS = 1800.0
"""The minimum duration of a watch without a timeout of its own; the maximum is twice as long
(``--min-request-timeout`` of kube-apiserver)."""

_OBJECT_VERBS = {"GET": "get", "HEAD": "get", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
_COLLECTION_VERBS = {"GET": "list", "HEAD": "list", "POST": "create", "DELETE": "deletecollection"}
_SUBRESOURCE_VERBS = {**_OBJECT_VERBS, "POST": "create"}

# The subresources that are stored with the object; others are served elsewhere.
_STORED = (None, "status", "approval")

# Kinds whose deletion responds with the object (ReturnDeletedObject in pkg/registry).
_RETURNED_WHEN_DELETED = (PODS, NAMESPACES)

_WRITES = ("create", "update", "patch")

# Requests that are not supported, and the alternatives in the error message.
_UNSUPPORTED_REQUESTS: dict[tuple[Resource, str | None], str] = {
    (PODS, "ephemeralcontainers"): "a node of it has no images to debug with; use kubectl exec",
    (PODS, "proxy"): "it has no way of its own to the ports of pods; use kubectl port-forward",
    (SERVICE_ACCOUNTS, "token"): "it knows its users by their certificates alone",
    (SERVICES, "proxy"): "it has no way of its own to the ports of pods; use kubectl port-forward",
}


Write = Callable[[Target, Object, WriteOptions, User], WriteResult]
"""Writes the object in the body of a request; raises ``ApiError``."""

ListPage = Callable[[Store, Target, Query], Page]
"""Returns the page of objects that a list request selects; raises ``ApiError``."""


def complete_list(store: Store, target: Target, query: Query) -> Page:
    """Return all selected objects, whatever ``limit`` the client requests."""
    selector = selection(target.kind, query)
    selected = [one for one in store.view(target.kind, target.namespace) if selector(one)]
    return Page(selected, {"resourceVersion": str(store.version)})


class Rest:
    """Responds to requests for objects in ``store``.

    Objects of the kinds ``without_controllers`` cannot be written: nothing would act on them.
    ``virtual_kinds`` are queries made by creating an object, of a kind or subresource, which is not
    stored. ``list_page`` selects the objects for a list request.
    """

    def __init__(
        self,
        clock: IReactorTime,
        store: Store,
        objects: Objects,
        node_proxy: NodeProxy,
        responder: Responder,
        without_controllers: Collection[Resource],
        virtual_kinds: Mapping[tuple[Resource, str | None], VirtualKind],
        list_page: ListPage,
    ) -> None:
        self._clock = clock
        self._without_controllers = without_controllers
        self._virtual_kinds = virtual_kinds
        self._list_page = list_page
        self._store = store
        self._objects = objects
        self._node_proxy = node_proxy
        self._responder = responder
        self._watches: set[Watch] = set()
        self._verbs: dict[str, Callable[[IExchange, Target, Query, User], Awaitable[None]]] = {
            "get": self._get,
            "list": self._list,
            "create": partial(self._write, objects.create),
            "update": partial(self._write, objects.update),
            "patch": self._patch,
            "delete": self._delete,
            "deletecollection": self._delete_all,
        }

    async def answer(
        self, exchange: IExchange, target: Target, query: Query, raw_query: str, user: User
    ) -> None:
        """Respond to a request of ``user`` for ``target``; raise ``ApiError``."""
        verb = _verb(exchange.head.method.decode("ascii"), target)
        if target.kind in self._without_controllers and verb in _WRITES:
            raise errors.not_in_demonstration(
                f"it runs pods only, and has no controller for the pods of a {target.kind.kind};"
                " create the pods themselves, as kubectl run does"
            )
        virtual_kind = self._virtual_kinds.get((target.kind, target.subresource))
        alternative = _UNSUPPORTED_REQUESTS.get((target.kind, target.subresource))
        if virtual_kind is not None:
            answer_virtual_kind = partial(self._objects.answer, virtual_kind)
            await self._write(answer_virtual_kind, exchange, target, query, user)
        elif alternative is not None:
            raise errors.not_in_demonstration(alternative)
        elif target.subresource in _STORED:
            await self._verbs[verb](exchange, target, query, user)
        else:
            self._node_proxy.answer(exchange, target, query, raw_query)

    def stop(self) -> None:
        """End all watches."""
        for watch in list(self._watches):
            watch.stop()

    async def _get(self, exchange: IExchange, target: Target, query: Query, user: User) -> None:
        assert target.name is not None
        if flag(query, "watch"):
            self._watch(exchange, target, query)
            return
        form = _form(exchange, query)
        found = self._store.get(target.kind, target.namespace, target.name)
        self._responder.send_object(exchange, target.kind, found, form)

    async def _list(self, exchange: IExchange, target: Target, query: Query, user: User) -> None:
        if flag(query, "watch"):
            self._watch(exchange, target, query)
            return
        form = _form(exchange, query)
        page = self._list_page(self._store, target, query)
        self._responder.send_list(exchange, target.kind, page, form)

    def _watch(self, exchange: IExchange, target: Target, query: Query) -> None:
        request = self._watch_request(target, query, _form(exchange, query))
        watch = Watch(self._clock, self._store, exchange, request)
        watch.start()
        self._watches.add(watch)
        exchange.on_end(lambda _: self._watches.discard(watch))

    def _watch_request(self, target: Target, query: Query, form: Form) -> WatchRequest:
        selector = selection(target.kind, query)
        name = target.name
        timeout = number(query, "timeoutSeconds")
        since = number(query, "resourceVersion") or None
        initial = flag(query, "sendInitialEvents")
        if "sendInitialEvents" in query:
            since = None if initial else since or self._store.version
        return WatchRequest(
            target.kind,
            target.namespace,
            selector if name is None else lambda one: one["metadata"]["name"] == name,
            form,
            timeout if timeout and timeout > 0 else WATCH_SECONDS * random.uniform(1, 2),
            since,
            bookmarks := flag(query, "allowWatchBookmarks"),
            initial and bookmarks,
        )

    async def _write(
        self, write: Write, exchange: IExchange, target: Target, query: Query, user: User
    ) -> None:
        options, body = write_options(query), decode_object(*await _body(exchange))
        self._send_written(exchange, target, query, write(target, body, options, user))

    async def _patch(self, exchange: IExchange, target: Target, query: Query, user: User) -> None:
        options = write_options(query)
        media_type = content_type(exchange.head.values(b"content-type"))
        if media_type not in PATCH_TYPES:
            raise errors.unsupported_media_type(PATCH_TYPES)
        _, data = await _body(exchange)
        patch = decode_body(media_type, data)
        written = self._objects.patch(target, media_type, patch, options, user)
        self._send_written(exchange, target, query, written)

    def _send_written(
        self, exchange: IExchange, target: Target, query: Query, written: WriteResult
    ) -> None:
        form, status = _form(exchange, query), 201 if written.created else 200
        self._responder.send_object(
            exchange, target.kind, written.object, form, status, written.warnings
        )

    async def _delete(self, exchange: IExchange, target: Target, query: Query, user: User) -> None:
        form, options = _form(exchange, query), await _delete_options(exchange, query)
        deleted = self._objects.delete(target, options)
        if target.kind in _RETURNED_WHEN_DELETED:
            self._responder.send_object(exchange, target.kind, deleted, form)
        else:
            self._responder.send_content(exchange, deleted_status(target.kind, deleted))

    async def _delete_all(
        self, exchange: IExchange, target: Target, query: Query, user: User
    ) -> None:
        form, selector = _form(exchange, query), selection(target.kind, query)
        options = await _delete_options(exchange, query)
        metadata = {"resourceVersion": str(self._store.version)}
        deleted = self._objects.delete_all(target, selector, options)
        self._responder.send_list(exchange, target.kind, Page(deleted, metadata), form)


def _verb(method: str, target: Target) -> str:
    """Return the verb of a method for a target; raise MethodNotAllowed if there is none."""
    kind = target.kind
    if target.subresource is not None:
        subresource = kind.subresource(target.subresource)
        verbs: tuple[str, ...] = subresource.verbs if subresource is not None else ()
        verb = _SUBRESOURCE_VERBS.get(method)
    else:
        verbs = kind.verbs
        verb = (_COLLECTION_VERBS if target.name is None else _OBJECT_VERBS).get(method)
    all_namespaces = kind.namespaced and target.namespace is None
    if verb not in verbs or (all_namespaces and verb != "list"):
        raise errors.method_not_allowed()
    return verb


def _form(exchange: IExchange, query: Query) -> Form:
    return choose_form(exchange.head.values(b"accept"), first(query, "includeObject"))


async def _delete_options(exchange: IExchange, query: Query) -> DeleteOptions:
    media_type, data = await _body(exchange)
    return delete_options(query, decode_object(media_type, data) if data else {})


async def _body(exchange: IExchange) -> tuple[str, bytes]:
    """Read the whole body, with its media type; raise RequestEntityTooLarge."""
    try:
        data = await read_body(exchange, MAX_BODY_BYTES)
    except BodyTooLarge:
        raise errors.too_large(MAX_BODY_BYTES) from None
    return content_type(exchange.head.values(b"content-type")), data
