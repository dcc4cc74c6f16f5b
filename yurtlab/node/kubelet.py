"""The kubelet's API: the part that kube-apiserver and scrapers use.

The paths are those of k8s.io/kubernetes pkg/kubelet/server/server.go. Authorization happens where
connections are accepted.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import parse_qs, unquote

from zope.interface import implementer

from yurtlab.api.options import Query, flag
from yurtlab.node.attach import Attachment
from yurtlab.node.command import Command
from yurtlab.node.containers import Container, Terminated, Waiting
from yurtlab.node.logs import ContainerLog, LogOptions, LogStream
from yurtlab.node.metrics import NodeMetrics
from yurtlab.node.node_object import MAX_PODS
from yurtlab.node.pods import Pod
from yurtlab.node.port_forward import PortForwarder
from yurtlab.node.streaming.command_client import CommandOptions
from yurtlab.node.streaming.upgrades import command_upgrade, forward_upgrade
from yurttunnel.http.errors import RequestFailed
from yurttunnel.http.interfaces import IExchange, IRequestHandler
from yurttunnel.ops.exposition import CONTENT_TYPE, exposition

MAX_COMMANDS = 250
"""The maximum number of concurrent commands (exec)."""

_Answer = Callable[[IExchange, Sequence[str], Query], None]

_TEXT = [(b"Content-Type", b"text/plain; charset=utf-8")]
_JSON = [(b"Content-Type", b"application/json")]


@implementer(IRequestHandler)
class Kubelet:
    """Responds to requests to the node.

    ``find_pod(namespace, name)`` returns a pod of this node, ``list_pods()`` the objects of all.
    """

    def __init__(
        self,
        reactor: Any,
        metrics: NodeMetrics,
        find_pod: Callable[[str, str], Pod | None],
        list_pods: Callable[[], Sequence[Mapping[str, Any]]],
    ) -> None:
        self._reactor = reactor
        self._metrics = metrics
        self._find_pod = find_pod
        self._list_pods = list_pods
        self._commands = 0
        self._answers: dict[str, _Answer] = {
            "healthz": self._healthz,
            "configz": self._configuration,
            "pods": self._pods,
            "metrics": self._stats,
            "stats": self._summary,
            "containerLogs": self._logs,
            "exec": self._exec,
            "attach": self._attach,
            "portForward": self._port_forward,
        }

    def request_received(self, exchange: IExchange) -> None:
        path, _, text = exchange.head.target.decode("ascii", "replace").partition("?")
        kind, *parts = [unquote(part) for part in path.strip("/").split("/")]
        # Arguments of commands can be any bytes: those that are not valid text are preserved.
        query = parse_qs(text, keep_blank_values=True, errors="surrogateescape")
        answer = self._answers.get(kind)
        self._metrics.requests[kind if answer else "other"] += 1
        try:
            if answer is None:
                raise RequestFailed(404, f"the node does not serve {path}")
            answer(exchange, parts, query)
        except RequestFailed as refused:
            exchange.fail(refused.status, refused.text)

    # What can be read

    def _healthz(self, exchange: IExchange, parts: Sequence[str], query: Query) -> None:
        _require_get(exchange, parts)
        exchange.respond(200, _TEXT, b"ok")

    def _configuration(self, exchange: IExchange, parts: Sequence[str], query: Query) -> None:
        """Respond with the part of a kubelet's configuration that applies to this node."""
        _require_get(exchange, parts)
        configuration = {
            "kind": "KubeletConfiguration",
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "enableServer": True,
            "enableDebuggingHandlers": True,
            "maxPods": MAX_PODS,
        }
        exchange.respond(200, _JSON, json.dumps({"kubeletconfig": configuration}).encode())

    def _pods(self, exchange: IExchange, parts: Sequence[str], query: Query) -> None:
        _require_get(exchange, parts)
        pods = {"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": self._list_pods()}
        exchange.respond(200, _JSON, json.dumps(pods).encode())

    def _stats(self, exchange: IExchange, parts: Sequence[str], query: Query) -> None:
        resource = list(parts) == ["resource"]
        _require_get(exchange, () if resource else parts)
        families = self._metrics.resource_metrics if resource else self._metrics.all_metrics()
        exchange.respond(200, [(b"Content-Type", CONTENT_TYPE)], exposition(families))

    def _summary(self, exchange: IExchange, parts: Sequence[str], query: Query) -> None:
        _require_get(exchange)
        if list(parts) != ["summary"]:
            raise RequestFailed(404, "the node serves /stats/summary")
        exchange.respond(200, _JSON, json.dumps(self._metrics.summary()).encode())

    def _logs(self, exchange: IExchange, parts: Sequence[str], query: Query) -> None:
        _require_get(exchange)
        if len(parts) != 3:
            raise RequestFailed(404, "the path of a log is /containerLogs/NAMESPACE/POD/CONTAINER")
        pod, container = self._container(parts)
        options = LogOptions.from_query(query, self._reactor.seconds())
        LogStream(_log_of(pod, container, options.previous), options, exchange).start()

    # What is streamed

    def _exec(self, exchange: IExchange, parts: Sequence[str], query: Query) -> None:
        _, container = self._container(parts)
        options = _command_options(query)
        arguments = query.get("command", ())
        if not arguments:
            raise RequestFailed(400, "exec: a command is required")
        if self._commands >= MAX_COMMANDS:
            raise RequestFailed(429, f"{MAX_COMMANDS} commands run on this node already; try again")
        program = container.command(arguments, options.stdin, options.tty)
        if program is None:
            raise RequestFailed(400, _not_running(container))
        self._commands += 1
        self._metrics.commands_started += 1
        session = Command(self._reactor, program, self._command_ended)
        command_upgrade(self._reactor, exchange, options, session)

    def _command_ended(self) -> None:
        self._commands -= 1

    def _attach(self, exchange: IExchange, parts: Sequence[str], query: Query) -> None:
        _, container = self._container(parts)
        options = _command_options(query)
        if not container.running:
            raise RequestFailed(400, _not_running(container))
        session = Attachment(container.attachments, options.stdin and container.stdin)
        command_upgrade(self._reactor, exchange, options, session)

    def _port_forward(self, exchange: IExchange, parts: Sequence[str], query: Query) -> None:
        if len(parts) not in (2, 3):
            raise RequestFailed(404, "the path of a port-forward is /portForward/NAMESPACE/POD")
        pod = self._pod(parts[0], parts[1], parts[2] if len(parts) == 3 else "")
        if not any(one.running for one in pod.all_containers):
            raise RequestFailed(400, f'no container of pod "{pod.name}" is running')
        name = f"{pod.name}_{pod.namespace}, uid {pod.uid}"
        forward_upgrade(self._reactor, exchange, PortForwarder(self._reactor, name))

    # What is meant

    def _pod(self, namespace: str, name: str, uid: str) -> Pod:
        pod = self._find_pod(namespace, name)
        if pod is None or (uid and pod.uid != uid):
            raise RequestFailed(404, f'pod "{name}" does not exist')
        return pod

    def _container(self, parts: Sequence[str]) -> tuple[Pod, Container]:
        """Return the container for ``NAMESPACE/POD/[UID/]CONTAINER``."""
        if len(parts) not in (3, 4):
            raise RequestFailed(404, "the path ends in NAMESPACE/POD/CONTAINER")
        pod = self._pod(parts[0], parts[1], parts[2] if len(parts) == 4 else "")
        container = pod.find(parts[-1])
        if container is None:
            raise RequestFailed(404, f'container "{parts[-1]}" not found in pod "{pod.name}"')
        return pod, container


def _require_get(exchange: IExchange, more_parts: Sequence[str] = ()) -> None:
    if exchange.head.method not in (b"GET", b"HEAD"):
        raise RequestFailed(405, "this can only be read: use GET")
    if more_parts:
        raise RequestFailed(404, "the node does not serve this path")


def _command_options(query: Query) -> CommandOptions:
    """Return the requested streams, from the API server's parameters for a kubelet."""
    stdin, stdout, stderr, terminal = (
        flag(query, name) for name in ("input", "output", "error", "tty")
    )
    if not (stdin or stdout or stderr):
        raise RequestFailed(400, "you must specify at least 1 of stdin, stdout, stderr")
    return CommandOptions(stdin, stdout, stderr and not terminal, terminal)


def _log_of(pod: Pod, container: Container, previous: bool) -> ContainerLog:
    """Return a log, or raise the kubelet's error that it does not exist yet."""
    if previous:
        if container.previous_log is None:
            raise RequestFailed(
                400,
                f'previous terminated container "{container.name}" in pod "{pod.name}" not found',
            )
        return container.previous_log
    if container.log is None:
        state = container.state
        why = state if isinstance(state, Waiting) else Waiting("ContainerCreating")
        raise RequestFailed(
            400, f'container "{container.name}" in pod "{pod.name}" is waiting to start: {why}'
        )
    return container.log


def _not_running(container: Container) -> str:
    state = container.state
    if isinstance(state, Terminated):
        how = f"it has ended with exit code {state.exit.code}"
    elif isinstance(state, Waiting):
        how = f"it waits: {state}"
    else:
        how = "it is ending"
    return f'container "{container.name}" does not run: {how}'
