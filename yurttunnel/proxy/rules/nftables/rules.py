"""The tables in the kernel, managed by the program ``nft``."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Sequence

from twisted.internet.interfaces import IReactorTime
from zope.interface import implementer

from yurttunnel.ops.programs import CompletedProgram, IPrograms, ProgramFailed, one_line
from yurttunnel.ops.slices import in_slices
from yurttunnel.proxy.interfaces import IRules, ProxiedService
from yurttunnel.proxy.rules.nftables.table import FAMILIES, NAME, Table, read
from yurttunnel.proxy.rules.nftables.transaction import transaction
from yurttunnel.steering.failures import SteeringFailed
from yurttunnel.steering.interfaces import VERSIONS, Applied
from yurttunnel.steering.netlink.nftables import nft_generation

PROGRAM = "nft"

_NOT_THERE = "No such file or directory"

_NOT_IN_KERNEL = ("Invalid argument", "Protocol not supported", "Operation not supported")
"""Other messages of the program if the kernel has no nftables: the first one if it has other users
of NETLINK_NETFILTER, the second if it does not."""

_MEANINGS = {
    "Operation not permitted": "yurtproxy needs the capability NET_ADMIN, as root in the host's"
    " network",
    "Operation not supported": "this kernel's nftables is too old: use Linux 5.9 or later,"
    " or --proxy-backend iptables",
}
"""What to do about these messages."""


MakeTables = Callable[[Sequence[ProxiedService]], Generator[str, None, Collection[Table]]]
"""Returns the tables for services; yields between slices of work."""


@implementer(IRules)
class Nftables:
    """Manages the tables ``yurtproxy``; ``tables`` makes the desired ones."""

    def __init__(self, clock: IReactorTime, programs: IPrograms, tables: MakeTables) -> None:
        self._clock = clock
        self._programs = programs
        self._tables = tables
        self._known: dict[int, Table] | None = None
        self._generation: int | None = None

    @property
    def backend(self) -> str:
        """The name for pages and logs."""
        return "nftables"

    async def apply(self, proxied: Sequence[ProxiedService]) -> Applied:
        """Change what differs, in one transaction of all families; see :class:`IRules`."""
        made = await in_slices(self._clock, self._tables(proxied))
        desired = {table.version: table for table in made}
        known, self._known = self._known, None
        before = self.generation()
        if known is None or before is None or before != self._generation:
            known = await self._found(desired)
        change = await in_slices(self._clock, transaction(known, made))
        if change.text:
            await self._run("changing", "-f", "-", given=change.text.encode())
            # If the number differs then, another program has changed rules meanwhile.
            self._generation = None if before is None else before + 1
        else:
            self._generation = before
        self._known = desired
        return Applied(change.differences)

    async def check(self, proxied: Sequence[ProxiedService]) -> None:
        """Have program and kernel check the rules, and change nothing.

        Raises :class:`SteeringFailed`.
        """
        made = await in_slices(self._clock, self._tables(proxied))
        change = await in_slices(self._clock, transaction({}, made))
        await self._run("checking", "-c", "-f", "-", given=change.text.encode())

    async def remove(self, versions: Collection[int] = VERSIONS) -> bool:
        """Delete the tables of these families."""
        self._known = None
        found = await self._found(versions)
        lines = [f"delete table {table.where}\n" for table in found.values()]
        if lines:
            await self._run("removing", "-f", "-", given="".join(lines).encode())
        return bool(lines)

    def generation(self) -> int | None:
        return nft_generation()

    async def _found(self, versions: Iterable[int]) -> dict[int, Table]:
        """Return the existing tables of these families."""
        found = {}
        for version in versions:
            family = FAMILIES[version]
            finished = await self._finished("reading", "list", "table", family, NAME)
            if finished.status == 0:
                found[version] = read(finished.output.decode("utf-8", "replace"), version)
            elif not self._says_there_is_none(finished.errors):
                raise _refused("reading", finished)
        return found

    def _says_there_is_none(self, stderr: str) -> bool:
        if _NOT_THERE in stderr:
            return True
        # If the kernel has nftables, these messages may mean anything.
        return self.generation() is None and any(text in stderr for text in _NOT_IN_KERNEL)

    async def _run(self, doing: str, *options: str, given: bytes) -> None:
        finished = await self._finished(doing, *options, given=given)
        if finished.status != 0:
            raise _refused(doing, finished)

    async def _finished(self, doing: str, *options: str, given: bytes = b"") -> CompletedProgram:
        try:
            return await self._programs.run([PROGRAM, *options], given)
        except ProgramFailed as error:
            raise SteeringFailed(f"{doing} the tables {NAME} of nftables: {error}") from error


def _refused(doing: str, finished: CompletedProgram) -> SteeringFailed:
    stderr = one_line(finished.errors) or "no output"
    meanings = [text for words, text in _MEANINGS.items() if words in stderr]
    what = "; ".join([f"exit status {finished.status}: {stderr}", *meanings])
    return SteeringFailed(f"{doing} the tables {NAME} of nftables: {PROGRAM}: {what}")
