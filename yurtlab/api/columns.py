"""What ``kubectl get`` shows of each kind, except pods: columns, and the cells of an object.

Kubernetes has this in pkg/printers/internalversion/printers.go, which decides on names, order
and words here.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Cell = Callable[[dict[str, Any], float], Any]
"""Gives the cell of an object, at a time in seconds since 1970."""

NONE = "<none>"
UNKNOWN = "<unknown>"


@dataclass(frozen=True, slots=True)
class Column:
    """One column. ``type`` and ``format`` are OpenAPI's; ``wide`` ones are seen with -o wide."""

    name: str
    cell: Cell
    description: str = ""
    type: str = "string"
    format: str = ""
    wide: bool = False


def duration(seconds: float) -> str:
    """Write a duration as k8s.io/apimachinery pkg/util/duration HumanDuration does."""
    whole = int(seconds)
    if whole < 0:
        # Clocks may differ a little.
        return "0s" if whole == -1 else "<invalid>"
    minutes, hours, days = whole // 60, whole // 3600, whole // 86400
    if whole < 120:
        return f"{whole}s"
    if minutes < 10:
        return _two(minutes, "m", whole % 60, "s")
    if minutes < 180:
        return f"{minutes}m"
    if hours < 8:
        return _two(hours, "h", minutes % 60, "m")
    if hours < 48:
        return f"{hours}h"
    if days < 8:
        return _two(days, "d", hours % 24, "h")
    if days < 2 * 365:
        return f"{days}d"
    if days < 8 * 365:
        return _two(days // 365, "y", days % 365, "d")
    return f"{days // 365}y"


def since(moment: object, now: float) -> str:
    """Write how long ago a ``metav1.Time`` was."""
    seconds = seconds_of(moment)
    return UNKNOWN if seconds is None else duration(now - seconds)


def seconds_of(moment: object) -> float | None:
    """Read a ``metav1.Time`` or ``MicroTime`` as seconds since 1970, if it is one."""
    if not isinstance(moment, str):
        return None
    try:
        return datetime.datetime.fromisoformat(moment).timestamp()
    except (ValueError, OverflowError):
        return None


def at(path: str, default: Any = "") -> Cell:
    """Show the value at a path such as ``status.phase``."""
    keys = path.split(".")
    return lambda one, now: value_at(one, keys, default)


def value_at(one: Any, keys: list[str], default: Any = "") -> Any:
    """Find a value in objects in objects; what is missing or empty is ``default``."""
    for key in keys:
        one = one.get(key) if isinstance(one, dict) else None
    return default if one is None or one == "" else one


def count_of(*paths: str) -> Cell:
    """Show how many entries lists or objects have together."""
    return lambda one, now: sum(len(value_at(one, path.split("."), ())) for path in paths)


NAME = Column("Name", at("metadata.name"), "The name, unique within a namespace.", format="name")
AGE = Column(
    "Age",
    lambda one, now: since(one["metadata"].get("creationTimestamp"), now),
    "How long ago the object was created.",
)

BASIC_COLUMNS = (NAME, AGE)
"""The columns of a kind that has none of its own."""


def _two(first: int, first_unit: str, second: int, second_unit: str) -> str:
    return f"{first}{first_unit}{second}{second_unit}" if second else f"{first}{first_unit}"


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


def _endpoint_addresses(endpoints: dict[str, Any], now: float) -> str:
    texts = []
    for subset in endpoints.get("subsets") or []:
        addresses = [str(one.get("ip")) for one in subset.get("addresses") or []]
        ports = [int(one["port"]) for one in subset.get("ports") or []]
        texts += [_with_port(address, port) for port in ports for address in addresses]
        if not ports:
            texts += addresses
    shown = ",".join(texts[:3]) or NONE
    return shown if len(texts) <= 3 else f"{shown} + {len(texts) - 3} more..."


def _with_port(address: str, port: int) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


NODE_COLUMNS = (
    NAME,
    Column("Status", _node_status, "The status of the node"),
    Column("Roles", _node_roles, "The roles of the node"),
    AGE,
    Column("Version", at("status.nodeInfo.kubeletVersion"), "The version of the kubelet."),
    Column("Internal-IP", _node_address("InternalIP"), "Its address inside.", wide=True),
    Column("External-IP", _node_address("ExternalIP"), "Its address outside.", wide=True),
    Column("OS-Image", at("status.nodeInfo.osImage", UNKNOWN), "Its system.", wide=True),
    Column("Kernel-Version", at("status.nodeInfo.kernelVersion", UNKNOWN), wide=True),
    Column("Container-Runtime", at("status.nodeInfo.containerRuntimeVersion", UNKNOWN), wide=True),
)

NAMESPACE_COLUMNS = (
    NAME,
    Column("Status", at("status.phase"), "The status of the namespace"),
    AGE,
)

CONFIG_MAP_COLUMNS = (
    NAME,
    Column("Data", count_of("data", "binaryData"), "How many entries it has.", type="string"),
    AGE,
)

SECRET_COLUMNS = (
    NAME,
    Column("Type", at("type", "Opaque"), "What the secret is for."),
    Column("Data", count_of("data"), "How many entries it has.", type="string"),
    AGE,
)

SERVICE_ACCOUNT_COLUMNS = (
    NAME,
    Column("Secrets", count_of("secrets"), "How many secrets it may use.", type="string"),
    AGE,
)

SERVICE_COLUMNS = (
    NAME,
    Column("Type", at("spec.type", "ClusterIP"), "How the service is exposed."),
    Column("Cluster-IP", at("spec.clusterIP", NONE), "Its address in the cluster."),
    Column("External-IP", _service_addresses, "Its addresses outside."),
    Column("Port(s)", _service_ports, "The ports that it exposes."),
    AGE,
    Column("Selector", _service_selector, "The labels of its pods.", wide=True),
)

ENDPOINTS_COLUMNS = (NAME, Column("Endpoints", _endpoint_addresses, "Addresses and ports."), AGE)

EVENT_COLUMNS = (
    Column("Last Seen", _event_last, "When it happened last."),
    Column("Type", at("type"), "Normal or Warning."),
    Column("Reason", at("reason"), "Why, in one word."),
    Column("Object", _event_object, "What it is about."),
    Column("Subobject", at("involvedObject.fieldPath"), "Which part of it.", wide=True),
    Column("Source", _event_source, "Who tells it.", wide=True),
    Column("Message", _event_message, "What happened."),
    Column("First Seen", _event_first, "When it happened first.", wide=True),
    Column("Count", at("count", 1), "How often it has happened.", wide=True),
    Column("Name", at("metadata.name"), "The name of the event.", format="name", wide=True),
)

LEASE_COLUMNS = (NAME, Column("Holder", at("spec.holderIdentity"), "Who holds it."), AGE)
