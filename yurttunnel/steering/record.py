"""The history of the rules of one address family, for the log and reports."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator

from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from yurttunnel.ops.clocks import time_of_day
from yurttunnel.ops.log import RateLimitedLog
from yurttunnel.steering.failures import SteeringFailed
from yurttunnel.steering.interception import Address, Interception, Match, Target
from yurttunnel.steering.report import (
    CHANGED,
    FAILED,
    MAX_ADDRESSES,
    REPAIRED,
    RESULTS,
    UNCHANGED,
    AddressReport,
    FamilyReport,
    PortReport,
)


class SyncRecord:
    """Records the syncs of the rules for IP of ``version``.

    ``problem`` is why they may not be as desired, ``None`` if they are.
    """

    _log = Logger()

    def __init__(self, clock: IReactorTime, version: int) -> None:
        self._clock = clock
        self._version = version
        self._limited = RateLimitedLog(clock, self._log)
        self._last_sync: float | None = None
        self._last_success: float | None = None
        self._last_change: float | None = None
        self._differed: tuple[str, ...] = ()
        self._notes: tuple[str, ...] = ()
        self._flows_problem: str | None = None
        self._flows_cut = 0
        self._syncs = dict.fromkeys(RESULTS, 0)
        self.problem: str | None = None
        self.without_sets: str | None = None
        """Why there are no rules with a set, though they should be possible."""

    @property
    def changes(self) -> int:
        """How often rules or set had to be changed."""
        return self._syncs[CHANGED] + self._syncs[REPAIRED]

    def started(self) -> None:
        """Record that a sync starts."""
        self._last_sync = time_of_day(self._clock)

    def applied(
        self, former: Interception | None, desired: Interception, differed: list[str]
    ) -> None:
        """Record that the rules are ``desired`` now, after ``former``, with what ``differed``."""
        if not differed:
            self._syncs[UNCHANGED] += 1
            return
        self._differed = tuple(differed)
        self._last_change = time_of_day(self._clock)
        if desired == former:
            self._syncs[REPAIRED] += 1
            self._limited.warn(
                "IPv{version}: rules differed: {differed}; restored. Another program has changed"
                " them",
                version=self._version,
                differed="; ".join(differed),
            )
            return
        self._syncs[CHANGED] += 1
        self._limited.info(
            "IPv{version}: connections to {addresses} addresses of edge nodes on {ports} ports are"
            " redirected to this server ({match}). Changed: {differed}",
            version=self._version,
            addresses=0 if desired.is_empty else len(desired.edge),
            ports=0 if desired.is_empty else len(desired.all_ports()),
            match=desired.match.value,
            differed="; ".join(differed),
        )

    def succeeded(self, notes: tuple[str, ...]) -> None:
        """Record a successful sync; ``notes`` say what cannot be intercepted all the same."""
        if self.problem is not None:
            self._log.info("IPv{version}: the rules are as desired again", version=self._version)
        self.problem = None
        self._last_success = time_of_day(self._clock)
        for note in notes:
            if note not in self._notes:
                self._log.warn("{note}", note=note)
        self._notes = notes

    def failed(self, error: Exception) -> None:
        """Record a sync that failed with ``error``; called in its exception handler."""
        self._syncs[FAILED] += 1
        if isinstance(error, SteeringFailed):
            self.problem = f"IPv{self._version}: {error}"
            self._limited.warn("{problem}; retrying", problem=self.problem)
            return
        self.problem = f"IPv{self._version}: internal error: {error!r}"
        self._log.failure(
            "Defect: the IPv{version} rules cannot be updated; retrying", version=self._version
        )

    def fell_back(self, error: SteeringFailed) -> None:
        """Record that rules with a set failed with ``error``, and rules without were applied."""
        self.without_sets = (
            f"IPv{self._version}: rules with an ipset are rejected: {error}. So --intercept-match"
            " is cloud-return: connections to all hosts but known cloud nodes are redirected to"
            " this server"
        )
        self._log.warn("{text}", text=self.without_sets)

    def flows_checked(self, cut: int) -> None:
        """Record that the flows match the rules, after ``cut`` of them were cut."""
        self._flows_problem = None
        self._flows_cut += cut
        if cut:
            self._limited.info(
                "IPv{version}: {count} connections were closed that the rules now redirect"
                " elsewhere",
                version=self._version,
                count=cut,
            )

    def flow_check_failed(self, error: SteeringFailed) -> None:
        """Record that the flows could not be checked, which is logged once."""
        known = self._flows_problem is not None
        self._flows_problem = f"connections from before the last change are not closed: {error}"
        if not known:
            self._log.warn(
                "IPv{version}: {problem}", version=self._version, problem=self._flows_problem
            )

    def report(self, backend: str, match: Match, in_force: Interception | None) -> FamilyReport:
        """Return what is in force, and what has happened."""
        return FamilyReport(
            version=self._version,
            backend=backend,
            match=match.value,
            ports=tuple(_ports(in_force)),
            edge=_addresses(() if in_force is None else in_force.edge),
            cloud=_addresses(() if in_force is None else in_force.cloud),
            last_sync=self._last_sync,
            last_success=self._last_success,
            last_change=self._last_change,
            differed=self._differed,
            problem=self.problem,
            notes=(*self._notes, *filter(None, (self.without_sets, self._flows_problem))),
            syncs=dict(self._syncs),
            flows_cut=self._flows_cut,
        )


def _ports(in_force: Interception | None) -> Iterator[PortReport]:
    if in_force is None or in_force.is_empty:
        return
    for pods, ports in ((False, in_force.ports), (True, in_force.pod_ports)):
        for port, target in sorted(ports.items()):
            yield PortReport(port, _described(target), pods)


def _described(target: Target) -> str:
    if target.address is None:
        return f"port {target.port} of this machine"
    if target.address.version == 6:
        return f"[{target.address}]:{target.port}"
    return f"{target.address}:{target.port}"


def _addresses(addresses: Collection[Address]) -> AddressReport:
    first = heapq.nsmallest(MAX_ADDRESSES, addresses, key=int)
    return AddressReport(len(addresses), tuple(map(str, first)))
