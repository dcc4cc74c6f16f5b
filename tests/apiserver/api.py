"""The lab's API with more features of a real one: roles, tokens, certificates, workloads.

Tests of the tunnel use it for authorization as in a cluster. That includes kubelets, which may
read the objects of their pods, certificate signing requests, and kinds without a controller.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from twisted.internet.interfaces import IReactorTime
from zope.interface import implementer

from tests.apiserver.attributes import request_attributes
from tests.apiserver.authorization import Audit, Authorizer
from tests.apiserver.bootstrap_roles import add_initial_roles
from tests.apiserver.bootstrap_tokens import ANONYMOUS, BootstrapTokens, add_joining_rules
from tests.apiserver.certificates import CertificateRequestStrategy
from tests.apiserver.documents import all_documents
from tests.apiserver.impersonation import impersonated
from tests.apiserver.jwt import BadToken
from tests.apiserver.kinds import (
    CERTIFICATE_SIGNING_REQUESTS,
    CLUSTER_ROLE_BINDINGS,
    CLUSTER_ROLES,
    DAEMON_SETS,
    DEPLOYMENTS,
    JOBS,
    RESOURCES,
    ROLE_BINDINGS,
    ROLES,
    TOKEN_REQUESTS,
)
from tests.apiserver.paging import list_page
from tests.apiserver.reviews import Reviews
from tests.apiserver.roles import BindingStrategy, RoleStrategy
from tests.apiserver.services import AllocatingStrategy
from tests.apiserver.token_requests import answer_token_request
from tests.apiserver.tokens import ServiceAccountTokens
from tests.apiserver.workloads import (
    DAEMON_SET_DEFAULTS,
    DEPLOYMENT_DEFAULTS,
    JobStrategy,
    WorkloadStrategy,
)
from yurtlab.api import errors
from yurtlab.api.access import Certificates, IAuthenticator, IAuthorizer, Request, User
from yurtlab.api.node_proxy import NodeConnections
from yurtlab.api.objects import VirtualKind
from yurtlab.api.resources import SERVICE_ACCOUNTS, SERVICES
from yurtlab.api.service import KubernetesAPI
from yurtlab.api.store import Store
from yurttunnel.http.interfaces import IExchange
from yurttunnel.pki.credentials import PrivateKey, new_key


@implementer(IAuthenticator)
class Everybody:
    """Authenticates users by certificates and tokens, and applies impersonation.

    ``anonymous`` is the user of requests without credentials, ``None`` to reject them.
    """

    def __init__(
        self,
        tokens: ServiceAccountTokens,
        bootstrap_tokens: BootstrapTokens,
        authorizer: Authorizer,
        anonymous: User | None,
    ) -> None:
        self._certificates = Certificates()
        self._tokens = tokens
        self._bootstrap_tokens = bootstrap_tokens
        self._authorizer = authorizer
        self._anonymous = anonymous

    def authenticate(self, exchange: IExchange) -> User | None:
        """Return the user of a request; see ``IAuthenticator``."""
        if not exchange.secure:
            return None
        user = self._certificates.authenticate(exchange) or self._by_token(exchange)
        if user is None:
            return self._anonymous
        return impersonated(exchange.head, user, self._authorizer)

    def _by_token(self, exchange: IExchange) -> User | None:
        fields = exchange.head.values(b"authorization")
        if not fields:
            return None
        # With two spaces the second word is empty, and there is no token.
        scheme, token = [*fields[0].decode("latin-1").strip().split(" "), ""][:2]
        if scheme.lower() != "bearer" or not token:
            return None
        try:
            if token.count(".") == 1:
                return self._bootstrap_tokens.authenticate(token)
            return self._tokens.authenticate(token).user
        except BadToken:
            raise errors.unauthorized() from None


@implementer(IAuthorizer)
class ByAttributes:
    """Authorizes requests by their attributes."""

    def __init__(self, authorizer: Authorizer) -> None:
        self._authorizer = authorizer

    def check(self, user: User, request: Request) -> None:
        """Allow a request, or raise Forbidden; see ``IAuthorizer``."""
        attributes = request_attributes(request.method, request.path, request.query, request.target)
        self._authorizer.check(user, attributes)


class ClusterAPI(KubernetesAPI):
    """The API of a cluster; parameters are those of ``KubernetesAPI``, and three more.

    ``token_key``, P-256 or RSA, signs the tokens of service accounts, which ``tokens`` issues and
    reads; the default is a new key. ``on_request`` is called for each request of an authenticated
    user, with the user, the attributes, and whether it was allowed. With ``join`` nodes can join by
    bootstrap tokens with kubeadm's rules, and anonymous requests are served.
    """

    def __init__(
        self,
        clock: IReactorTime,
        store: Store,
        connections: NodeConnections,
        *,
        token_key: PrivateKey | None = None,
        on_request: Audit | None = None,
        join: bool = False,
    ) -> None:
        self.bootstrap_tokens = BootstrapTokens(clock, store)
        self.tokens = ServiceAccountTokens(clock, store, token_key or new_key())
        authorizer = Authorizer(store, on_request)
        request_token = partial(answer_token_request, store, self.tokens)
        super().__init__(
            clock,
            store,
            connections,
            kinds=RESOURCES,
            documents=all_documents(),
            authenticator=Everybody(
                self.tokens, self.bootstrap_tokens, authorizer, ANONYMOUS if join else None
            ),
            authorizer=ByAttributes(authorizer),
            strategies=_strategies(clock, store, authorizer),
            virtual_kinds={
                (SERVICE_ACCOUNTS, "token"): VirtualKind(TOKEN_REQUESTS, request_token),
                **Reviews(authorizer, self.tokens).virtual_kinds(),
            },
            without_controllers=(),
            list_page=list_page,
        )
        add_initial_roles(store)
        if join:
            add_joining_rules(store)


def _strategies(clock: IReactorTime, store: Store, authorizer: Authorizer) -> dict[Any, Any]:
    """Return the strategies of the kinds with rules of their own."""
    return {
        CERTIFICATE_SIGNING_REQUESTS: CertificateRequestStrategy(clock, authorizer),
        CLUSTER_ROLES: RoleStrategy(namespaced=False),
        CLUSTER_ROLE_BINDINGS: BindingStrategy(namespaced=False),
        SERVICES: AllocatingStrategy(store),
        ROLES: RoleStrategy(namespaced=True),
        ROLE_BINDINGS: BindingStrategy(namespaced=True),
        DEPLOYMENTS: WorkloadStrategy("deployment", DEPLOYMENT_DEFAULTS),
        DAEMON_SETS: WorkloadStrategy("daemonset", DAEMON_SET_DEFAULTS),
        JOBS: JobStrategy(),
    }
