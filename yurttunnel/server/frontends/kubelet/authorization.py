"""Authorization of requests on the port with TLS, in a cluster.

The server's own certificate may do everything at kubelets, so the server must not lend it to
unauthorized callers. It makes the same checks as a kubelet: who the caller is, and whether it may
do this with this node. kube-apiserver is recognized by the name in its certificate, and has made
these checks itself.
"""

from __future__ import annotations

from dataclasses import dataclass

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from yurttunnel.http.errors import RequestFailed, error_content
from yurttunnel.http.fields import BadToken, bearer_token
from yurttunnel.http.interfaces import ExchangeFailed, IExchange
from yurttunnel.ops.log import RateLimitedLog
from yurttunnel.server.frontends.kubelet.access import Access, accesses
from yurttunnel.server.frontends.kubelet.callers import CertificateUser, CertificateUsers
from yurttunnel.server.frontends.kubelet.destination import Destination, destination_of
from yurttunnel.server.frontends.kubelet.middleware import IMiddleware
from yurttunnel.server.frontends.kubelet.request import Handler, InterceptedRequest
from yurttunnel.server.frontends.kubelet.reviews import (
    AuthorizationCounters,
    ReviewFailed,
    Reviews,
    User,
)
from yurttunnel.server.registry import SessionRegistry
from yurttunnel.tunnel.kubelet_ports import KUBELET_PORT


@dataclass(frozen=True, slots=True)
class _Caller:
    """An authenticated caller, and by which of ``PROOFS``."""

    user: User
    proof: str


class _Refused(RequestFailed):
    """A request that authorization rejects; ``result`` is one of ``RESULTS``."""

    def __init__(self, status: int, text: str, result: str) -> None:
        super().__init__(status, text)
        self.result = result


@implementer(IMiddleware)
class Authorization:
    """Admits callers with an allowed name in ``users``, and those permitted by ``reviews``.

    It runs after the middlewares that choose the destination, so that ``registry`` knows the node.
    A middleware after it that changes the destination must do its own authorization. Requests
    without TLS pass: their port is for this machine. A request is checked once, when it begins; a
    revoked permission does not end a followed log or a running command.

    At a kubelet's port the kubelets' finer permissions suffice, such as nodes/metrics; other ports
    need nodes/proxy.
    """

    _log = Logger()

    def __init__(
        self,
        clock: IReactorTime,
        reviews: Reviews,
        users: CertificateUsers,
        registry: SessionRegistry,
        counters: AuthorizationCounters,
    ) -> None:
        self._reviews = reviews
        self._registry = registry
        self._counters = counters
        self._users = users
        self._warnings = RateLimitedLog(clock, self._log)

    def wrap(self, handler: Handler) -> Handler:
        def authorized(request: InterceptedRequest) -> None:
            exchange = request.exchange
            if not exchange.secure:
                handler(request)
                return
            certificate = self._users.of(exchange.transport)
            if certificate is not None and self._users.is_allowed(exchange.transport):
                request.caller = certificate.user.name
                self._counters.decisions["allowed", "allowed_name"] += 1
                handler(request)
                return
            self._review(request, certificate, handler)

        return authorized

    def _review(
        self, request: InterceptedRequest, certificate: CertificateUser | None, handler: Handler
    ) -> None:
        ended: list[ExchangeFailed | None] = []
        request.exchange.on_end(ended.append)

        def allowed(_: None) -> None:
            # A caller that has left must not cause a connection to a kubelet.
            if not ended:
                handler(request)

        # Owned by the exchange: it ends when the reviews do, and these have a timeout.
        reviewed = Deferred.fromCoroutine(self._check(request, certificate))
        answered = reviewed.addCallbacks(allowed, _respond_refused, errbackArgs=(request.exchange,))
        _ = answered.addErrback(self._defect, request)

    async def _check(
        self, request: InterceptedRequest, certificate: CertificateUser | None
    ) -> None:
        """Raise :class:`_Refused` unless the request is allowed, and count the result."""
        caller: _Caller | None = None
        proof = "none"
        try:
            caller = await self._identify(request, certificate)
            proof = caller.proof
            await self._check_access(request, caller.user)
        except _Refused as refused:
            self._counters.decisions[refused.result, proof] += 1
            request.refusal = refused.text
            raise
        self._counters.decisions["allowed", proof] += 1

    async def _identify(
        self, request: InterceptedRequest, certificate: CertificateUser | None
    ) -> _Caller:
        """Authenticate the caller; as in kubelets, a certificate has priority over a token."""
        if certificate is not None:
            request.caller = certificate.user.name
            return _Caller(certificate.user, "certificate")
        try:
            token = bearer_token(request.exchange.head)
        except BadToken as error:
            raise _Refused(
                401, f"the caller is not authenticated: {error}", "unauthenticated"
            ) from None
        if token is None:
            raise _Refused(
                401,
                "the caller is not authenticated: this port accepts a client certificate of the"
                " cluster's authority, or a bearer token (Authorization)",
                "unauthenticated",
            )
        # Set before the review: a token that was meant for this server must not reach a kubelet,
        # which could use it elsewhere.
        request.authorization_used = True
        try:
            user = await self._reviews.user_of(token)
        except ReviewFailed as error:
            raise _unavailable("the token", error) from None
        if user is None:
            raise _Refused(
                401, "the Kubernetes API does not accept the bearer token", "unauthenticated"
            )
        request.caller = user.name
        return _Caller(user, "token")

    async def _check_access(self, request: InterceptedRequest, user: User) -> None:
        """Raise :class:`_Refused` unless ``user`` may do what the request needs."""
        destination = request.destination or destination_of(request.exchange.head)
        request.destination = destination
        node = self._node_of(destination)
        desired = accesses(request.exchange.head, node, destination.port == KUBELET_PORT)
        try:
            for access in desired:
                if await self._reviews.is_allowed(user, access):
                    break
            else:
                raise self._denied(request, user, desired)
        except ReviewFailed as error:
            raise _unavailable(f"the permission of {user.name!r}", error) from None
        # During the reviews the address may have changed to another node.
        if node and self._node_of(destination) != node:
            raise _Refused(
                503,
                f"{destination.node} has just become another node's, or its node is gone:"
                " ask again",
                "unavailable",
            )

    def _node_of(self, destination: Destination) -> str:
        """Return the name of the node that a request will reach, empty if it is not known."""
        session = self._registry.find_or_none(destination.node)
        return "" if session is None else str(session.node)

    def _denied(self, request: InterceptedRequest, user: User, desired: list[Access]) -> _Refused:
        what = " or ".join(map(str, desired))
        subresources = " or ".join(f"nodes/{access.subresource}" for access in desired)
        text = (
            f"{user.name!r} may not {what}: bind it to a ClusterRole that has the verb"
            f" {desired[0].verb or '*'!r} on {subresources}"
        )
        if request.proven:
            # The connection was for a node, as those of kube-apiserver are.
            text += "; if it is kube-apiserver, put its name into --allowed-callers"
        self._warnings.warn(
            "request {request_id} is refused: {text}",
            request_id=request.request_id,
            node=desired[0].node,
            text=text,
        )
        return _Refused(403, text, "denied")

    def _defect(self, failure: Failure, request: InterceptedRequest) -> None:
        self._log.failure(
            "Defect: authorizing or handling request {request_id} failed",
            failure,
            request_id=request.request_id,
            node=request.node,
        )
        request.exchange.fail(500, "internal error: see the log of the server")


def _unavailable(what: str, error: ReviewFailed) -> _Refused:
    return _Refused(503, f"{what} could not be reviewed: {error}", "unavailable")


def _respond_refused(failure: Failure, exchange: IExchange) -> None:
    refused = failure.value
    if not isinstance(refused, RequestFailed):
        failure.raiseException()
    elif refused.status == 401:
        fields, body = error_content(401, refused.text, exchange.head)
        exchange.respond(401, [*fields, (b"WWW-Authenticate", b"Bearer")], body)
    else:
        exchange.fail(refused.status, refused.text)
