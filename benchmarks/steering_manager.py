"""Manage and measure the rules for a cluster in memory, in the current network namespace.

Run by :mod:`benchmarks.steering` as ``python -m benchmarks.steering_manager BACKEND MATCH NODES``,
as root, for ``NODES`` edge nodes and as many cloud nodes. It prints the figures by their names as
one line of JSON. With ``--leave`` it creates the rules and leaves them, like a killed server.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from ipaddress import IPv4Address
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater, react
from zope.interface import implementer

from benchmarks.processes import BenchmarkFailed
from tests.cluster.fakes import CLOUD, EDGE, FakeInformers, config_map, node
from yurttunnel.cluster.nodes import Nodes
from yurttunnel.cluster.proxy_ports import ProxyPorts
from yurttunnel.cluster.services import ClusterAddresses
from yurttunnel.kube.resources import CONFIG_MAPS, NODES
from yurttunnel.ops.programs import CompletedProgram, IPrograms, Programs, child_cpu_seconds
from yurttunnel.steering.desired_state import Listeners, SteeringSettings
from yurttunnel.steering.firewall.tunnel import find_firewalls, remove_leftovers_elsewhere
from yurttunnel.steering.interception import Match, Target
from yurttunnel.steering.interfaces import Firewalls
from yurttunnel.steering.manager import SteeringManager
from yurttunnel.steering.netlink.address_sets import AddressSets
from yurttunnel.steering.netlink.flows import Flows
from yurttunnel.steering.netlink.worker import KernelWorker
from yurttunnel.steering.probe_schedule import MIN_PAUSE

FIRST_EDGE, FIRST_CLOUD = IPv4Address("10.64.0.1"), IPv4Address("10.32.0.1")
SECURE_PORT, INSECURE_PORT = 10263, 10264

CONFIGURED_PORTS = "9100, 9443, 9445"
"""With the two ports of kubelets, five in total."""

PERIOD = MIN_PAUSE + 1
"""The seconds between syncs. The default of 60 would not make a sync more expensive, only a run
longer. Within ``MIN_PAUSE`` of a read the rules are not read again."""

MAX_SYNC_SECONDS = 120.0
"""The timeout of a sync in seconds."""

_KUBELET_CHAIN = "KUBE-IPTABLES-HINT"
"""The chain that kubelet creates in ``mangle`` of its back end, by which that is detected."""


@dataclass(frozen=True, slots=True)
class Cost:
    """A cost: seconds of CPU time of this process and its children, and the number of processes."""

    own_cpu: float
    child_cpu: float
    processes: int

    def since(self, before: Cost) -> Cost:
        """Return the difference to ``before``."""
        return Cost(
            self.own_cpu - before.own_cpu,
            self.child_cpu - before.child_cpu,
            self.processes - before.processes,
        )


@dataclass(frozen=True, slots=True)
class Sync:
    """The cost of a sync: ``seconds`` of wall-clock time, and ``cost``."""

    seconds: float
    cost: Cost


@implementer(IPrograms)
class CountedPrograms:
    """Runs programs, and counts them."""

    def __init__(self, reactor: Any) -> None:
        self._programs = Programs(reactor)
        self.clock = self._programs.clock
        self.count = 0

    def run(
        self, arguments: Sequence[str], given: bytes = b"", seconds: float = MAX_SYNC_SECONDS
    ) -> Deferred[CompletedProgram]:
        """Run a program."""
        self.count += 1
        return self._programs.run(arguments, given, seconds)


class Steered:
    """A cluster of ``nodes`` edge nodes and as many cloud nodes, and the manager of its rules."""

    def __init__(self, reactor: Any, match: Match, nodes: int) -> None:
        self._reactor = reactor
        self._programs = CountedPrograms(reactor)
        self._informers = FakeInformers()
        self._informers.put(CONFIG_MAPS, config_map(https_proxy_ports=CONFIGURED_PORTS))
        for number in range(nodes):
            self._put(f"edge-{number}", FIRST_EDGE + number, EDGE)
            self._put(f"cloud-{number}", FIRST_CLOUD + number, CLOUD)
        self._match, self._nodes = match, nodes
        listeners = Listeners(Target(None, SECURE_PORT), Target(None, INSECURE_PORT))
        self._worker = KernelWorker(reactor)
        self._manager = SteeringManager(
            reactor,
            SteeringSettings({4: listeners, 6: listeners}, match, False, frozenset(), PERIOD),
            Nodes(self._informers),
            ProxyPorts(self._informers, "kube-system", INSECURE_PORT, lambda *_: None),
            ClusterAddresses(self._informers, "kube-system"),
            lambda: Deferred.fromCoroutine(self._find()),
            AddressSets(self._worker.run, reactor),
            Flows(self._worker.run),
            child_cpu_seconds,
            lambda: None,
        )

    async def first(self) -> Sync:
        """Start; the time is until the rules exist, including the detection of back ends."""
        before, began = self._cost(), self._reactor.seconds()
        self._worker.startService()
        self._manager.startService()
        await self._until(lambda: self._manager.problem() is None, "the first sync")
        return Sync(self._last_success() - began, self._cost().since(before))

    async def unchanged(self) -> Sync:
        """Let a period pass after the first sync; the cost is that of the process in this period.

        The rules are read once in it, as after every change. Later they would not be read at all if
        the kernel counts changes.
        """
        await deferLater(self._reactor, PERIOD / 2)
        before = self._cost()
        await deferLater(self._reactor, PERIOD)
        cost = self._cost().since(before)
        reports = self._manager.report().families
        if any(report.syncs.get("repaired") for report in reports):
            raise BenchmarkFailed(f"a sync found changes where there were none: {reports}")
        seconds = sum(
            (report.last_success or 0) - (report.last_sync or 0)
            for report in reports
            if report.backend is not None
        )
        return Sync(seconds, cost)

    async def changed(self) -> Sync:
        """Add a node that the rules depend on; the time is from the event until the rules are set.

        The cost is that of a whole period, which includes an unchanged sync.
        """
        before, began = self._cost(), self._reactor.seconds()
        if self._match is Match.EDGE_SET:
            self._put("edge-added", FIRST_EDGE + self._nodes, EDGE)
        else:
            self._put("cloud-added", FIRST_CLOUD + self._nodes, CLOUD)
        await deferLater(self._reactor, PERIOD)
        cost = self._cost().since(before)
        await self._until(lambda: self._last_change() > began, "the change", interval=PERIOD)
        return Sync(self._last_change() - began, cost)

    async def stop(self) -> Sync:
        """Remove everything."""
        before, began = self._cost(), self._reactor.seconds()
        await self._manager.stopService()
        seconds = self._reactor.seconds() - began
        await self._worker.stopService()
        return Sync(seconds, self._cost().since(before))

    async def _find(self) -> Firewalls:
        firewalls = await find_firewalls(self._programs)
        await remove_leftovers_elsewhere(self._programs, firewalls)
        return firewalls

    def back_end(self) -> str | None:
        """Return the back end of the rules for IPv4."""
        return self._manager.report().families[0].backend

    def _put(self, name: str, address: IPv4Address, labels: dict[str, str]) -> None:
        self._informers.put(NODES, node(name, str(address), labels=labels))

    def _last_success(self) -> float:
        return max(report.last_success or 0 for report in self._manager.report().families)

    def _last_change(self) -> float:
        return max(report.last_change or 0 for report in self._manager.report().families)

    def _cost(self) -> Cost:
        own, children = (
            usage.ru_utime + usage.ru_stime
            for usage in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        )
        return Cost(own, children, self._programs.count)

    async def _until(
        self, condition: Callable[[], bool], what: str, interval: float = 0.005
    ) -> None:
        deadline = self._reactor.seconds() + MAX_SYNC_SECONDS
        while not condition():
            if self._reactor.seconds() > deadline:
                raise BenchmarkFailed(
                    f"{what} has not ended after {MAX_SYNC_SECONDS:.0f} s:"
                    f" {self._manager.problem()}"
                )
            await deferLater(self._reactor, interval)


def run_manager(backend: str, match: Match, nodes: int, *flags: str) -> Mapping[str, Any]:
    """Run this module in the network namespace of the calling thread; return its output."""
    module = [sys.executable, "-m", "benchmarks.steering_manager"]
    command = [*module, backend, match.value, str(nodes), *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=5 * MAX_SYNC_SECONDS)
    if done.returncode != 0:
        raise BenchmarkFailed(f"{' '.join(command)}:\n{done.stderr[-2000:]}")
    printed: Mapping[str, Any] = json.loads(done.stdout)
    return printed


async def main(reactor: Any, chosen: argparse.Namespace) -> None:
    """Measure, and print."""
    for base in ("iptables", "ip6tables"):
        command = [f"{base}-{chosen.backend}", "-w", "-t", "mangle", "-N", _KUBELET_CHAIN]
        subprocess.run(command, check=True, timeout=30)
    steered = Steered(reactor, Match(chosen.match), chosen.nodes)
    stats = {"first": await steered.first()}
    if steered.back_end() != chosen.backend:
        raise BenchmarkFailed(f"the rules were made by {steered.back_end()}, not {chosen.backend}")
    if not chosen.leave:
        stats["unchanged"] = await steered.unchanged()
        stats["changed"] = await steered.changed()
        stats["removed"] = await steered.stop()
    print(json.dumps({name: asdict(sync) for name, sync in stats.items()}))


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.steering_manager")
    parser.add_argument("backend", choices=("nft", "legacy"))
    parser.add_argument("match", choices=[match.value for match in Match])
    parser.add_argument("nodes", type=int)
    parser.add_argument("--leave", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    arguments = parse()
    react(lambda reactor: Deferred.fromCoroutine(main(reactor, arguments)))
