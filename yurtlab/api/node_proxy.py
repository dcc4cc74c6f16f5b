"""Requests for what runs on nodes, sent on to them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from twisted.python.components import proxyForInterface
from twisted.python.failure import Failure
from zope.interface import implementer

from yurtlab.api import errors
from yurtlab.api.errors import ApiError
from yurtlab.api.locations import LOCATIONS, Location, node_location
from yurtlab.api.negotiation import JSON, encode_json, type_field
from yurtlab.api.options import Query
from yurtlab.api.resources import PODS
from yurtlab.api.routing import Target
from yurtlab.api.store import Store
from yurttunnel.http.authority import join_authority
from yurttunnel.http.fields import Fields, requested_upgrade
from yurttunnel.http.interfaces import IBodySink, IBodySource, IExchange
from yurttunnel.http.relay import Acquire, ForwardedRequest, Relay

NodeConnections = Callable[[str, int], Acquire]
"""Gives what gets connections to a port of a node, by the node's name."""

_MAX_ERROR_BYTES = 50_000
"""How much of a node's error text is told (maxReadLength of kube-apiserver)."""

_UPGRADES = frozenset({"exec", "attach", "portforward"})

# How the client proved who it is concerns this API only.
_NOT_SENT_ON = re.compile(rb"host|authorization|impersonate-.*", re.IGNORECASE)


class NodeProxy:
    """Answers requests by what nodes answer; ``connections`` gets at them."""

    def __init__(self, store: Store, relay: Relay, connections: NodeConnections) -> None:
        self._store = store
        self._relay = relay
        self._connections = connections

    def answer(self, exchange: IExchange, target: Target, query: Query, raw_query: str) -> None:
        """Answer a request for a subresource that is served by a node; raises ``ApiError``."""
        if target.kind is not PODS:
            self._forward(exchange, node_location(self._store, target, raw_query))
            return
        assert target.subresource is not None
        location = LOCATIONS[target.subresource](self._store, target, query)
        if target.subresource in _UPGRADES and requested_upgrade(exchange.head) is None:
            raise errors.bad_request("Upgrade request required")
        if location is None:
            exchange.respond(204)
        elif target.subresource == "log":
            self._forward(_LogExchange(exchange), location)
        else:
            self._forward(exchange, location)

    def _forward(self, exchange: IExchange, location: Location) -> None:
        head = exchange.head
        authority = join_authority(location.node, location.port)
        fields = [(b"Host", authority.encode("ascii"))]
        fields += [field for field in head.fields if not _NOT_SENT_ON.fullmatch(field[0])]
        self._relay.forward(
            exchange,
            self._connections(location.node, location.port),
            ForwardedRequest(head.method, location.target.encode("ascii"), fields),
            lambda failure: _describe(failure, authority),
            origin=f"node {location.node}",
        )


def _describe(failure: Failure, authority: str) -> tuple[int, str]:
    """Return why there is no connection, as kube-apiserver does."""
    return 500, f"error dialing backend: {authority}: {failure.getErrorMessage()}"


class _LogExchange(proxyForInterface(IExchange, "_exchange")):  # type: ignore[misc] # made at run time
    """An exchange whose errors are told as a ``Status``: kubelets tell those of logs in text."""

    _exchange: IExchange

    def respond_from(
        self, status: int, fields: Fields, source: IBodySource, reason: bytes = b""
    ) -> None:
        """Answer with what the node answers, or with its error."""
        if 200 <= status <= 206:
            self._exchange.respond_from(status, fields, source, reason)
        else:
            source.deliver_body(_ErrorText(lambda text: self._tell(status, text)))

    def _tell(self, status: int, text: str) -> None:
        error = _error(status, _message(text.strip()))
        body = encode_json(error.as_status()) + b"\n"
        self._exchange.respond(error.status, type_field(JSON), body)


@implementer(IBodySink)
class _ErrorText:
    """Collects the beginning of a text."""

    def __init__(self, complete: Callable[[str], object]) -> None:
        self._complete = complete
        self._text = bytearray()

    def write(self, data: bytes) -> None:
        self._text += data[: _MAX_ERROR_BYTES - len(self._text)]

    def finish(self, trailers: Any = ()) -> None:
        self._complete(self._text.decode("utf-8", "replace"))


def _message(text: str) -> str:
    """Return the message when ``text`` is a ``Status``, as the tunnel's server tells its errors."""
    try:
        told = json.loads(text)
    except (ValueError, RecursionError):
        return text
    is_status = isinstance(told, dict) and told.get("kind") == "Status"
    return str(told.get("message", text)) if is_status else text


def _error(status: int, text: str) -> ApiError:
    """Make the error of what a node says (GenericHttpResponseChecker of kube-apiserver)."""
    if status == 400:
        return errors.bad_request(text)
    if status == 404:
        return ApiError(
            404, "NotFound", f"the server could not find the requested resource: {text}"
        )
    if status == 500:
        return ApiError(500, "InternalError", f"Internal error occurred: {text}")
    return ApiError(status, "", text or "the node gave no reason")
