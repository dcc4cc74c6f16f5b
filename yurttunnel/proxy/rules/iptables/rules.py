"""The service proxy's chains in the kernel, managed by the iptables programs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from zope.interface import implementer

from yurttunnel.ops.programs import IPrograms
from yurttunnel.ops.slices import in_slices
from yurttunnel.proxy.host_address import HostAddress, no_address
from yurttunnel.proxy.interfaces import IRules, PartlyApplied, ProxiedService
from yurttunnel.proxy.rules.iptables.chains import PROXY
from yurttunnel.proxy.rules.iptables.portals import PortalRules
from yurttunnel.proxy.state.virtual_services import Address, Network
from yurttunnel.steering.failures import SteeringFailed
from yurttunnel.steering.firewall.cleanup import (
    raise_if_failed,
    remove_chains,
    remove_chains_elsewhere,
)
from yurttunnel.steering.firewall.detection import find_back_ends, has_family, installed
from yurttunnel.steering.firewall.own_chains import Rules
from yurttunnel.steering.firewall.tables import BackEnd, CommandFailed, Outcome, Tables
from yurttunnel.steering.interfaces import VERSIONS, Applied
from yurttunnel.steering.netlink.nftables import nft_generation

_GENERATIONS = 2**32
"""Generations are counted in an ``unsigned int`` (``base_seq`` of ``struct nftables_pernet``)."""


_PHYSDEV = "physdev"
"""The match that kernels of small machines may lack; the programs then name it in their error."""


_Hosts = tuple[Address | None, Address | None]
"""The addresses to which this machine's own packets, and others, are redirected."""


@dataclass(slots=True)
class _Family:
    """One version of IP.

    ``serves`` is whether its rules in the kernel redirect clients, ``logged_error`` the last logged
    error, and ``made`` the last rules with what they were made for.
    """

    back_end: BackEnd
    tables: Tables
    portals: PortalRules
    serves: bool = False
    logged_error: str = ""
    made: tuple[tuple[tuple[ProxiedService, ...], _Hosts], Mapping[str, Rules]] | None = None


@dataclass(frozen=True, slots=True)
class _AppliedState:
    """The last successful request, and the kernel's rule generation after it."""

    proxied: tuple[ProxiedService, ...]
    hosts: Mapping[int, _Hosts]
    generation: int


@implementer(IRules)
class IptablesRules:
    """The rules of all families that this machine has; the first call finds out which.

    ``node_ports`` are the networks whose addresses serve node ports, all if empty; ``pods`` those
    of the cluster's pods, empty if they are not known. ``host_for_all`` returns the address to
    which incoming packets are also redirected, if they may come from links without an address
    (:mod:`yurttunnel.proxy.unnumbered_links`).
    """

    _log = Logger()

    def __init__(
        self,
        clock: IReactorTime,
        programs: IPrograms,
        host_address: HostAddress,
        node_ports: Iterable[Network] = (),
        pods: Iterable[Network] = (),
        host_for_all: HostAddress = no_address,
    ) -> None:
        self._clock = clock
        self._programs = programs
        self._host_address = host_address
        self._host_for_all = host_for_all
        self._node_ports = tuple(node_ports)
        self._pods = tuple(pods)
        self._families: dict[int, _Family] = {}
        self._applied: _AppliedState | None = None

    @property
    def backend(self) -> str:
        """The name for pages and logs."""
        names = dict.fromkeys(each.back_end.name for each in self._families.values())
        return f"iptables ({', '.join(names)})" if names else "iptables"

    async def apply(self, proxied: Sequence[ProxiedService]) -> Applied:
        """Read the current rules, and change what differs; see :class:`IRules`."""
        proxied = tuple(proxied)
        problems: list[str] = []
        needed = {each.service.key.version for each in proxied}
        try:
            await self.find(sorted(needed))
        except SteeringFailed as error:
            # The other family may have a back end.
            problems.append(str(error))
        hosts = {
            version: (self._host_address(version), self._host_for_all(version))
            for version in self._families
        }
        generation = self.generation()
        if generation is not None and self._applied == _AppliedState(proxied, hosts, generation):
            return Applied()
        self._applied = None
        differences: list[str] = []
        made: set[int] = set()
        for version, family in self._families.items():
            try:
                outcome = await self._change(family, proxied, hosts[version])
            except SteeringFailed as error:
                if version in needed or family.serves:
                    problems.append(str(error))
                else:
                    self._warn_once(family, str(error))
            else:
                made.add(version)
                family.serves, family.logged_error = version in needed, ""
                differences += (f"IPv{version}: {each}" for each in outcome.differences)
                if generation is not None:
                    generation = (generation + outcome.changed) % _GENERATIONS
        if problems:
            raise PartlyApplied("; ".join(problems), made)
        # If the number differs, another program has changed rules meanwhile: the next call will
        # check.
        if generation is not None and made == self._families.keys():
            self._applied = _AppliedState(proxied, hosts, generation)
        return Applied(tuple(differences))

    async def remove(self, versions: Collection[int] = VERSIONS) -> bool:
        """Remove our chains from both back ends, including those of kube-proxy's userspace mode."""
        self._applied = None
        left = {
            key: back_end
            for key, back_end in (await installed(self._programs)).items()
            if back_end.version in versions
        }
        removed, failed = False, []
        for version in self._families.keys() & versions:
            family = self._families[version]
            left.pop((version, family.back_end.name), None)
            try:
                removed = await family.tables.remove() or removed
            except SteeringFailed as error:
                failed.append(str(error))
        sentences, more = await remove_chains(self._programs, left, PROXY)
        return bool(raise_if_failed(sentences, [*failed, *more])) or removed

    def generation(self) -> int | None:
        """Return the nftables generation; the kernel does not count changes of legacy tables."""
        if any(family.back_end.name != "nft" for family in self._families.values()):
            return None
        return nft_generation() if self._families else None

    async def find(self, versions: Iterable[int] = (4,)) -> None:
        """Find the back ends, unless those of ``versions`` are known.

        Raises :class:`SteeringFailed` if one of these is missing.
        """
        needed = [each for each in versions if has_family(each)]
        if all(version in self._families for version in needed):
            return
        keep = {version: family.back_end.name for version, family in self._families.items()}
        found = await find_back_ends(self._programs, PROXY, keep)
        for version, back_end in found.found.items():
            if version not in self._families:
                tables = Tables(self._programs, back_end, PROXY)
                portals = PortalRules(version, self._node_ports, self._pods)
                self._families[version] = _Family(back_end, tables, portals)
        missing = [found.missing[each] for each in needed if each not in self._families]
        if missing:
            raise SteeringFailed("; ".join(missing))

    async def remove_elsewhere(self, versions: Collection[int] = VERSIONS) -> list[str]:
        """Remove our chains of these families from the back ends that are not used.

        Return sentences about what was removed. Raises :class:`SteeringFailed`, which lists what
        could not be removed.
        """
        used = {
            version: family.back_end.name
            for version, family in self._families.items()
            if version in versions
        }
        return await remove_chains_elsewhere(self._programs, PROXY, used)

    def _warn_once(self, family: _Family, why: str) -> None:
        """Warn once about an error without effect: no Service here is of that family."""
        if family.logged_error != why:
            family.logged_error = why
            self._log.warn(
                "Rules of IPv{version}, which no Service here uses, cannot be created: {why};"
                " retrying",
                version=family.back_end.version,
                why=why,
            )

    async def _change(
        self, family: _Family, proxied: tuple[ProxiedService, ...], hosts: _Hosts
    ) -> Outcome:
        """Change the rules, without matching bridges if the kernel does not support that."""
        try:
            return await self._apply_rules(family, proxied, hosts)
        except CommandFailed as error:
            if _PHYSDEV not in error.stderr or not family.portals.bridges:
                raise
            self._log.info(
                "External IPs of other machines are redirected for pods as well, because this"
                " kernel cannot match packets from a bridge: {error}",
                error=error,
            )
        family.made = None
        family.portals = PortalRules(
            family.back_end.version, self._node_ports, self._pods, bridges=False
        )
        return await self._apply_rules(family, proxied, hosts)

    async def _apply_rules(
        self, family: _Family, proxied: tuple[ProxiedService, ...], hosts: _Hosts
    ) -> Outcome:
        """Make the rules, unless they are known, and apply them."""
        given = proxied, hosts
        if family.made is None or family.made[0] != given:
            rules = await in_slices(self._clock, family.portals.rules(proxied, *hosts))
            family.made = given, rules
        return await family.tables.apply(family.made[1])
