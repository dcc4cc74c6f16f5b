"""TCP proxy sockets."""

from __future__ import annotations

import resource
import socket
from dataclasses import dataclass
from itertools import islice

from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from zope.interface import implementer

from yurttunnel.http.shared_limit import SharedLimit
from yurttunnel.ops.log import RateLimitedLog
from yurttunnel.proxy.interfaces import IEndpointPicker, IProxySocket, IProxySockets, SocketStats
from yurttunnel.proxy.sockets.dialer import TcpDialer
from yurttunnel.proxy.sockets.dialing import Dialing
from yurttunnel.proxy.sockets.half_closed import MAX_ENDED_PER_TURN, HalfClosed
from yurttunnel.proxy.sockets.listener import Listener
from yurttunnel.proxy.sockets.pacing import pacing
from yurttunnel.proxy.sockets.pipes import PipePool
from yurttunnel.proxy.sockets.ports import PortAllocator
from yurttunnel.proxy.sockets.proxy_protocol import header
from yurttunnel.proxy.sockets.relay import Relay, RelayContext, reset
from yurttunnel.proxy.state.virtual_services import Endpoint, Protocol, VirtualService
from yurttunnel.steering.original_destination import original_destination, own_address
from yurttunnel.tunnel.direct.descriptors import DescriptorSet
from yurttunnel.tunnel.sockets import tune_local_socket

MAX_PER_SERVICE = 16_384
"""The maximum number of connections of one service port."""

MAX_DIALING = 2_048
"""The maximum number of waiting clients of one service port, each for at most 3.75 s."""

_SHARE = 4
"""One connection for so many descriptors: it uses two, and as many are left for listeners, claimed
ports, UDP clients and pipes."""


def max_connections() -> int:
    """Return the number of connections that the descriptors of this process allow."""
    return max(1, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // _SHARE)


@implementer(IProxySockets)
@dataclass(frozen=True, slots=True)
class TcpProxySockets:
    """Opens TCP proxy sockets, and has what those of one process share."""

    clock: IReactorTime
    relay: RelayContext
    ports: PortAllocator
    connections: SharedLimit
    dialer: TcpDialer
    max_per_service: int = MAX_PER_SERVICE
    max_dialing: int = MAX_DIALING

    def open(self, service: VirtualService, picker: IEndpointPicker) -> IProxySocket:
        listening = self.ports.open(service.key)
        # Accepted connections inherit these options in Linux.
        tune_local_socket(listening)
        self.relay.pacing.use_reno(listening)
        return TcpProxySocket(self, service, picker, listening)

    def close(self) -> None:
        """Close the shared parts; all proxy sockets have been stopped before."""
        self.relay.half_closed.stop()
        self.relay.pipes.close()


def tcp_proxy_sockets(
    clock: IReactorTime, descriptors: DescriptorSet, ports: PortAllocator, max_connections: int
) -> TcpProxySockets:
    """Make the factory for a process that may have ``max_connections`` TCP connections."""
    paced = pacing()
    relay = RelayContext(descriptors, PipePool(), HalfClosed(descriptors), paced)
    return TcpProxySockets(clock, relay, ports, SharedLimit(max_connections), TcpDialer(paced))


@implementer(IProxySocket)
class TcpProxySocket:
    """Accepts the clients of one virtual service on ``listening``, and dials endpoints for them."""

    _log = Logger()

    def __init__(
        self,
        context: TcpProxySockets,
        service: VirtualService,
        picker: IEndpointPicker,
        listening: socket.socket,
    ) -> None:
        self.port: int = listening.getsockname()[1]
        self.picker = picker
        self.dialer = context.dialer
        self.descriptors = context.relay.descriptors
        self._context = context
        # One log limit for each service: the messages of one must not suppress those of another.
        self._limited = RateLimitedLog(context.clock, self._log)
        self._service = service
        self._listening = listening
        self._dialings: set[Dialing] = set()
        # By relay, the address of its client.
        self._relays: dict[Relay, str] = {}
        self._connections = SharedLimit(context.max_per_service)
        # The counters of connections that have ended.
        self._total = self._failed = self._received = self._sent = 0
        self._draining: IDelayedCall | None = None
        self._stopped: Deferred[None] | None = None
        self._listener = Listener(
            self.descriptors, listening, self._accepted, self._full_reason, self._limited
        )
        self.update(service)

    # -- IProxySocket --------------------------------------------------------------------------

    def update(self, service: VirtualService) -> None:
        self._service = service
        if service.endpoints:
            self._listener.start()
        else:
            # This is faster than rules, and also works without rules.
            self._listener.refuse()

    def stop(self, drain: float | None) -> Deferred[None]:
        """Stop listening, and end connections after ``drain`` seconds; see :class:`IProxySocket`.

        Clients that the kernel has already connected are served.
        """
        if self._listening.fileno() >= 0:
            self._listener.stop()
            self._context.ports.close(self._listening)
        if not self._connections.used:
            return succeed(None)
        if self._stopped is None:
            self._stopped = Deferred()
        if drain is not None and self._draining is None:
            self._draining = self.descriptors.callLater(drain, self._end_all)
        return self._stopped

    def stats(self) -> SocketStats:
        return SocketStats(
            active=self._connections.used,
            total=self._total,
            failed=self._failed,
            received=self._received + sum(relay.received for relay in self._relays),
            sent=self._sent + sum(relay.sent for relay in self._relays),
        )

    # -- from clients to endpoints -------------------------------------------------------------

    def _full_reason(self) -> str | None:
        context = self._context
        if context.connections.is_full:
            return (
                f"the process has {context.connections.maximum} connections, the maximum for its"
                f" limit of open files; raise LimitNOFILE"
            )
        if self._connections.is_full:
            count = self._connections.used
            return f"{self._service.key} has {count} connections, the maximum of one service"
        if len(self._dialings) >= context.max_dialing:
            return f"{len(self._dialings)} clients of {self._service.key} wait for endpoints"
        return None

    def _accepted(self, client: socket.socket, peer: tuple[str, int]) -> None:
        self._total += 1
        counts = (self._context.connections, self._connections)
        has_share = all(each.has_room_for(peer[0]) for each in counts)
        for each in counts:
            each.add(peer[0], 1)
        if not has_share:
            self._reset(client, peer[0], "its address has used up its share of connections")
            return
        dialing = Dialing(self, client, peer)
        self._dialings.add(dialing)
        dialing.try_endpoints()

    def endpoint_count(self) -> int:
        """Return how many endpoints there are now."""
        return len(self._service.endpoints)

    def is_loop(self, endpoint: Endpoint) -> bool:
        """Return whether ``endpoint`` is a proxy socket of this process."""
        return self._context.ports.is_loop(Protocol.TCP, endpoint)

    def dialed(self, dialing: Dialing, server: socket.socket, endpoint: Endpoint) -> None:
        """Relay between a client and its endpoint."""
        self._dialings.discard(dialing)
        relay = Relay(self._context.relay, dialing.client, server, endpoint, self._ended)
        self._relays[relay] = dialing.peer[0]
        try:
            if self._service.proxy_protocol and not self._send_proxy_header(dialing, server):
                relay.reset()
            else:
                relay.start()
        except Exception:
            self._log.failure("Defect: a client and its endpoint could not be connected")
            relay.reset()

    def not_dialed(self, dialing: Dialing, why: str) -> None:
        """Reset a client for which no endpoint is reachable."""
        self._dialings.discard(dialing)
        self._reset(dialing.client, dialing.peer[0], why)

    def _reset(self, client: socket.socket, client_address: str, why: str) -> None:
        self._failed += 1
        self._limited.warn(
            "A client of {service} is reset: {why}", service=self._service.key, why=why
        )
        self._reset_client(client, client_address)

    def _send_proxy_header(self, dialing: Dialing, server: socket.socket) -> bool:
        """Send the PROXY protocol's header to the endpoint; return whether it was sent."""
        client = dialing.client
        try:
            portal = original_destination(client) or own_address(client)
            proxy_header = header(
                self._service.proxy_protocol,
                client.family,
                dialing.peer,
                (str(portal.address), portal.port),
            )
            # The header is the first data, so it fits into the socket's buffer.
            return server.send(proxy_header) == len(proxy_header)
        except OSError:
            return False

    # -- the end -------------------------------------------------------------------------------

    def _ended(self, relay: Relay) -> None:
        client_address = self._relays.pop(relay)
        self._received += relay.received
        self._sent += relay.sent
        self._count_end(client_address)
        self.picker.ended(relay.endpoint)

    def _reset_client(self, client: socket.socket, client_address: str) -> None:
        reset(client)
        self._count_end(client_address)

    def _count_end(self, client_address: str) -> None:
        self._context.connections.add(client_address, -1)
        self._connections.add(client_address, -1)
        if self._stopped is not None and not self._connections.used:
            self._finish(self._stopped)

    def _finish(self, stopped: Deferred[None]) -> None:
        self._stopped = None
        if self._draining is not None and self._draining.active():
            self._draining.cancel()
        stopped.callback(None)

    def _end_all(self) -> None:
        """Reset the remaining connections, because data may be missing; a limited number in each
        reactor turn.
        """
        for dialing in list(islice(self._dialings, MAX_ENDED_PER_TURN)):
            dialing.stop()
            self._dialings.discard(dialing)
            self._reset_client(dialing.client, dialing.peer[0])
        for relay in list(islice(self._relays, MAX_ENDED_PER_TURN)):
            relay.reset()
        if self._dialings or self._relays:
            self._draining = self.descriptors.callLater(0, self._end_all)
