"""Kernel mode as a whole: its rules, and the detection of endpoints that do not respond."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from twisted.application.service import Service
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from yurttunnel.ops.programs import IPrograms
from yurttunnel.proxy.host_address import HostAddress, no_address
from yurttunnel.proxy.interfaces import EndpointStats, KernelStats
from yurttunnel.proxy.kernel.connection_counts import ConnectionCounts
from yurttunnel.proxy.kernel.connections import Connections
from yurttunnel.proxy.kernel.detection_rules import LOG_GROUP, SNAPLEN
from yurttunnel.proxy.kernel.ejections import Ejections
from yurttunnel.proxy.kernel.failure_detector import FailureDetector
from yurttunnel.proxy.kernel.marks import supervised_connections
from yurttunnel.proxy.kernel.packet_log import PacketLog
from yurttunnel.proxy.kernel.packets import LoggedRefusal, parse_packet
from yurttunnel.proxy.kernel.parts import KernelParts, Masquerade, common, kernel_supports
from yurttunnel.proxy.kernel.prober import Prober
from yurttunnel.proxy.kernel.rules import KernelRules
from yurttunnel.proxy.kernel.stale_entries import StaleEntries
from yurttunnel.proxy.kernel.sysctl import BE_LIBERAL, is_on
from yurttunnel.proxy.kernel.targets import Target
from yurttunnel.proxy.rules.nftables.parts import Part
from yurttunnel.proxy.rules.nftables.rules import Nftables
from yurttunnel.proxy.rules.nftables.tables import Networks, Tables
from yurttunnel.proxy.socket_manager import IKernelMode
from yurttunnel.proxy.state.virtual_services import (
    Address,
    Problem,
    Protocol,
    VirtualService,
    has_node_ports,
)
from yurttunnel.steering.failures import SteeringFailed
from yurttunnel.steering.netlink.worker import Run
from yurttunnel.tunnel.reactor import IReactor

RETRY_SECONDS = 5.0
"""Seconds until the packet log is requested again: a previous process that still receives it may
have ended by then."""


@implementer(IKernelMode)
class KernelMode(Service):
    """Provides ``rules``, and ejects endpoints that do not respond.

    Start it before rules are applied. When it stops, it leaves rules without ejections that pass
    refusals to clients, because no process would detect when an endpoint is back. ``addresses()``
    returns the addresses of this machine.
    """

    _log = Logger()

    def __init__(
        self,
        reactor: IReactor,
        programs: IPrograms,
        run: Run,
        versions: Collection[int],
        host_address: HostAddress,
        networks: Networks,
        masquerade: Masquerade,
        addresses: Callable[[], Collection[Address]],
        host_for_all: HostAddress = no_address,
    ) -> None:
        self._reactor = reactor
        self._addresses = addresses
        self._node_ports = networks.node_ports
        self._retry: IDelayedCall | None = None
        self._connections = Connections(run, self._portals)
        self._detects = False
        self._prober = prober = Prober(reactor)
        self.ejections = Ejections(reactor, prober.probe)
        """The ejected endpoints, and the state of all that have failed."""
        parts = KernelParts(masquerade, self.ejections.is_ejected, self.ejections.is_in_doubt)
        tables = Tables(versions, parts, host_address, networks, self._common, host_for_all)
        self.rules = KernelRules(
            reactor,
            Nftables(reactor, programs, tables),
            tables,
            self.ejections,
            self._connections.delete_unanswered,
        )
        """The rules that send clients of portals to endpoints."""
        self._detector = FailureDetector(
            reactor,
            self._connections.is_answered,
            prober.probe,
            self.rules.siblings,
            self.ejections,
        )
        self._stale_entries = StaleEntries(
            reactor, self._connections.delete_entry, prober.probe, self._detector
        )
        self.counts = ConnectionCounts(reactor, run, versions)
        """The number of open connections, and of all, of each service."""
        self._packet_log = PacketLog(
            reactor, LOG_GROUP, SNAPLEN, self._handle_packet, self._detection_failed
        )
        self._supervision = supervised_connections(run, self._treat_all_as_supervised)
        self._all_are_supervised = False
        self.problem: str | None = None
        """Why dead endpoints are not detected; ``None`` if they are."""

    def supports(self, service: VirtualService) -> bool:
        return kernel_supports(service)

    def problems(self, service: VirtualService) -> Iterator[Problem]:
        if service.least_connections:
            yield Problem(
                str(service.key.name),
                "in kernel mode endpoints are chosen at random, not by the fewest connections;"
                " use --mode user for that",
            )

    def endpoints(self, service: VirtualService) -> Sequence[EndpointStats]:
        return self.ejections.endpoints(service.key.protocol, service.endpoints)

    def stats(self, service: VirtualService) -> KernelStats:
        return self.counts.of(service)

    def totals(self) -> Mapping[Protocol, int]:
        return self.counts.totals()

    def startService(self) -> None:
        """Start the detection; if the kernel rejects that, log it and continue without."""
        super().startService()
        self._supervision.startService()
        self.counts.startService()
        self._start_detection()

    def _start_detection(self) -> None:
        self._retry = None
        try:
            self._connections.start()
            self._packet_log.start()
        except SteeringFailed as error:
            self._retry_detection(str(error))
            return
        self._detects = True
        if self.problem is not None:
            self.problem = None
            self.rules.reapply()

    def _detection_failed(self, reason: Failure) -> None:
        """Pass refusals to clients, because nothing retries for them, and start again later."""
        if self._detects:
            self._detects = False
            self._retry_detection(f"cannot read the kernel's packet log: {reason.value}")
            self.rules.reapply()

    def _retry_detection(self, problem: str) -> None:
        self._connections.stop()
        if self.problem is None:
            self._log.warn("{error}; retrying", error=problem)
        self.problem = problem
        self._retry = self._reactor.callLater(RETRY_SECONDS, self._start_detection)

    def _handle_packet(self, prefix: bytes, payload: bytes) -> None:
        what = parse_packet(prefix, payload)
        if what is None:
            return
        if not isinstance(what, LoggedRefusal):
            (self._stale_entries if what.is_stale else self._detector).attempted(what.attempt)
        elif what.is_stale:
            self._stale_entries.refused(what.attempt)
        elif what.has_no_route and what.attempt.target.protocol is Protocol.TCP:
            # A firewall may reject only that client.
            self._detector.suspect(what.attempt.target)
        else:
            self._detector.refused(what.attempt.target)

    def _treat_all_as_supervised(self, error: SteeringFailed) -> None:
        self._all_are_supervised = True
        self._log.warn(
            "{error}. Rules that drop connection refusals stay if this process is killed:"
            " clients of endpoints that refuse connections then wait until it runs again",
            error=error,
        )
        self.rules.reapply()

    async def _stop_detection(self) -> None:
        self._detects = False
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        counts_stopped, supervision_stopped = (
            self.counts.stopService(),
            self._supervision.stopService(),
        )
        self._packet_log.stop()
        self._detector.stop()
        self.ejections.stop()
        self._prober.stop()
        self._connections.stop()
        await counts_stopped
        await supervision_stopped
        try:
            await self.rules.end_ejections()
        except SteeringFailed as error:
            self._log.warn(
                "Rules remain that may exclude endpoints permanently: {error}; run yurttunnel"
                " proxy again or with --cleanup",
                error=error,
            )

    def stopService(self) -> Deferred[None]:
        """Stop the detection; fires when the rules have been changed accordingly."""
        super().stopService()
        return Deferred.fromCoroutine(self._stop_detection())

    def _portals(self, target: Target) -> Iterator[tuple[Address, int]]:
        """Yield the destinations of an endpoint's clients, with each address for a node port."""
        version = target.endpoint.address.version
        own = [
            each
            for each in self._addresses()
            if each.version == version
            and not (each.is_loopback or each.is_link_local)
            and has_node_ports(each, self._node_ports)
        ]
        for portal in self.rules.portals(target):
            addresses = own if portal.address is None else (portal.address,)
            yield from ((each, portal.port) for each in addresses)

    def _common(self, version: int) -> Part:
        return common(
            version,
            detects=self._detects,
            all_are_supervised=self._all_are_supervised,
            # Read at each sync, so that a change applies without a restart.
            drops_invalid=not is_on(BE_LIBERAL),
        )
