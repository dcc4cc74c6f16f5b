"""Whether this machine supports kernel mode."""

from __future__ import annotations

from ipaddress import ip_network

from twisted.internet.interfaces import IReactorTime

from yurttunnel.ops.own_addresses import DOCUMENTATION_ADDRESSES
from yurttunnel.ops.programs import IPrograms
from yurttunnel.proxy.interfaces import ProxiedService
from yurttunnel.proxy.kernel.connections import check as check_connections
from yurttunnel.proxy.kernel.detection_rules import LOG_GROUP, SNAPLEN
from yurttunnel.proxy.kernel.packet_log import open_log
from yurttunnel.proxy.kernel.parts import KernelParts, Masquerade, common
from yurttunnel.proxy.rules.nftables.rules import Nftables
from yurttunnel.proxy.rules.nftables.tables import Networks, Tables
from yurttunnel.proxy.state.virtual_services import (
    Endpoint,
    Key,
    Portal,
    PortalKind,
    Protocol,
    Scope,
    ServicePortName,
    VirtualService,
)
from yurttunnel.steering.failures import SteeringFailed


async def kernel_mode_available(
    clock: IReactorTime, programs: IPrograms, version: int
) -> str | None:
    """Return why this machine does not support kernel mode for a version of IP, and how to fix it;
    ``None`` if it does.

    This changes nothing: it has the kernel check rules, and checks access to the packet log and the
    conntrack table.
    """
    tables = Tables(
        (version,),
        KernelParts(Masquerade(), lambda *_: False, lambda *_: False),
        DOCUMENTATION_ADDRESSES.get,
        Networks(),
        common,
    )
    try:
        await Nftables(clock, programs, tables).check([_example(version)])
        check_connections()
        # Not the group that a running process may use.
        open_log(LOG_GROUP + 1, SNAPLEN).close()
    except SteeringFailed as error:
        return str(error)
    return None


def _example(version: int) -> ProxiedService:
    """Return a service that uses all features of the kernel that are needed."""
    address = DOCUMENTATION_ADDRESSES[version]
    key = Key(ServicePortName("example", "example", ""), version, Protocol.TCP, Scope.ALL)
    portals = (
        Portal(PortalKind.CLUSTER_IP, address, 80),
        Portal(PortalKind.NODE_PORT, None, 30000),
        Portal(PortalKind.LOAD_BALANCER_IP, address, 81, (ip_network(address),)),
    )
    return ProxiedService(
        VirtualService(key, portals, (Endpoint(address, 80),), affinity=1.0), None
    )
