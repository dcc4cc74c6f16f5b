"""``--cleanup``: removes what service proxies have left in this machine's firewall, and exits."""

from __future__ import annotations

from twisted.application.service import IService

from yurttunnel.ops.errand import Errand
from yurttunnel.proxy.host_address import host_address
from yurttunnel.proxy.rules.choice import remove_everything
from yurttunnel.proxy.rules.iptables.rules import IptablesRules
from yurttunnel.proxy.rules.nftables.rules import Nftables
from yurttunnel.steering.interfaces import SteeringFailed
from yurttunnel.steering.programs import Programs
from yurttunnel.tunnel.reactor import IReactor


def cleanup(reactor: IReactor) -> IService:
    """Make what does it."""
    programs = Programs(reactor)
    rules = (IptablesRules(programs, host_address), Nftables(programs, lambda _: []))
    return Errand(reactor, "--cleanup", lambda: remove_everything(rules), SteeringFailed)
