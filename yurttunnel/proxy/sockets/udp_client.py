"""One client by UDP: a connected socket to its endpoint, whose replies go back to it."""

from __future__ import annotations

import errno
import os
import socket
from typing import TYPE_CHECKING, Any

from twisted.internet.error import ConnectionDone
from twisted.internet.interfaces import IReadWriteDescriptor
from twisted.python.failure import Failure
from zope.interface import implementer

from yurttunnel.proxy.sockets.dialing import NO_SOURCE
from yurttunnel.proxy.sockets.local_address import from_local_address
from yurttunnel.proxy.state.virtual_services import Endpoint

if TYPE_CHECKING:
    from yurttunnel.proxy.sockets.udp import UdpProxySocket

MOST_DATAGRAMS = 64
"""Datagrams of one socket that are taken before others of the round are served."""

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
"""What ICMP messages about a datagram become (``icmp_err_convert`` of net/ipv4/icmp.c,
``tab_unreach`` of net/ipv6/icmp.c), and what a missing route does. Everything else, no room, a
firewall's EPERM or one too large for the way (EMSGSIZE), loses a datagram, as the network may."""

Key = tuple[Any, bytes]
"""The address of a client as the socket module has it, and that of this machine, packed."""


@implementer(IReadWriteDescriptor)
class UdpClient:
    """Sends what a client sends to its endpoint by ``opened``, a socket, and the replies back.

    They leave from the address that the client has sent to. ``endpoint`` is ``None`` until there is
    one, and ``tried`` are those that have refused since one was there. For the table ``used`` is
    the tick of its last use, and ``dialed`` that since which it has had its endpoint. It has been
    ``answered`` once there has been a reply, and is ``confirmed`` where its endpoint has replied,
    or has long not refused.
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
        "shares",
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
        # As many as the last time, and more if there were that many: a look at what is not there
        # costs as much as a datagram.
        self._expected = 1
        self.key = key
        self.shares = owner.shares
        self.used = self.dialed = 0
        self.answered = self.confirmed = self.closed = False
        self.endpoint: Endpoint | None = None
        self.tried: tuple[Endpoint, ...] = ()
        self.first: bytes | None = None

    @property
    def host(self) -> str:
        """Its address as text."""
        host: str = self._source[0]
        return host

    # -- towards the endpoint ------------------------------------------------------------------

    def keep(self, data: memoryview) -> None:
        """Keep its first datagram, to be sent again to another endpoint where one refuses it."""
        if self._table.keep(len(data)):
            self.first = bytes(data)

    def dial(self, endpoint: Endpoint) -> str | None:
        """Send to ``endpoint`` from now on; return why that cannot be.

        Raises ``BlockingIOError`` where no local port is left, and another ``OSError`` where no
        socket can be opened or watched, or has an address to come from (:data:`NO_SOURCE`).
        """
        if self.tried:
            self._renew()
        try:
            self._socket.connect((str(endpoint.address), endpoint.port))
        except OSError as error:
            if isinstance(error, BlockingIOError) or error.errno == NO_SOURCE:
                raise
            return _text(error.errno)
        self._owner.descriptors.addReader(self)
        self.endpoint = endpoint
        self.confirmed = False
        self.dialed = self._table.tick
        return None

    def send_first(self) -> None:
        """Send the datagram that is kept, if one is."""
        if self.first is not None:
            self._is_taken(self.first)

    def send(self, data: memoryview) -> None:
        """Send a datagram to the endpoint, to another one where that has refused one before."""
        if not self._is_taken(data) and not self.closed:
            # What has been refused was the one before.
            self.send(data)

    # -- IReadWriteDescriptor ------------------------------------------------------------------

    def fileno(self) -> int:
        """Return the descriptor of the socket."""
        return self._socket.fileno()

    def logPrefix(self) -> str:
        """Name it in the log."""
        return "UDP client"

    def doRead(self) -> None:
        """Send replies back."""
        table = self._table
        for taken in range(self._expected):
            try:
                size = self._receive(self._buffer)
            except BlockingIOError:
                self._expected = max(1, taken)
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
                # No room, no route, or that address of this machine has gone: it is lost.
                continue
            self._owner.sent += size
        self._expected = min(2 * self._expected, MOST_DATAGRAMS)

    def doWrite(self) -> None:
        """Do nothing: it is not registered for writing."""

    def connectionLost(self, reason: Failure) -> None:
        """Find out what the reactor reports of the descriptor, or be told that it stops."""
        if reason.check(ConnectionDone) is None:
            self.end()
            return
        self._owner.descriptors.addReader(self)
        # None is left where a datagram that was sent in the meantime has met it.
        self._failed(self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))

    # -- for the table -------------------------------------------------------------------------

    def confirm(self) -> None:
        """Take it that the endpoint is there."""
        self.confirmed = True
        self.tried = ()
        self._keep_no_more()
        if self.endpoint is not None:
            self._owner.connected(self.endpoint)

    def end(self) -> None:
        """Forget the client, and close its socket."""
        if self.closed:
            return
        self.closed = True
        self._keep_no_more()
        self._table.remove(self)
        self._owner.descriptors.remove(self)
        self._socket.close()
        self._owner.ended(self)

    # -- helpers -------------------------------------------------------------------------------

    def _renew(self) -> None:
        """Have another socket: one that has been connected keeps the source address that leads to
        its first endpoint, which may lead to no other.
        """
        self._owner.descriptors.remove(self)
        self._socket.close()
        self._socket = socket_to_endpoint(self._socket.family)
        self._receive = self._socket.recv_into

    def _is_taken(self, data: bytes | memoryview) -> bool:
        """Send; return whether the endpoint is still the same."""
        try:
            self._socket.send(data)
        except OSError as error:
            return not self._failed(error.errno)
        return True

    def _first_reply(self) -> None:
        self.confirm()
        if not self.answered:
            self._table.reply_came(self)

    def _failed(self, number: int | None) -> bool:
        """Have another endpoint where the error tells of this one; return whether it does."""
        is_unreachable = number in _UNREACHABLE
        if is_unreachable:
            self._owner.unreachable(self, _text(number))
        return is_unreachable

    def _keep_no_more(self) -> None:
        if self.first is not None:
            self._table.keep_no_more(len(self.first))
            self.first = None


def socket_to_endpoint(family: int) -> socket.socket:
    """Open a socket for a client."""
    return socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)


def _text(number: int | None) -> str:
    return os.strerror(number or 0)
