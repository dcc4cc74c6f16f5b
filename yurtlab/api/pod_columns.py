"""What ``kubectl get pods`` shows, by the rules of printPod of Kubernetes.

These are in pkg/printers/internalversion/printers.go: the status of a pod is what its
containers are up to, and the phase only where they say nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from yurtlab.api.columns import (
    AGE,
    NAME,
    NONE,
    Column,
    at,
    seconds_of,
    since,
    value_at,
)


@dataclass(slots=True)
class _Summary:
    """What the columns say of one pod."""

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
        _look_at_containers(status, summary)
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
            summary.reason = f"Init:{_ending(ended)}"
        elif waiting.get("reason", "PodInitializing") != "PodInitializing":
            summary.reason = f"Init:{waiting['reason']}"
        else:
            total = len(value_at(pod, ["spec", "initContainers"], []))
            summary.reason = f"Init:{position}/{total}"
        return not _is_true(status, "Initialized")
    return False


def _look_at_containers(status: dict[str, Any], summary: _Summary) -> None:
    running = False
    for container in reversed(status.get("containerStatuses") or []):
        summary.add_restarts(container)
        state = container.get("state") or {}
        waiting, ended = state.get("waiting") or {}, state.get("terminated")
        if waiting.get("reason"):
            summary.reason = waiting["reason"]
        elif ended is not None:
            summary.reason = _ending(ended)
        elif container.get("ready") and "running" in state:
            running = True
            summary.ready += 1
    if summary.reason == "Completed" and running:
        summary.reason = "Running" if _is_true(status, "Ready") else "NotReady"


def _ending(terminated: dict[str, Any]) -> str:
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


def _ready(pod: dict[str, Any], now: float) -> str:
    return f"{_summarize(pod).ready}/{len(value_at(pod, ['spec', 'containers'], []))}"


def _status(pod: dict[str, Any], now: float) -> str:
    return _summarize(pod).reason


def _restarts(pod: dict[str, Any], now: float) -> str:
    summary = _summarize(pod)
    if summary.restarts and summary.last_restart:
        return f"{summary.restarts} ({since(summary.last_restart, now)} ago)"
    return str(summary.restarts)


def _gates(pod: dict[str, Any], now: float) -> str:
    gates = value_at(pod, ["spec", "readinessGates"], [])
    passed = sum(_is_true(pod.get("status") or {}, one.get("conditionType", "")) for one in gates)
    return f"{passed}/{len(gates)}" if gates else NONE


POD_COLUMNS = (
    NAME,
    Column("Ready", _ready, "How many of its containers are ready for traffic."),
    Column("Status", _status, "What its containers are up to."),
    Column("Restarts", _restarts, "How often its containers have been restarted."),
    AGE,
    Column("IP", at("status.podIP", NONE), "Its address.", wide=True),
    Column("Node", at("spec.nodeName", NONE), "Where it runs.", wide=True),
    Column("Nominated Node", at("status.nominatedNodeName", NONE), wide=True),
    Column("Readiness Gates", _gates, "How many of its readiness gates have passed.", wide=True),
)
