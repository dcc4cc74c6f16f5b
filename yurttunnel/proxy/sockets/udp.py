"""Proxy sockets for UDP: a client keeps its endpoint until it is idle."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from itertools import islice

from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IDelayedCall, IReactorTime, IReadWriteDescriptor
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from yurttunnel.ops.log import RateLimitedLog
from yurttunnel.proxy.interfaces import IEndpointPicker, IProxySocket, IProxySockets, SocketStats
from yurttunnel.proxy.sockets.dialing import LOOP_REASON, NO_SOURCE_ADDRESS, PLAN
from yurttunnel.proxy.sockets.local_address import SPACE, enable_local_address, local_address
from yurttunnel.proxy.sockets.ports import PortAllocator
from yurttunnel.proxy.sockets.udp_client import MAX_DATAGRAMS, Key, UdpClient, socket_to_endpoint
from yurttunnel.proxy.sockets.udp_table import MAX_ENDED_PER_TURN, UdpClientLimit, UdpClientTable
from yurttunnel.proxy.state.virtual_services import Endpoint, Protocol, VirtualService
from yurttunnel.tunnel.direct.descriptors import DescriptorSet

MAX_DATAGRAM_BYTES = 65_535
"""The maximum size of a datagram in bytes (RFC 768; IPv6 jumbograms are not supported)."""

MAX_TRIES = len(PLAN)
"""The maximum number of endpoints that a client's first datagram is sent to, one after the other:
as many as for a TCP client."""

_RECEIVE_BUFFER = 1 << 20
"""The receive buffer in bytes. A datagram of 64 bytes takes 768, so that the default
(``net.core.rmem_default``, 212,992) is full after 277 of them."""

_SO_RCVBUFFORCE = 33
"""From asm-generic/socket.h; requires CAP_NET_ADMIN, as firewall rules do."""


@implementer(IProxySockets)
class UdpSockets:
    """Opens proxy sockets for UDP; these attributes are shared by all of them.

    ``buffer`` holds a datagram while it is forwarded.
    """

    def __init__(
        self,
        clock: IReactorTime,
        descriptors: DescriptorSet,
        allocator: PortAllocator,
        table: UdpClientTable,
    ) -> None:
        self.clock = clock
        self.descriptors = descriptors
        self.allocator = allocator
        self.table = table
        self.buffer = memoryview(bytearray(MAX_DATAGRAM_BYTES))

    def open(self, service: VirtualService, picker: IEndpointPicker) -> IProxySocket:
        listener = self.allocator.open(service.key)
        try:
            enable_local_address(listener)
            _enlarge_buffer(listener)
            return UdpProxySocket(self, listener, picker, service)
        except OSError:
            # Registering it may have failed; the next attempt must find the port free.
            self.allocator.close(listener)
            raise


@implementer(IProxySocket, IReadWriteDescriptor)
class UdpProxySocket:
    """Forwards datagrams between the clients of one virtual service and its endpoints."""

    _log = Logger()

    def __init__(
        self,
        context: UdpSockets,
        listener: socket.socket,
        picker: IEndpointPicker,
        service: VirtualService,
    ) -> None:
        self.descriptors = context.descriptors
        self.table = context.table
        self.buffer = context.buffer
        self.listener = listener
        self.port: int = listener.getsockname()[1]
        self.clients: dict[Key, UdpClient] = {}
        self.limit = UdpClientLimit(self.table.max_per_service)
        self.sent = 0
        # One log limit for each service: the messages of one must not suppress those of another.
        self._limited = RateLimitedLog(context.clock, self._log)
        self._allocator = context.allocator
        self._picker = picker
        self._service = service
        self._by_endpoint: dict[Endpoint, dict[UdpClient, None]] = {}
        self._into = (self.buffer,)
        self._expected = 1
        self._total = self._failed = self._received = 0
        self._stopped: Deferred[None] | None = None
        self._drain: IDelayedCall | None = None
        self.descriptors.addReader(self)

    # -- IProxySocket --------------------------------------------------------------------------

    def update(self, service: VirtualService) -> None:
        self._service = service
        for endpoint in self._by_endpoint.keys() - set(service.endpoints):
            self._end_all(iter(list(self._by_endpoint[endpoint])))

    def stop(self, drain: float | None) -> Deferred[None]:
        """See :class:`IProxySocket`; existing clients are served until the end."""
        if self.listener.fileno() < 0:
            return succeed(None)
        stopped = self._stopped = self._stopped or Deferred()
        if not self.clients:
            self._close()
        elif drain is not None and self._drain is None:
            self._drain = self.descriptors.callLater(drain, self._drained)
        return stopped

    def stats(self) -> SocketStats:
        return SocketStats(len(self.clients), self._total, self._failed, self._received, self.sent)

    # -- IReadWriteDescriptor ------------------------------------------------------------------

    def fileno(self) -> int:
        return self.listener.fileno()

    def logPrefix(self) -> str:
        return f"UDP port {self.port}"

    def doRead(self) -> None:
        """Forward received datagrams to endpoints."""
        table, clients = self.table, self.clients
        for count in range(self._expected):
            try:
                size, ancillary, _, source = self.listener.recvmsg_into(self._into, SPACE)
            except OSError:
                # Usually there are no more datagrams.
                self._expected = max(1, count)
                return
            self._received += size
            try:
                key = source, local_address(ancillary)
                client = clients.get(key)
                if client is None:
                    self._add_client(key, self.buffer[:size])
                    continue
                if client.used != table.tick:
                    table.touch(client)
                client.send(self.buffer[:size])
            except Exception:
                # An error with one client must not end the port.
                self._log.failure("Defect: a datagram to a Service could not be forwarded")
        self._expected = min(2 * self._expected, MAX_DATAGRAMS)

    def doWrite(self) -> None:
        """Do nothing: it is not registered for writing."""

    def connectionLost(self, reason: Failure) -> None:
        """Handle that the reactor stops; a socket without a peer gets no ICMP errors."""
        if self._stopped is None:
            self._stopped = Deferred()
        self._drained()

    # -- for clients ---------------------------------------------------------------------------

    def connected(self, endpoint: Endpoint) -> None:
        """Record that a client's endpoint responds."""
        self._picker.connected(endpoint)

    def unreachable(self, client: UdpClient, why: str) -> None:
        """Find another endpoint for a client, or end it."""
        endpoint = self._detach(client)
        if endpoint is not None:
            self._picker.failed(endpoint, why)
            client.tried += (endpoint,)
            why = f"{endpoint}: {why}"
        self._dial(client, why)

    def ended(self, client: UdpClient) -> None:
        """Remove a client."""
        del self.clients[client.key]
        endpoint = self._detach(client)
        if endpoint is not None:
            self._picker.ended(endpoint)
        if self._stopped is not None and not self.clients:
            self._close()

    # -- helpers -------------------------------------------------------------------------------

    def _add_client(self, key: Key, data: memoryview) -> None:
        if self._stopped is not None:
            return
        opened = self._open()
        if opened is None:
            self._failed += 1
            return
        client = self.clients[key] = UdpClient(self, opened, key)
        self.table.add(client)
        self._total += 1
        client.store_first(data)
        self._dial(client)
        if client.first is None and not client.closed:
            client.send(data)

    def _open(self) -> socket.socket | None:
        """Return a socket for a client; if there are too many, end another client first."""
        for _ in range(2):
            with contextlib.suppress(OSError):
                return socket_to_endpoint(self.listener.family)
            self.table.limit.evict()
        return None

    def _dial(self, client: UdpClient, why_not: str = "it has no endpoints") -> None:
        """Connect a client to an endpoint that it has not tried, or end it if there is none.

        ``why_not`` is the reason why it has no endpoint yet.
        """
        while (endpoint := self._next_endpoint(client)) is not None:
            try:
                is_loop = self._allocator.is_loop(Protocol.UDP, endpoint)
                why = LOOP_REASON if is_loop else client.dial(endpoint)
            except OSError as error:
                # This machine has run out of a resource, which is no failure of the endpoint.
                self._picker.ended(endpoint)
                if error.errno == NO_SOURCE_ADDRESS:
                    client.tried += (endpoint,)
                    why_not = f"{endpoint}: {error.strerror}"
                    continue
                self.table.limit.evict()
                is_port = isinstance(error, BlockingIOError)
                why_not = "no local port is left" if is_port else f"no socket: {error.strerror}"
                break
            if why is None:
                self._by_endpoint.setdefault(endpoint, {})[client] = None
                client.send_first()
                return
            self._picker.failed(endpoint, why)
            client.tried += (endpoint,)
            why_not = f"{endpoint}: {why}"
        self._failed += 1
        self._limited.warn(
            "A client of {service} got no endpoint: {why}", service=self._service.key, why=why_not
        )
        client.end()

    def _next_endpoint(self, client: UdpClient) -> Endpoint | None:
        if len(client.tried) >= MAX_TRIES:
            return None
        endpoint = self._picker.pick(client.host, client.tried)
        if endpoint is not None and endpoint in client.tried:
            self._picker.ended(endpoint)
            return None
        return endpoint

    def _detach(self, client: UdpClient) -> Endpoint | None:
        """Remove a client from its endpoint, and return the endpoint."""
        endpoint, client.endpoint = client.endpoint, None
        if endpoint is not None:
            clients_of_endpoint = self._by_endpoint[endpoint]
            del clients_of_endpoint[client]
            if not clients_of_endpoint:
                del self._by_endpoint[endpoint]
        return endpoint

    def _drained(self) -> None:
        self._drain = None
        self.descriptors.remove(self)
        self._end_all(iter(list(self.clients.values())))
        if not self.clients:
            self._close()

    def _end_all(self, clients: Iterator[UdpClient]) -> None:
        """End clients, a limited number in each reactor turn."""
        batch = list(islice(clients, MAX_ENDED_PER_TURN))
        for client in batch:
            client.end()
        if len(batch) == MAX_ENDED_PER_TURN:
            self.descriptors.callLater(0, self._end_all, clients)

    def _close(self) -> None:
        if self._drain is not None:
            self._drain.cancel()
            self._drain = None
        if self.listener.fileno() >= 0:
            self.descriptors.remove(self)
            self._allocator.close(self.listener)
            assert self._stopped is not None  # else it is not closed
            self._stopped.callback(None)


def _enlarge_buffer(receiving: socket.socket) -> None:
    """Set a buffer that can hold a burst of all clients."""
    try:
        receiving.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _RECEIVE_BUFFER)
    except PermissionError:
        receiving.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER)
