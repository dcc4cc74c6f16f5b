"""``--cleanup``: removes what service proxies have left in this machine's firewall, and exits."""

from __future__ import annotations

from twisted.application.service import IService

from yurttunnel.ops.errand import Errand
from yurttunnel.proxy.rules.nftables.rules import Nftables
from yurttunnel.steering.interfaces import SteeringFailed
from yurttunnel.steering.programs import Programs
from yurttunnel.tunnel.reactor import IReactor


def cleanup(reactor: IReactor) -> IService:
    """Make what does it."""

    async def remove() -> list[str]:
        nftables = Nftables(Programs(reactor), lambda placed: [])
        if await nftables.remove():
            return ["removed the tables yurtproxy of nftables"]
        return ["there was nothing to remove"]

    return Errand(reactor, "--cleanup", remove, SteeringFailed)
