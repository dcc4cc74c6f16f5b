"""Whether this machine supports kernel mode."""

from __future__ import annotations

from ipaddress import ip_address, ip_network

from twisted.internet.interfaces import IReactorTime

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
from yurttunnel.steering.programs import IPrograms

_ADDRESSES = {4: "192.0.2.1", 6: "2001:db8::1"}
"""Addresses for documentation, which no machine has (RFC 5737, RFC 3849)."""


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
        {version: ip_address(_ADDRESSES[version])}.get,
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
    address = ip_address(_ADDRESSES[version])
    key = Key(ServicePortName("example", "example", ""), version, Protocol.TCP, Scope.ALL)
    portals = (
        Portal(PortalKind.CLUSTER_IP, address, 80),
        Portal(PortalKind.NODE_PORT, None, 30000),
        Portal(PortalKind.LOAD_BALANCER_IP, address, 81, (ip_network(address),)),
    )
    return ProxiedService(
        VirtualService(key, portals, (Endpoint(address, 80),), affinity=1.0), None
    )
