"""What the hub itself asks of the API servers: short requests, as the node or with a token."""

from __future__ import annotations

import json
from collections.abc import Mapping
from http import HTTPStatus
from urllib.parse import quote

from twisted.internet.defer import Deferred

from yurttunnel import __version__
from yurttunnel.cluster.fields import mapping, text
from yurttunnel.http.asking import Answer, ask
from yurttunnel.http.errors import RequestFailed
from yurttunnel.http.interfaces import ExchangeFailed
from yurttunnel.http.pool import PoolBusy
from yurttunnel.hub.cache.interfaces import KeptEvent
from yurttunnel.hub.request.callers import groups_of
from yurttunnel.hub.upstream.connections import Connections
from yurttunnel.hub.upstream.servers import Balancer, Server

MAX_ANSWER = 1 << 20
"""Bytes of an answer that are looked at."""

UNANSWERED = (RequestFailed, ExchangeFailed, PoolBusy)
"""What a call fails with; the text says why there is no answer."""

_AUTHENTICATION, _AUTHORIZATION = "authentication.k8s.io/v1", "authorization.k8s.io/v1"
_JSON = b"application/json"
_NO_SUCH_REVIEW = frozenset({HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND})
"""How the API answers what it does not have: most may not ask for it, either."""

_NOBODY = "system:anonymous"
"""Whose requests are that prove nothing (``Anonymous`` of k8s.io/apiserver
pkg/authentication/user)."""

_AGENT = b"yurthub/" + __version__.encode("ascii")


class TokenRefused(Exception):
    """The API does not accept a token."""


class ApiCalls:
    """Asks over ``connections``; whoever asks bounds the time, and may cancel."""

    def __init__(self, connections: Connections, balancer: Balancer) -> None:
        self._connections = connections
        self._balancer = balancer

    async def ask(
        self,
        server: Server,
        method: bytes,
        path: bytes,
        body: bytes = b"",
        content_type: bytes = _JSON,
        *,
        token: str = "",
        fresh: bool = False,
    ) -> Answer:
        """Return the answer of ``server``; without a ``token`` it is the node that asks.

        With ``fresh`` on a new connection, since one that was kept may have been closed there.
        Fails with one of :data:`UNANSWERED`.
        """
        # What lasts does not wait for its turn.
        connection = self._connections.take(server, not token, fresh=fresh, lasting=True)
        if isinstance(connection, Deferred):
            connection = await connection
        fields = [
            (b"Host", server.authority),
            (b"User-Agent", _AGENT),
            (b"Accept", b"application/json"),
        ]
        if token:
            fields.append((b"Authorization", b"Bearer " + token.encode("ascii")))
        if body:
            fields.append((b"Content-Type", content_type))
        return await ask(connection, method, path, fields, body, MAX_ANSWER)

    def send_event(self, event: KeptEvent) -> Deferred[int | None]:
        """Send an Event that was kept; return the answer's status, ``None`` if nobody answered.

        When its token is not accepted any more, as after an outage that was longer than tokens
        last, the node sends it, if the API says that the token's owner may create it; that it
        cannot say so now is no answer.
        """
        return Deferred.fromCoroutine(self._send_event(event))

    async def _send_event(self, event: KeptEvent) -> int | None:
        path, content_type = quote(event.path).encode("ascii"), event.content_type.encode("latin-1")
        answer = await self._post(path, event.body, content_type, event.token)
        if answer is not None and answer.status == 401 and event.owner:
            allowed = await self._review(_AUTHORIZATION, "SubjectAccessReview", _access(event))
            if allowed is None or allowed.status == 429 or allowed.status >= 500:
                # It is said neither that he may nor that he may not.
                return None
            if _status(allowed).get("allowed") is True:
                answer = await self._post(path, event.body, content_type)
        return None if answer is None else answer.status

    def user_of(self, token: str) -> Deferred[str]:
        """Return by which name the API knows whoever has ``token``, empty if it does not say.

        It is asked by a SelfSubjectReview (KEP-3325), which all may create who are known. Before
        Kubernetes 1.28 there were none: then the node asks by a TokenReview, which all nodes may
        create (``NodeRules`` of k8s.io/kubernetes plugin/pkg/auth/authorizer/rbac/bootstrappolicy).
        Fails with :class:`TokenRefused` when nobody is known by it.
        """
        return Deferred.fromCoroutine(self._user_of(token))

    async def _user_of(self, token: str) -> str:
        answer = await self._review(_AUTHENTICATION, "SelfSubjectReview", token=token)
        if answer is None:
            return ""
        if answer.status == 401:
            raise TokenRefused
        if answer.status not in _NO_SUCH_REVIEW:
            return _username(_status(answer).get("userInfo"))
        answer = await self._review(_AUTHENTICATION, "TokenReview", {"token": token})
        status = {} if answer is None else _status(answer)
        return _username(status.get("user")) if status.get("authenticated") is True else ""

    async def _review(
        self, version: str, kind: str, spec: Mapping[str, object] | None = None, token: str = ""
    ) -> Answer | None:
        """Have the API answer a question, which is asked by the node or with a token."""
        review: dict[str, object] = {"kind": kind, "apiVersion": version}
        if spec is not None:
            review["spec"] = spec
        path = f"/apis/{version}/{kind.lower()}s".encode("ascii")
        return await self._post(path, json.dumps(review).encode(), _JSON, token)

    async def _post(
        self, path: bytes, body: bytes, content_type: bytes, token: str = ""
    ) -> Answer | None:
        """Ask a server that is healthy; return ``None`` if it does not answer."""
        server = self._balancer.pick()
        if server is None:
            return None
        for fresh in (False, True):
            try:
                return await self.ask(
                    server, b"POST", path, body, content_type, token=token, fresh=fresh
                )
            except UNANSWERED:
                continue
        return None


def _access(event: KeptEvent) -> Mapping[str, object]:
    """Return what is asked about the owner of an Event: whether he may create it."""
    parts = event.path.split("/")
    attributes = {
        "verb": "create",
        "group": parts[2] if parts[1] == "apis" else "",
        "resource": parts[-1],
        "namespace": parts[-2],
    }
    return {
        "user": event.owner,
        "groups": groups_of(event.owner),
        "resourceAttributes": attributes,
    }


def _status(answer: Answer) -> Mapping[str, object]:
    """Return what a review says that has been answered, nothing if it cannot be read."""
    if answer.status != HTTPStatus.CREATED:
        return {}
    try:
        review = json.loads(answer.body)
    except (ValueError, RecursionError):
        return {}
    return mapping(review.get("status")) if isinstance(review, dict) else {}


def _username(user: object) -> str:
    """Return the name of a user, empty for nobody."""
    name = text(mapping(user).get("username"))
    return name if name.isprintable() and name != _NOBODY else ""
