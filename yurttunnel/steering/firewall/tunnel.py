"""The server's chains on this machine: creating them, in the table ``nat``, and removing them."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from zope.interface import implementer

from yurttunnel.ops.programs import IPrograms
from yurttunnel.steering.failures import SetsRefused, SteeringFailed
from yurttunnel.steering.firewall.cleanup import (
    raise_if_failed,
    remove_chains,
    remove_chains_elsewhere,
)
from yurttunnel.steering.firewall.detection import find_back_ends, installed
from yurttunnel.steering.firewall.own_chains import Rules
from yurttunnel.steering.firewall.rules import TUNNEL, port_of, rules_of
from yurttunnel.steering.firewall.tables import BackEnd, CommandFailed, Tables
from yurttunnel.steering.interception import SET_NAMES, Interception
from yurttunnel.steering.interfaces import Applied, Firewalls, IAddressSets, IFirewall
from yurttunnel.steering.netlink.nftables import nft_generation

_NO_SETS = (
    "Couldn't load match `set'",
    "Extension set revision 0 not supported",
    "Can't open socket to ipset",
)
"""Errors of the programs if they, or the kernel, do not support rules that refer to sets."""


@implementer(IFirewall)
class Iptables:
    """Our chains in the table ``nat`` of one back end and family."""

    def __init__(self, programs: IPrograms, back_end: BackEnd) -> None:
        self._back_end = back_end
        self._tables = Tables(programs, back_end, TUNNEL)
        # The last rules, of which there may be many, and what they were made for.
        self._made: tuple[tuple[Interception, str | None], Rules] | None = None

    @property
    def version(self) -> int:
        return self._back_end.version

    @property
    def backend(self) -> str:
        return self._back_end.name

    async def apply(self, desired: Interception, set_name: str | None) -> Applied:
        given = desired, set_name
        if self._made is None or self._made[0] != given:
            self._made = given, rules_of(*given)
        try:
            outcome = await self._tables.apply({"nat": self._made[1]})
        except CommandFailed as error:
            has_sets = not any(words in error.stderr for words in _NO_SETS)
            if set_name is not None and error.while_changing and not has_sets:
                raise SetsRefused(str(error)) from error
            raise
        if outcome.found is None:
            return Applied((), frozenset(desired.all_ports()))
        ports = (port_of(chain) for chain in outcome.found["nat"].chains)
        return Applied(outcome.differences, frozenset(port for port in ports if port is not None))

    async def remove(self) -> bool:
        return await self._tables.remove()

    def generation(self) -> int | None:
        """Return the nftables generation; the kernel does not count changes of legacy tables."""
        return nft_generation() if self._back_end.name == "nft" else None


async def find_firewalls(programs: IPrograms, keep: Mapping[int, str] | None = None) -> Firewalls:
    """Find the firewall of each family, and the reason for each that is missing.

    ``keep`` names the back ends that are already in use, by the version of IP: they are kept,
    whatever this machine uses by now.
    """
    back_ends = await find_back_ends(programs, TUNNEL, keep)
    found = {version: Iptables(programs, each) for version, each in back_ends.found.items()}
    return Firewalls(found, back_ends.missing)


async def remove_leftovers_elsewhere(
    programs: IPrograms, firewalls: Firewalls, versions: Collection[int] = (4, 6)
) -> list[str]:
    """Remove our chains from the back end that is not used, where they still redirect connections.

    ``versions`` are the families to check: after a later search those that it has newly found.
    Return sentences about what was removed. Raises :class:`SteeringFailed`, which lists what could
    not be removed.
    """
    used = {
        version: firewall.backend
        for version, firewall in firewalls.found.items()
        if version in versions
    }
    return await remove_chains_elsewhere(programs, TUNNEL, used)


async def remove_everything(programs: IPrograms, sets: IAddressSets) -> list[str]:
    """Remove our chains from both back ends and families, and then our sets of addresses.

    Return sentences about what was removed. Raises :class:`SteeringFailed`, which lists what could
    not be removed.
    """
    back_ends = await installed(programs)
    removed, failed = await remove_chains(programs, back_ends, TUNNEL)
    if not back_ends:
        failed.append("rules of iptables: its programs are not installed")
    for name in SET_NAMES.values():
        try:
            if await sets.remove(name):
                removed.append(f"removed the set {name}")
        except SteeringFailed as error:
            failed.append(str(error))
    return raise_if_failed(removed, failed)
