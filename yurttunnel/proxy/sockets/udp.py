"""Proxy sockets for UDP: a client has an endpoint for as long as it is not idle."""

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
from yurttunnel.proxy.sockets.dialing import LOOP, NO_SOURCE, PLAN
from yurttunnel.proxy.sockets.local_address import SPACE, ask_for_local_address, local_address
from yurttunnel.proxy.sockets.ports import PortAllocator
from yurttunnel.proxy.sockets.udp_client import MOST_DATAGRAMS, Key, UdpClient, socket_to_endpoint
from yurttunnel.proxy.sockets.udp_shares import UdpShares
from yurttunnel.proxy.sockets.udp_table import MOST_ENDED, UdpClientTable
from yurttunnel.proxy.state.virtual_services import Endpoint, Protocol, VirtualService
from yurttunnel.tunnel.direct.descriptors import DescriptorSet

LARGEST = 65_535
"""Bytes of a datagram at most (RFC 768; IPv6 jumbograms are not known here)."""

MOST_TRIES = len(PLAN)
"""Endpoints that a client's first datagram is sent to, one after the other: as many as a TCP client
is connected to."""

_RECEIVE_BUFFER = 1 << 20
"""Bytes that may wait in the kernel. A datagram of 64 bytes takes 768 of them, so that the default
(``net.core.rmem_default``, 212,992) is full after 277 of them."""

_SO_RCVBUFFORCE = 33
"""Of asm-generic/socket.h; takes CAP_NET_ADMIN, as the firewall rules do."""


@implementer(IProxySockets)
class UdpSockets:
    """Opens proxy sockets for UDP, which share all of it.

    ``buffer`` is where a datagram is until it is sent on.
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
        self.buffer = memoryview(bytearray(LARGEST))

    def open(self, service: VirtualService, picker: IEndpointPicker) -> IProxySocket:
        """See :class:`IProxySockets`."""
        listener = self.allocator.open(service.key)
        try:
            ask_for_local_address(listener)
            _widen(listener)
            return UdpProxySocket(self, listener, picker, service)
        except OSError:
            # It may not be possible to watch it; the next attempt is to find the port free.
            self.allocator.close(listener)
            raise


@implementer(IProxySocket, IReadWriteDescriptor)
class UdpProxySocket:
    """Carries datagrams between the clients of one virtual service and its endpoints."""

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
        self.shares = UdpShares(self.table.most_of_service)
        self.sent = 0
        # Of each service by itself: one must not hide what is wrong with another.
        self._limited = RateLimitedLog(context.clock, self._log)
        self._allocator = context.allocator
        self._picker = picker
        self._service = service
        self._of_endpoint: dict[Endpoint, dict[UdpClient, None]] = {}
        self._into = (self.buffer,)
        self._expected = 1
        self._total = self._failed = self._received = 0
        self._stopped: Deferred[None] | None = None
        self._drain: IDelayedCall | None = None
        self.descriptors.addReader(self)

    # -- IProxySocket --------------------------------------------------------------------------

    def update(self, service: VirtualService) -> None:
        """See :class:`IProxySocket`."""
        self._service = service
        for endpoint in self._of_endpoint.keys() - set(service.endpoints):
            self._end_all(iter(list(self._of_endpoint[endpoint])))

    def stop(self, drain: float | None) -> Deferred[None]:
        """See :class:`IProxySocket`; clients of before are served until the end."""
        if self.listener.fileno() < 0:
            return succeed(None)
        stopped = self._stopped = self._stopped or Deferred()
        if not self.clients:
            self._close()
        elif drain is not None and self._drain is None:
            self._drain = self.descriptors.callLater(drain, self._drained)
        return stopped

    def stats(self) -> SocketStats:
        """See :class:`IProxySocket`."""
        return SocketStats(len(self.clients), self._total, self._failed, self._received, self.sent)

    # -- IReadWriteDescriptor ------------------------------------------------------------------

    def fileno(self) -> int:
        """Return the descriptor of the socket."""
        return self.listener.fileno()

    def logPrefix(self) -> str:
        """Name it in the log."""
        return f"UDP port {self.port}"

    def doRead(self) -> None:
        """Send what has come to endpoints."""
        table, clients = self.table, self.clients
        for taken in range(self._expected):
            try:
                size, ancillary, _, source = self.listener.recvmsg_into(self._into, SPACE)
            except OSError:
                # There is no more, mostly.
                self._expected = max(1, taken)
                return
            self._received += size
            try:
                key = source, local_address(ancillary)
                client = clients.get(key)
                if client is None:
                    self._begin(key, self.buffer[:size])
                    continue
                if client.used != table.tick:
                    table.touch(client)
                client.send(self.buffer[:size])
            except Exception:
                # One client does not take the port with it.
                self._log.failure("Defect: a datagram to a Service could not be passed on")
        self._expected = min(2 * self._expected, MOST_DATAGRAMS)

    def doWrite(self) -> None:
        """Do nothing: it is not registered for writing."""

    def connectionLost(self, reason: Failure) -> None:
        """Be told that the reactor stops; no ICMP message reaches a socket without a peer."""
        if self._stopped is None:
            self._stopped = Deferred()
        self._drained()

    # -- for clients ---------------------------------------------------------------------------

    def connected(self, endpoint: Endpoint) -> None:
        """Note that a client's endpoint is there."""
        self._picker.connected(endpoint)

    def unreachable(self, client: UdpClient, why: str) -> None:
        """Find another endpoint for a client, or end it."""
        endpoint = self._leave(client)
        if endpoint is not None:
            self._picker.failed(endpoint, why)
            client.tried += (endpoint,)
            why = f"{endpoint}: {why}"
        self._dial(client, why)

    def ended(self, client: UdpClient) -> None:
        """Forget a client."""
        del self.clients[client.key]
        endpoint = self._leave(client)
        if endpoint is not None:
            self._picker.ended(endpoint)
        if self._stopped is not None and not self.clients:
            self._close()

    # -- helpers -------------------------------------------------------------------------------

    def _begin(self, key: Key, data: memoryview) -> None:
        if self._stopped is not None:
            return
        opened = self._open()
        if opened is None:
            self._failed += 1
            return
        client = self.clients[key] = UdpClient(self, opened, key)
        self.table.add(client)
        self._total += 1
        client.keep(data)
        self._dial(client)
        if client.first is None and not client.closed:
            client.send(data)

    def _open(self) -> socket.socket | None:
        """Return a socket for a client, at the cost of another one if there must be no more."""
        for _ in range(2):
            with contextlib.suppress(OSError):
                return socket_to_endpoint(self.listener.family)
            self.table.shares.evict()
        return None

    def _dial(self, client: UdpClient, why_not: str = "it has no endpoints") -> None:
        """Have a client use an endpoint that it has not tried, or end it if there is none.

        ``why_not`` is why it has none yet.
        """
        while (endpoint := self._next(client)) is not None:
            try:
                is_loop = self._allocator.is_loop(Protocol.UDP, endpoint)
                why = LOOP if is_loop else client.dial(endpoint)
            except OSError as error:
                # This machine has no more, for which the endpoint is not to blame.
                self._picker.ended(endpoint)
                if error.errno == NO_SOURCE:
                    client.tried += (endpoint,)
                    why_not = f"{endpoint}: {error.strerror}"
                    continue
                self.table.shares.evict()
                is_port = isinstance(error, BlockingIOError)
                why_not = "no local port is left" if is_port else f"no socket: {error.strerror}"
                break
            if why is None:
                self._of_endpoint.setdefault(endpoint, {})[client] = None
                client.send_first()
                return
            self._picker.failed(endpoint, why)
            client.tried += (endpoint,)
            why_not = f"{endpoint}: {why}"
        self._failed += 1
        self._limited.warn(
            "A client of {service} got no endpoint: {why}",
            service=self._service.key,
            why=why_not,
        )
        client.end()

    def _next(self, client: UdpClient) -> Endpoint | None:
        if len(client.tried) >= MOST_TRIES:
            return None
        endpoint = self._picker.pick(client.host, client.tried)
        if endpoint is not None and endpoint in client.tried:
            self._picker.ended(endpoint)
            return None
        return endpoint

    def _leave(self, client: UdpClient) -> Endpoint | None:
        """Take a client from its endpoint, and return that."""
        endpoint, client.endpoint = client.endpoint, None
        if endpoint is not None:
            its = self._of_endpoint[endpoint]
            del its[client]
            if not its:
                del self._of_endpoint[endpoint]
        return endpoint

    def _drained(self) -> None:
        self._drain = None
        self.descriptors.remove(self)
        self._end_all(iter(list(self.clients.values())))
        if not self.clients:
            self._close()

    def _end_all(self, clients: Iterator[UdpClient]) -> None:
        """End clients, not too many in one turn of the reactor."""
        some = list(islice(clients, MOST_ENDED))
        for client in some:
            client.end()
        if len(some) == MOST_ENDED:
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


def _widen(receiving: socket.socket) -> None:
    """Have a burst of all clients wait rather than be lost."""
    try:
        receiving.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _RECEIVE_BUFFER)
    except PermissionError:
        receiving.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER)
