"""The hub's own requests to API servers: short, as the node or with a token."""

from __future__ import annotations

import json
from collections.abc import Mapping
from http import HTTPStatus
from urllib.parse import quote

from twisted.internet.defer import Deferred

from yurttunnel import __version__
from yurttunnel.cluster.fields import mapping, text
from yurttunnel.http.errors import RequestFailed
from yurttunnel.http.interfaces import ExchangeFailed
from yurttunnel.http.pool import PoolBusy
from yurttunnel.http.simple_client import CompleteResponse, fetch
from yurttunnel.hub.cache.interfaces import StoredEvent
from yurttunnel.hub.media.codecs import codec_for
from yurttunnel.hub.media.occurrences import occurrences, update_patch
from yurttunnel.hub.request.accept import encoding_of
from yurttunnel.hub.request.callers import groups_of
from yurttunnel.hub.request.requests import Form
from yurttunnel.hub.upstream.connections import Connections
from yurttunnel.hub.upstream.servers import Balancer, Server
from yurttunnel.kube.protobuf_fields import BadBody

MAX_RESPONSE = 1 << 20
"""Maximum size of a response in bytes."""

CALL_ERRORS = (RequestFailed, ExchangeFailed, PoolBusy)
"""The errors of a failed call; the message says why there is no response."""

_AUTHENTICATION, _AUTHORIZATION = "authentication.k8s.io/v1", "authorization.k8s.io/v1"
_JSON, _MERGE_PATCH = b"application/json", b"application/merge-patch+json"
_NO_SUCH_REVIEW = frozenset({HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND})
"""The statuses for a review that the API server does not have; for most users it is 403."""

_NOBODY = "system:anonymous"
"""The user of requests without credentials (``Anonymous`` of k8s.io/apiserver
pkg/authentication/user)."""

_AGENT = b"yurthub/" + __version__.encode("ascii")


class TokenRejected(Exception):
    """The API has rejected a token."""


class ApiCalls:
    """Sends requests over ``connections``; the caller sets a timeout, and may cancel."""

    def __init__(self, connections: Connections, balancer: Balancer) -> None:
        self._connections = connections
        self._balancer = balancer

    async def send(
        self,
        server: Server,
        method: bytes,
        path: bytes,
        body: bytes = b"",
        content_type: bytes = _JSON,
        *,
        token: str = "",
        fresh: bool = False,
    ) -> CompleteResponse:
        """Send a request to ``server``, as the node or with a ``token``, and return the response.

        With ``fresh`` a new connection is used, because the server may have closed an idle one.
        Fails with one of :data:`CALL_ERRORS`.
        """
        # Long-running requests do not wait in a queue for a connection.
        connection = self._connections.acquire(server, not token, fresh=fresh, long_running=True)
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
        return await fetch(connection, method, path, fields, body, MAX_RESPONSE)

    def send_event(self, event: StoredEvent) -> Deferred[int | None]:
        """Send a stored Event; return the status of the response, ``None`` without a response.

        If its token is no longer valid, as after a long outage, the node sends the Event, provided
        that the API says that the token's owner may create it; if the API cannot say so now, the
        result is ``None``. The count and last time of an Event that exists already (409) are
        updated; if that is not possible now, the result is ``None``, too.
        """
        return Deferred.fromCoroutine(self._send_event(event))

    async def _send_event(self, event: StoredEvent) -> int | None:
        path, content_type = quote(event.path), event.content_type.encode("latin-1")
        response = await self._send_for(event, "create", b"POST", path, event.body, content_type)
        if response is not None and response.status == HTTPStatus.CONFLICT:
            return await self._update_occurrences(event, path, encoding_of(content_type))
        return None if response is None else response.status

    async def _update_occurrences(self, event: StoredEvent, path: str, form: str) -> int | None:
        """Update an existing Event with the newer occurrences of a stored one of the same name.

        Recorders create an Event again if they cannot patch it, as in an outage; and they may patch
        it while its earlier state is being sent.
        """
        codec, json_codec = codec_for(Form(form)), codec_for(Form("json"))
        assert codec is not None and json_codec is not None, "no other Event is kept"
        try:
            path = f"{path}/{quote(codec.read_object(event.body)[1].name, safe='')}"
            # A client that may change Events need not be allowed to read them; nodes are not.
            current = await self._patch(event, path, {})
            if current is None or current.status != HTTPStatus.OK:
                return _unless_temporary(current)
            patch = update_patch(occurrences(form, event.body), occurrences("json", current.body))
            version = json_codec.read_object(current.body)[1].version
        except BadBody:
            return HTTPStatus.CONFLICT
        if not patch:
            return HTTPStatus.CONFLICT
        patch["metadata"] = {"resourceVersion": version}
        changed = await self._patch(event, path, patch)
        if changed is not None and changed.status == HTTPStatus.CONFLICT:
            # Another client has changed it meanwhile, so it may have newer occurrences.
            return None
        return _unless_temporary(changed)

    async def _patch(
        self, event: StoredEvent, path: str, patch: Mapping[str, object]
    ) -> CompleteResponse | None:
        body = json.dumps(patch).encode()
        return await self._send_for(event, "patch", b"PATCH", path, body, _MERGE_PATCH)

    async def _send_for(
        self,
        event: StoredEvent,
        verb: str,
        method: bytes,
        path: str,
        body: bytes,
        content_type: bytes,
    ) -> CompleteResponse | None:
        """Send a request with the token of an Event, or as the node for an authorized owner."""
        target = path.encode("ascii")
        response = await self._send_any(method, target, body, content_type, event.token)
        if response is None or response.status != HTTPStatus.UNAUTHORIZED or not event.owner:
            return response
        access = _access(event, verb)
        allowed = await self._review(_AUTHORIZATION, "SubjectAccessReview", access)
        if allowed is None or _is_temporary(allowed):
            # The API has neither allowed nor denied it.
            return None
        if _status(allowed).get("allowed") is True:
            return await self._send_any(method, target, body, content_type)
        return response

    def user_of(self, token: str) -> Deferred[str]:
        """Return the name of the owner of ``token``, empty if the API does not say.

        The hub creates a SelfSubjectReview (KEP-3325), which every authenticated user may do. It
        does not exist before Kubernetes 1.28: then the node creates a TokenReview, which all nodes
        may do (``NodeRules`` of k8s.io/kubernetes plugin/pkg/auth/authorizer/rbac/bootstrappolicy).
        Fails with :class:`TokenRejected` if the token is not valid.
        """
        return Deferred.fromCoroutine(self._user_of(token))

    async def _user_of(self, token: str) -> str:
        response = await self._review(_AUTHENTICATION, "SelfSubjectReview", token=token)
        if response is None:
            return ""
        if response.status == 401:
            raise TokenRejected
        if response.status not in _NO_SUCH_REVIEW:
            return _username(_status(response).get("userInfo"))
        response = await self._review(_AUTHENTICATION, "TokenReview", {"token": token})
        status = {} if response is None else _status(response)
        return _username(status.get("user")) if status.get("authenticated") is True else ""

    async def _review(
        self, version: str, kind: str, spec: Mapping[str, object] | None = None, token: str = ""
    ) -> CompleteResponse | None:
        """Create a review, as the node or with a token, and return the response."""
        review: dict[str, object] = {"kind": kind, "apiVersion": version}
        if spec is not None:
            review["spec"] = spec
        path = f"/apis/{version}/{kind.lower()}s".encode("ascii")
        return await self._send_any(b"POST", path, json.dumps(review).encode(), _JSON, token)

    async def _send_any(
        self, method: bytes, path: bytes, body: bytes, content_type: bytes, token: str = ""
    ) -> CompleteResponse | None:
        """Send a request to a healthy server; return ``None`` if it fails, or rejects the node."""
        server = self._balancer.pick()
        if server is None:
            return None
        for fresh in (False, True):
            try:
                response = await self.send(
                    server, method, path, body, content_type, token=token, fresh=fresh
                )
            except CALL_ERRORS:
                continue
            # The rejection of the node is temporary; the next health check detects it.
            is_rejected = response.status == HTTPStatus.UNAUTHORIZED and not token
            return None if is_rejected else response
        return None


def _access(event: StoredEvent, verb: str) -> Mapping[str, object]:
    """Return the attributes for reviewing whether the owner of an Event may create or patch it."""
    parts = event.path.split("/")
    attributes = {
        "verb": verb,
        "group": parts[2] if parts[1] == "apis" else "",
        "resource": parts[-1],
        "namespace": parts[-2],
    }
    return {"user": event.owner, "groups": groups_of(event.owner), "resourceAttributes": attributes}


def _is_temporary(response: CompleteResponse) -> bool:
    """Return whether a response is temporary, so that a retry may get another one."""
    return response.status == HTTPStatus.TOO_MANY_REQUESTS or response.status >= 500


def _unless_temporary(response: CompleteResponse | None) -> int | None:
    """Return that an Event exists, unless the change must be retried or the Event is gone."""
    if response is None or _is_temporary(response) or response.status == HTTPStatus.NOT_FOUND:
        return None
    return HTTPStatus.CONFLICT


def _status(response: CompleteResponse) -> Mapping[str, object]:
    """Return the status of a created review, empty if it cannot be parsed."""
    if response.status != HTTPStatus.CREATED:
        return {}
    try:
        review = json.loads(response.body)
    except (ValueError, RecursionError):
        return {}
    return mapping(review.get("status")) if isinstance(review, dict) else {}


def _username(user: object) -> str:
    """Return the name of a user, empty for the anonymous user."""
    name = text(mapping(user).get("username"))
    return name if name.isprintable() and name != _NOBODY else ""
