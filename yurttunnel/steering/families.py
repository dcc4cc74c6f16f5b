"""The families of addresses that this machine has a firewall for."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from yurttunnel.ops.log import RateLimitedLog
from yurttunnel.ops.steering import FamilyReport
from yurttunnel.steering.family import Family
from yurttunnel.steering.interception import Interception, Match
from yurttunnel.steering.interfaces import Firewalls, IAddressSets, IFlows, SteeringFailed
from yurttunnel.steering.wanted import SteeringSettings

LEAST_PAUSE = 5.0
"""Seconds after a sync before the rules are looked at because somebody has changed something."""

BLIND_PAUSE = 10.0
"""Seconds after which rules are looked at where the kernel does not count changes. A flush by
others, as by a reload of firewalld, is repaired after so long at the latest."""


class Families:
    """Finds out what the machine has, when that is needed first, and does all for each of them.

    ``firewalls`` and ``sets_supported`` may fail with :class:`SteeringFailed`, and are asked again
    then. A firewall that is needed and missing is looked for again every period.
    """

    _log = Logger()

    def __init__(
        self,
        clock: IReactorTime,
        settings: SteeringSettings,
        firewalls: Callable[[], Deferred[Firewalls]],
        sets: IAddressSets,
        sets_supported: Callable[[], Deferred[bool]],
        flows: IFlows,
    ) -> None:
        self._clock = clock
        self._settings = settings
        self._firewalls = firewalls
        self._sets = sets
        self._sets_supported = sets_supported
        self._flows = flows
        self._limited = RateLimitedLog(clock, self._log)
        self._families: dict[int, Family] = {}
        self._missing: Mapping[int, str] = {}
        self._needed: frozenset[int] = frozenset()
        self._searched_at: float | None = None
        # The state of the rules that was found, or made, by the last sync.
        self._generations: dict[int, int | None] = {}
        self._synced_at = 0.0

    def may_be_disturbed(self) -> bool:
        """Say whether somebody may have changed the rules since the last sync.

        It costs next to nothing. There is some time between two times that it says so, since
        others may change their own rules often.
        """
        since = self._clock.seconds() - self._synced_at
        if since < LEAST_PAUSE:
            return False
        found = self._find_generations()
        return found != self._generations or (None in found.values() and since >= BLIND_PAUSE)

    async def sync(self, wanted: Mapping[int, Interception]) -> bool:
        """Make everything as wanted; says whether it is so, where there is a firewall.

        Raises :class:`SteeringFailed` when it cannot be found out what there is.
        """
        self._needed = frozenset(
            version for version, interception in wanted.items() if not interception.is_nothing
        )
        await self._find()
        for why in self._needed_and_missing():
            self._limited.warn("{why}", why=why)
        before = self._find_generations()
        changes = [family.changes for family in self._families.values()]
        results = [await family.sync(wanted[version]) for version, family in self._families.items()]
        # What others do between the reading of the rules and this is seen a period later, at most.
        was_changed = changes != [family.changes for family in self._families.values()]
        self._generations = self._find_generations() if was_changed else before
        self._synced_at = self._clock.seconds()
        return all(results)

    async def remove(self) -> list[str]:
        """Remove everything, what a former process has left, too; gives what could not be."""
        try:
            await self._find()
        except SteeringFailed as error:
            return [str(error)]
        failed = []
        for version, family in self._families.items():
            try:
                await family.remove()
            except SteeringFailed as error:
                failed.append(f"IPv{version}: {error}")
        return failed

    def problem(self) -> str | None:
        """Say what fails, and what is missing that is needed."""
        problems = [family.problem for family in self._families.values()]
        return "; ".join(filter(None, [*problems, *self._needed_and_missing()])) or None

    def report(self) -> tuple[FamilyReport, ...]:
        """Report each family, also those that have no firewall."""
        reports = {
            version: FamilyReport(version=version, problem=why)
            for version, why in self._missing.items()
        }
        reports |= {version: family.report() for version, family in self._families.items()}
        return tuple(report for _, report in sorted(reports.items()))

    def _find_generations(self) -> dict[int, int | None]:
        return {version: family.generation() for version, family in self._families.items()}

    def _needed_and_missing(self) -> list[str]:
        return [why for version, why in self._missing.items() if version in self._needed]

    async def _find(self) -> None:
        now = self._clock.seconds()
        if self._searched_at is None:
            await self._search()
            self._searched_at = now
        elif self._needed_and_missing() and now - self._searched_at >= self._settings.period:
            self._searched_at = now
            try:
                await self._search()
            except SteeringFailed as error:
                # What has been found goes on.
                self._limited.warn("{error}; it is looked for again", error=error)

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
                "IPv{version}: rules are made by iptables ({backend}), --intercept-match {match}",
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
        """Say whether the kernel has sets; raises where they are asked for and it has not."""
        asked = self._settings.match
        try:
            has_sets = await self._sets_supported()
        except SteeringFailed:
            if asked is not Match.CLOUD_RETURN:
                raise
            has_sets = False
        if asked is Match.EDGE_SET and not has_sets:
            raise SteeringFailed(
                "--intercept-match edge-set: this kernel has no sets of addresses; load the modules"
                " ip_set_hash_ip and xt_set, or give --intercept-match cloud-return"
            )
        return has_sets
