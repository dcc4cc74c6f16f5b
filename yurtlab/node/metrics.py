"""The node's metrics: for Prometheus, for metrics-server, and as the kubelet's summary.

The usage of processes and of the machine comes from the kernel (proc(5)).
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain
from typing import Any

from twisted.internet.interfaces import IReactorTime

from yurtlab.node import leftovers
from yurtlab.node.containers import Container, Running
from yurtlab.node.pods import Pod
from yurttunnel.metrics import (
    Metric,
    MetricFamily,
    MetricRegistry,
    Value,
    counter,
    counts_of,
    gauge,
)
from yurttunnel.ops import process_stats
from yurttunnel.ops.clocks import timestamp

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")

# The fields of the first line of /proc/stat with busy time: user, nice, system,
# irq, softirq, steal.
_BUSY = (1, 2, 3, 6, 7, 8)


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine's usage: bytes, seconds of all processors, seconds since 1970."""

    cpu_seconds: float
    memory_total: int
    memory_available: int
    booted: float

    @classmethod
    def sample(cls) -> Machine:
        """Read the current values."""
        with open("/proc/stat") as file:
            lines = file.read().splitlines()
        cpu = lines[0].split()
        booted = next(float(line.split()[1]) for line in lines if line.startswith("btime "))
        with open("/proc/meminfo") as file:
            entries = (line.split() for line in file)
            memory = {entry[0].rstrip(":"): int(entry[1]) * 1024 for entry in entries}
        return cls(
            cpu_seconds=sum(int(cpu[index]) for index in _BUSY) / _TICKS,
            memory_total=memory["MemTotal"],
            memory_available=memory["MemAvailable"],
            booted=booted,
        )

    @property
    def memory_used(self) -> int:
        """The working set: bytes that cannot be reclaimed for others."""
        return self.memory_total - self.memory_available


@dataclass(frozen=True, slots=True)
class ContainerUsage:
    """The usage of a running container; ``started`` is in seconds since 1970.

    ``cpu_seconds`` is the time used by its processes, including that of their ended children.
    ``memory_bytes`` is the resident memory; shared memory is counted several times.
    """

    pod: Pod
    container: Container
    started: float
    processes: int
    cpu_seconds: float
    memory_bytes: int


class NodeMetrics:
    """Measures the usage of the containers of ``pods()`` at each scrape.

    ``node`` is the node's name.
    """

    def __init__(self, clock: IReactorTime, node: str, pods: Callable[[], Iterable[Pod]]) -> None:
        self.clock = clock
        self.node = node
        self.pods = pods
        self.commands_started = 0
        self.requests: Counter[str] = Counter()
        """The number of requests by the first part of a known path, or "other"."""
        self._cpu: dict[str, float] = {}
        self.resource_metrics = MetricRegistry()
        """The metrics for metrics-server at ``/metrics/resource`` (KEP-1206)."""
        self.resource_metrics.add(_MACHINE, Machine.sample)
        self.resource_metrics.add((*_CONTAINERS, *_PODS), self._measure)
        self._own = MetricRegistry()
        self._own.add(_NODE, lambda: self)
        self._own.add(process_stats.METRICS, process_stats.ProcessStats)

    def all_metrics(self) -> Iterable[MetricFamily]:
        """Return all metrics, for ``/metrics``."""
        return chain(self._own, self.resource_metrics)

    def summary(self) -> dict[str, Any]:
        """Return the ``Summary`` of k8s.io/kubelet pkg/apis/stats/v1alpha1, for ``/stats``."""
        machine, now = Machine.sample(), timestamp(self.clock.seconds())
        by_pod: dict[Pod, list[ContainerUsage]] = {pod: [] for pod in self.pods()}
        for one in self._measure():
            by_pod[one.pod].append(one)
        return {
            "node": {
                "nodeName": self.node,
                "startTime": timestamp(machine.booted),
                **_stats(now, machine.cpu_seconds, machine.memory_used),
            },
            "pods": [_pod_summary(now, pod, used) for pod, used in by_pod.items()],
        }

    def _measure(self) -> list[ContainerUsage]:
        found = leftovers.running()
        measured = []
        known: dict[str, float] = {}
        for pod in self.pods():
            for container in pod.all_containers:
                state = container.state
                if not isinstance(state, Running):
                    continue
                its = container.processes(found)
                cpu_seconds = sum(one.ticks for one in its) / _TICKS
                # The usage of an ended process that was not waited for is lost; a counter must not
                # decrease for that.
                key = f"{container.mark}{state.started}"
                known[key] = max(cpu_seconds, self._cpu.get(key, 0.0))
                memory = sum(one.pages for one in its) * _PAGE_BYTES
                measured.append(
                    ContainerUsage(pod, container, state.started, len(its), known[key], memory)
                )
        self._cpu = known
        return measured

    def states(self) -> Counter[str]:
        """Count the containers of the node by state."""
        return Counter(
            type(one.state).__name__.lower() for pod in self.pods() for one in pod.all_containers
        )


def _per_pod(
    measured: Iterable[ContainerUsage], value: Callable[[ContainerUsage], float]
) -> Iterable[tuple[tuple[str, str], float]]:
    sums: dict[Pod, float] = {}
    for one in measured:
        sums[one.pod] = sums.get(one.pod, 0) + value(one)
    return (((pod.namespace, pod.name), each) for pod, each in sums.items())


_NODE: tuple[Metric[NodeMetrics], ...] = (
    gauge("kubelet_node_name", "The node's name.", lambda node: [(node.node, 1)], "node"),
    gauge("kubelet_running_pods", "Pods on the node.", lambda node: len(list(node.pods()))),
    gauge(
        "kubelet_running_containers",
        "Containers by state.",
        lambda node: counts_of(("running", "terminated", "waiting"), node.states()),
        "container_state",
    ),
    counter(
        "yurttunnel_node_commands_started",
        "Commands that were run in containers by exec.",
        lambda node: node.commands_started,
    ),
    counter(
        "yurttunnel_node_requests",
        "Requests to the node by their kind.",
        lambda node: sorted(node.requests.items()),
        "kind",
    ),
)

_MACHINE: tuple[Metric[Machine], ...] = (
    counter(
        "node_cpu_usage_seconds",
        "Processor time that the machine used.",
        lambda machine: machine.cpu_seconds,
    ),
    gauge(
        "node_memory_working_set_bytes",
        "Memory that the machine uses.",
        lambda machine: machine.memory_used,
    ),
    gauge("resource_scrape_error", "1 if figures are missing.", lambda _: 0),
)


def _each(value: Callable[[ContainerUsage], float]) -> Callable[[list[ContainerUsage]], Value]:
    return lambda measured: (
        ((one.container.name, one.pod.namespace, one.pod.name), value(one)) for one in measured
    )


_LABELS = ("container", "namespace", "pod")

_CONTAINERS: tuple[Metric[list[ContainerUsage]], ...] = (
    counter(
        "container_cpu_usage_seconds",
        "Processor time of a container.",
        _each(lambda one: one.cpu_seconds),
        *_LABELS,
    ),
    gauge(
        "container_memory_working_set_bytes",
        "Resident memory of a container.",
        _each(lambda one: one.memory_bytes),
        *_LABELS,
    ),
    gauge(
        "container_processes",
        "Processes of a container.",
        _each(lambda one: one.processes),
        *_LABELS,
    ),
    gauge(
        "container_start_time_seconds",
        "When a container began, since 1970.",
        _each(lambda one: one.started),
        *_LABELS,
    ),
)

_PODS: tuple[Metric[list[ContainerUsage]], ...] = (
    counter(
        "pod_cpu_usage_seconds",
        "Processor time of a pod.",
        lambda measured: _per_pod(measured, lambda one: one.cpu_seconds),
        "namespace",
        "pod",
    ),
    gauge(
        "pod_memory_working_set_bytes",
        "Resident memory of a pod.",
        lambda measured: _per_pod(measured, lambda one: one.memory_bytes),
        "namespace",
        "pod",
    ),
)


def _pod_summary(now: str, pod: Pod, used: list[ContainerUsage]) -> dict[str, Any]:
    return {
        "podRef": {"name": pod.name, "namespace": pod.namespace, "uid": pod.uid},
        "startTime": timestamp(pod.started),
        "containers": [
            {
                "name": one.container.name,
                "startTime": timestamp(one.started),
                **_stats(now, one.cpu_seconds, one.memory_bytes),
            }
            for one in used
        ],
        **_stats(now, sum(one.cpu_seconds for one in used), sum(one.memory_bytes for one in used)),
        "process_stats": {"process_count": sum(one.processes for one in used)},
    }


def _stats(now: str, cpu_seconds: float, memory_bytes: int) -> dict[str, Any]:
    return {
        "cpu": {"time": now, "usageCoreNanoSeconds": int(cpu_seconds * 1_000_000_000)},
        "memory": {"time": now, "workingSetBytes": memory_bytes, "rssBytes": memory_bytes},
    }
