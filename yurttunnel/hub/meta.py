"""The hub's pages for operators, on port 10267: those of all programs, and its own.

=======================  ======================================================================
``/v1/healthz``          as ``/healthz``, where upstream's manifests look for it
``/v1/readyz``           as ``/readyz``
``/v1/token``            POST or PUT ``{"jointoken": "..."}``: a node whose certificate and token
                         have both expired, or whose certificate the API does not accept, joins
                         anew, without a restart
``/pods``                the pods of this node, a ``PodList`` in JSON; without the cloud those that
                         kubelet knows, if it asks for them in JSON, which the filter
                         ``serviceenvupdater`` makes it do
=======================  ======================================================================

The last two are for this machine alone, wherever the port listens.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable

from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.web.resource import Resource

from yurttunnel.kube.errors import ApiError, ApiUnreachable
from yurttunnel.kube.resources import Object
from yurttunnel.metrics import MetricRegistry
from yurttunnel.ops.debug.pages import JSON, refusal
from yurttunnel.ops.http_site import ANSWERED_LATER, PageRequest
from yurttunnel.ops.meta import health_page, meta_pages, readiness_page
from yurttunnel.ops.readiness import Readiness
from yurttunnel.ops.status.page import StatusPage
from yurttunnel.pki.discovery import BadBootstrapToken, BootstrapToken

TakeToken = Callable[[BootstrapToken], bool]
"""Takes a token, and says whether the node joins with it now."""


def hub_pages(
    status: StatusPage,
    readiness: Readiness,
    metrics: MetricRegistry,
    take_token: TakeToken,
    pods: Callable[[], Awaitable[Object]],
) -> Resource:
    """Build the tree of pages; ``pods()`` gives the list of the node's pods."""
    root = meta_pages(status, readiness, metrics, None)
    versioned = Resource()
    versioned.putChild(b"healthz", health_page())
    versioned.putChild(b"readyz", readiness_page(readiness))
    versioned.putChild(b"token", _TokenPage(take_token))
    root.putChild(b"v1", versioned)
    root.putChild(b"pods", _PodsPage(pods))
    return root


class _TokenPage(Resource):
    """Takes a new token, of who is on this machine, and of no web page that is open there."""

    isLeaf = True
    _log = Logger()

    def __init__(self, take: TakeToken) -> None:
        super().__init__()
        self._take = take

    def render(self, request: PageRequest) -> bytes:
        """Answer with JSON: a ``message``, and with 200 whether the node ``joins`` now."""
        refused = _refusal(request, "/v1/token")
        if refused is not None:
            return _send(request, 403, {"message": refused})
        if request.method not in (b"POST", b"PUT"):
            request.setHeader(b"allow", b"POST, PUT")
            return _send(request, 405, {"message": "only POST and PUT are answered here"})
        try:
            token = _token_in(request.body)
        except ValueError as error:
            return _send(request, 400, {"message": str(error)})
        joins = self._take(token)
        self._log.info("the bootstrap token {id} was posted to /v1/token", id=token.id)
        message = "the node joins with it; /v1/readyz tells how that goes"
        if not joins:
            message = "it is not needed: the node has a certificate that is good"
        return _send(request, 200, {"message": message, "joins": joins})


class _PodsPage(Resource):
    """Asks for the node's pods as people do, who are answered offline with what kubelet knows."""

    isLeaf = True

    def __init__(self, pods: Callable[[], Awaitable[Object]]) -> None:
        super().__init__()
        self._pods = pods

    def render(self, request: PageRequest) -> bytes | int:
        """Answer ``request``, or refuse it."""
        refused = _refusal(request, "/pods")
        if refused is not None:
            return _send(request, 403, {"message": refused})
        if request.method not in (b"GET", b"HEAD"):
            request.setHeader(b"allow", b"GET, HEAD")
            return _send(request, 405, {"message": "only GET and HEAD are answered here"})
        # It ends with the request, and lets no error through.
        _ = Deferred.fromCoroutine(self._answer(request))
        return ANSWERED_LATER

    async def _answer(self, request: PageRequest) -> None:
        gone: list[Failure] = []
        _ = request.notifyFinish().addErrback(gone.append)
        try:
            status, content = 200, await self._pods()
        except ApiError as error:
            status, content = error.status, {"message": str(error)}
        except ApiUnreachable as error:
            status, content = 503, {"message": str(error)}
        if not gone:
            body = _send(request, status, content)
            request.setHeader(b"content-length", b"%d" % len(body))
            request.write(body)
            request.finish()


def _token_in(body: bytes) -> BootstrapToken:
    """Read ``{"jointoken": "..."}``; raises ``ValueError`` that does not repeat it."""
    try:
        text = json.loads(body)["jointoken"]
    except (ValueError, LookupError, TypeError, RecursionError):
        text = None
    if not isinstance(text, str):
        raise ValueError('the body is not {"jointoken": "..."}') from None
    try:
        return BootstrapToken.parse(text)
    except BadBootstrapToken as error:
        raise ValueError(str(error)) from None


def _refusal(request: PageRequest, page: str) -> str | None:
    """Return why ``request`` is refused, as those to ``/debug`` are, ``None`` when it is not."""
    refused = refusal(request, lambda client, listener: False)
    return None if refused is None else refused.replace("/debug", page)


def _send(request: PageRequest, status: int, content: object) -> bytes:
    request.setResponseCode(status)
    request.setHeader(b"content-type", JSON)
    request.setHeader(b"cache-control", b"no-store")
    request.setHeader(b"x-content-type-options", b"nosniff")
    request.setHeader(b"server", b"yurttunnel")
    return json.dumps(content).encode() + b"\n"
