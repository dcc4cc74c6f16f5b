"""Selecting the firewall back end."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from twisted.logger import Logger
from zope.interface import implementer

from yurttunnel.ops.programs import ProgramMissing
from yurttunnel.proxy.interfaces import IRules, PartlyApplied, ProxiedService
from yurttunnel.proxy.rules.iptables.rules import IptablesRules
from yurttunnel.proxy.rules.none import NoRules
from yurttunnel.proxy.settings import BackEnd
from yurttunnel.steering.failures import SteeringFailed
from yurttunnel.steering.firewall.cleanup import raise_if_failed
from yurttunnel.steering.interfaces import VERSIONS, Applied


def choose(
    back_end: BackEnd, kernel_mode: bool, iptables: IptablesRules, nftables: IRules
) -> IRules:
    """Return the rules for ``--proxy-backend``; kernel mode always uses ``nftables``."""
    if back_end is BackEnd.NONE:
        return NoRules()
    if kernel_mode or back_end is BackEnd.NFTABLES:
        return ChosenRules(iptables, nftables, nftables)
    return ChosenRules(iptables, nftables, iptables if back_end is BackEnd.IPTABLES else None)


@implementer(IRules)
class ChosenRules:
    """The rules of ``chosen``; if it is ``None``, of iptables if that works, else of nftables.

    The first call selects the back end. What a previous process has left in another one is removed
    once the rules of that family exist: until then it may serve clients.
    """

    _log = Logger()

    def __init__(self, iptables: IptablesRules, nftables: IRules, chosen: IRules | None) -> None:
        self._iptables = iptables
        self._nftables = nftables
        self._chosen = chosen
        self._leftovers_due = frozenset(VERSIONS)
        self._logged_error = ""

    @property
    def backend(self) -> str:
        """The name for pages and logs; ``auto`` until the back end is selected."""
        return "auto" if self._chosen is None else str(self._chosen.backend)

    async def apply(self, proxied: Sequence[ProxiedService]) -> Applied:
        try:
            if self._chosen is None:
                applied = await self._apply_first(proxied)
            else:
                applied = await self._chosen.apply(proxied)
        except PartlyApplied as error:
            await self._remove_leftovers(error.made)
            raise
        await self._remove_leftovers(VERSIONS)
        return applied

    async def remove(self, versions: Collection[int] = VERSIONS) -> bool:
        """Remove the rules from all back ends."""
        return bool(await remove_everything([self._iptables, self._nftables], versions))

    def generation(self) -> int | None:
        return None if self._chosen is None else self._chosen.generation()

    async def _apply_first(self, proxied: Sequence[ProxiedService]) -> Applied:
        """Select the back end."""
        try:
            await self._iptables.find()
        except SteeringFailed as why:
            try:
                applied = await self._nftables.apply(proxied)
            except SteeringFailed as error:
                raise SteeringFailed(f"{why}; {error}") from error
            self._chosen = self._nftables
            self._log.info("Using nftables, because iptables is not available: {why}", why=why)
            return applied
        self._chosen = self._iptables
        return await self._iptables.apply(proxied)

    async def _remove_leftovers(self, made: Collection[int]) -> None:
        versions = self._leftovers_due.intersection(made)
        if not versions:
            return
        try:
            if self._chosen is self._iptables:
                removed = await self._iptables.remove_elsewhere(versions)
                removed += await remove_everything([self._nftables], versions)
            else:
                removed = await remove_everything([self._iptables], versions)
        except SteeringFailed as error:
            if str(error) != self._logged_error:
                self._logged_error = str(error)
                self._log.warn(
                    "Rules of a previous process may still redirect clients elsewhere: {error};"
                    " retrying",
                    error=error,
                )
            return
        self._leftovers_due -= versions
        for sentence in removed:
            self._log.info("Left by a previous process: {sentence}", sentence=sentence)


async def remove_everything(
    back_ends: Iterable[IRules], versions: Collection[int] = VERSIONS
) -> list[str]:
    """Remove the rules of all processes in some families; return sentences about what was removed.

    Raises :class:`SteeringFailed`, which lists what could not be removed.
    """
    removed: list[str] = []
    failed: list[str] = []
    for rules in back_ends:
        try:
            if await rules.remove(versions):
                removed.append(f"removed the rules of {rules.backend}")
        except SteeringFailed as error:
            # If the program is missing, it cannot have created rules, either.
            if not isinstance(error.__cause__, ProgramMissing):
                failed.append(str(error))
    return raise_if_failed(removed, failed)
