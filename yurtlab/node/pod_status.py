"""The status of a pod, from the states of its containers: ``PodStatus`` of k8s.io/api core/v1.

Phase and conditions follow the kubelet (pkg/kubelet/kubelet_pods.go getPhase, pkg/kubelet/status
generate.go).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from yurtlab.api.conditions import condition
from yurtlab.node.containers import Container, Running, State, Terminated, Waiting
from yurttunnel.ops.clocks import timestamp

Status = dict[str, Any]


def phase(policy: str, first: Sequence[Container], main: Sequence[Container]) -> str:
    """Return the phase of a pod with the restart policy ``policy``.

    ``first`` are its init containers, ``main`` its others.
    """
    if not initialized(first):
        failed = policy == "Never" and any(_failed(one) for one in first)
        return "Failed" if failed else "Pending"
    if any(_last_end(one) is None and not one.running for one in main):
        return "Pending"
    if policy == "Always" or any(one.running for one in main):
        return "Running"
    if all(one.ended is not None and not _failed(one) for one in main):
        return "Succeeded"
    return "Failed" if policy == "Never" else "Running"


def initialized(first: Sequence[Container]) -> bool:
    """Return whether all init containers have succeeded."""
    return all(one.ended is not None and not _failed(one) for one in first)


def pod_status(
    previous: Status,
    policy: str,
    first: Sequence[Container],
    main: Sequence[Container],
    address: str,
    started: float,
    now: float,
) -> Status:
    """Return the whole status; what the node does not decide is kept from ``previous``.

    ``address`` is that of the node, which its pods share. Times are in seconds since 1970.
    """
    its_phase = phase(policy, first, main)
    status = {
        **previous,
        "phase": its_phase,
        "conditions": _conditions(previous, its_phase, first, main, now),
        "hostIP": address,
        "hostIPs": [{"ip": address}],
        "podIP": address,
        "podIPs": [{"ip": address}],
        "startTime": timestamp(started),
        "containerStatuses": [_container_status(one, one.running) for one in main],
    }
    if first:
        status["initContainerStatuses"] = [
            _container_status(one, one.ended is not None and not _failed(one)) for one in first
        ]
    return status


def _container_status(container: Container, ready: bool) -> Status:
    state = container.state
    last = {} if container.last is None else _state(container.last)
    status = {
        "name": container.name,
        "image": container.spec.get("image", ""),
        "imageID": "",
        "ready": ready,
        "started": container.running,
        "restartCount": container.restarts,
        "state": _state(state),
        "lastState": last,
    }
    if isinstance(state, Running | Terminated) and state.container_id:
        status["containerID"] = state.container_id
    return status


def _state(state: State) -> Status:
    if isinstance(state, Waiting):
        waiting = {"reason": state.reason}
        if state.message:
            waiting["message"] = state.message
        return {"waiting": waiting}
    if isinstance(state, Running):
        return {"running": {"startedAt": timestamp(state.started)}}
    terminated: Status = {
        "exitCode": state.exit.code,
        "reason": state.reason,
        "startedAt": timestamp(state.started),
        "finishedAt": timestamp(state.finished),
    }
    if state.exit.signal:
        terminated["signal"] = state.exit.signal
    if state.message:
        terminated["message"] = state.message
    if state.container_id:
        terminated["containerID"] = state.container_id
    return {"terminated": terminated}


def _conditions(
    previous: Status,
    its_phase: str,
    first: Sequence[Container],
    main: Sequence[Container],
    now: float,
) -> list[Status]:
    ready = _readiness(its_phase, main)
    desired = {
        "PodReadyToStartContainers": _yes(),
        "Initialized": _initialization(first),
        "Ready": ready,
        "ContainersReady": ready,
        "PodScheduled": _yes(),
    }
    return [
        {"lastProbeTime": None, **condition(previous, name, now, **fields)}
        for name, fields in desired.items()
    ]


def _yes() -> Status:
    return {"status": "True"}


def _no(reason: str, message: str = "") -> Status:
    return {"status": "False", "reason": reason, **({"message": message} if message else {})}


def _initialization(first: Sequence[Container]) -> Status:
    missing = " ".join(one.name for one in first if one.ended is None or _failed(one))
    if missing:
        return _no("ContainersNotInitialized", f"containers with incomplete status: [{missing}]")
    return _yes()


def _readiness(its_phase: str, main: Sequence[Container]) -> Status:
    if its_phase in ("Succeeded", "Failed"):
        return _no("PodCompleted" if its_phase == "Succeeded" else "PodFailed")
    missing = " ".join(one.name for one in main if not one.running)
    if missing:
        return _no("ContainersNotReady", f"containers with unready status: [{missing}]")
    return _yes()


def _failed(container: Container) -> bool:
    end = _last_end(container)
    return end is not None and end.exit.code != 0


def _last_end(container: Container) -> Terminated | None:
    """Return its last result, also while it waits for a restart."""
    return container.ended or (container.last if isinstance(container.state, Waiting) else None)
