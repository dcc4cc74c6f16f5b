"""The server's firewall for one address family: its chains in the table ``nat``."""

from __future__ import annotations

from zope.interface import implementer

from yurttunnel.steering.failures import SetsRefused
from yurttunnel.steering.firewall.own_chains import Rules
from yurttunnel.steering.firewall.rules import TUNNEL, port_of, rules_of
from yurttunnel.steering.firewall.tables import BackEnd, CommandFailed, Tables
from yurttunnel.steering.interception import Interception
from yurttunnel.steering.interfaces import Applied, IFirewall
from yurttunnel.steering.netlink.nftables import nft_generation
from yurttunnel.steering.programs import IPrograms

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
        """The version of IP."""
        return self._back_end.version

    @property
    def backend(self) -> str:
        """The kernel's firewall, ``nft`` or ``legacy``."""
        return self._back_end.name

    async def apply(self, desired: Interception, set_name: str | None) -> Applied:
        """Read the rules, and change them in one transaction if they differ."""
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
        """Remove all our chains, and the jumps to them."""
        return await self._tables.remove()

    def generation(self) -> int | None:
        """Return the nftables generation; the kernel does not count changes of legacy tables."""
        return nft_generation() if self._back_end.name == "nft" else None
