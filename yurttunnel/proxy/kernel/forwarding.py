"""Settings of this machine that prevent the forwarding of packets in kernel mode.

User mode needs no forwarding: its packets start and end at this machine.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from pathlib import Path

from twisted.application.internet import TimerService
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from yurttunnel.ops.programs import IPrograms, ProgramFailed
from yurttunnel.proxy.interfaces import IDesiredStateSource
from yurttunnel.proxy.kernel import sysctl
from yurttunnel.steering.firewall.detection import legacy_tables

PERIOD = 60.0
"""The interval of the checks in seconds; policies are only read again while they drop packets."""

LINKS = Path("/sys/class/net")
"""Those of the network namespace in which sysfs was mounted, usually the machine's (sysfs(5))."""

_FORWARDING = {4: "ipv4/ip_forward", 6: "ipv6/conf/all/forwarding"}
_BRIDGED = {4: "bridge/bridge-nf-call-iptables", 6: "bridge/bridge-nf-call-ip6tables"}

_POLICY = re.compile(
    r"^table (\w+)|^\t\ttype filter hook forward priority [^;]+; policy drop;", re.MULTILINE
)
_VERSIONS = {"ip": (4,), "ip6": (6,), "inet": (4, 6)}
_LEGACY = {4: "iptables-legacy", 6: "ip6tables-legacy"}


def forwards(versions: Collection[int]) -> bool:
    """Return whether this machine forwards packets of some of these families, if known."""
    return any(sysctl.is_on(_FORWARDING[version]) is not False for version in versions)


class Forwarding(TimerService):
    """Checks for obstacles to the Services of ``source``, and logs changes."""

    _log = Logger()

    def __init__(
        self, clock: IReactorTime, programs: IPrograms, source: IDesiredStateSource
    ) -> None:
        super().__init__(PERIOD, lambda: Deferred.fromCoroutine(self._check()))
        self.clock = clock
        self._programs = programs
        self._source = source
        self._dropping_versions: Collection[int] | None = None
        self._logged_problem: str | None = None

    def problem(self) -> str | None:
        """Return the obstacles and their fixes; ``None`` if none are known."""
        state = self._source.state()
        versions = {key.version for key in state.services} if state is not None else set()
        found = [each for version in sorted(versions) for each in self._obstacles(version)]
        return "; ".join(found) or None

    async def _check(self) -> None:
        # This runs a program, and may take some time if there are many rules.
        if self._dropping_versions is None or self._dropping_versions:
            self._dropping_versions = await dropping_versions(self._programs)
        problem = self.problem()
        if problem is not None and problem != self._logged_problem:
            self._log.warn("Kernel mode may not reach endpoints: {problem}", problem=problem)
        self._logged_problem = problem

    def _obstacles(self, version: int) -> Iterator[str]:
        name = _FORWARDING[version]
        if sysctl.is_on(name) is False:
            yield (
                f"net.{name.replace('/', '.')} is 0, so this machine does not forward"
                f" IPv{version}: pods and other machines get no responses from Services; set it"
                f" to 1 with sysctl,"
                " or use --mode user"
            )
        name = _BRIDGED[version]
        if not sysctl.is_on(name) and any(LINKS.glob("*/bridge")):
            yield (
                f"there is a bridge, and net.{name.replace('/', '.')} is not 1: a pod gets no"
                f" response from an endpoint on the same bridge; load br_netfilter and set it to"
                f" 1 with sysctl, or use --mode user"
            )
        if version in (self._dropping_versions or ()):
            yield (
                f"the policy of the chain FORWARD (IPv{version}) drops forwarded packets: pods"
                f" and other machines get responses from Services only if a rule accepts them;"
                " set the policy to ACCEPT, or use --mode user"
            )


async def dropping_versions(programs: IPrograms) -> frozenset[int]:
    """Return the families in which a chain drops forwarded packets unless a rule accepts them.

    Families whose chains cannot be read are not included.
    """
    found: set[int] = set()
    family = ""
    for match in _POLICY.finditer(await _output_of(programs, "nft", "list", "chains")):
        if match[1] is None:
            found.update(_VERSIONS.get(family, ()))
        else:
            family = match[1]
    for version, program in _LEGACY.items():
        # Listing a table that does not exist would create it.
        if "filter" in legacy_tables(version):
            output = await _output_of(programs, program, "-S", "FORWARD")
            if output.startswith("-P FORWARD DROP\n"):
                found.add(version)
    return frozenset(found)


async def _output_of(programs: IPrograms, *command: str) -> str:
    try:
        finished = await programs.run(command)
    except ProgramFailed:
        return ""
    return finished.output.decode("utf-8", "replace")
