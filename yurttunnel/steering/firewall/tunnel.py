"""The server's chains on this machine: where to create them, and where to remove them."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from yurttunnel.steering.failures import SteeringFailed
from yurttunnel.steering.firewall.cleanup import (
    raise_if_failed,
    remove_chains,
    remove_chains_elsewhere,
)
from yurttunnel.steering.firewall.detection import find_back_ends, installed
from yurttunnel.steering.firewall.iptables import Iptables
from yurttunnel.steering.firewall.rules import TUNNEL
from yurttunnel.steering.interception import SET_NAMES
from yurttunnel.steering.interfaces import Firewalls, IAddressSets
from yurttunnel.steering.programs import IPrograms


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
