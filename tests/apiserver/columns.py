"""The columns of ``kubectl get`` for the kinds that the lab does not have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from yurtlab.api.columns import NONE, Cell, truncated, value_at
from yurttunnel.kube.durations import duration


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


def _ready(deployment: dict[str, Any], now: float) -> str:
    ready = value_at(deployment, ["status", "readyReplicas"], 0)
    return f"{ready}/{value_at(deployment, ['spec', 'replicas'], 0)}"


def _containers(field: str) -> Cell:
    def cell(one: dict[str, Any], now: float) -> str:
        containers = value_at(one, ["spec", "template", "spec", "containers"], [])
        return ",".join(str(container.get(field, "")) for container in containers)

    return cell


def _labels(path: str) -> Cell:
    keys = path.split(".")

    def cell(one: dict[str, Any], now: float) -> str:
        labels = value_at(one, keys, {})
        return ",".join(f"{key}={value}" for key, value in sorted(labels.items())) or NONE

    return cell


def _limit(field: str) -> Cell:
    def cell(budget: dict[str, Any], now: float) -> str:
        return str(value_at(budget, ["spec", field], "N/A"))

    return cell


def _endpoint_addresses(endpoints: dict[str, Any], now: float) -> str:
    texts = []
    for subset in endpoints.get("subsets") or []:
        addresses = [str(one.get("ip")) for one in subset.get("addresses") or []]
        ports = [int(one["port"]) for one in subset.get("ports") or []]
        texts += [_with_port(address, port) for port in ports for address in addresses]
        if not ports:
            texts += addresses
    return truncated(texts) if texts else NONE


def _with_port(address: str, port: int) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


CELLS: Mapping[str, Cell] = {
    "binding_accounts": _subjects("ServiceAccount"),
    "binding_groups": _subjects("Group"),
    "binding_users": _subjects("User"),
    "budget_max_unavailable": _limit("maxUnavailable"),
    "budget_min_available": _limit("minAvailable"),
    "condition": _condition,
    "container_images": _containers("image"),
    "container_names": _containers("name"),
    "endpoint_addresses": _endpoint_addresses,
    "node_selector": _labels("spec.template.spec.nodeSelector"),
    "ready": _ready,
    "requested_duration": _requested_duration,
    "role": _role,
    "selector": _labels("spec.selector.matchLabels"),
}
"""The functions for cells that are not a plain value, by their names in ``kinds.json``."""
