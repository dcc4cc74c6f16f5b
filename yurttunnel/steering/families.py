"""The address families for which this machine has a firewall."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from twisted.internet.defer import Deferred, FirstError, gatherResults
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from yurttunnel.ops.log import RateLimitedLog
from yurttunnel.steering.desired_state import SteeringSettings
from yurttunnel.steering.failures import SteeringFailed
from yurttunnel.steering.family import Family
from yurttunnel.steering.interception import Interception, Match
from yurttunnel.steering.interfaces import Firewalls, IAddressSets, IFlows
from yurttunnel.steering.probe_schedule import ProbeSchedule
from yurttunnel.steering.report import FamilyReport

_OVERDUE = (
    "other programs may have changed the rules of the firewall, and it takes too long to read them"
    " again: check whether iptables-save hangs, or /run/xtables.lock is held"
)


class Families:
    """Detects the machine's firewalls when they are first needed, and manages each family.

    ``firewalls`` may fail with :class:`SteeringFailed`, and is called again then. A firewall that
    is needed and missing is searched again every period. ``cpu_seconds`` returns the processor time
    in seconds that programs have used so far.
    """

    _log = Logger()

    def __init__(
        self,
        clock: IReactorTime,
        settings: SteeringSettings,
        firewalls: Callable[[], Deferred[Firewalls]],
        sets: IAddressSets,
        flows: IFlows,
        cpu_seconds: Callable[[], float],
    ) -> None:
        self._clock = clock
        self._settings = settings
        self._firewalls = firewalls
        self._sets = sets
        self._flows = flows
        self._cpu_seconds = cpu_seconds
        self._limited = RateLimitedLog(clock, self._log)
        self._families: dict[int, Family] = {}
        self._missing: Mapping[int, str] = {}
        self._needed: frozenset[int] = frozenset()
        self._searched_at: float | None = None
        self._probe_schedule = ProbeSchedule(clock, settings.period)

    def may_have_changed(self) -> bool:
        """Return whether a sync is needed because another program may have changed something.

        This call is cheap.
        """
        return self._probe_schedule.wants_sync(self._generations())

    async def sync(self, desired: Mapping[int, Interception]) -> bool:
        """Apply the desired state; return whether it was applied wherever there is a firewall.

        Raises :class:`SteeringFailed` if the firewalls cannot be detected.
        """
        self._needed = frozenset(
            version for version, interception in desired.items() if not interception.is_empty
        )
        await self._find()
        for why in self._missing_firewalls():
            self._limited.warn("{why}", why=why)
        before = self._generations()
        read_rules = self._probe_schedule.is_due(before)
        cpu_seconds = self._cpu_seconds()
        changes = self._changes()
        results = [
            await family.sync(desired[version], read_rules)
            for version, family in self._families.items()
        ]
        if not all(results):
            self._probe_schedule.failed()
            return False
        self._probe_schedule.sets_checked()
        if read_rules:
            changed = changes != self._changes()
            self._probe_schedule.succeeded(
                self._cpu_seconds() - cpu_seconds, before, self._generations(), changed
            )
        return True

    async def remove(self) -> list[str]:
        """Remove everything, including what a previous process left; return the errors."""
        try:
            await self._find()
        except SteeringFailed as error:
            return [str(error)]
        self._probe_schedule.failed()
        removing = [
            Deferred.fromCoroutine(self._remove_family(version, family))
            for version, family in self._families.items()
        ]
        try:
            found = await gatherResults(removing, consumeErrors=True)
        except FirstError as error:
            # A cancellation, or a defect.
            error.subFailure.raiseException()
        return [why for why in found if why is not None]

    @property
    def has_rules(self) -> bool:
        """Whether there are rules that this process has created."""
        return any(family.has_rules for family in self._families.values())

    async def _remove_family(self, version: int, family: Family) -> str | None:
        try:
            await family.remove()
        except SteeringFailed as error:
            return f"IPv{version}: {error}"
        return None

    def problem(self) -> str | None:
        """Return errors, needed firewalls that are missing, and overdue checks."""
        problems = [family.problem for family in self._families.values()]
        overdue = _OVERDUE if self._probe_schedule.is_overdue(self._generations()) else None
        return "; ".join(filter(None, [*problems, overdue, *self._missing_firewalls()])) or None

    def report(self) -> tuple[FamilyReport, ...]:
        """Report each family, including those without a firewall."""
        reports = {
            version: FamilyReport(version=version, problem=why)
            for version, why in self._missing.items()
        }
        reports |= {version: family.report() for version, family in self._families.items()}
        return tuple(report for _, report in sorted(reports.items()))

    def _generations(self) -> dict[int, int | None]:
        return {version: family.generation() for version, family in self._families.items()}

    def _changes(self) -> int:
        return sum(family.changes for family in self._families.values())

    def _missing_firewalls(self) -> list[str]:
        return [why for version, why in self._missing.items() if version in self._needed]

    async def _find(self) -> None:
        now = self._clock.seconds()
        if self._searched_at is None:
            await self._search()
            self._searched_at = now
        elif self._missing_firewalls() and now - self._searched_at >= self._settings.period:
            self._searched_at = now
            try:
                await self._search()
            except SteeringFailed as error:
                # Continue with the firewalls that have been found.
                self._limited.warn("{error}; retrying", error=error)

    async def _search(self) -> None:
        has_sets = await self._has_sets()
        firewalls = await self._firewalls()
        match = self._settings.match or (Match.EDGE_SET if has_sets else Match.CLOUD_RETURN)
        sets = self._sets if has_sets else None
        for version, firewall in firewalls.found.items():
            if version in self._families:
                continue
            self._families[version] = Family(
                self._clock, self._settings, firewall, sets, self._flows, match
            )
            self._log.info(
                "IPv{version}: rules are managed with iptables ({backend}), --intercept-match"
                " {match}",
                version=version,
                backend=firewall.backend,
                match=match.value,
            )
        self._missing = {
            version: why
            for version, why in firewalls.missing.items()
            if version not in self._families
        }

    async def _has_sets(self) -> bool:
        """Return whether the kernel has sets; raise an error if these are requested and missing."""
        requested = self._settings.match
        try:
            has_sets = await self._sets.supported()
        except SteeringFailed:
            if requested is not Match.CLOUD_RETURN:
                raise
            has_sets = False
        if requested is Match.EDGE_SET and not has_sets:
            raise SteeringFailed(
                "--intercept-match edge-set: this kernel has no ipset support; load the modules"
                " ip_set_hash_ip and xt_set, or use --intercept-match cloud-return"
            )
        return has_sets
