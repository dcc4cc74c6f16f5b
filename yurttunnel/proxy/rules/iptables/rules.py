"""The chains of the service proxy in the kernel, by the programs of iptables."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from twisted.logger import Logger
from zope.interface import implementer

from yurttunnel.proxy.host_address import HostAddress, no_address
from yurttunnel.proxy.interfaces import IRules, PartlyApplied, Placed
from yurttunnel.proxy.rules.iptables.chains import PROXY
from yurttunnel.proxy.rules.iptables.portals import PortalRules
from yurttunnel.proxy.state.virtual_services import Address, Network
from yurttunnel.steering.failures import SteeringFailed
from yurttunnel.steering.firewall.cleanup import remove_chains, remove_chains_elsewhere, told
from yurttunnel.steering.firewall.detection import find_back_ends, has_family, installed
from yurttunnel.steering.firewall.tables import BackEnd, Outcome, Refused, Tables
from yurttunnel.steering.interfaces import VERSIONS, Applied
from yurttunnel.steering.netlink.generation import nft_generation
from yurttunnel.steering.programs import IPrograms

_GENERATIONS = 2**32
"""They are counted in an ``unsigned int`` (``base_seq`` of ``struct nftables_pernet``)."""


_BRIDGES = "physdev"
"""The match that kernels of small machines may lack, of which the programs then complain."""


_Hosts = tuple[Address | None, Address | None]
"""To where this machine's own packets are led, and others."""


@dataclass(slots=True)
class _Family:
    """One version of IP.

    ``serves`` is whether the rules in the kernel lead clients somewhere, and ``told`` why they
    could not be changed.
    """

    back_end: BackEnd
    tables: Tables
    portals: PortalRules
    serves: bool = False
    told: str = ""


@dataclass(frozen=True, slots=True)
class _Right:
    """What was asked for when all was right, and the number of the kernel's rules then."""

    placed: tuple[Placed, ...]
    hosts: Mapping[int, _Hosts]
    generation: int


@implementer(IRules)
class IptablesRules:
    """The rules of all families that this machine has; the first call finds out which those are.

    ``node_ports`` have the addresses that serve node ports, none being all; ``pods`` are those of
    the cluster's pods, none where they are not known. ``host_for_all`` gives the address to which
    also others' packets are led than this machine's own, where they may come by links without one
    (:mod:`yurttunnel.proxy.unnumbered`).
    """

    _log = Logger()

    def __init__(
        self,
        programs: IPrograms,
        host_address: HostAddress,
        node_ports: Iterable[Network] = (),
        pods: Iterable[Network] = (),
        host_for_all: HostAddress = no_address,
    ) -> None:
        self._programs = programs
        self._host_address = host_address
        self._host_for_all = host_for_all
        self._node_ports = tuple(node_ports)
        self._pods = tuple(pods)
        self._families: dict[int, _Family] = {}
        self._right: _Right | None = None

    @property
    def backend(self) -> str:
        """What pages and logs call it."""
        names = dict.fromkeys(each.back_end.name for each in self._families.values())
        return f"iptables ({', '.join(names)})" if names else "iptables"

    async def apply(self, placed: Sequence[Placed]) -> Applied:
        """Read what there is, and change what differs; see :class:`IRules`."""
        placed = tuple(placed)
        problems: list[str] = []
        needed = {each.service.key.version for each in placed}
        try:
            await self.find(sorted(needed))
        except SteeringFailed as error:
            # The other family may have one.
            problems.append(str(error))
        hosts = {
            version: (self._host_address(version), self._host_for_all(version))
            for version in self._families
        }
        generation = self.generation()
        if generation is not None and self._right == _Right(placed, hosts, generation):
            return Applied()
        self._right = None
        differences: list[str] = []
        made: set[int] = set()
        for version, family in self._families.items():
            try:
                outcome = await self._change(family, placed, hosts[version])
            except SteeringFailed as error:
                if version in needed or family.serves:
                    problems.append(str(error))
                else:
                    self._tell(family, str(error))
            else:
                made.add(version)
                family.serves, family.told = version in needed, ""
                differences += (f"IPv{version}: {each}" for each in outcome.differences)
                if generation is not None:
                    generation = (generation + outcome.changed) % _GENERATIONS
        if problems:
            raise PartlyApplied("; ".join(problems), made)
        # If it is another number, somebody has changed rules meanwhile: the next call will look.
        if generation is not None and made == self._families.keys():
            self._right = _Right(placed, hosts, generation)
        return Applied(tuple(differences))

    async def remove(self, versions: Collection[int] = VERSIONS) -> bool:
        """Remove our chains from both back ends, those of kube-proxy's userspace mode, too."""
        self._right = None
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
        return bool(told(sentences, [*failed, *more])) or removed

    def generation(self) -> int | None:
        """Return what nftables counts; the kernel counts no changes of its legacy tables."""
        if any(family.back_end.name != "nft" for family in self._families.values()):
            return None
        return nft_generation() if self._families else None

    async def find(self, versions: Iterable[int] = (4,)) -> None:
        """Find the back ends, unless those of ``versions`` are known.

        Raises :class:`SteeringFailed` where one of these is missing.
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

        Return in sentences which. Raises :class:`SteeringFailed`, which lists what could not be
        removed.
        """
        used = {
            version: family.back_end.name
            for version, family in self._families.items()
            if version in versions
        }
        return await remove_chains_elsewhere(self._programs, PROXY, used)

    def _tell(self, family: _Family, why: str) -> None:
        """Warn, once, of what harms nobody: no Service here is of that family."""
        if family.told != why:
            family.told = why
            self._log.warn(
                "Rules of IPv{version}, which no Service here uses, cannot be created: {why};"
                " retrying",
                version=family.back_end.version,
                why=why,
            )

    async def _change(self, family: _Family, placed: tuple[Placed, ...], hosts: _Hosts) -> Outcome:
        """Make the rules, and without telling bridges if the kernel cannot."""
        try:
            return await family.tables.apply(family.portals.rules, placed, *hosts)
        except Refused as error:
            if _BRIDGES not in error.said or not family.portals.bridges:
                raise
            self._log.info(
                "Pods are led to external IPs of Services here, wherever those are: this kernel"
                " cannot tell what comes over a bridge: {error}",
                error=error,
            )
        family.portals = PortalRules(
            family.back_end.version, self._node_ports, self._pods, bridges=False
        )
        return await family.tables.apply(family.portals.rules, placed, *hosts)
