"""Where on a node a request for logs, exec, attach, port-forward or the node itself goes.

These are the rules of kube-apiserver: LogLocation, ExecLocation, AttachLocation and
PortForwardLocation in pkg/registry/core/pod/strategy.go, and ResourceLocation in
pkg/registry/core/node/strategy.go.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import quote, urlencode

from yurtlab.api import errors
from yurtlab.api.options import Query, first, flag, number
from yurtlab.api.pods import containers
from yurtlab.api.resources import NODES, PODS
from yurtlab.api.routing import Target
from yurtlab.api.store import Object, Store

KUBELET_PORT = 10250
"""The port of a kubelet that does not say another."""

_STREAMS = {"stdin": "input", "stdout": "output", "stderr": "error", "tty": "tty"}
"""Parameters of the API, and the kubelet's names for them."""


@dataclass(frozen=True, slots=True)
class Location:
    """A node, the port there, and the path with its query."""

    node: str
    port: int
    target: str


def log_location(store: Store, target: Target, query: Query) -> Location | None:
    """Find the log of a container; ``None`` when the pod has no node yet."""
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
    """Find where to run a command in a container."""
    commands = [("command", word) for word in query.get("command", ())]
    if not commands:
        cause = errors.required("command")
        raise errors.invalid("", "PodExecOptions", "", [cause])
    return _stream_location(store, target, query, "exec", commands)


def attach_location(store: Store, target: Target, query: Query) -> Location:
    """Find where to attach to a container."""
    return _stream_location(store, target, query, "attach", [])


def port_forward_location(store: Store, target: Target, query: Query) -> Location:
    """Find where to forward ports to a pod."""
    pod = _pod(store, target)
    _check_has_node(pod)
    ports = ",".join(query.get("ports", ()))
    return _location(store, pod, "portForward", None, [("port", ports)] if ports else [])


LOCATIONS: dict[str, Callable[[Store, Target, Query], Location | None]] = {
    "log": log_location,
    "exec": exec_location,
    "attach": attach_location,
    "portforward": port_forward_location,
}
"""The location of each subresource of pods that is served by their node."""


def node_location(store: Store, target: Target, query: str) -> Location:
    """Find what ``nodes/NAME/proxy/...`` or ``nodes/https:NAME:PORT/proxy/...`` means."""
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
    store: Store,
    pod: Object,
    path: str,
    container: str | None,
    parameters: list[tuple[str, str]],
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
    """Return the container that is meant; the only one when none is named."""
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
