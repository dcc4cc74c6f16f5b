"""Requests that are forwarded to nodes.

The locations for logs, exec, attach, port-forward and the node itself follow the rules of
kube-apiserver: LogLocation, ExecLocation, AttachLocation and PortForwardLocation in
pkg/registry/core/pod/strategy.go, and ResourceLocation in pkg/registry/core/node/strategy.go.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure
from zope.interface import implementer

from yurtlab.api import errors
from yurtlab.api.errors import ApiError
from yurtlab.api.negotiation import JSON, encode_json, type_field
from yurtlab.api.options import Query, first, flag, number
from yurtlab.api.pods import containers
from yurtlab.api.resources import NODES, PODS, Target
from yurtlab.api.store import Object, Store
from yurttunnel.http.authority import join_authority
from yurttunnel.http.client import ClientConnection
from yurttunnel.http.exchange_wrapper import ExchangeWrapper
from yurttunnel.http.fields import Fields, requested_upgrade
from yurttunnel.http.interfaces import IBodySink, IBodySource, IExchange
from yurttunnel.http.relay import Acquire, ForwardedRequest, Forwarding, Relay

KUBELET_PORT = 10250
"""The default port of a kubelet."""

_STREAMS = {"stdin": "input", "stdout": "output", "stderr": "error", "tty": "tty"}
"""Parameters of the API, and the kubelet's names for them."""


@dataclass(frozen=True, slots=True)
class Location:
    """A node, the port there, and the path with its query."""

    node: str
    port: int
    target: str


def log_location(store: Store, target: Target, query: Query) -> Location | None:
    """Return the location of a container's log, or ``None`` if the pod has no node yet."""
    pod = _pod(store, target)
    container = _container(pod, first(query, "container"))
    if not pod["spec"].get("nodeName"):
        return None
    parameters = [
        (name, "true") for name in ("follow", "previous", "timestamps") if flag(query, name)
    ]
    for name, least in (("sinceSeconds", 1), ("tailLines", 0), ("limitBytes", 1)):
        value = number(query, name)
        if value is not None:
            _check_at_least(name, value, least)
            parameters.append((name, str(value)))
    texts = ((name, first(query, name)) for name in ("sinceTime", "stream"))
    parameters += [(name, text) for name, text in texts if text]
    return _location(store, pod, "containerLogs", container, parameters)


def exec_location(store: Store, target: Target, query: Query) -> Location:
    """Return the location for running a command in a container."""
    commands = [("command", word) for word in query.get("command", ())]
    if not commands:
        cause = errors.required("command")
        raise errors.invalid("", "PodExecOptions", "", [cause])
    return _stream_location(store, target, query, "exec", commands)


def port_forward_location(store: Store, target: Target, query: Query) -> Location:
    """Return the location for forwarding ports to a pod."""
    pod = _pod(store, target)
    _check_has_node(pod)
    ports = ",".join(query.get("ports", ()))
    return _location(store, pod, "portForward", None, [("port", ports)] if ports else [])


LOCATIONS: dict[str, Callable[[Store, Target, Query], Location | None]] = {
    "log": log_location,
    "exec": exec_location,
    "attach": lambda store, target, query: _stream_location(store, target, query, "attach", []),
    "portforward": port_forward_location,
}
"""The location of each subresource of pods that is served by their node."""


def node_location(store: Store, target: Target, query: str) -> Location:
    """Return the location for ``nodes/NAME/proxy/...`` or ``nodes/https:NAME:PORT/proxy/...``."""
    scheme, name, port = _split_node(target.name or "")
    node = store.get(NODES, None, name)
    kubelet_port = _kubelet_port(node)
    if scheme == "http" or (not scheme and port not in (None, kubelet_port)):
        raise errors.bad_request(
            f"only HTTPS is proxied to nodes: write https:{name}:{port or kubelet_port}"
        )
    path = target.rest or "/"
    return Location(name, port or kubelet_port, f"{path}?{query}" if query else path)


def _stream_location(
    store: Store, target: Target, query: Query, path: str, parameters: list[tuple[str, str]]
) -> Location:
    pod = _pod(store, target)
    container = _container(pod, first(query, "container"))
    _check_has_node(pod)
    streams = [(theirs, "1") for ours, theirs in _STREAMS.items() if flag(query, ours)]
    if not any(flag(query, stream) for stream in ("stdin", "stdout", "stderr")):
        raise errors.bad_request("you must specify at least 1 of stdin, stdout, stderr")
    return _location(store, pod, path, container, [*streams, *parameters])


def _location(
    store: Store, pod: Object, path: str, container: str | None, parameters: list[tuple[str, str]]
) -> Location:
    name = pod["spec"]["nodeName"]
    node = store.get(NODES, None, name)
    metadata = pod["metadata"]
    segments = [path, metadata["namespace"], metadata["name"]]
    if container is not None:
        segments.append(container)
    target = "/" + "/".join(quote(segment, safe="") for segment in segments)
    if parameters:
        target += "?" + urlencode(parameters)
    return Location(name, _kubelet_port(node), target)


def _pod(store: Store, target: Target) -> Object:
    return store.get(PODS, target.namespace, target.name or "")


def _container(pod: Object, name: str) -> str:
    """Return the named container, or the only one if none is named."""
    pod_name, spec = pod["metadata"]["name"], pod["spec"]
    every = [str(container["name"]) for container in containers(spec)]
    if name:
        if name not in every:
            raise errors.bad_request(f"container {name} is not valid for pod {pod_name}")
        return name
    usual = spec["containers"]
    if len(usual) == 1:
        return str(usual[0]["name"])
    raise errors.bad_request(
        f"a container name must be specified for pod {pod_name}, choose one of: [{' '.join(every)}]"
    )


def _check_has_node(pod: Object) -> None:
    if not pod["spec"].get("nodeName"):
        raise errors.bad_request(f"pod {pod['metadata']['name']} does not have a host assigned")


def _check_at_least(name: str, value: int, least: int) -> None:
    if value < least:
        text = f"must be greater than {'or equal to 0' if least == 0 else '0'}"
        cause = errors.invalid_value(name, value, text)
        raise errors.invalid("", "PodLogOptions", "", [cause])


def _kubelet_port(node: Object) -> int:
    endpoints = node.get("status", {}).get("daemonEndpoints", {})
    return int(endpoints.get("kubeletEndpoint", {}).get("Port") or KUBELET_PORT)


def _split_node(text: str) -> tuple[str, str, int | None]:
    """Split NAME, NAME:PORT or SCHEME:NAME:PORT (SplitSchemeNamePort of apimachinery)."""
    match text.split(":"):
        case [name]:
            return "", name, None
        case [name, port]:
            return "", name, _port(text, port)
        case [("http" | "https") as scheme, name, port]:
            return scheme, name, _port(text, port)
    raise errors.bad_request(f'invalid node request "{text}"')


def _port(text: str, port: str) -> int | None:
    if not port:
        return None
    if port.isascii() and port.isdigit() and 1 <= int(port[:6]) <= 65535:
        return int(port)
    raise errors.bad_request(f'invalid node request "{text}"')


NodeConnections = Callable[[str, int], Acquire]
"""Returns the function that acquires connections to a node, by its name and port."""

_MAX_ERROR_BYTES = 50_000
"""The maximum length of a node's error text (maxReadLength of kube-apiserver)."""

_UPGRADES = frozenset({"exec", "attach", "portforward"})

# The client's credentials are for this API only.
_NOT_SENT_ON = re.compile(rb"host|authorization|impersonate-.*", re.IGNORECASE)


class NodeProxy:
    """Forwards requests to nodes; ``connections`` connects to them."""

    def __init__(self, store: Store, relay: Relay, connections: NodeConnections) -> None:
        self._store = store
        self._relay = relay
        self._connections = connections

    def answer(self, exchange: IExchange, target: Target, query: Query, raw_query: str) -> None:
        """Answer a request for a subresource that a node serves; raise ``ApiError``."""
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
        request = ForwardedRequest(head.method, location.target.encode("ascii"), fields)
        acquire = self._connections(location.node, location.port)
        _Forwarding(self._relay, exchange, request, location, acquire).begin()


class _Forwarding(Forwarding):
    def __init__(
        self,
        relay: Relay,
        exchange: IExchange,
        request: ForwardedRequest,
        location: Location,
        acquire: Acquire,
    ) -> None:
        super().__init__(relay, exchange, long_running=False)
        self.request = request
        self.origin = f"node {location.node}"
        self._authority = join_authority(location.node, location.port)
        self._acquire = acquire

    def acquire(
        self, *, fresh: bool, upload: bool, upgrade: bool
    ) -> Deferred[ClientConnection] | ClientConnection:
        return self._acquire(fresh=fresh, upload=upload, upgrade=upgrade)

    def describe(self, failure: Failure) -> tuple[int, str]:
        # The message is kube-apiserver's.
        return 500, f"error dialing backend: {self._authority}: {failure.value}"


class _LogExchange(ExchangeWrapper):
    """An exchange that turns errors into a ``Status``: kubelets send those of logs as text."""

    def respond_from(
        self, status: int, fields: Fields, source: IBodySource, reason: bytes = b""
    ) -> None:
        """Forward the node's response, or convert its error."""
        if 200 <= status <= 206:
            self.exchange.respond_from(status, fields, source, reason)
        else:
            source.deliver_body(_ErrorText(lambda text: self._send_error(status, text)))

    def _send_error(self, status: int, text: str) -> None:
        error = _error(status, _message(text.strip()))
        body = encode_json(error.as_status()) + b"\n"
        self.respond(error.status, type_field(JSON), body)


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
    """Return the message if ``text`` is a ``Status``, as in errors of the tunnel's server."""
    try:
        message = json.loads(text)
    except (ValueError, RecursionError):
        return text
    is_status = isinstance(message, dict) and message.get("kind") == "Status"
    return str(message.get("message", text)) if is_status else text


def _error(status: int, text: str) -> ApiError:
    """Return the error for a node's response (GenericHttpResponseChecker of kube-apiserver)."""
    if status == 400:
        return errors.bad_request(text)
    if status == 404:
        return ApiError(
            404, "NotFound", f"the server could not find the requested resource: {text}"
        )
    if status == 500:
        return ApiError(500, "InternalError", f"Internal error occurred: {text}")
    return ApiError(status, "", text or "the node gave no reason")
