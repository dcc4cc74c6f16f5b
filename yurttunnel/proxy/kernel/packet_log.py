"""Reading the kernel's packet log (nflog)."""

from __future__ import annotations

import errno
import struct
from collections.abc import Callable, Iterator

from twisted.internet.interfaces import IReactorFDSet, IReadDescriptor
from twisted.python.failure import Failure
from zope.interface import implementer

from yurttunnel.steering.netlink.errors import as_steering_failed
from yurttunnel.steering.netlink.messages import attribute, netfilter_attributes, netfilter_request
from yurttunnel.steering.netlink.netlink_socket import CHANGE, NETLINK_NETFILTER, NetlinkSocket

# From linux/netfilter/nfnetlink.h and nfnetlink_log.h.
_SUBSYSTEM = 4
_PACKET, _CONFIGURE = 0, 1
_COMMAND, _MODE = 1, 2
_BIND = 1
_COPY_PACKET = 2
_PAYLOAD, _PREFIX = 9, 10

MAX_MESSAGES = 32
"""The maximum number of messages read in one reactor turn, which takes less than a millisecond."""

_NO_NFLOG = (
    "this kernel has no packet log; load the module nfnetlink_log, otherwise kernel mode does"
    " not detect endpoints that do not respond"
)
_NOT_PERMITTED = (
    "not permitted: another yurtproxy on this machine may be reading that group of the kernel's"
    " log; otherwise yurtproxy needs the capability NET_ADMIN"
)
_MEANINGS = {errno.EINVAL: _NO_NFLOG, errno.EOPNOTSUPP: _NO_NFLOG, errno.EPERM: _NOT_PERMITTED}


@implementer(IReadDescriptor)
class PacketLog:
    """Reads one group of the log, in the network namespace of the thread that starts it.

    ``on_packet`` is called with the prefix of each packet, empty if its rule has none, and the
    beginning of the packet from the IP header on. ``on_lost`` is called if reading has failed, and
    has ended; :meth:`start` starts it again.
    """

    def __init__(
        self,
        reactor: IReactorFDSet,
        group: int,
        snaplen: int,
        on_packet: Callable[[bytes, bytes], object],
        on_lost: Callable[[Failure], object],
    ) -> None:
        self._reactor = reactor
        self._group = group
        self._snaplen = snaplen
        self._on_packet = on_packet
        self._on_lost = on_lost
        self._kernel: NetlinkSocket | None = None

    def start(self) -> None:
        """Start reading. Raises :class:`SteeringFailed` if the kernel has no such log."""
        self._kernel = open_log(self._group, self._snaplen)
        self._reactor.addReader(self)

    def stop(self) -> None:
        """Stop reading; the kernel then logs nothing."""
        if self._kernel is not None:
            self._reactor.removeReader(self)
            self._kernel.close()
            self._kernel = None

    def fileno(self) -> int:
        return -1 if self._kernel is None else self._kernel.fileno()

    def logPrefix(self) -> str:
        """Return the name for the reactor's log."""
        return "packet log"

    def doRead(self) -> None:
        """Read what is available, up to a limit."""
        for _ in range(MAX_MESSAGES):
            if self._kernel is None:
                return
            try:
                messages = list(self._kernel.notifications())
            except OSError as problem:
                if problem.errno != errno.ENOBUFS:
                    raise
                # The log is a sample anyway: a lost event is repeated while its cause lasts.
                continue
            if not messages:
                return
            for prefix, payload in _packets(messages):
                self._on_packet(prefix, payload)

    def connectionLost(self, reason: Failure) -> None:
        """Close the socket: the reactor stops, or cannot read it."""
        self.stop()
        self._on_lost(reason)


def open_log(group: int, snaplen: int) -> NetlinkSocket:
    """Return a socket that receives a group, with ``snaplen`` bytes of each packet.

    Raises :class:`SteeringFailed` if the kernel has no such log.
    """
    with as_steering_failed("cannot detect endpoints that do not respond", _MEANINGS):
        kernel = NetlinkSocket(NETLINK_NETFILTER)
        try:
            kernel.change(_configuration(group, _COMMAND, bytes([_BIND])))
            mode = struct.pack("!IBB", snaplen, _COPY_PACKET, 0)
            kernel.change(_configuration(group, _MODE, mode))
        except BaseException:
            kernel.close()
            raise
        return kernel


def _configuration(group: int, kind: int, content: bytes) -> bytes:
    return netfilter_request(
        _SUBSYSTEM, _CONFIGURE, CHANGE, attribute(kind, content), resource=group
    )


def _packets(messages: list[tuple[int, bytes]]) -> Iterator[tuple[bytes, bytes]]:
    for kind, body in messages:
        if kind == _SUBSYSTEM << 8 | _PACKET:
            known = netfilter_attributes(body)
            if _PAYLOAD in known:
                yield known.get(_PREFIX, b"").rstrip(b"\0"), known[_PAYLOAD]
