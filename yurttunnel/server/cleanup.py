"""``--cleanup-iptables``: removes what servers have left in this machine's firewall, and exits."""

from __future__ import annotations

from twisted.application.service import IService

from yurttunnel.ops.errand import Errand
from yurttunnel.steering.firewall.tunnel import remove_everything
from yurttunnel.steering.interfaces import SteeringFailed
from yurttunnel.steering.netlink.address_sets import AddressSets
from yurttunnel.steering.netlink.worker import KernelWorker
from yurttunnel.steering.programs import Programs
from yurttunnel.tunnel.reactor import IReactor


def cleanup(reactor: IReactor) -> IService:
    """Make what does it."""
    sets = AddressSets(KernelWorker(reactor).run, reactor)
    return Errand(
        reactor,
        "--cleanup-iptables",
        lambda: remove_everything(Programs(reactor), sets),
        SteeringFailed,
    )
