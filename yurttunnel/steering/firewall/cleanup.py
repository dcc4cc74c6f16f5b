"""Removing our chains: at the start from the unused back end, and on demand from everywhere."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from yurttunnel.ops.programs import IPrograms
from yurttunnel.steering.failures import SteeringFailed
from yurttunnel.steering.firewall.detection import BackEnds, installed, legacy_tables
from yurttunnel.steering.firewall.own_chains import ChainOwner
from yurttunnel.steering.firewall.tables import BackEnd, CommandFailed, Tables

_NOT_IN_KERNEL = (
    "Protocol not supported",
    "Could not fetch rule set generation id: Invalid argument",
    "Address family not supported",
    "does not exist",
    "No such file or directory",
)
"""Errors of the iptables programs when reading, if the kernel does not support the back end."""


async def remove_chains_elsewhere(
    programs: IPrograms, owner: ChainOwner, used: Mapping[int, str]
) -> list[str]:
    """Remove our chains from the back end that is not used, where they still redirect connections.

    ``used`` names the other one, by the version of IP; other families are not checked. Return
    sentences about what was removed. Raises :class:`SteeringFailed`, which lists what could not be
    removed.
    """
    others = {
        key: back_end
        for key, back_end in (await installed(programs)).items()
        if back_end.version in used and back_end.name != used[back_end.version]
    }
    removed, failed = await remove_chains(programs, others, owner)
    return raise_if_failed(removed, failed)


async def remove_chains(
    programs: IPrograms, back_ends: BackEnds, owner: ChainOwner
) -> tuple[list[str], list[str]]:
    """Remove our chains; return sentences about what was removed, and what could not be."""
    removed: list[str] = []
    failed: list[str] = []
    for back_end in back_ends.values():
        tables = _tables(back_end, owner)
        if not tables:
            continue
        try:
            if await Tables(programs, back_end, owner, tables).remove():
                removed.append(f"removed the chains {owner.names[0]} of {back_end.describe()}")
        except CommandFailed as error:
            # What has been read exists, whatever the error of the change is.
            if error.while_changing or not any(text in error.stderr for text in _NOT_IN_KERNEL):
                failed.append(str(error))
        except SteeringFailed as error:
            failed.append(str(error))
    return removed, failed


def raise_if_failed(removed: Collection[str], failed: Collection[str]) -> list[str]:
    """Return what was removed; raise :class:`SteeringFailed` if something could not be."""
    if failed:
        done = "; ".join(removed)
        raise SteeringFailed("; ".join(failed) + (f" (but {done})" if done else ""))
    return list(removed)


def _tables(back_end: BackEnd, owner: ChainOwner) -> list[str]:
    """Return the tables that may contain our chains."""
    if back_end.name == "nft":
        return list(owner.tables)
    there = legacy_tables(back_end.version)
    return [table for table in owner.tables if table in there]
