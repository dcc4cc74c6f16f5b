"""Binds pods to nodes: each to the suitable node with the fewest pods."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from twisted.internet.interfaces import IReactorTime

from yurtlab.api.conditions import condition
from yurtlab.api.pods import WARNING, pod_event
from yurtlab.api.resources import EVENTS, NODES, PODS
from yurtlab.api.store import DELETED, Event, Object, Store

_COMPONENT = "default-scheduler"


class Scheduler:
    """Binds every pod of ``store`` without a node as soon as there is a suitable node.

    A node is suitable if it is not cordoned, has the labels of the pod's ``nodeSelector``, and has
    no taint, NoSchedule or NoExecute, that the pod does not tolerate. Later taints evict no pods.
    An unschedulable pod has the reason in its condition PodScheduled, and in an event whenever it
    changes.
    """

    def __init__(self, clock: IReactorTime, store: Store) -> None:
        self._clock = clock
        self._store = store
        self._unsubscribe = [
            store.follow(PODS, self._pod_changed),
            store.follow(NODES, self._node_changed),
        ]

    def stop(self) -> None:
        """Stop binding pods."""
        for unsubscribe in self._unsubscribe:
            unsubscribe()

    def _pod_changed(self, event: Event) -> None:
        if event.type != DELETED and _is_pending(event.object):
            # The pod may have changed again since.
            metadata = event.object["metadata"]
            pods = self._store.list(PODS, metadata["namespace"])
            self._bind([one for one in pods if one["metadata"]["uid"] == metadata["uid"]])

    def _node_changed(self, event: Event) -> None:
        if event.type != DELETED:
            self._bind(self._store.list(PODS))

    def _bind(self, pods: list[Object]) -> None:
        for pod in filter(_is_pending, pods):
            nodes = self._store.list(NODES)
            problems = [_problem(node, pod) for node in nodes]
            fitting = [node for node, problem in zip(nodes, problems, strict=True) if not problem]
            if fitting:
                self._bind_to(pod, min(fitting, key=self._load)["metadata"]["name"])
            else:
                self._mark_unschedulable(pod, _no_node(problems))

    def _load(self, node: Object) -> int:
        name = node["metadata"]["name"]
        return sum(pod["spec"].get("nodeName") == name for pod in self._store.list(PODS))

    def _bind_to(self, pod: Object, node: str) -> None:
        metadata = pod["metadata"]
        pod["spec"]["nodeName"] = node
        bound = self._store.replace(PODS, metadata["namespace"], metadata["name"], pod)
        self._set_scheduled(bound, {"status": "True"})

    def _mark_unschedulable(self, pod: Object, message: str) -> None:
        """Report why ``pod`` has no node, unless that was reported."""
        fields = {"status": "False", "reason": "Unschedulable", "message": message}
        conditions = (pod.get("status") or {}).get("conditions") or ()
        if any(fields.items() <= one.items() for one in conditions):
            return
        self._set_scheduled(pod, fields)
        now = self._clock.seconds()
        event = pod_event(pod, WARNING, "FailedScheduling", message, now, component=_COMPONENT)
        self._store.create(EVENTS, pod["metadata"]["namespace"], event)

    def _set_scheduled(self, pod: Object, fields: Object) -> None:
        metadata, status = pod["metadata"], pod.get("status") or {}
        made = condition(status, "PodScheduled", self._clock.seconds(), **fields)
        scheduled = {"lastProbeTime": None, **made}
        others = [one for one in status.get("conditions", ()) if one["type"] != "PodScheduled"]
        status = {**status, "conditions": [*others, scheduled]}
        self._store.update_status(PODS, metadata["namespace"], metadata["name"], status)


def _is_pending(pod: Object) -> bool:
    return "nodeName" not in pod["spec"] and "deletionTimestamp" not in pod["metadata"]


def _problem(node: Object, pod: Object) -> str:
    """Return why ``node`` does not fit ``pod``, in kube-scheduler's words; empty if it fits.

    They are in pkg/scheduler/framework/plugins: nodeunschedulable, tainttoleration, nodeaffinity.
    """
    spec, labels = node.get("spec") or {}, node["metadata"].get("labels") or {}
    if spec.get("unschedulable"):
        return "node(s) were unschedulable"
    tolerations = pod["spec"].get("tolerations") or ()
    for taint in spec.get("taints") or ():
        if taint.get("effect") in ("NoSchedule", "NoExecute") and not any(
            _tolerates(one, taint) for one in tolerations
        ):
            key, value = taint.get("key", ""), taint.get("value", "")
            return f"node(s) had untolerated taint {{{key}: {value}}}"
    selector = pod["spec"].get("nodeSelector") or {}
    if any(labels.get(key) != value for key, value in selector.items()):
        return "node(s) didn't match Pod's node affinity/selector"
    return ""


def _tolerates(toleration: Object, taint: Object) -> bool:
    """Match like ``Toleration.ToleratesTaint`` of k8s.io/api core/v1: unset fields match all."""
    if toleration.get("effect") not in (None, "", taint["effect"]):
        return False
    if toleration.get("key") not in (None, "", taint.get("key")):
        return False
    if toleration.get("operator") == "Exists":
        return True
    return bool(toleration.get("value", "") == taint.get("value", ""))


def _no_node(problems: Iterable[str]) -> str:
    """Format the problems of all nodes as kube-scheduler's ``FitError`` does."""
    counts = Counter(problems)
    if not counts:
        return "no nodes available to schedule pods"
    reasons = sorted(f"{number} {problem}" for problem, number in counts.items())
    return f"0/{counts.total()} nodes are available: {', '.join(reasons)}."
