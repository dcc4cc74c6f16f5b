"""The hub's pages for operators, on port 10267: the pages of all programs, and its own.

=======================  ======================================================================
``/v1/healthz``          same as ``/healthz``, for upstream's manifests
``/v1/readyz``           same as ``/readyz``
``/v1/token``            POST or PUT ``{"jointoken": "..."}``: a node whose certificate and token
                         have both expired, or whose certificate the API rejects, joins again
                         without a restart
``/pods``                the pods of this node, as a ``PodList`` in JSON; offline those that the
                         kubelet has cached, if it requests them in JSON, which the filter
                         ``serviceenvupdater`` makes it do
=======================  ======================================================================

The last two are served only to clients on this machine, on whatever address the port listens.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from twisted.logger import Logger

from yurttunnel.http.fields import Fields
from yurttunnel.kube.errors import ApiError, ApiUnreachable
from yurttunnel.kube.resources import Object
from yurttunnel.ops.debug.pages import JSON, refusal
from yurttunnel.ops.http_site import AnyPage, PageRequest, PageResponse, Pages, allowed_methods
from yurttunnel.pki.discovery import BadBootstrapToken, BootstrapToken

_log = Logger()

SetToken = Callable[[BootstrapToken], bool]
"""Accepts a token; returns whether the node joins with it now."""


def hub_pages(
    set_token: SetToken, pods: Callable[[], Awaitable[Object]], shared: Pages
) -> dict[str, AnyPage]:
    """Return the hub's own pages by path; ``pods()`` returns the list of the node's pods.

    ``shared`` are the pages of all programs.
    """
    return {
        "/v1/healthz": shared["/healthz"],
        "/v1/readyz": shared["/readyz"],
        "/v1/token": _local("/v1/token", (b"POST", b"PUT"), partial(_token_answer, set_token)),
        "/pods": _local("/pods", (b"GET", b"HEAD"), lambda request: _pods_answer(pods)),
    }


def _local(path: str, methods: Sequence[bytes], page: AnyPage) -> AnyPage:
    """Restrict ``page`` to clients on this machine, and reject requests from web pages."""

    def answer(request: PageRequest) -> PageResponse | Awaitable[PageResponse]:
        refused = refusal(request, lambda client, listener: False)
        if refused is not None:
            return _answer({"message": refused.replace("/debug", path)}, 403)
        if request.head.method in methods:
            return page(request)
        sentence, fields = allowed_methods(methods)
        return _answer({"message": sentence}, 405, fields)

    return answer


def _token_answer(set_token: SetToken, request: PageRequest) -> PageResponse:
    """Accept a new token; respond with a ``message``, and whether the node ``joins`` now."""
    try:
        token = _token_in(request.body)
    except ValueError as error:
        return _answer({"message": str(error)}, 400)
    joins = set_token(token)
    _log.info("the bootstrap token {id} was posted to /v1/token", id=token.id)
    message = "the node joins with it; /v1/readyz reports the progress"
    if not joins:
        message = "it is not needed: the node has a valid certificate"
    return _answer({"message": message, "joins": joins})


async def _pods_answer(pods: Callable[[], Awaitable[Object]]) -> PageResponse:
    """Request the node's pods as a user would; offline, these are the kubelet's cached pods."""
    try:
        return _answer(await pods())
    except ApiError as error:
        return _answer({"message": str(error)}, error.status)
    except ApiUnreachable as error:
        return _answer({"message": str(error)}, 503)


def _token_in(body: bytes) -> BootstrapToken:
    """Parse ``{"jointoken": "..."}``; raise a ``ValueError`` that does not contain the token."""
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


def _answer(content: object, status: int = 200, fields: Fields = ()) -> PageResponse:
    return PageResponse(JSON, json.dumps(content).encode() + b"\n", status, fields)
