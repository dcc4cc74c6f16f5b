"""What carries connections on this machine: sockets and rules, by what there is."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_address

from twisted.application.service import IService

from yurttunnel.proxy.balancing.balancer import LoadBalancer
from yurttunnel.proxy.interfaces import IClaims, IConntrack, ILoadBalancer, IProxySockets, IRules
from yurttunnel.proxy.placement import IKernel
from yurttunnel.proxy.rules.none import NoRules
from yurttunnel.proxy.settings import Settings
from yurttunnel.proxy.sockets.half_closed import HalfClosed
from yurttunnel.proxy.sockets.limits import ConnectionCount, most_connections
from yurttunnel.proxy.sockets.pipes import PipePool
from yurttunnel.proxy.sockets.ports import WILDCARDS, PortAllocator
from yurttunnel.proxy.sockets.proxy_sockets import ProxySockets
from yurttunnel.proxy.sockets.relay import RelayContext
from yurttunnel.proxy.sockets.tcp import TcpContext, TcpProxySockets
from yurttunnel.proxy.sockets.udp import UdpSockets
from yurttunnel.proxy.sockets.udp_table import UdpClientTable, most_clients
from yurttunnel.steering.netlink.worker import Run
from yurttunnel.tunnel.direct.descriptors import DescriptorSet
from yurttunnel.tunnel.reactor import IReactor


@dataclass(frozen=True, slots=True)
class Carrier:
    """What there is; ``kernel`` is for kernel mode, ``services`` are started before all else."""

    sockets: IProxySockets
    balancer: ILoadBalancer
    rules: IRules
    claims: IClaims
    conntrack: IConntrack
    kernel: IKernel | None = None
    services: tuple[IService, ...] = ()


async def find_carrier(reactor: IReactor, settings: Settings, run: Run) -> Carrier:
    """Find out what this machine has, and choose among it as the command line says."""
    nothing = NoRules()
    return Carrier(
        sockets=proxy_sockets(reactor, settings),
        balancer=LoadBalancer(reactor),
        rules=nothing,
        claims=nothing,
        conntrack=nothing,
    )


def proxy_sockets(reactor: IReactor, settings: Settings) -> IProxySockets:
    """Make what opens proxy sockets of both protocols."""
    descriptors = DescriptorSet(reactor)
    ports = PortAllocator(settings.proxy_ports, addresses=_addresses(settings.bind_address))
    # It raises the limit of descriptors, by which the other is told.
    connections = ConnectionCount(most_connections())
    relay = RelayContext(descriptors, PipePool(), HalfClosed(descriptors))
    table = UdpClientTable(
        reactor,
        most_clients(),
        before_reply=settings.udp.first,
        after_reply=settings.udp.idle,
    )
    return ProxySockets(
        TcpProxySockets(TcpContext(relay, ports, connections)),
        UdpSockets(descriptors, ports, table),
    )


def _addresses(bind_address: str) -> dict[int, str]:
    """Return where to listen in each family."""
    if ip_address(bind_address).is_loopback:
        return {4: "127.0.0.1", 6: "::1"}
    return dict(WILDCARDS)
