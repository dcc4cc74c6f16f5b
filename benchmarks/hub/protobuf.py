"""An encoder of pods in the protobuf of Kubernetes (``generated.proto`` of k8s.io/api and
apimachinery).

Neither the standard library nor this project has one: the hub splits and joins the output of API
servers without a schema.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator
from typing import Any

_TEXT = """
ObjectMeta: 1 name, 2 generateName, 3 namespace, 5 uid, 6 resourceVersion,
  8 creationTimestamp Time, 11 labels map, 12 annotations map, 13 ownerReferences OwnerReference,
  17 managedFields ManagedFieldsEntry
OwnerReference: 1 kind, 3 name, 4 uid, 5 apiVersion, 6 controller, 7 blockOwnerDeletion
ManagedFieldsEntry: 1 manager, 2 operation, 3 apiVersion, 4 time Time, 6 fieldsType,
  7 fieldsV1 FieldsV1
Pod: 1 metadata ObjectMeta, 2 spec PodSpec, 3 status PodStatus
PodSpec: 1 volumes Volume, 2 containers Container, 3 restartPolicy,
  4 terminationGracePeriodSeconds, 6 dnsPolicy, 8 serviceAccountName, 10 nodeName,
  19 schedulerName, 22 tolerations Toleration
Volume: 1 name, 2 volumeSource VolumeSource
VolumeSource: 19 configMap ConfigMapVolumeSource
ConfigMapVolumeSource: 1 localObjectReference LocalObjectReference, 3 defaultMode
LocalObjectReference: 1 name
Toleration: 1 key, 2 operator, 3 value, 4 effect
Container: 1 name, 2 image, 4 args, 6 ports ContainerPort, 7 env EnvVar,
  8 resources ResourceRequirements, 9 volumeMounts VolumeMount, 10 livenessProbe Probe,
  11 readinessProbe Probe, 14 imagePullPolicy, 15 securityContext SecurityContext
ContainerPort: 1 name, 3 containerPort, 4 protocol
EnvVar: 1 name, 2 value, 3 valueFrom EnvVarSource
EnvVarSource: 1 fieldRef ObjectFieldSelector
ObjectFieldSelector: 1 apiVersion, 2 fieldPath
ResourceRequirements: 1 limits map Quantity, 2 requests map Quantity
VolumeMount: 1 name, 2 readOnly, 3 mountPath
Probe: 1 handler ProbeHandler, 3 timeoutSeconds, 4 periodSeconds, 5 successThreshold,
  6 failureThreshold
ProbeHandler: 2 httpGet HTTPGetAction
HTTPGetAction: 1 path, 2 port IntOrString, 4 scheme
SecurityContext: 6 readOnlyRootFilesystem, 7 allowPrivilegeEscalation
PodStatus: 1 phase, 2 conditions PodCondition, 5 hostIP, 6 podIP, 7 startTime Time,
  8 containerStatuses ContainerStatus, 9 qosClass, 12 podIPs PodIP
PodCondition: 1 type, 2 status, 4 lastTransitionTime Time
PodIP: 1 ip
ContainerStatus: 1 name, 2 state ContainerState, 4 ready, 5 restartCount, 6 image, 7 imageID,
  8 containerID
ContainerState: 2 running ContainerStateRunning
ContainerStateRunning: 1 startedAt Time
"""

_INLINE = {
    "handler": ("httpGet",),
    "volumeSource": ("configMap",),
    "localObjectReference": ("name",),
}
"""Separate messages whose fields are inlined in the enclosing object in JSON."""


def _read() -> Iterator[tuple[str, list[tuple[int, str, list[str]]]]]:
    for line in _TEXT.strip().replace("\n  ", " ").splitlines():
        name, _, fields = line.partition(": ")
        words = [field.split() for field in fields.split(",")]
        yield name, [(int(number), field, type) for number, field, *type in words]


_MESSAGES = dict(_read())


def message(name: str, value: dict[str, Any]) -> bytes:
    """Encode an object as the message ``name``; fields that are not in the message are ignored."""
    parts = []
    for number, field, type in _MESSAGES[name]:
        found: Any
        if field in _INLINE:
            found = {each: value[each] for each in _INLINE[field] if each in value}
        else:
            found = value.get(field)
        if isinstance(found, dict) and type[:1] == ["map"]:
            entries = [{"key": key, "value": each} for key, each in found.items()]
            parts += [_field(number, _entry(entry, type[1:])) for entry in entries]
        elif found not in (None, {}):
            values = found if isinstance(found, list) else [found]
            parts += [_field(number, _value(each, type)) for each in values]
    return b"".join(parts)


def _entry(entry: dict[str, Any], type: list[str]) -> bytes:
    return _field(1, _value(entry["key"], [])) + _field(2, _value(entry["value"], type))


def _value(value: Any, type: list[str]) -> bytes | int:
    match type:
        case ["Time"]:
            moment = datetime.datetime.fromisoformat(value)
            return _field(1, int(moment.timestamp()))
        case ["Quantity"]:
            return _field(1, value.encode())
        case ["FieldsV1"]:
            return _field(1, json.dumps(value, separators=(",", ":")).encode())
        case ["IntOrString"] if isinstance(value, str):
            return _field(1, 1) + _field(3, value.encode())
        case ["IntOrString"]:
            return _field(1, 0) + _field(2, value)
        case [name]:
            return message(name, value)
    return value.encode() if isinstance(value, str) else int(value)


def _field(number: int, content: bytes | int) -> bytes:
    if isinstance(content, int):
        return varint(number << 3) + varint(content)
    return varint(number << 3 | 2) + varint(len(content)) + content


def varint(value: int) -> bytes:
    """Encode a nonnegative number."""
    octets = bytearray()
    while value > 0x7F:
        octets.append(value & 0x7F | 0x80)
        value >>= 7
    octets.append(value)
    return bytes(octets)
