"""Which of the kernel's two firewalls this machine uses.

These are the old one, legacy, and nft, and both process every packet. Rules should be in the one
that kubelet and kube-proxy use. It is detected as in the ``iptables-wrappers`` of Kubernetes, which
the images of kube-proxy use (github.com/kubernetes-sigs/iptables-wrappers).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from yurttunnel.ops.programs import IPrograms, ProgramFailed
from yurttunnel.steering.failures import SteeringFailed
from yurttunnel.steering.firewall.own_chains import ChainOwner
from yurttunnel.steering.firewall.tables import BackEnd, Tables

BackEnds = Mapping[tuple[int, str], BackEnd]
"""The back ends whose programs are installed, by the version of IP and their name."""

NAMES = ("nft", "legacy")

PROC_NET = Path("/proc/thread-self/net")
"""Of this thread's network namespace (proc(5))."""

_BASES = {4: "iptables", 6: "ip6tables"}

_HINTS = ("KUBE-IPTABLES-HINT", "KUBE-KUBELET-CANARY")
"""Chains of the table ``mangle`` that kubelet creates in the firewall which it uses."""

_LEGACY_TABLES = {4: "ip_tables_names", 6: "ip6_tables_names"}


@dataclass(frozen=True, slots=True)
class FoundBackEnds:
    """The back ends that this machine uses, by the version of IP.

    ``missing`` has, for each version without one, the reason and how to fix it.
    """

    found: Mapping[int, BackEnd]
    missing: Mapping[int, str]


async def find_back_ends(
    programs: IPrograms, owner: ChainOwner, keep: Mapping[int, str] | None = None
) -> FoundBackEnds:
    """Find the back end of each family for the chains of ``owner``.

    ``keep`` names the back ends that are already in use, by the version of IP: they are kept,
    whatever this machine uses by now.
    """
    back_ends = await installed(programs)
    kept = keep or {}
    found: dict[int, BackEnd] = {}
    missing: dict[int, str] = {}
    used = await _used(programs, back_ends, owner)
    for version, base in _BASES.items():
        name = kept.get(version, used)
        back_end = back_ends.get((version, name))
        if not has_family(version):
            missing[version] = (
                "this machine has no IPv6: no action is needed if no node has it either"
            )
        elif back_end is None:
            missing[version] = (
                f"{base}-save for {name} is not installed: install the package iptables (1.6.2 or"
                f" newer), or {owner.install_advice}"
            )
        else:
            try:
                await Tables(programs, back_end, owner).check()
            except SteeringFailed as error:
                missing[version] = str(error)
            else:
                found[version] = back_end
    return FoundBackEnds(found, missing)


def has_family(version: int) -> bool:
    """Return whether this machine supports an address family at all."""
    return version == 4 or (PROC_NET / "if_inet6").exists()


async def installed(programs: IPrograms) -> BackEnds:
    """Find the programs of each back end: by their own names, or else by the generic one."""
    back_ends = {}
    for version, base in _BASES.items():
        for name in NAMES:
            for prefix in (f"{base}-{name}", base):
                if await _name_of(programs, prefix) == name:
                    back_ends[version, name] = BackEnd(version, name, prefix)
                    break
    return back_ends


def legacy_tables(version: int) -> frozenset[str]:
    """Return the tables that legacy has; its programs would create missing ones."""
    try:
        return frozenset((PROC_NET / _LEGACY_TABLES[version]).read_text().split())
    except OSError:
        # The module is not loaded, or this process may not read the list, and then may not change
        # anything either.
        return frozenset()


async def _used(programs: IPrograms, back_ends: BackEnds, owner: ChainOwner) -> str:
    names = [name for name in NAMES if any(name == other for _, other in back_ends)]
    for name in names:
        if await _has_hint(programs, back_ends, name):
            return name
    rules = {}
    for name in names:
        texts = await _texts(programs, back_ends, name)
        rules[name] = sum(_foreign_rules(text, owner) for text in texts)
    most = [name for name in names if rules[name] == max(rules.values())]
    if len(most) == 1:
        return most[0]
    return await _name_of(programs, _BASES[4]) or NAMES[0]


async def _has_hint(programs: IPrograms, back_ends: BackEnds, name: str) -> bool:
    """Return whether kubelet's chains exist, in either family."""
    for version in _BASES:
        back_end = back_ends.get((version, name))
        if back_end is None:
            continue
        try:
            for hint in _HINTS:
                if await has_chain(programs, back_end, "mangle", hint):
                    return True
        except ProgramFailed:
            continue
    return False


async def has_chain(programs: IPrograms, back_end: BackEnd, table: str, chain: str) -> bool:
    """Return whether a table has a chain, reading as little as possible.

    Fails with :class:`ProgramFailed`.
    """
    if back_end.name == "nft":
        # iptables-save would read all rules of the table, one by one.
        finished = await programs.run([back_end.prefix, "-t", table, "-S", chain])
        return finished.status == 0
    if table not in legacy_tables(back_end.version):
        return False
    # Legacy always reads a table as a whole, and this program does not wait for the lock.
    finished = await programs.run([f"{back_end.prefix}-save", "-t", table])
    return f":{chain} ".encode() in finished.output


async def _texts(programs: IPrograms, back_ends: BackEnds, name: str) -> list[bytes]:
    """Return the output of ``iptables-save`` for all tables; empty if it fails."""
    texts = []
    for version in _BASES:
        back_end = back_ends.get((version, name))
        if back_end is None:
            continue
        desired: list[list[str]] = [[]]
        if name == "legacy":
            desired = [["-t", each] for each in sorted(legacy_tables(version))]
        for options in desired:
            try:
                finished = await programs.run([f"{back_end.prefix}-save", *options])
            except ProgramFailed:
                # Such a back end is not in use; if it is the only one, the check reports why.
                continue
            texts.append(finished.output)
    return texts


def _foreign_rules(text: bytes, owner: ChainOwner) -> int:
    """Count the rules that are not ours: our leftovers are not significant."""
    rules = sum(line.startswith(b"-A ") for line in text.split(b"\n"))
    return rules - sum(line.startswith(b"-A ") for line in owner.lines(text))


async def _name_of(programs: IPrograms, program: str) -> str | None:
    """Return the back end of a program; before 1.8 all were legacy, and do not report it."""
    try:
        finished = await programs.run([program, "--version"])
    except ProgramFailed:
        return None
    if finished.status != 0:
        return None
    return "nft" if b"(nf_tables)" in finished.output else "legacy"
