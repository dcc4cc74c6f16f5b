"""The embedded API, put together from its parts."""

from __future__ import annotations

from collections.abc import Mapping

from twisted.internet.interfaces import IReactorTime

from yurtlab.api.application import Application
from yurtlab.api.authorization import Audit, Authorizer
from yurtlab.api.bootstrap_roles import add_initial_roles
from yurtlab.api.certificates import CertificateRequestStrategy
from yurtlab.api.discovery import Discovery
from yurtlab.api.namespaces import Namespaces, NamespaceStrategy
from yurtlab.api.node_proxy import NodeConnections, NodeProxy
from yurtlab.api.objects import Objects
from yurtlab.api.openapi import OpenAPI
from yurtlab.api.pods import PodStrategy
from yurtlab.api.resources import (
    CERTIFICATE_SIGNING_REQUESTS,
    CLUSTER_ROLE_BINDINGS,
    CLUSTER_ROLES,
    DAEMON_SETS,
    DEPLOYMENTS,
    MAKE_PODS,
    NAMESPACES,
    PODS,
    RESOURCES,
    ROLE_BINDINGS,
    ROLES,
    SECRETS,
    SERVICES,
    Resource,
)
from yurtlab.api.responses import Responder
from yurtlab.api.rest import Rest
from yurtlab.api.reviews import Reviews
from yurtlab.api.roles import BindingStrategy, RoleStrategy
from yurtlab.api.routing import Routes
from yurtlab.api.scheduler import Scheduler
from yurtlab.api.schemas import Schemas
from yurtlab.api.services import ServiceStrategy
from yurtlab.api.store import Store
from yurtlab.api.strategy import SecretStrategy, Strategy
from yurtlab.api.tokens import ServiceAccountTokens
from yurtlab.api.workloads import (
    DAEMON_SET_DEFAULTS,
    DEPLOYMENT_DEFAULTS,
    WorkloadStrategy,
)
from yurttunnel.http.relay import Relay
from yurttunnel.pki.credentials import PrivateKey, new_key


def _strategies(
    clock: IReactorTime, store: Store, authorizer: Authorizer
) -> Mapping[Resource, Strategy]:
    """Return the strategies of the kinds that are more than stored."""
    return {
        NAMESPACES: NamespaceStrategy(),
        PODS: PodStrategy(),
        SECRETS: SecretStrategy(),
        SERVICES: ServiceStrategy(store),
        CERTIFICATE_SIGNING_REQUESTS: CertificateRequestStrategy(clock, authorizer),
        CLUSTER_ROLES: RoleStrategy(namespaced=False),
        CLUSTER_ROLE_BINDINGS: BindingStrategy(namespaced=False),
        ROLES: RoleStrategy(namespaced=True),
        ROLE_BINDINGS: BindingStrategy(namespaced=True),
        DEPLOYMENTS: WorkloadStrategy("deployment", DEPLOYMENT_DEFAULTS),
        DAEMON_SETS: WorkloadStrategy("daemonset", DAEMON_SET_DEFAULTS),
    }


class KubernetesAPI:
    """A Kubernetes API with its objects in ``store``.

    ``handler`` answers the requests that an ``HTTPFactory`` receives, ``connections`` gets
    connections to nodes, ``schemas`` are those of all kinds (``Schemas(RESOURCES)``).

    ``token_key``, P-256 or RSA, signs the tokens of service accounts, which ``tokens`` issues and
    reads; without one, a new key does. ``on_request`` is told of each request by somebody who is
    known: who, what, and whether it was allowed. With ``pods_only`` those are refused that want
    something of which controllers make pods; else it is stored.
    """

    def __init__(
        self,
        clock: IReactorTime,
        store: Store,
        schemas: Schemas,
        connections: NodeConnections,
        *,
        token_key: PrivateKey | None = None,
        on_request: Audit | None = None,
        pods_only: bool = False,
    ) -> None:
        self.tokens = ServiceAccountTokens(clock, store, token_key or new_key())
        self._namespaces = Namespaces(store, RESOURCES)
        self._namespaces.add_initial()
        add_initial_roles(store)
        self._scheduler = Scheduler(clock, store)
        self._relay = Relay(clock)
        authorizer = Authorizer(store, on_request)
        responder = Responder(clock)
        objects = Objects(
            store,
            schemas,
            self._namespaces,
            _strategies(clock, store, authorizer),
            Reviews(authorizer, self.tokens),
            self.tokens,
        )
        node_proxy = NodeProxy(store, self._relay, connections)
        self.handler = Application(
            self.tokens,
            authorizer,
            Routes(RESOURCES),
            Rest(clock, store, objects, node_proxy, responder, MAKE_PODS if pods_only else ()),
            Discovery(RESOURCES),
            OpenAPI(RESOURCES, schemas),
            responder,
        )

    def stop(self) -> None:
        """End what goes on: watches and timers."""
        self.handler.stop()
        self._scheduler.stop()
        self._namespaces.stop()
        self._relay.close()
