"""Pods: defaults, validation, updates and deletion.

The rules are those of Kubernetes (pkg/apis/core/v1/defaults.go, pkg/apis/core/validation) for what
a process on the node has: containers, their commands, environment, ports and volumes.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from yurtlab.api import names
from yurtlab.api.access import User
from yurtlab.api.errors import (
    Cause,
    duplicate_value,
    forbidden_field,
    invalid_value,
    not_supported,
    required,
)
from yurtlab.api.store import Object
from yurtlab.api.strategy import Strategy
from yurttunnel.ops.clocks import timestamp

DEFAULT_GRACE = 30
"""The seconds between SIGTERM and SIGKILL."""

CONTAINER_LISTS = ("initContainers", "containers", "ephemeralContainers")
"""The fields with the containers of a pod, in the order in which Kubernetes visits them."""

_POD_DEFAULTS = {
    "restartPolicy": "Always",
    "terminationGracePeriodSeconds": DEFAULT_GRACE,
    "dnsPolicy": "ClusterFirst",
    "schedulerName": "default-scheduler",
    "enableServiceLinks": True,
}
_CONTAINER_DEFAULTS = {
    "terminationMessagePath": "/dev/termination-log",
    "terminationMessagePolicy": "File",
}
_IMMUTABLE = (
    "pod updates may not change fields other than `spec.containers[*].image`,"
    "`spec.initContainers[*].image`,`spec.tolerations` (only additions to existing"
    " tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was"
    " previously negative)"
)


class PodStrategy(Strategy):
    """The strategy of pods."""

    def set_defaults(self, body: Object) -> None:
        set_pod_defaults(body.setdefault("spec", {}))

    def prepare_for_create(self, body: Object, user: User | None = None) -> None:
        """Set defaults and the initial status."""
        super().prepare_for_create(body, user)
        body["status"] = {"phase": "Pending", "qosClass": _quality_of_service(body["spec"])}

    def validate(self, body: Object) -> list[Cause]:
        """Return the errors in the specification of a new pod."""
        return super().validate(body) + validate_pod_spec(body["spec"])

    def validate_update(self, body: Object, current: Object) -> list[Cause]:
        """Reject changes that Kubernetes does not allow in a pod."""
        causes = super().validate_update(body, current) + validate_pod_spec(body["spec"])
        if not causes and not _changes_allowed(body["spec"], current["spec"]):
            causes.append(forbidden_field("spec", _IMMUTABLE))
        return causes

    def grace_period(self, current: Object, requested: int | None) -> int:
        """Return the requested period, else the pod's own; zero for a pod that does not run."""
        spec, phase = current["spec"], current.get("status", {}).get("phase")
        if "nodeName" not in spec or phase in ("Succeeded", "Failed"):
            return 0
        if requested is None:
            requested = spec.get("terminationGracePeriodSeconds", DEFAULT_GRACE)
        return 1 if requested < 0 else requested


def containers(spec: Object, *lists: str) -> Iterator[Object]:
    """Yield the containers of a pod, in ``lists`` or in all of them, in Kubernetes' order."""
    for each in lists or CONTAINER_LISTS:
        yield from spec.get(each) or ()


def set_pod_defaults(spec: Object) -> None:
    """Set the defaults of a pod's specification."""
    _default(spec, _POD_DEFAULTS)
    spec.setdefault("securityContext", {})
    for container in containers(spec):
        _default(container, _CONTAINER_DEFAULTS)
        container.setdefault("imagePullPolicy", _pull_policy(container.get("image", "")))
        container.setdefault("resources", {})
        for port in container.get("ports", ()):
            port.setdefault("protocol", "TCP")


def _default(target: Object, defaults: dict[str, Any]) -> None:
    for key, value in defaults.items():
        target.setdefault(key, value)


def _pull_policy(image: str) -> str:
    name = image.rpartition("/")[2]
    digest, tagged = "@" in name, ":" in name
    return "IfNotPresent" if digest or (tagged and not name.endswith(":latest")) else "Always"


def _quality_of_service(spec: Object) -> str:
    """Return the QoS class by pkg/apis/core/helper/qos."""
    desired = [one.get("resources", {}) for one in containers(spec, "initContainers", "containers")]
    if not any(one.get("requests") or one.get("limits") for one in desired):
        return "BestEffort"
    for one in desired:
        limits = one.get("limits", {})
        requests = {**limits, **one.get("requests", {})}
        if not {"cpu", "memory"} <= limits.keys() or requests != limits:
            return "Burstable"
    return "Guaranteed"


def validate_pod_spec(spec: Object, path: str = "spec") -> list[Cause]:
    """Return the errors in the specification of a pod at ``path``; its defaults must be set."""
    causes: list[Cause] = []
    volumes = {volume.get("name", "") for volume in spec.get("volumes", ())}
    seen: set[str] = set()
    if not spec.get("containers"):
        causes.append(required(f"{path}.containers"))
    for each in CONTAINER_LISTS:
        for index, container in enumerate(spec.get(each, ())):
            field = f"{path}.{each}[{index}]"
            causes += _validate_container(container, field, seen, volumes)
    for index, volume in enumerate(spec.get("volumes", ())):
        causes += _validate_name(volume, f"{path}.volumes[{index}].name")
    if spec["restartPolicy"] not in (policies := ("Always", "OnFailure", "Never")):
        causes.append(not_supported(f"{path}.restartPolicy", spec["restartPolicy"], policies))
    grace = spec["terminationGracePeriodSeconds"]
    if grace < 0:
        field = f"{path}.terminationGracePeriodSeconds"
        causes.append(invalid_value(field, grace, "must be greater than or equal to 0"))
    return causes


def _validate_container(
    container: Object, path: str, seen: set[str], volumes: set[str]
) -> list[Cause]:
    causes = _validate_name(container, f"{path}.name")
    name = container.get("name", "")
    if name in seen:
        causes.append(duplicate_value(f"{path}.name", name))
    seen.add(name)
    if not container.get("image", "").strip():
        causes.append(required(f"{path}.image"))
    policies = ("Always", "IfNotPresent", "Never")
    if (policy := container["imagePullPolicy"]) not in policies:
        causes.append(not_supported(f"{path}.imagePullPolicy", policy, policies))
    for index, port in enumerate(container.get("ports", ())):
        causes += _validate_port(port, f"{path}.ports[{index}]")
    for index, variable in enumerate(container.get("env", ())):
        if not variable.get("name"):
            causes.append(required(f"{path}.env[{index}].name"))
    for index, mount in enumerate(container.get("volumeMounts", ())):
        causes += _validate_mount(mount, f"{path}.volumeMounts[{index}]", volumes)
    return causes


def _validate_name(named: Object, field: str) -> list[Cause]:
    name = named.get("name", "")
    if not name:
        return [required(field)]
    return [invalid_value(field, name, problem) for problem in names.dns_label(name)]


def _validate_port(port: Object, path: str) -> list[Cause]:
    causes = []
    number, protocols = port.get("containerPort", 0), ("SCTP", "TCP", "UDP")
    if number == 0:
        causes.append(required(f"{path}.containerPort"))
    elif not 1 <= number <= 65535:
        text = "must be between 1 and 65535, inclusive"
        causes.append(invalid_value(f"{path}.containerPort", number, text))
    if port["protocol"] not in protocols:
        causes.append(not_supported(f"{path}.protocol", port["protocol"], protocols))
    return causes


def _validate_mount(mount: Object, path: str, volumes: set[str]) -> list[Cause]:
    causes = []
    name = mount.get("name", "")
    if not name:
        causes.append(required(f"{path}.name"))
    elif name not in volumes:
        causes.append(Cause("FieldValueNotFound", f'Not found: "{name}"', f"{path}.name"))
    if not mount.get("mountPath"):
        causes.append(required(f"{path}.mountPath"))
    return causes


def _changes_allowed(updated: Object, current: Object) -> bool:
    """Revert the changes that are allowed; nothing else may differ."""
    undone = copy.deepcopy(updated)
    for each in ("containers", "initContainers"):
        for ours, theirs in zip(undone.get(each, ()), current.get(each, ()), strict=False):
            ours["image"] = theirs["image"]
    before = current.get("tolerations", [])
    if all(one in undone.get("tolerations", []) for one in before):
        undone.pop("tolerations", None)
        current = {key: value for key, value in current.items() if key != "tolerations"}
    return bool(undone == current)


NORMAL = "Normal"
WARNING = "Warning"


def pod_event(
    pod: Object,
    kind: str,
    reason: str,
    message: str,
    seconds: float,
    *,
    component: str,
    host: str = "",
    field: str = "",
) -> Object:
    """Return an event about ``pod``.

    ``kind`` is NORMAL or WARNING, ``reason`` a word in CamelCase, and ``seconds`` the time since
    1970. ``component`` on ``host`` reports it; ``field`` is the part of the pod that is concerned.
    """
    metadata = pod["metadata"]
    involved = {
        "kind": "Pod",
        "apiVersion": "v1",
        "namespace": metadata["namespace"],
        "name": metadata["name"],
        "uid": metadata["uid"],
    }
    if field:
        involved["fieldPath"] = field
    now = timestamp(seconds)
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"generateName": f"{metadata['name']}."},
        "involvedObject": involved,
        "type": kind,
        "reason": reason,
        "message": message,
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
        "source": {"component": component, "host": host},
        "reportingComponent": component,
        "reportingInstance": host,
    }
