"""The API as an HTTP application: it dispatches every request to its parts.

To clients it behaves like kube-apiserver.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from yurtlab.api import errors
from yurtlab.api.access import (
    Certificates,
    IAuthenticator,
    IAuthorizer,
    MastersOnly,
    Request,
    is_public,
)
from yurtlab.api.documents import (
    GNOSTIC_V2,
    JSON_V2,
    Documents,
    aggregated_type,
    aggregated_version,
    gnostic_v2,
    version_document,
)
from yurtlab.api.namespaces import Namespaces, NamespaceStrategy
from yurtlab.api.negotiation import accepted, encode_json
from yurtlab.api.node_proxy import NodeConnections, NodeProxy
from yurtlab.api.objects import Objects, VirtualKind
from yurtlab.api.options import parse_query
from yurtlab.api.pods import PodStrategy
from yurtlab.api.resources import (
    MAKE_PODS,
    NAMESPACES,
    PODS,
    RESOURCES,
    SECRETS,
    SERVICES,
    Resource,
    Routes,
)
from yurtlab.api.responses import Responder
from yurtlab.api.rest import ListPage, Rest, complete_list
from yurtlab.api.scheduler import Scheduler
from yurtlab.api.store import Store
from yurtlab.api.strategy import SecretStrategy, ServiceStrategy, Strategy
from yurttunnel.http.interfaces import ExchangeFailed, IExchange, IRequestHandler
from yurttunnel.http.relay import Relay

_PROBES = ("/healthz", "/livez", "/readyz")

_CERTIFICATES, _MASTERS_ONLY = Certificates(), MastersOnly()


@implementer(IRequestHandler)
class KubernetesAPI:
    """A Kubernetes API with its objects in ``store``.

    It handles the requests of an ``HTTPFactory``. ``connections`` connects to nodes. ``documents``
    are those of the ``kinds``.

    ``authenticator`` and ``authorizer`` authenticate and authorize requests. Objects of the kinds
    ``without_controllers`` cannot be written. ``strategies`` are those of kinds with special rules.
    ``virtual_kinds`` are queries made by creating an object, of a kind or of one of its
    subresources. ``list_page`` selects the objects for a list request.
    """

    _log = Logger()

    def __init__(
        self,
        clock: IReactorTime,
        store: Store,
        connections: NodeConnections,
        *,
        kinds: Sequence[Resource] = RESOURCES,
        documents: Documents | None = None,
        authenticator: IAuthenticator = _CERTIFICATES,
        authorizer: IAuthorizer = _MASTERS_ONLY,
        strategies: Mapping[Resource, Strategy] | None = None,
        virtual_kinds: Mapping[tuple[Resource, str | None], VirtualKind] | None = None,
        without_controllers: Collection[Resource] = MAKE_PODS,
        list_page: ListPage = complete_list,
    ) -> None:
        self._authenticator = authenticator
        self._authorizer = authorizer
        self._routes = Routes(kinds)
        self._documents = documents or Documents.of_lab()
        self._namespaces = Namespaces(store, kinds)
        self._scheduler = Scheduler(clock, store)
        self._relay = Relay(clock)
        self._responder = Responder(clock)
        own: Mapping[Resource, Strategy] = {
            NAMESPACES: NamespaceStrategy(),
            PODS: PodStrategy(),
            SECRETS: SecretStrategy(),
            SERVICES: ServiceStrategy(),
        }
        objects = Objects(store, self._documents, self._namespaces, {**own, **(strategies or {})})
        node_proxy = NodeProxy(store, self._relay, connections)
        self._rest = Rest(
            clock,
            store,
            objects,
            node_proxy,
            self._responder,
            without_controllers,
            virtual_kinds or {},
            list_page,
        )

    def request_received(self, exchange: IExchange) -> None:
        path, _, query = exchange.head.target.decode("latin-1").partition("?")
        answering = Deferred.fromCoroutine(self._answer(exchange, path, query))
        _ = answering.addErrback(self._failed, exchange)

    async def _answer(self, exchange: IExchange, path: str, query: str) -> None:
        # Some clients append a slash to the names of documents.
        document = path.rstrip("/")
        user = self._authenticator.authenticate(exchange)
        if user is None and not is_public(document):
            raise errors.unauthorized()
        target, parameters = self._routes.find(path), parse_query(query)
        if user is not None:
            method = exchange.head.method.decode("ascii")
            self._authorizer.check(user, Request(method, path, parameters, target))
        if target is not None and user is not None:
            await self._rest.answer(exchange, target, parameters, query, user)
        elif exchange.head.method not in (b"GET", b"HEAD"):
            raise errors.no_such_path()
        elif path.startswith("/openapi/"):
            self._answer_openapi(exchange, document)
        else:
            self._answer_document(exchange, document)

    def _answer_document(self, exchange: IExchange, path: str) -> None:
        responder = self._responder
        if path in _PROBES or path.startswith(tuple(f"{probe}/" for probe in _PROBES)):
            responder.send_text(exchange, "ok")
            return
        if path == "/version":
            responder.send_content(exchange, version_document())
            return
        aggregated = aggregated_version(accepted(exchange.head.values(b"accept")))
        if aggregated and (document := self._documents.aggregated(path, aggregated)):
            body = encode_json(document) + b"\n"
            responder.send(exchange, body, aggregated_type(aggregated))
            return
        host = b"".join(exchange.head.values(b"host")).decode("latin-1")
        found = self._documents.discovery(path, host)
        if found is None:
            raise errors.no_such_path()
        responder.send_content(exchange, found)

    def _answer_openapi(self, exchange: IExchange, path: str) -> None:
        responder = self._responder
        if path == "/openapi/v2":
            types = [one.type for one in accepted(exchange.head.values(b"accept"))]
            if types[0].startswith("application/com.github.proto-openapi.spec.v2"):
                responder.send(exchange, gnostic_v2(), GNOSTIC_V2)
            else:
                responder.send_content(exchange, JSON_V2)
        elif path == "/openapi/v3":
            responder.send_content(exchange, self._documents.openapi_index())
        else:
            document = self._documents.openapi(path.removeprefix("/openapi/v3/"))
            if document is None:
                raise errors.no_such_path()
            responder.send(exchange, encode_json(document))

    def _failed(self, failure: Failure, exchange: IExchange) -> None:
        error: Any = failure.value
        if isinstance(error, errors.ApiError):
            self._responder.send_error(exchange, error)
        elif not isinstance(error, ExchangeFailed):
            self._log.failure("Defect: a request to the API failed", failure)
            text = "Internal error occurred: the API has a defect; its log has more"
            self._responder.send_error(exchange, errors.ApiError(500, "InternalError", text))

    def stop(self) -> None:
        """Stop watches and timers; all else ends with its connection."""
        self._rest.stop()
        self._scheduler.stop()
        self._namespaces.stop()
        self._relay.close()
