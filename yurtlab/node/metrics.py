"""The node's figures: for Prometheus, for metrics-server, and as the kubelet's summary."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from twisted.internet.interfaces import IReactorTime

from yurtlab.api.store import timestamp
from yurtlab.node import leftovers
from yurtlab.node.containers import Container, Running
from yurtlab.node.pods import Pod
from yurtlab.node.usage import Machine, Usage, usage_of
from yurttunnel.ops.families import CounterMetricFamily, GaugeMetricFamily, MetricFamily


@dataclass(frozen=True, slots=True)
class ContainerUsage:
    """What one container that runs uses; ``started`` is in seconds since 1970."""

    pod: Pod
    container: Container
    started: float
    usage: Usage


class NodeMetrics:
    """Measures what the containers of ``pods()`` use, whenever it is asked.

    ``node`` is the node's name.
    """

    def __init__(self, clock: IReactorTime, node: str, pods: Callable[[], Iterable[Pod]]) -> None:
        self.clock = clock
        self.node = node
        self.pods = pods
        self.commands_started = 0
        self.requests: Counter[str] = Counter()
        """Requests by what they asked for: the first part of a known path, or "other"."""
        self._cpu: dict[str, float] = {}

    def all_metrics(self) -> Iterator[MetricFamily]:
        """Yield everything, for ``/metrics``."""
        yield from self._own()
        yield from self.resource_metrics()

    def resource_metrics(self) -> Iterator[MetricFamily]:
        """Yield what metrics-server asks for, for ``/metrics/resource`` (KEP-1206)."""
        machine = Machine.look()
        yield CounterMetricFamily(
            "node_cpu_usage_seconds", "Processor time that the machine used.", machine.cpu_seconds
        )
        yield GaugeMetricFamily(
            "node_memory_working_set_bytes", "Memory that the machine uses.", machine.memory_used
        )
        measured = self._measure()
        yield from _container_families(measured)
        yield from _pod_families(measured)
        yield GaugeMetricFamily("resource_scrape_error", "1 if figures are missing.", 0)

    def summary(self) -> dict[str, Any]:
        """Return the ``Summary`` of k8s.io/kubelet pkg/apis/stats/v1alpha1, for ``/stats``."""
        machine, now = Machine.look(), timestamp(self.clock.seconds())
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
                usage = usage_of(container.processes(found))
                # What a process that has ended had used is lost when nobody waited for it; a
                # counter must not go back for that.
                key = f"{container.mark}{state.started}"
                known[key] = max(usage.cpu_seconds, self._cpu.get(key, 0.0))
                usage = Usage(usage.processes, known[key], usage.memory_bytes)
                measured.append(ContainerUsage(pod, container, state.started, usage))
        self._cpu = known
        return measured

    def _own(self) -> Iterator[MetricFamily]:
        node = GaugeMetricFamily("kubelet_node_name", "The node's name.", labels=["node"])
        node.add_metric([self.node], 1)
        yield node
        pods = list(self.pods())
        yield GaugeMetricFamily("kubelet_running_pods", "Pods on the node.", value=len(pods))
        states = Counter(
            type(one.state).__name__.lower() for pod in pods for one in pod.all_containers
        )
        containers = GaugeMetricFamily(
            "kubelet_running_containers", "Containers by state.", labels=["container_state"]
        )
        for state in ("running", "terminated", "waiting"):
            containers.add_metric([state], states[state])
        yield containers
        yield CounterMetricFamily(
            "yurttunnel_node_commands_started",
            "Commands that were run beside a container's own process (exec).",
            value=self.commands_started,
        )
        requests = CounterMetricFamily(
            "yurttunnel_node_requests", "Requests to the node by their kind.", labels=["kind"]
        )
        for kind, count in sorted(self.requests.items()):
            requests.add_metric([kind], count)
        yield requests
        yield from self._process()

    def _process(self) -> Iterator[MetricFamily]:
        own = usage_of([os.getpid()])
        yield CounterMetricFamily(
            "process_cpu_seconds", "Processor time of the node's own process.", own.cpu_seconds
        )
        yield GaugeMetricFamily(
            "process_resident_memory_bytes", "Memory of the node's own process.", own.memory_bytes
        )
        yield GaugeMetricFamily(
            "process_open_fds",
            "Open file descriptors of the node's own process.",
            len(os.listdir("/proc/self/fd")),
        )


def _container_families(measured: list[ContainerUsage]) -> Iterator[MetricFamily]:
    labels = ["container", "namespace", "pod"]
    cpu = CounterMetricFamily(
        "container_cpu_usage_seconds", "Processor time of a container.", labels=labels
    )
    memory = GaugeMetricFamily(
        "container_memory_working_set_bytes", "Resident memory of a container.", labels=labels
    )
    processes = GaugeMetricFamily("container_processes", "Processes of a container.", labels=labels)
    started = GaugeMetricFamily(
        "container_start_time_seconds", "When a container began, since 1970.", labels=labels
    )
    for one in measured:
        values = [one.container.name, one.pod.namespace, one.pod.name]
        cpu.add_metric(values, one.usage.cpu_seconds)
        memory.add_metric(values, one.usage.memory_bytes)
        processes.add_metric(values, one.usage.processes)
        started.add_metric(values, one.started)
    yield from (cpu, memory, processes, started)


def _pod_families(measured: list[ContainerUsage]) -> Iterator[MetricFamily]:
    labels = ["namespace", "pod"]
    cpu = CounterMetricFamily("pod_cpu_usage_seconds", "Processor time of a pod.", labels=labels)
    memory = GaugeMetricFamily(
        "pod_memory_working_set_bytes", "Resident memory of a pod.", labels=labels
    )
    by_pod: dict[Pod, list[ContainerUsage]] = {}
    for one in measured:
        by_pod.setdefault(one.pod, []).append(one)
    for pod, used in by_pod.items():
        cpu.add_metric([pod.namespace, pod.name], sum(one.usage.cpu_seconds for one in used))
        memory.add_metric([pod.namespace, pod.name], sum(one.usage.memory_bytes for one in used))
    yield from (cpu, memory)


def _pod_summary(now: str, pod: Pod, used: list[ContainerUsage]) -> dict[str, Any]:
    return {
        "podRef": {"name": pod.name, "namespace": pod.namespace, "uid": pod.uid},
        "startTime": timestamp(pod.started),
        "containers": [
            {
                "name": one.container.name,
                "startTime": timestamp(one.started),
                **_stats(now, one.usage.cpu_seconds, one.usage.memory_bytes),
            }
            for one in used
        ],
        **_stats(
            now,
            sum(one.usage.cpu_seconds for one in used),
            sum(one.usage.memory_bytes for one in used),
        ),
        "process_stats": {"process_count": sum(one.usage.processes for one in used)},
    }


def _stats(now: str, cpu_seconds: float, memory_bytes: int) -> dict[str, Any]:
    return {
        "cpu": {"time": now, "usageCoreNanoSeconds": int(cpu_seconds * 1_000_000_000)},
        "memory": {"time": now, "workingSetBytes": memory_bytes, "rssBytes": memory_bytes},
    }
