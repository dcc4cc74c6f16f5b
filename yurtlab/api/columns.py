"""The columns that ``kubectl get`` shows, and the cells of an object.

Names, order and texts are those of pkg/printers/internalversion/printers.go of Kubernetes. The
status of a pod is the state of its containers, or else its phase.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from yurttunnel.kube.durations import seconds_of, since

Cell = Callable[[dict[str, Any], float], Any]
"""Returns an object's cell at a time, in seconds since 1970."""

NONE = "<none>"

_MANY = 3
"""The number of entries to show of a list of addresses or ports."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column. ``type`` and ``format`` are OpenAPI's; ``wide`` ones are shown with -o wide."""

    name: str
    cell: Cell
    description: str = ""
    type: str = "string"
    format: str = ""
    wide: bool = False


def at(path: str, default: Any = "") -> Cell:
    """Show the value at a path such as ``status.phase``."""
    keys = path.split(".")
    return lambda one, now: value_at(one, keys, default)


def value_at(one: Any, keys: list[str], default: Any = "") -> Any:
    """Return a value in nested objects, or ``default`` if it is missing or empty."""
    for key in keys:
        one = one.get(key) if isinstance(one, dict) else None
    return default if one is None or one == "" else one


def count_of(*paths: str) -> Cell:
    """Show the number of entries of several lists or objects together."""
    return lambda one, now: sum(len(value_at(one, path.split("."), ())) for path in paths)


NAME = Column("Name", at("metadata.name"), "The name, unique within a namespace.", format="name")
AGE = Column(
    "Age",
    lambda one, now: since(one["metadata"].get("creationTimestamp"), now),
    "How long ago the object was created.",
)


def _node_status(node: dict[str, Any], now: float) -> str:
    texts = []
    for condition in value_at(node, ["status", "conditions"], []):
        if condition.get("type") == "Ready":
            ready = condition.get("status") == "True"
            texts.append("Ready" if ready else "NotReady")
    if not texts:
        texts.append("Unknown")
    if value_at(node, ["spec", "unschedulable"], False):
        texts.append("SchedulingDisabled")
    return ",".join(texts)


def _node_roles(node: dict[str, Any], now: float) -> str:
    roles = set()
    for label, value in (node["metadata"].get("labels") or {}).items():
        if label.startswith("node-role.kubernetes.io/"):
            roles.add(label.partition("/")[2])
        elif label == "kubernetes.io/role" and value:
            roles.add(value)
    return ",".join(sorted(roles - {""})) or NONE


def _node_address(desired: str) -> Cell:
    def cell(node: dict[str, Any], now: float) -> str:
        for address in value_at(node, ["status", "addresses"], []):
            if address.get("type") == desired:
                return str(address.get("address"))
        return NONE

    return cell


def _event_first(event: dict[str, Any], now: float) -> str:
    return since(event.get("firstTimestamp") or event.get("eventTime"), now)


def _event_last(event: dict[str, Any], now: float) -> str:
    last = event.get("lastTimestamp")
    return since(last, now) if last else _event_first(event, now)


def _event_object(event: dict[str, Any], now: float) -> str:
    involved = event.get("involvedObject") or {}
    kind, name = str(involved.get("kind", "")).lower(), involved.get("name")
    return f"{kind}/{name}" if name else kind


def _event_source(event: dict[str, Any], now: float) -> str:
    source = event.get("source") or {}
    component = source.get("component") or event.get("reportingComponent") or ""
    host = source.get("host") or event.get("reportingInstance") or ""
    return f"{component}, {host}" if host else str(component)


def _event_message(event: dict[str, Any], now: float) -> str:
    return str(event.get("message") or "").strip()


def _service_ports(service: dict[str, Any], now: float) -> str:
    texts = []
    for port in value_at(service, ["spec", "ports"], []):
        number = str(port.get("port"))
        if port.get("nodePort"):
            number += f":{port['nodePort']}"
        texts.append(f"{number}/{port.get('protocol', 'TCP')}")
    return ",".join(texts) or NONE


def _service_addresses(service: dict[str, Any], now: float) -> str:
    spec = service.get("spec") or {}
    if spec.get("type") == "ExternalName":
        return str(spec.get("externalName", ""))
    addresses = list(spec.get("externalIPs") or [])
    if spec.get("type") == "LoadBalancer":
        ingress = value_at(service, ["status", "loadBalancer", "ingress"], [])
        balanced = [str(one.get("ip") or one.get("hostname")) for one in ingress]
        return ",".join(balanced + addresses) or "<pending>"
    return ",".join(addresses) or NONE


def _service_selector(service: dict[str, Any], now: float) -> str:
    selector = value_at(service, ["spec", "selector"], {})
    return ",".join(f"{key}={value}" for key, value in sorted(selector.items())) or NONE


@dataclass(slots=True)
class _Summary:
    """The values of a pod's columns."""

    reason: str
    ready: int = 0
    restarts: int = 0
    last_restart: str = ""

    def add_restarts(self, status: dict[str, Any]) -> None:
        self.restarts += status.get("restartCount", 0)
        ended = value_at(status, ["lastState", "terminated", "finishedAt"])
        if (seconds_of(ended) or 0) > (seconds_of(self.last_restart) or 0):
            self.last_restart = ended


def _summarize(pod: dict[str, Any]) -> _Summary:
    status = pod.get("status") or {}
    summary = _Summary(status.get("reason") or status.get("phase") or "")
    if not _is_initializing(pod, summary):
        summary.restarts = 0
        _summarize_containers(status, summary)
    if "deletionTimestamp" in pod["metadata"]:
        if status.get("reason") == "NodeLost":
            summary.reason = "Unknown"
        elif status.get("phase") not in ("Succeeded", "Failed"):
            summary.reason = "Terminating"
    return summary


def _is_initializing(pod: dict[str, Any], summary: _Summary) -> bool:
    status = pod.get("status") or {}
    for position, container in enumerate(status.get("initContainerStatuses") or []):
        summary.add_restarts(container)
        state = container.get("state") or {}
        ended, waiting = state.get("terminated"), state.get("waiting") or {}
        if ended is not None and ended.get("exitCode") == 0:
            continue
        if ended is not None:
            summary.reason = f"Init:{_termination_reason(ended)}"
        elif waiting.get("reason", "PodInitializing") != "PodInitializing":
            summary.reason = f"Init:{waiting['reason']}"
        else:
            total = len(value_at(pod, ["spec", "initContainers"], []))
            summary.reason = f"Init:{position}/{total}"
        return not _is_true(status, "Initialized")
    return False


def _summarize_containers(status: dict[str, Any], summary: _Summary) -> None:
    running = False
    for container in reversed(status.get("containerStatuses") or []):
        summary.add_restarts(container)
        state = container.get("state") or {}
        waiting, ended = state.get("waiting") or {}, state.get("terminated")
        if waiting.get("reason"):
            summary.reason = waiting["reason"]
        elif ended is not None:
            summary.reason = _termination_reason(ended)
        elif container.get("ready") and "running" in state:
            running = True
            summary.ready += 1
    if summary.reason == "Completed" and running:
        summary.reason = "Running" if _is_true(status, "Ready") else "NotReady"


def _termination_reason(terminated: dict[str, Any]) -> str:
    if terminated.get("reason"):
        return str(terminated["reason"])
    if terminated.get("signal"):
        return f"Signal:{terminated['signal']}"
    return f"ExitCode:{terminated.get('exitCode', 0)}"


def _is_true(status: dict[str, Any], condition: str) -> bool:
    return any(
        one.get("type") == condition and one.get("status") == "True"
        for one in status.get("conditions") or []
    )


def _pod_ready(pod: dict[str, Any], now: float) -> str:
    return f"{_summarize(pod).ready}/{len(value_at(pod, ['spec', 'containers'], []))}"


def _pod_status(pod: dict[str, Any], now: float) -> str:
    return _summarize(pod).reason


def _pod_restarts(pod: dict[str, Any], now: float) -> str:
    summary = _summarize(pod)
    if summary.restarts and summary.last_restart:
        return f"{summary.restarts} ({since(summary.last_restart, now)} ago)"
    return str(summary.restarts)


def _pod_gates(pod: dict[str, Any], now: float) -> str:
    gates = value_at(pod, ["spec", "readinessGates"], [])
    passed = sum(_is_true(pod.get("status") or {}, one.get("conditionType", "")) for one in gates)
    return f"{passed}/{len(gates)}" if gates else NONE


def _slice_ports(one: dict[str, Any], now: float) -> str:
    ports = [str(port["port"]) if port.get("port") else "*" for port in one.get("ports") or []]
    return truncated(ports) if ports else "<unset>"


def _slice_endpoints(one: dict[str, Any], now: float) -> str:
    endpoints = one.get("endpoints") or []
    addresses = [str(each) for endpoint in endpoints for each in endpoint.get("addresses") or []]
    return truncated(addresses) if addresses else "<unset>"


def truncated(texts: list[str]) -> str:
    """Format a list, shortened to its first entries."""
    shown = ",".join(texts[:_MANY])
    return shown if len(texts) <= _MANY else f"{shown} + {len(texts) - _MANY} more..."


CELLS: Mapping[str, Cell] = {
    "event_first": _event_first,
    "event_last": _event_last,
    "event_message": _event_message,
    "event_object": _event_object,
    "event_source": _event_source,
    "node_external_ip": _node_address("ExternalIP"),
    "node_internal_ip": _node_address("InternalIP"),
    "node_roles": _node_roles,
    "node_status": _node_status,
    "pod_gates": _pod_gates,
    "pod_ready": _pod_ready,
    "pod_restarts": _pod_restarts,
    "pod_status": _pod_status,
    "service_addresses": _service_addresses,
    "service_ports": _service_ports,
    "service_selector": _service_selector,
    "slice_endpoints": _slice_endpoints,
    "slice_ports": _slice_ports,
}
"""The cells that are computed from several values, by their names in ``kinds.json``."""
