"""One UDP client: a socket that is connected to its endpoint, and whose replies go back to it."""

from __future__ import annotations

import errno
import os
import socket
from typing import TYPE_CHECKING, Any

from twisted.internet.error import ConnectionDone
from twisted.internet.interfaces import IReadWriteDescriptor
from twisted.python.failure import Failure
from zope.interface import implementer

from yurttunnel.proxy.sockets.dialing import NO_SOURCE_ADDRESS
from yurttunnel.proxy.sockets.local_address import from_local_address
from yurttunnel.proxy.state.virtual_services import Endpoint

if TYPE_CHECKING:
    from yurttunnel.proxy.sockets.udp import UdpProxySocket

MAX_DATAGRAMS = 64
"""The maximum number of datagrams taken from one socket before others are served."""

_UNREACHABLE = frozenset(
    {
        errno.EACCES,
        errno.ECONNREFUSED,
        errno.EHOSTDOWN,
        errno.EHOSTUNREACH,
        errno.ENETDOWN,
        errno.ENETUNREACH,
        errno.ENOPROTOOPT,
        errno.EPROTO,
    }
)
"""The errors that ICMP messages about a datagram cause (``icmp_err_convert`` of net/ipv4/icmp.c,
``tab_unreach`` of net/ipv6/icmp.c), and a missing route. After any other error (no buffer space, a
firewall's EPERM, EMSGSIZE for a datagram larger than the path MTU) the datagram is lost, as it may
be in the network."""

Key = tuple[Any, bytes]
"""The address of a client as in the socket module, and the local address that it uses, packed."""


@implementer(IReadWriteDescriptor)
class UdpClient:
    """Forwards datagrams of a client to its endpoint by the socket ``opened``, and the replies
    back.

    Replies have the address that the client has sent to as their source. ``endpoint`` is ``None``
    until one is dialed, and ``tried`` are the endpoints that have refused since one was last
    confirmed. For the table, ``used`` is the tick of the last use, and ``dialed`` the tick when it
    got its endpoint. It is ``answered`` once there has been a reply, and ``confirmed`` if its
    current endpoint has replied, or has not refused for long enough.
    """

    __slots__ = (
        "_ancillary",
        "_buffer",
        "_expected",
        "_owner",
        "_receive",
        "_reply",
        "_socket",
        "_source",
        "_table",
        "answered",
        "closed",
        "confirmed",
        "dialed",
        "endpoint",
        "first",
        "key",
        "limit",
        "tried",
        "used",
    )

    def __init__(self, owner: UdpProxySocket, opened: socket.socket, key: Key) -> None:
        self._owner = owner
        self._table = owner.table
        self._buffer = owner.buffer
        self._socket = opened
        self._receive = opened.recv_into
        self._reply = owner.listener.sendmsg
        self._source, local = key
        self._ancillary = from_local_address(local)
        # As many as the last time, and more if all of them were there: a read without a result
        # costs as much as a datagram.
        self._expected = 1
        self.key = key
        self.limit = owner.limit
        self.used = self.dialed = 0
        self.answered = self.confirmed = self.closed = False
        self.endpoint: Endpoint | None = None
        self.tried: tuple[Endpoint, ...] = ()
        self.first: bytes | None = None

    @property
    def host(self) -> str:
        """The client's address as text."""
        host: str = self._source[0]
        return host

    # -- towards the endpoint ------------------------------------------------------------------

    def store_first(self, data: memoryview) -> None:
        """Keep the first datagram, to send it to another endpoint if one refuses it."""
        if self._table.reserve(len(data)):
            self.first = bytes(data)

    def dial(self, endpoint: Endpoint) -> str | None:
        """Send to ``endpoint`` from now on; return the reason if that fails.

        Raises ``BlockingIOError`` if no local port is left, and another ``OSError`` if no socket
        can be opened or registered, or if there is no source address (:data:`NO_SOURCE_ADDRESS`).
        """
        if self.tried:
            self._replace_socket()
        try:
            self._socket.connect((str(endpoint.address), endpoint.port))
        except OSError as error:
            if isinstance(error, BlockingIOError) or error.errno == NO_SOURCE_ADDRESS:
                raise
            return _text(error.errno)
        self._owner.descriptors.addReader(self)
        self.endpoint = endpoint
        self.confirmed = False
        self.dialed = self._table.tick
        return None

    def send_first(self) -> None:
        """Send the kept datagram, if there is one."""
        if self.first is not None:
            self._try_send(self.first)

    def send(self, data: memoryview) -> None:
        """Send a datagram to the endpoint, or to another if that refused an earlier datagram."""
        if not self._try_send(data) and not self.closed:
            # The error was about the previous datagram.
            self.send(data)

    # -- IReadWriteDescriptor ------------------------------------------------------------------

    def fileno(self) -> int:
        return self._socket.fileno()

    def logPrefix(self) -> str:
        return "UDP client"

    def doRead(self) -> None:
        """Forward replies to the client."""
        table = self._table
        for count in range(self._expected):
            try:
                size = self._receive(self._buffer)
            except BlockingIOError:
                self._expected = max(1, count)
                return
            except OSError as error:
                self._failed(error.errno)
                return
            if self.used != table.tick:
                table.touch(self)
            if not self.confirmed:
                self._first_reply()
            try:
                self._reply((self._buffer[:size],), self._ancillary, 0, self._source)
            except OSError:
                # It is lost: there is no buffer space or route, or that local address no longer
                # exists.
                continue
            self._owner.sent += size
        self._expected = min(2 * self._expected, MAX_DATAGRAMS)

    def doWrite(self) -> None:
        """Do nothing: it is not registered for writing."""

    def connectionLost(self, reason: Failure) -> None:
        """Handle an error of the descriptor that the reactor reports, or that the reactor stops."""
        if reason.check(ConnectionDone) is None:
            self.end()
            return
        self._owner.descriptors.addReader(self)
        # The error may already have been returned to a datagram sent in the meantime.
        self._failed(self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))

    # -- for the table -------------------------------------------------------------------------

    def confirm(self) -> None:
        """Consider the endpoint reachable."""
        self.confirmed = True
        self.tried = ()
        self._drop_first()
        if self.endpoint is not None:
            self._owner.connected(self.endpoint)

    def end(self) -> None:
        """Remove the client, and close its socket."""
        if self.closed:
            return
        self.closed = True
        self._drop_first()
        self._table.remove(self)
        self._owner.descriptors.remove(self)
        self._socket.close()
        self._owner.ended(self)

    # -- helpers -------------------------------------------------------------------------------

    def _replace_socket(self) -> None:
        """Replace the socket: a connected one keeps the source address for its first endpoint, from
        which others may not be reachable.
        """
        self._owner.descriptors.remove(self)
        self._socket.close()
        self._socket = socket_to_endpoint(self._socket.family)
        self._receive = self._socket.recv_into

    def _try_send(self, data: bytes | memoryview) -> bool:
        """Send; return whether the endpoint is still the same."""
        try:
            self._socket.send(data)
        except OSError as error:
            return not self._failed(error.errno)
        return True

    def _first_reply(self) -> None:
        self.confirm()
        if not self.answered:
            self._table.replied(self)

    def _failed(self, number: int | None) -> bool:
        """Use another endpoint if the error means that this one is unreachable; return whether."""
        is_unreachable = number in _UNREACHABLE
        if is_unreachable:
            self._owner.unreachable(self, _text(number))
        return is_unreachable

    def _drop_first(self) -> None:
        if self.first is not None:
            self._table.release(len(self.first))
            self.first = None


def socket_to_endpoint(family: int) -> socket.socket:
    """Open a socket for a client."""
    return socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)


def _text(number: int | None) -> str:
    return os.strerror(number or 0)
