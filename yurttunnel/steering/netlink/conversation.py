"""Asking the kernel by netlink, from a thread that may wait for it."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterable, Iterator
from types import TracebackType

from yurttunnel.steering.netlink.messages import HEADER

SECONDS = 5.0
"""How long the kernel may take for one answer. It answers at once, unless others keep it busy."""

_SOL_NETLINK = 270
_NETLINK_CAP_ACK = 10
"""Of ``linux/netlink.h``: answers do not repeat what was asked."""

_LARGEST = 65536
"""The kernel fills at most 32 KiB at once for a reader who takes so many."""

_AT_ONCE = 64
"""Requests in one system call: the answers to them fit what the kernel keeps for a socket."""

_CODE = struct.Struct("=i")

# Of linux/netlink.h. pyroute2 has them, too, but importing it takes 10 MiB and half a second.
_NLMSG_ERROR, _NLMSG_DONE = 2, 3
_REQUEST, _ACK, _DUMP = 0x1, 0x4, 0x300

GET = _REQUEST
CHANGE = _REQUEST | _ACK
DUMP = _REQUEST | _DUMP


class KernelRefused(Exception):
    """The kernel has answered with an error: ``code`` is of ``errno.h``, or the subsystem's."""

    def __init__(self, code: int) -> None:
        super().__init__(f"netlink error {code}")
        self.code = code


class Conversation:
    """A netlink socket of one job, in the network namespace of its thread.

    It is about one thing at a time, and so its messages need no numbers. It is a context manager,
    and raises :class:`OSError` for what the socket does not take.
    """

    def __init__(self, protocol: int) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, protocol)
        self._socket.settimeout(SECONDS)
        self._socket.setsockopt(_SOL_NETLINK, _NETLINK_CAP_ACK, 1)

    def __enter__(self) -> Conversation:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let the socket go, and with it what the kernel keeps for it."""
        self._socket.close()

    def fileno(self) -> int:
        """Return the descriptor, for a reactor that waits for what comes unasked."""
        return self._socket.fileno()

    def unasked(self) -> Iterator[tuple[int, bytes]]:
        """Yield the kind and the body of each message that has come unasked, without waiting.

        There are none where nothing has come. Raises ``OSError`` with ``ENOBUFS`` where some have
        been lost, since nobody has read them.
        """
        try:
            # The socket's own method would wait; a socket with a time-out never blocks itself.
            received = os.read(self._socket.fileno(), _LARGEST)
        except BlockingIOError:
            return
        yield from _messages(received)

    def get(self, request: bytes) -> bytes:
        """Ask for one thing; return the body of the answer. Raises :class:`KernelRefused`."""
        self._send([request])
        kind, body = next(self._received())
        if kind == _NLMSG_ERROR:
            raise KernelRefused(_code(body))
        return body

    def dump(self, request: bytes) -> Iterator[bytes]:
        """Ask for many things; return the body of each. Raises :class:`KernelRefused`."""
        self._send([request])
        while True:
            for kind, body in self._received():
                if kind in (_NLMSG_DONE, _NLMSG_ERROR):
                    code = _code(body) if len(body) >= _CODE.size else 0
                    if code:
                        raise KernelRefused(code)
                    return
                yield body

    def change(self, request: bytes) -> None:
        """Have one thing done. Raises :class:`KernelRefused`."""
        (code,) = self.change_all([request])
        if code:
            raise KernelRefused(code)

    def change_all(self, requests: Iterable[bytes]) -> list[int]:
        """Have many things done, whatever becomes of each; return codes, 0 where it was done."""
        waiting = list(requests)
        codes: list[int] = []
        for start in range(0, len(waiting), _AT_ONCE):
            some = waiting[start : start + _AT_ONCE]
            self._send(some)
            desired = len(codes) + len(some)
            while len(codes) < desired:
                codes.extend(_code(body) for kind, body in self._received() if kind == _NLMSG_ERROR)
        return codes

    def _send(self, requests: list[bytes]) -> None:
        self._socket.send(b"".join(request + b"\0" * (-len(request) % 4) for request in requests))

    def _received(self) -> Iterator[tuple[int, bytes]]:
        return _messages(self._socket.recv(_LARGEST))


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
