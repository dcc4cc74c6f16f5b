"""The sockets and rules that carry connections on this machine, chosen by what it supports."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from ipaddress import ip_address

from twisted.application.service import IService
from twisted.logger import Logger

from yurttunnel.ops.programs import IPrograms, Programs
from yurttunnel.ops.services import CloseOnStop
from yurttunnel.proxy.conntrack import Conntrack
from yurttunnel.proxy.host_address import host_address, no_address
from yurttunnel.proxy.interfaces import (
    IConntrack,
    IDesiredStateSource,
    IPortClaims,
    IProxySockets,
    IRules,
)
from yurttunnel.proxy.kernel.availability import kernel_mode_available
from yurttunnel.proxy.kernel.forwarding import Forwarding, forwards
from yurttunnel.proxy.kernel.mode import KernelMode
from yurttunnel.proxy.node import ThisNode
from yurttunnel.proxy.port_claims import PortClaims
from yurttunnel.proxy.rules.choice import choose
from yurttunnel.proxy.rules.iptables.rules import IptablesRules
from yurttunnel.proxy.rules.kube_proxy import KubeProxyCheck
from yurttunnel.proxy.rules.nftables.parts import user_part
from yurttunnel.proxy.rules.nftables.rules import Nftables
from yurttunnel.proxy.rules.nftables.tables import Networks, Tables
from yurttunnel.proxy.rules.none import NoRules
from yurttunnel.proxy.settings import BackEnd, Mode, Settings
from yurttunnel.proxy.socket_manager import IKernelMode
from yurttunnel.proxy.sockets.ports import LOOPBACKS, WILDCARDS, PortAllocator
from yurttunnel.proxy.sockets.tcp import max_connections, tcp_proxy_sockets
from yurttunnel.proxy.sockets.udp import UdpSockets
from yurttunnel.proxy.sockets.udp_table import UdpClientTable, max_clients
from yurttunnel.proxy.state.virtual_services import Address, DesiredState, PortalKind, Protocol
from yurttunnel.proxy.unnumbered_links import address_for_all
from yurttunnel.steering.firewall.detection import has_family
from yurttunnel.steering.netlink.connection_tracking import ConnectionTracking
from yurttunnel.steering.netlink.worker import Run
from yurttunnel.tunnel.direct.descriptors import DescriptorSet
from yurttunnel.tunnel.reactor import IReactor

_log = Logger()


@dataclass(frozen=True, slots=True)
class DataPath:
    """The parts that were chosen; ``kernel`` is set in kernel mode only.

    ``services`` are started before everything else, and stopped after it. ``warnings``
    return what does not work as it should, by their names on ``/readyz``.
    """

    mode: Mode
    sockets: Mapping[Protocol, IProxySockets]
    udp: UdpClientTable
    rules: IRules
    claims: IPortClaims
    conntrack: IConntrack
    kernel: IKernelMode | None = None
    services: tuple[IService, ...] = ()
    warnings: Mapping[str, Callable[[], str | None]] = field(default_factory=dict)


async def select_data_path(
    reactor: IReactor, settings: Settings, run: Run, node: ThisNode, source: IDesiredStateSource
) -> DataPath:
    """Find out what this machine supports, and choose the parts according to the command line.

    ``run`` runs blocking calls to the kernel.
    """
    ports = PortAllocator(settings.proxy_ports, NodePorts(source), _bind_addresses(settings))
    sockets, udp, shared = proxy_sockets(reactor, settings, ports)
    if settings.back_end is BackEnd.NONE:
        nothing = NoRules()
        return DataPath(Mode.USER, sockets, udp, nothing, nothing, nothing, services=(shared,))
    programs = Programs(reactor)
    host = no_address if settings.is_local_only else host_address

    def for_all(version: int) -> Address | None:
        return address_for_all(node.facts, host, version)

    iptables = IptablesRules(
        reactor, programs, host, settings.node_port_networks, settings.masquerade.pods, for_all
    )
    networks = Networks(settings.node_port_networks, settings.masquerade.pods)
    versions = [version for version in (4, 6) if has_family(version)]
    tracking = ConnectionTracking(run, "--proxy-backend", lambda: ports.opened)

    def own_addresses() -> frozenset[Address]:
        return node.facts.addresses

    kube_proxy = KubeProxyCheck(reactor, programs)
    data_path = partial(
        DataPath,
        sockets=sockets,
        udp=udp,
        claims=PortClaims(own_addresses, ports.is_used, settings.node_port_networks),
        conntrack=Conntrack(run),
    )
    if await _uses_kernel_mode(reactor, settings, programs, versions):
        forwarding = Forwarding(reactor, programs, source)
        masquerade = settings.masquerade
        kernel = KernelMode(
            reactor, programs, run, versions, host, networks, masquerade, own_addresses, for_all
        )
        return data_path(
            mode=Mode.KERNEL,
            rules=choose(settings.back_end, True, iptables, kernel.rules),
            kernel=kernel,
            services=(shared, tracking, kernel, forwarding, kube_proxy),
            warnings={
                "retry": lambda: kernel.problem,
                "forwarding": forwarding.problem,
                "kube-proxy": kube_proxy.problem,
            },
        )
    tables = Tables(versions, user_part, host, networks, host_for_all=for_all)
    nftables = Nftables(reactor, programs, tables)
    return data_path(
        mode=Mode.USER,
        rules=choose(settings.back_end, False, iptables, nftables),
        services=(shared, tracking, kube_proxy),
        warnings={"kube-proxy": kube_proxy.problem},
    )


def _bind_addresses(settings: Settings) -> Mapping[int, str]:
    """Return the addresses of proxy sockets; a loopback address applies to its own family only."""
    if not settings.is_local_only:
        return WILDCARDS
    given = ip_address(settings.bind_address)
    return {**LOOPBACKS, given.version: str(given)}


async def _uses_kernel_mode(
    reactor: IReactor, settings: Settings, programs: IPrograms, versions: Collection[int]
) -> bool:
    """Return whether to use kernel mode: as the command line says, or if the kernel supports it.

    The kernel must support it for each IP family of this machine, because the tables of both are
    written together.
    """
    if settings.mode is not Mode.AUTO:
        return settings.mode is Mode.KERNEL
    if settings.back_end is BackEnd.IPTABLES:
        return False
    why: str | None = "this machine does not forward packets (net.ipv4.ip_forward is 0)"
    if forwards(versions):
        for version in versions:
            why = await kernel_mode_available(reactor, programs, version)
            if why is not None:
                break
    if why is not None:
        _log.info("Using user mode, because kernel mode is not available: {why}", why=why)
    return why is None


class NodePorts:
    """Returns whether a port is a node port or a health check port of a Service, according to the
    state of ``source``.
    """

    def __init__(self, source: IDesiredStateSource) -> None:
        self._source = source
        self._state: DesiredState | None = None
        self._ports: frozenset[int] = frozenset()

    def __call__(self, port: int) -> bool:
        """Return whether ``port`` is such a port."""
        state = self._source.state()
        if state is not None and state is not self._state:
            self._state = state
            self._ports = frozenset(state.health_checks).union(
                portal.port
                for service in state.services.values()
                for portal in service.portals
                if portal.kind is PortalKind.NODE_PORT
            )
        return port in self._ports


def proxy_sockets(
    reactor: IReactor, settings: Settings, ports: PortAllocator
) -> tuple[Mapping[Protocol, IProxySockets], UdpClientTable, IService]:
    """Make the factories of proxy sockets for each protocol, which use ``ports``.

    A service closes what they share, including the UDP clients; stop it after all sockets have been
    stopped.
    """
    descriptors = DescriptorSet(reactor)
    tcp = tcp_proxy_sockets(reactor, descriptors, ports, max_connections())
    table = UdpClientTable(
        reactor, max_clients(), before_reply=settings.udp.first, after_reply=settings.udp.idle
    )
    udp = UdpSockets(reactor, descriptors, ports, table)
    return {Protocol.TCP: tcp, Protocol.UDP: udp}, table, CloseOnStop(tcp.close)
