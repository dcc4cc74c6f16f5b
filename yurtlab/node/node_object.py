"""The node's object in the API: its properties, capacity and conditions."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

from yurtlab.api.conditions import condition
from yurtlab.node.metrics import Machine
from yurttunnel import __version__
from yurttunnel.ops.clocks import micro_time, timestamp

MAX_PODS = 110
"""The maximum number of pods: the kubelet's default."""

# The kubelet's default eviction thresholds.
_MIN_MEMORY = 100 * 1024 * 1024
_MIN_DISK = 0.10
_MIN_PROCESSES = 1000

# Names of architectures in Go.
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64", "armv7l": "arm", "i686": "386"}


def node_object(name: str) -> dict[str, Any]:
    """Return the object, without its status."""
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {
                "kubernetes.io/hostname": name,
                "kubernetes.io/os": "linux",
                "kubernetes.io/arch": _architecture(),
                "node-role.kubernetes.io/edge": "",
            },
        },
        "spec": {},
    }


def node_lease(node: dict[str, Any], duration: int, now: float) -> dict[str, Any]:
    """Return the lease that ``node`` renews (Lease of coordination.k8s.io/v1).

    The node may be considered dead ``duration`` seconds after ``now``, which is in seconds since
    1970.
    """
    name = node["metadata"]["name"]
    owner = {"apiVersion": "v1", "kind": "Node", "name": name, "uid": node["metadata"]["uid"]}
    return {
        "metadata": {"name": name, "ownerReferences": [owner]},
        "spec": {
            "holderIdentity": name,
            "leaseDurationSeconds": duration,
            "renewTime": micro_time(now),
        },
    }


def node_status(
    previous: dict[str, Any], name: str, address: str, port: int, directory: Path, now: float
) -> dict[str, Any]:
    """Return its status: ``port`` is where it serves, ``directory`` the one of its pods.

    ``previous`` has the transition times of conditions; ``now`` is in seconds since 1970.
    """
    machine = Machine.sample()
    disk = os.statvfs(directory)
    capacity = {
        "cpu": str(len(os.sched_getaffinity(0))),
        "memory": f"{machine.memory_total // 1024}Ki",
        "ephemeral-storage": f"{disk.f_blocks * disk.f_frsize // 1024}Ki",
        "pods": str(MAX_PODS),
    }
    return {
        "capacity": capacity,
        "allocatable": dict(capacity),
        "addresses": [
            {"type": "InternalIP", "address": address},
            {"type": "Hostname", "address": name},
        ],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
        "nodeInfo": _information(),
        "conditions": _conditions(previous, machine, disk, now),
    }


def _information() -> dict[str, str]:
    """Return the ``NodeSystemInfo``."""
    return {
        "machineID": _line("/etc/machine-id"),
        "systemUUID": _line("/etc/machine-id"),
        "bootID": _line("/proc/sys/kernel/random/boot_id"),
        "kernelVersion": platform.release(),
        "osImage": _system(),
        "containerRuntimeVersion": f"process://{__version__}",
        "kubeletVersion": f"yurttunnel-{__version__}",
        "kubeProxyVersion": "",
        "operatingSystem": "linux",
        "architecture": _architecture(),
    }


def _conditions(
    previous: dict[str, Any], machine: Machine, disk: os.statvfs_result, now: float
) -> list[dict[str, Any]]:
    little_memory = machine.memory_available < _MIN_MEMORY
    little_disk = disk.f_bavail < _MIN_DISK * disk.f_blocks
    few_processes = _free_processes() < _MIN_PROCESSES
    found = [
        ("MemoryPressure", little_memory, "KubeletHas{}Memory"),
        ("DiskPressure", little_disk, "KubeletHas{}Disk"),
        ("PIDPressure", few_processes, "KubeletHas{}PID"),
        ("Ready", True, "KubeletReady"),
    ]
    conditions = []
    for kind, holds, form in found:
        reason = form.format("Insufficient" if holds else "Sufficient")
        fields = {"status": str(holds), "reason": reason, "message": _MESSAGES[reason]}
        made = condition(previous, kind, now, **fields)
        conditions.append({**made, "lastHeartbeatTime": timestamp(now)})
    return conditions


_MESSAGES = {
    "KubeletHasSufficientMemory": "the machine has enough memory",
    "KubeletHasInsufficientMemory": "less than 100 MiB of the machine's memory are left",
    "KubeletHasSufficientDisk": "the disk has enough room",
    "KubeletHasInsufficientDisk": "less than a tenth of the disk is left",
    "KubeletHasSufficientPID": "the machine can have enough processes",
    "KubeletHasInsufficientPID": "the machine can have less than 1000 more processes",
    "KubeletReady": "the node runs pods as processes of this machine",
}


def _free_processes() -> int:
    return int(_line("/proc/sys/kernel/pid_max")) - sum(
        name.isdigit() for name in os.listdir("/proc")
    )


def _architecture() -> str:
    return _ARCHITECTURES.get(platform.machine(), platform.machine())


def _system() -> str:
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except OSError:
        return platform.system()


def _line(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""
