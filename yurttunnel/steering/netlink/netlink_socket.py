"""Netlink requests to the kernel, from a thread that may block."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterable, Iterator
from types import TracebackType

from yurttunnel.steering.netlink.messages import HEADER

REPLY_TIMEOUT = 5.0
"""The timeout of one reply. The kernel replies at once, unless other programs keep it busy."""

_SOL_NETLINK = 270
_NETLINK_CAP_ACK = 10
"""From ``linux/netlink.h``: replies do not repeat the request."""

_BUFFER_SIZE = 65536
"""The kernel sends at most 32 KiB at once to a reader with a buffer of this size."""

_BATCH_SIZE = 64
"""The number of requests in one system call: the replies fit into the socket's receive buffer."""

_CODE = struct.Struct("=i")

# From linux/netlink.h.
NETLINK_ROUTE, NETLINK_NETFILTER = 0, 12
_NLMSG_ERROR, _NLMSG_DONE = 2, 3
_REQUEST, _ACK, _DUMP = 0x1, 0x4, 0x300

GET = _REQUEST
CHANGE = _REQUEST | _ACK
DUMP = _REQUEST | _DUMP
EXCLUSIVE, CREATE, APPEND = 0x200, 0x400, 0x800


class NetlinkError(Exception):
    """The kernel has replied with an error: ``code`` is from ``errno.h``, or the subsystem's."""

    def __init__(self, code: int) -> None:
        super().__init__(f"netlink error {code}")
        self.code = code


class NetlinkSocket:
    """A netlink socket for one job, in the network namespace of its thread.

    It handles one request at a time, so that its messages need no sequence numbers. It is a context
    manager, and raises :class:`OSError` for errors of the socket.
    """

    def __init__(self, protocol: int) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, protocol)
        self._socket.settimeout(REPLY_TIMEOUT)
        self._socket.setsockopt(_SOL_NETLINK, _NETLINK_CAP_ACK, 1)

    def __enter__(self) -> NetlinkSocket:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the socket, and with it what the kernel keeps for it."""
        self._socket.close()

    def fileno(self) -> int:
        """Return the descriptor, for a reactor that waits for notifications."""
        return self._socket.fileno()

    def notifications(self) -> Iterator[tuple[int, bytes]]:
        """Yield the kind and body of each notification that has arrived, without waiting.

        There are none if nothing has arrived. Raises ``OSError`` with ``ENOBUFS`` if some were lost
        because they were not read in time.
        """
        try:
            # The socket's own method would wait, though the descriptor of a socket with a timeout
            # is non-blocking.
            received = os.read(self._socket.fileno(), _BUFFER_SIZE)
        except BlockingIOError:
            return
        yield from _messages(received)

    def get(self, request: bytes) -> bytes:
        """Send a request with one reply, and return its body. Raises :class:`NetlinkError`."""
        self._send([request])
        kind, body = next(self._received())
        if kind == _NLMSG_ERROR:
            raise NetlinkError(_code(body))
        return body

    def dump(self, request: bytes) -> Iterator[bytes]:
        """Send a request with many replies, and yield the body of each. Raises
        :class:`NetlinkError`.
        """
        self._send([request])
        while True:
            for kind, body in self._received():
                if kind in (_NLMSG_DONE, _NLMSG_ERROR):
                    code = _code(body) if len(body) >= _CODE.size else 0
                    if code:
                        raise NetlinkError(code)
                    return
                yield body

    def change(self, request: bytes) -> None:
        """Send one request for a change. Raises :class:`NetlinkError`."""
        (code,) = self.change_all([request])
        if code:
            raise NetlinkError(code)

    def change_all(self, requests: Iterable[bytes]) -> list[int]:
        """Send many requests for changes, regardless of errors; return codes, 0 for success."""
        waiting = list(requests)
        codes: list[int] = []
        for start in range(0, len(waiting), _BATCH_SIZE):
            some = waiting[start : start + _BATCH_SIZE]
            self._send(some)
            desired = len(codes) + len(some)
            while len(codes) < desired:
                codes.extend(_code(body) for kind, body in self._received() if kind == _NLMSG_ERROR)
        return codes

    def _send(self, requests: list[bytes]) -> None:
        self._socket.send(b"".join(request + b"\0" * (-len(request) % 4) for request in requests))

    def _received(self) -> Iterator[tuple[int, bytes]]:
        return _messages(self._socket.recv(_BUFFER_SIZE))


def _messages(received: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the kind and the body of each message."""
    start = 0
    while start + HEADER.size <= len(received):
        length, kind, _, _, _ = HEADER.unpack_from(received, start)
        if length < HEADER.size:
            raise ValueError(f"a netlink message says that it is {length} bytes long")
        yield kind, received[start + HEADER.size : start + length]
        start += (length + 3) & ~3


def _code(body: bytes) -> int:
    (code,) = _CODE.unpack_from(body)
    return -int(code)
