"""Removes what is ours: at start where it is of no use, and on demand wherever it is."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from yurttunnel.steering.firewall.detection import (
    PROC_NET,
    BackEnds,
    installed,
    legacy_tables,
)
from yurttunnel.steering.firewall.iptables import Iptables, Refused
from yurttunnel.steering.interception import SET_NAMES
from yurttunnel.steering.interfaces import Firewalls, IAddressSets, SteeringFailed
from yurttunnel.steering.programs import IPrograms

_NOT_IN_KERNEL = (
    "Protocol not supported",
    "Address family not supported",
    "does not exist",
    "No such file or directory",
)
"""What programs of iptables say where the kernel lacks what they are for."""


async def remove_leftovers_elsewhere(
    programs: IPrograms,
    firewalls: Firewalls,
    proc_net: Path = PROC_NET,
    versions: Collection[int] = (4, 6),
) -> list[str]:
    """Remove our chains from the back end that is not used, where they still lead connections.

    ``versions`` are the families to look at: after a later search those that it has found newly.
    Says in sentences what was removed. Fails with :class:`SteeringFailed`, which lists what could
    not be.
    """
    used = {
        version: firewall.backend
        for version, firewall in firewalls.found.items()
        if version in versions
    }
    others = {
        key: back_end
        for key, back_end in (await installed(programs)).items()
        if back_end.version in used and back_end.name != used[back_end.version]
    }
    removed, failed = await _remove_rules(programs, others, proc_net)
    return _told(removed, failed)


async def remove_everything(
    programs: IPrograms, sets: IAddressSets, proc_net: Path = PROC_NET
) -> list[str]:
    """Remove our chains from both back ends and families, and then our sets of addresses.

    Says in sentences what was removed, if anything was there. Fails with
    :class:`SteeringFailed`, which lists what could not be.
    """
    back_ends = await installed(programs)
    removed, failed = await _remove_rules(programs, back_ends, proc_net)
    if not back_ends:
        failed.append("rules of iptables: its programs are not installed")
    for name in SET_NAMES.values():
        try:
            if await sets.remove(name):
                removed.append(f"removed the set {name}")
        except SteeringFailed as error:
            failed.append(str(error))
    return _told(removed, failed)


async def _remove_rules(
    programs: IPrograms, back_ends: BackEnds, proc_net: Path
) -> tuple[list[str], list[str]]:
    removed: list[str] = []
    failed: list[str] = []
    for back_end in back_ends.values():
        if back_end.name == "legacy" and "nat" not in legacy_tables(back_end.version, proc_net):
            continue
        try:
            if await Iptables(programs, back_end).remove():
                removed.append(f"removed the chains TUNNEL-PORT of {back_end.describe()}")
        except Refused as error:
            if not any(text in error.said for text in _NOT_IN_KERNEL):
                failed.append(str(error))
        except SteeringFailed as error:
            failed.append(str(error))
    return removed, failed


def _told(removed: list[str], failed: list[str]) -> list[str]:
    if failed:
        done = "; ".join(removed)
        raise SteeringFailed("; ".join(failed) + (f" (but {done})" if done else ""))
    return removed
