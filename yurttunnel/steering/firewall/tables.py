"""Our chains in one family's tables, by ``iptables-save`` and ``iptables-restore``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from yurttunnel.ops.programs import CompletedProgram, IPrograms, ProgramFailed, one_line
from yurttunnel.ops.slices import in_slices
from yurttunnel.steering.failures import SteeringFailed
from yurttunnel.steering.firewall.own_chains import ChainOwner, Rules
from yurttunnel.steering.firewall.saved import Saved, parse, table_section
from yurttunnel.steering.firewall.transaction import transaction

LOCK_SECONDS = 5
"""How long the legacy back end waits for other programs' lock, in seconds; nft needs no lock."""

REMOVAL_LOCK_SECONDS = 10
"""The same for the removal of rules; when a server stops, there is no later opportunity."""

_LOCKED = "xtables lock"

_BUILT_IN = "OUTPUT"
"""A chain that exists in each of our tables."""


class CommandFailed(SteeringFailed):
    """A program has exited with a status other than 0; ``stderr`` is its error message.

    ``while_changing`` is whether it was to change rules, and not to read them.
    """

    def __init__(self, text: str, stderr: str, while_changing: bool) -> None:
        super().__init__(text)
        self.stderr = stderr
        self.while_changing = while_changing


@dataclass(frozen=True, slots=True)
class BackEnd:
    """One of the kernel's two firewalls for one family, and the prefix of its programs' names.

    ``name`` is ``nft`` or ``legacy``, and ``prefix`` is for example ``iptables-nft``.
    """

    version: int
    name: str
    prefix: str

    def describe(self) -> str:
        """Return a description for people."""
        return f"IPv{self.version} ({self.name})"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of an update of the rules.

    ``differences`` is empty if nothing was changed. ``found`` are our previous chains by table; it
    is ``None`` if they are still those that the last call has left. ``changed`` is the number of
    changed tables, each in one transaction.
    """

    differences: tuple[str, ...]
    found: Mapping[str, Saved] | None
    changed: int


_Lines = dict[str, list[bytes]]


class Tables:
    """Our chains in ``tables``, by default all tables of ``owner``."""

    def __init__(
        self,
        programs: IPrograms,
        back_end: BackEnd,
        owner: ChainOwner,
        tables: Sequence[str] | None = None,
    ) -> None:
        self._programs = programs
        self._back_end = back_end
        self._owner = owner
        self._tables = owner.tables if tables is None else tuple(tables)
        # The last desired state that was in force, and the lines that were found then.
        self._in_force: tuple[Mapping[str, Rules], _Lines] | None = None
        # The result of the last change; unknown if it failed.
        self._known: dict[str, Saved] = {}

    async def check(self) -> None:
        """Raise :class:`SteeringFailed` if the tables cannot be read."""
        for table in self._tables:
            if self._back_end.name == "nft":
                # iptables-save takes a second if other programs have 20,000 rules; this does not.
                shown = await self._run(
                    f"reading {_named([table])}",
                    self._back_end.prefix,
                    *("-t", table, "-S", _BUILT_IN),
                )
                self._require_output(table, f"-P {_BUILT_IN}", shown.output)
            else:
                await self._own_lines(table)

    async def apply(self, desired: Mapping[str, Rules]) -> Outcome:
        """Read the rules, and change those that differ from the ``desired`` ones, in one run.

        ``desired`` has the rules by table; comparing the same object again is cheap, however many
        there are. Raises :class:`SteeringFailed`.
        """
        lines = await self._all_own_lines()
        if self._in_force == (desired, lines):
            return Outcome((), None, 0)
        self._in_force = None
        found = await self._parsed(lines)
        self._known = {}
        outcome = await self._change(found, desired, LOCK_SECONDS)
        if not outcome.differences:
            self._in_force = desired, lines
        self._known = {table: _saved_of(rules) for table, rules in desired.items()}
        return outcome

    async def remove(self) -> bool:
        """Remove all our chains, and the jumps to them; return whether there were any.

        Chains that are known to exist are removed without reading, unless that fails. Raises
        :class:`SteeringFailed`.
        """
        self._in_force = None
        known, self._known = self._known, {}
        if any(not saved.is_empty for saved in known.values()):
            try:
                return bool((await self._change(known, {}, REMOVAL_LOCK_SECONDS)).differences)
            except CommandFailed as error:
                if _LOCKED in error.stderr:
                    self._known = known
                    raise
                # Other programs have changed what was known.
        lines = await self._all_own_lines()
        found = await self._parsed(lines)
        return bool((await self._change(found, {}, REMOVAL_LOCK_SECONDS)).differences)

    async def _all_own_lines(self) -> _Lines:
        """Return the lines that may be about our chains, by one run of a program for several
        tables.

        It shows only existing tables; listing a missing one by its name creates it.
        """
        shown = b""
        if len(self._tables) > 1:
            what = f"reading {_named(self._tables)}"
            shown = (await self._run(what, f"{self._back_end.prefix}-save")).output
        lines: _Lines = {}
        for table in self._tables:
            its = table_section(shown, table)
            lines[table] = await (self._own_lines(table) if its is None else self._lines_in(its))
        return lines

    async def _own_lines(self, table: str) -> list[bytes]:
        what = f"reading {_named([table])}"
        finished = await self._run(what, f"{self._back_end.prefix}-save", "-t", table)
        self._require_output(table, f"*{table}", finished.output)
        return await self._lines_in(finished.output)

    async def _lines_in(self, output: bytes) -> list[bytes]:
        return await in_slices(self._programs.clock, self._owner.find_lines(output))

    async def _parsed(self, lines: _Lines) -> dict[str, Saved]:
        return {
            table: await in_slices(self._programs.clock, parse(its, self._owner))
            for table, its in lines.items()
        }

    def _require_output(self, table: str, desired: str, shown: bytes) -> None:
        """Raise :class:`SteeringFailed` if the output for the table lacks ``desired``."""
        if desired.encode() not in shown:
            stderr = one_line(shown.decode("utf-8", "replace"))
            raise SteeringFailed(
                f"reading {_named([table])} of {self._back_end.describe()}: iptables cannot read"
                f" it: {stderr}; another program manages it: {self._owner.unreadable_advice}"
            )

    async def _change(
        self, found: Mapping[str, Saved], desired: Mapping[str, Rules], lock_seconds: int
    ) -> Outcome:
        changes = {
            table: await in_slices(
                self._programs.clock, transaction(table, saved, desired.get(table, Rules()))
            )
            for table, saved in found.items()
        }
        changed = [table for table, change in changes.items() if change.text]
        if changed:
            text = "".join(changes[table].text for table in changed)
            await self._run(
                f"changing {_named(changed)}",
                f"{self._back_end.prefix}-restore",
                *("-w", str(lock_seconds), "--noflush"),
                stdin=text.encode("utf-8", "surrogateescape"),
            )
        differences = [text for change in changes.values() for text in change.differences]
        return Outcome(tuple(differences), found, len(changed))

    async def _run(
        self, action: str, name: str, *options: str, stdin: bytes = b""
    ) -> CompletedProgram:
        what = f"{action} of {self._back_end.describe()}"
        try:
            finished = await self._programs.run([name, *options], stdin)
        except ProgramFailed as error:
            raise SteeringFailed(f"{what}: {error}") from error
        if finished.status != 0:
            stderr = one_line(finished.errors)
            raise CommandFailed(
                f"{what}: {name}: {self._describe_error(finished, stderr)}", stderr, bool(stdin)
            )
        return finished

    def _describe_error(self, finished: CompletedProgram, stderr: str) -> str:
        """Return the error message of a program, and how to fix it."""
        if _LOCKED in stderr:
            return (
                "the lock /run/xtables.lock was held by another program for too long"
                " (fuser -v /run/xtables.lock shows which)"
            )
        if "Permission denied" in stderr or "Operation not permitted" in stderr:
            return f"{stderr}; {self._owner.permission_advice}"
        return f"exit status {finished.status}: {stderr or 'it says nothing'}"


def _saved_of(rules: Rules) -> Saved:
    """Return the state after a change to ``rules``."""
    jumps = [
        (chain, rule)
        for some in (rules.jumps, rules.last_jumps)
        for chain, each in some.items()
        for rule in each
    ]
    return Saved({chain: list(some) for chain, some in rules.chains.items()}, jumps)


def _named(tables: Sequence[str]) -> str:
    return f"the {' and '.join(tables)} table{'s' if len(tables) > 1 else ''}"
