"""Finding the rules of a kube-proxy, which remain when it ends and may precede ours."""

from __future__ import annotations

from collections.abc import AsyncIterator

from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from yurttunnel.ops.programs import IPrograms, ProgramFailed
from yurttunnel.ops.reconciler import Reconciler
from yurttunnel.steering.firewall.detection import has_chain, installed

CHECK_SECONDS = 300.0
"""The interval of the checks in seconds."""

_CHAIN = "KUBE-SERVICES"
"""The chain of its modes ``iptables`` and ``ipvs``."""

_TABLES = (b"table ip kube-proxy", b"table ip6 kube-proxy")
"""Those of its mode ``nftables``, in the output of ``nft list tables``."""


class KubeProxyCheck(Reconciler):
    """Warns while this machine has rules of a kube-proxy.

    They direct clients to the endpoints that it has known last, and may see these clients before
    rules of ours do.
    """

    _log = Logger()

    def __init__(self, clock: IReactorTime, programs: IPrograms) -> None:
        super().__init__(clock, CHECK_SECONDS, "looking for rules of kube-proxy", self._check)
        self._programs = programs
        self._problem: str | None = None

    def problem(self) -> str | None:
        """Return which commands show the rules, and what to do."""
        return self._problem

    async def _check(self) -> None:
        found = [each async for each in _found(self._programs)]
        previous, self._problem = self._problem, None
        if found:
            self._problem = (
                f"rules of kube-proxy ({', '.join(found)}) may direct clients to endpoints that no"
                " longer exist: end kube-proxy on this node, and run kube-proxy --cleanup or"
                " restart the machine"
            )
            if self._problem != previous:
                self._log.warn("Clients may not reach this proxy: {problem}", problem=self._problem)
        elif previous is not None:
            self._log.info("There are no rules of kube-proxy any more")


async def _found(programs: IPrograms) -> AsyncIterator[str]:
    """Yield commands that show the rules; what cannot be read is not in use."""
    for back_end in (await installed(programs)).values():
        try:
            if await has_chain(programs, back_end, "nat", _CHAIN):
                yield f"{back_end.prefix} -t nat -S {_CHAIN}"
        except ProgramFailed:
            continue
    try:
        tables = (await programs.run(["nft", "list", "tables"])).output
    except ProgramFailed:
        return
    for line in tables.splitlines():
        if line in _TABLES:
            yield f"nft list {line.decode()}"
