"""What ``kubectl get`` shows of kinds of groups other than the core; see :mod:`columns`."""

from __future__ import annotations

from typing import Any

from yurtlab.api.columns import AGE, NAME, NONE, Cell, Column, at, duration, value_at

_MANY = 3
"""How many addresses or ports are shown of an EndpointSlice."""


def _condition(request: dict[str, Any], now: float) -> str:
    status = request.get("status") or {}
    types = {one.get("type") for one in status.get("conditions") or []}
    shown = "Denied" if "Denied" in types else "Approved" if "Approved" in types else "Pending"
    if "Failed" in types:
        shown += ",Failed"
    return shown + ",Issued" if status.get("certificate") else shown


def _requested_duration(request: dict[str, Any], now: float) -> str:
    seconds = value_at(request, ["spec", "expirationSeconds"], None)
    return NONE if seconds is None else duration(seconds)


def _subjects(kind: str) -> Cell:
    def cell(binding: dict[str, Any], now: float) -> str:
        names = []
        for subject in binding.get("subjects") or []:
            if subject.get("kind") == kind:
                namespace = f"{subject.get('namespace', '')}/" if kind == "ServiceAccount" else ""
                names.append(f"{namespace}{subject.get('name')}")
        return ", ".join(names)

    return cell


def _role(binding: dict[str, Any], now: float) -> str:
    reference = binding.get("roleRef") or {}
    return f"{reference.get('kind', '')}/{reference.get('name', '')}"


def _slice_ports(one: dict[str, Any], now: float) -> str:
    ports = [str(port["port"]) if port.get("port") else "*" for port in one.get("ports") or []]
    return _shortened(ports) if ports else "<unset>"


def _slice_endpoints(one: dict[str, Any], now: float) -> str:
    endpoints = one.get("endpoints") or []
    addresses = [str(each) for endpoint in endpoints for each in endpoint.get("addresses") or []]
    return _shortened(addresses) if addresses else "<unset>"


def _shortened(texts: list[str]) -> str:
    shown = ",".join(texts[:_MANY])
    return shown if len(texts) <= _MANY else f"{shown} + {len(texts) - _MANY} more..."


def _ready(deployment: dict[str, Any], now: float) -> str:
    ready = value_at(deployment, ["status", "readyReplicas"], 0)
    return f"{ready}/{value_at(deployment, ['spec', 'replicas'], 0)}"


def _containers(field: str) -> Cell:
    def cell(one: dict[str, Any], now: float) -> str:
        containers = value_at(one, ["spec", "template", "spec", "containers"], [])
        return ",".join(str(container.get(field, "")) for container in containers)

    return cell


def _labels(path: str, nothing: str) -> Cell:
    keys = path.split(".")

    def cell(one: dict[str, Any], now: float) -> str:
        labels = value_at(one, keys, {})
        return ",".join(f"{key}={value}" for key, value in sorted(labels.items())) or nothing

    return cell


def _limit(field: str) -> Cell:
    def cell(budget: dict[str, Any], now: float) -> str:
        return str(value_at(budget, ["spec", field], "N/A"))

    return cell


_SELECTOR = _labels("spec.selector.matchLabels", NONE)

CERTIFICATE_SIGNING_REQUEST_COLUMNS = (
    NAME,
    AGE,
    Column("SignerName", at("spec.signerName", NONE), "Who is to sign it."),
    Column("Requestor", at("spec.username"), "Who has requested it."),
    Column("RequestedDuration", _requested_duration, "How long it is to be valid."),
    Column("Condition", _condition, "What has become of it."),
)

ROLE_COLUMNS = (
    NAME,
    Column("Created At", at("metadata.creationTimestamp"), "When the object was created."),
)

ROLE_BINDING_COLUMNS = (
    NAME,
    Column("Role", _role, "The role that it grants."),
    AGE,
    Column("Users", _subjects("User"), "Users that have it.", wide=True),
    Column("Groups", _subjects("Group"), "Groups that have it.", wide=True),
    Column("ServiceAccounts", _subjects("ServiceAccount"), "Accounts that have it.", wide=True),
)

ENDPOINT_SLICE_COLUMNS = (
    NAME,
    Column("AddressType", at("addressType"), "IPv4, IPv6 or FQDN."),
    Column("Ports", _slice_ports, "The ports of the endpoints."),
    Column("Endpoints", _slice_endpoints, "Their addresses."),
    AGE,
)

DEPLOYMENT_COLUMNS = (
    NAME,
    Column("Ready", _ready, "How many replicas are ready."),
    Column("Up-to-date", at("status.updatedReplicas", 0), "How many are new.", type="integer"),
    Column("Available", at("status.availableReplicas", 0), "How many serve.", type="integer"),
    AGE,
    Column("Containers", _containers("name"), "Names of the containers.", wide=True),
    Column("Images", _containers("image"), "Their images.", wide=True),
    Column("Selector", _SELECTOR, "The labels of its pods.", wide=True),
)

DAEMON_SET_COLUMNS = (
    NAME,
    Column("Desired", at("status.desiredNumberScheduled", 0), "Nodes for it.", type="integer"),
    Column(
        "Current", at("status.currentNumberScheduled", 0), "Nodes that have it.", type="integer"
    ),
    Column("Ready", at("status.numberReady", 0), "How many are ready.", type="integer"),
    Column(
        "Up-to-date", at("status.updatedNumberScheduled", 0), "How many are new.", type="integer"
    ),
    Column("Available", at("status.numberAvailable", 0), "How many serve.", type="integer"),
    Column("Node Selector", _labels("spec.template.spec.nodeSelector", NONE), "Labels of nodes."),
    AGE,
    Column("Containers", _containers("name"), "Names of the containers.", wide=True),
    Column("Images", _containers("image"), "Their images.", wide=True),
    Column("Selector", _SELECTOR, "The labels of its pods.", wide=True),
)

POD_DISRUPTION_BUDGET_COLUMNS = (
    NAME,
    Column("Min Available", _limit("minAvailable"), "How many must stay."),
    Column("Max Unavailable", _limit("maxUnavailable"), "How many may go."),
    Column(
        "Allowed Disruptions", at("status.disruptionsAllowed", 0), "How many now.", type="integer"
    ),
    AGE,
)
