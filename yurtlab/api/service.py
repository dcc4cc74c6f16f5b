"""The embedded API, put together from its parts."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from twisted.internet.interfaces import IReactorTime

from yurtlab.api.access import Certificates, IAuthenticator, IAuthorizer, MastersOnly
from yurtlab.api.application import Application
from yurtlab.api.documents import Documents
from yurtlab.api.namespaces import Namespaces, NamespaceStrategy
from yurtlab.api.node_proxy import NodeConnections, NodeProxy
from yurtlab.api.objects import Objects, Question
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
from yurtlab.api.rest import ListPage, Rest, whole_list
from yurtlab.api.scheduler import Scheduler
from yurtlab.api.store import Store
from yurtlab.api.strategy import SecretStrategy, ServiceStrategy, Strategy
from yurttunnel.http.relay import Relay

_CERTIFICATES, _MASTERS_ONLY = Certificates(), MastersOnly()


class KubernetesAPI:
    """A Kubernetes API with its objects in ``store``.

    ``handler`` answers the requests that an ``HTTPFactory`` receives, ``connections`` gets
    connections to nodes. ``documents`` are those of the ``kinds``.

    Who asks, and whether they may, is for ``authenticator`` and ``authorizer`` to say. Objects of
    the kinds ``without_controllers`` are not for anybody to write. ``strategies`` are those of
    kinds that are more than stored, and ``questions`` are asked by creating an object: of a kind,
    or of one of its subresources. ``list_page`` decides how much of a list is given.
    """

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
        questions: Mapping[tuple[Resource, str | None], Question] | None = None,
        without_controllers: Collection[Resource] = MAKE_PODS,
        list_page: ListPage = whole_list,
    ) -> None:
        documents = documents or Documents.of_lab()
        self._namespaces = Namespaces(store, kinds)
        self._namespaces.add_initial()
        self._scheduler = Scheduler(clock, store)
        self._relay = Relay(clock)
        responder = Responder(clock)
        own: Mapping[Resource, Strategy] = {
            NAMESPACES: NamespaceStrategy(),
            PODS: PodStrategy(),
            SECRETS: SecretStrategy(),
            SERVICES: ServiceStrategy(),
        }
        objects = Objects(store, documents, self._namespaces, {**own, **(strategies or {})})
        node_proxy = NodeProxy(store, self._relay, connections)
        self.handler = Application(
            authenticator,
            authorizer,
            Routes(kinds),
            Rest(
                clock,
                store,
                objects,
                node_proxy,
                responder,
                without_controllers,
                questions or {},
                list_page,
            ),
            documents,
            responder,
        )

    def stop(self) -> None:
        """End what goes on: watches and timers."""
        self.handler.stop()
        self._scheduler.stop()
        self._namespaces.stop()
        self._relay.close()
