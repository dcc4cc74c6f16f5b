"""The firewall of one family of addresses, by ``iptables-save`` and ``iptables-restore``."""

from __future__ import annotations

from dataclasses import dataclass

from twisted.internet.defer import Deferred
from zope.interface import implementer

from yurttunnel.steering.firewall.rules import Rules, port_of, rules_of
from yurttunnel.steering.firewall.saved import Saved, own_lines, read
from yurttunnel.steering.firewall.transaction import transaction
from yurttunnel.steering.interception import Interception
from yurttunnel.steering.interfaces import Applied, IFirewall, SetsRefused, SteeringFailed
from yurttunnel.steering.netlink.generation import nft_generation
from yurttunnel.steering.programs import Finished, IPrograms, ProgramFailed

LOCK_SECONDS = 5
"""How long the legacy back end waits for others that change rules; nft needs no lock."""

REMOVAL_LOCK_SECONDS = 10
"""The same when rules are removed: that is the last chance to, as when a server stops."""

SECONDS = 20.0
"""How long one of the programs may take, the wait for the lock included."""

_MAX_SAID = 300
"""Characters of a program's complaint that are shown."""

_NO_SETS = (
    "Couldn't load match `set'",
    "Extension set revision 0 not supported",
    "Can't open socket to ipset",
)
"""What the programs say where they, or the kernel, have no rules that refer to sets."""

_LOCKED = "xtables lock"


class Refused(SteeringFailed):
    """A program has ended with another exit status than 0; ``said`` is its complaint."""

    def __init__(self, text: str, said: str) -> None:
        super().__init__(text)
        self.said = said


@dataclass(frozen=True, slots=True)
class BackEnd:
    """One of the kernel's two firewalls for one family, and what its programs' names begin with.

    ``name`` is ``nft`` or ``legacy``, and ``prefix`` is such as ``iptables-nft``.
    """

    version: int
    name: str
    prefix: str

    def describe(self) -> str:
        """Return which it is, for people."""
        return f"IPv{self.version} ({self.name})"


@dataclass(frozen=True, slots=True)
class _Right:
    """The lines that were found when the rules were those of ``desired`` and ``set_name``."""

    desired: Interception
    set_name: str | None
    lines: list[bytes]


@implementer(IFirewall)
class Iptables:
    """Our chains in the table ``nat`` of one back end and family."""

    def __init__(self, programs: IPrograms, back_end: BackEnd) -> None:
        self._programs = programs
        self._back_end = back_end
        self._right: _Right | None = None
        # What the last call has left; nothing is known where it has failed.
        self._known = Saved()

    @property
    def version(self) -> int:
        """The version of IP."""
        return self._back_end.version

    @property
    def backend(self) -> str:
        """The kernel's firewall, ``nft`` or ``legacy``."""
        return self._back_end.name

    def apply(self, desired: Interception, set_name: str | None) -> Deferred[Applied]:
        """Read the rules, and change them by one transaction where they are not as wanted."""
        return Deferred.fromCoroutine(self._apply(desired, set_name))

    def remove(self) -> Deferred[bool]:
        """Remove all chains of ours, and what leads to them."""
        return Deferred.fromCoroutine(self._remove())

    def generation(self) -> int | None:
        """Return what nftables counts; the kernel counts no changes of its legacy tables."""
        return nft_generation() if self._back_end.name == "nft" else None

    def check(self) -> Deferred[None]:
        """Fail with :class:`SteeringFailed` where the table cannot be read."""
        return Deferred.fromCoroutine(self._check())

    async def _check(self) -> None:
        if self._back_end.name == "nft":
            # To save the table takes a second where others have 20,000 rules; this does not.
            shown = await self._run("reading", self._back_end.prefix, "-t", "nat", "-S", "OUTPUT")
            self._insist(b"-P OUTPUT", shown.output)
        else:
            await self._own_lines()

    async def _apply(self, desired: Interception, set_name: str | None) -> Applied:
        known, self._known = self._known, Saved()
        lines = await self._own_lines()
        if self._right == _Right(desired, set_name, lines):
            self._known = known
            return Applied((), frozenset(desired.all_ports()))
        self._right = None
        saved = read(lines)
        rules = rules_of(desired, set_name)
        try:
            differences = await self._change(saved, rules, LOCK_SECONDS)
        except Refused as error:
            if set_name is not None and any(words in error.said for words in _NO_SETS):
                raise SetsRefused(str(error)) from error
            raise
        if not differences:
            self._right = _Right(desired, set_name, lines)
        self._known = _saved_of(rules)
        ports = (port_of(chain) for chain in saved.chains)
        return Applied(differences, frozenset(port for port in ports if port is not None))

    async def _remove(self) -> bool:
        self._right = None
        known, self._known = self._known, Saved()
        if not known.is_nothing:
            try:
                return bool(await self._change(known, Rules(), REMOVAL_LOCK_SECONDS))
            except Refused as error:
                if _LOCKED in error.said:
                    self._known = known
                    raise
                # Others have changed what was known.
        saved = read(await self._own_lines())
        return bool(await self._change(saved, Rules(), REMOVAL_LOCK_SECONDS))

    async def _own_lines(self) -> list[bytes]:
        finished = await self._run("reading", f"{self._back_end.prefix}-save", "-t", "nat")
        self._insist(b"*nat", finished.output)
        return own_lines(finished.output)

    def _insist(self, desired: bytes, shown: bytes) -> None:
        """Raise :class:`SteeringFailed` where what is shown of the table has not ``desired``."""
        if desired not in shown:
            said = _one_line(shown.decode("utf-8", "replace"))
            raise SteeringFailed(
                f"reading the nat table of {self._back_end.describe()}: iptables does not show it:"
                f" {said}; another program has made it its own: use --enable-iptables=false and"
                " DNS, or move that program"
            )

    async def _change(self, saved: Saved, rules: Rules, lock_seconds: int) -> tuple[str, ...]:
        change = transaction(saved, rules)
        if change.text:
            given = change.text.encode("utf-8", "surrogateescape")
            options = ("-w", str(lock_seconds), "--noflush")
            await self._run("changing", f"{self._back_end.prefix}-restore", *options, given=given)
        return change.differences

    async def _run(self, doing: str, name: str, *options: str, given: bytes = b"") -> Finished:
        what = f"{doing} the nat table of {self._back_end.describe()}"
        try:
            finished = await self._programs.run([name, *options], given, SECONDS)
        except ProgramFailed as error:
            raise SteeringFailed(f"{what}: {error}") from error
        if finished.status != 0:
            said = _one_line(finished.errors)
            raise Refused(f"{what}: {name}: {_explained(finished, said)}", said)
        return finished


def _saved_of(rules: Rules) -> Saved:
    """Return what is there after a change to ``rules``."""
    jumps = [(chain, rule) for chain, some in rules.jumps.items() for rule in some]
    return Saved({chain: list(some) for chain, some in rules.chains.items()}, jumps)


def _explained(finished: Finished, said: str) -> str:
    """Return what a program has complained about, and what to do."""
    if _LOCKED in said:
        return (
            "the lock /run/xtables.lock was held by another program for too long"
            " (fuser -v /run/xtables.lock says by which)"
        )
    if "Permission denied" in said or "Operation not permitted" in said:
        return f"{said}; the server needs the capability NET_ADMIN (deploy/overlays/iptables)"
    return f"exit status {finished.status}: {said or 'it says nothing'}"


def _one_line(said: str) -> str:
    return " ".join(said.split())[:_MAX_SAID]
