"""Ports of proxy sockets: those of a range, or those that the kernel chooses."""

from __future__ import annotations

import errno
import os
import random
import socket
from collections.abc import Callable
from contextlib import ExitStack

from yurttunnel.proxy.state.virtual_services import Protocol

BACKLOG = 4096
"""Connections that may wait to be accepted: the kernel's own bound (``net.core.somaxconn``)."""

_MOST_CHOICES = 32
"""How often the kernel may choose a port that is claimed, until that is told as a failure."""

_KINDS = {Protocol.TCP: socket.SOCK_STREAM, Protocol.UDP: socket.SOCK_DGRAM}


class PortAllocator:
    """Opens sockets on the wildcard address, at ports from ``first`` to ``last``, both included.

    With both 0 the kernel chooses. ``is_claimed`` tells which ports are portals, such as node
    ports: none of them is taken, as rules lead what comes there elsewhere. The same number may
    be taken once by each of TCP and UDP, IPv4 and IPv6, which know nothing of each other.
    """

    def __init__(
        self, first: int = 0, last: int = 0, is_claimed: Callable[[int], bool] = lambda _: False
    ) -> None:
        self._first = first
        self._last = last
        self._is_claimed = is_claimed
        self._used: dict[tuple[int, Protocol], set[int]] = {
            (version, protocol): set() for version in (4, 6) for protocol in Protocol
        }

    def open(self, version: int, protocol: Protocol) -> socket.socket:
        """Return a socket that is bound, listens (TCP), and never blocks.

        Raises ``OSError`` with a sentence where no port remains, or no socket can be had.
        """
        if self._last:
            return self._open_in_range(version, protocol)
        return self._open_anywhere(version, protocol)

    def close(self, opened: socket.socket) -> None:
        """Close a socket that :meth:`open` has returned; its port may be taken again."""
        version = 6 if opened.family == socket.AF_INET6 else 4
        protocol = Protocol.TCP if opened.type == socket.SOCK_STREAM else Protocol.UDP
        self._used[version, protocol].discard(opened.getsockname()[1])
        opened.close()

    def is_used(self, version: int, protocol: Protocol, port: int) -> bool:
        """Return whether ``port`` is that of a proxy socket."""
        return port in self._used[version, protocol]

    def _open_in_range(self, version: int, protocol: Protocol) -> socket.socket:
        used = self._used[version, protocol]
        count = self._last - self._first + 1
        # Begun anywhere, so that a port which was just given back is not at once another's.
        begin = random.randrange(count)
        for offset in range(count):
            port = self._first + (begin + offset) % count
            if port in used or self._is_claimed(port):
                continue
            try:
                opened = _bound(version, protocol, port)
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise _cannot_open(protocol, port, error) from None
                continue
            used.add(port)
            return opened
        raise OSError(
            errno.EADDRINUSE,
            f"no remaining ports: all from {self._first} to {self._last} are in use;"
            " widen --proxy-port-range",
        )

    def _open_anywhere(self, version: int, protocol: Protocol) -> socket.socket:
        with ExitStack() as claimed:
            for _ in range(_MOST_CHOICES):
                try:
                    opened = _bound(version, protocol, 0)
                except OSError as error:
                    raise _cannot_open(protocol, 0, error) from None
                port: int = opened.getsockname()[1]
                if not self._is_claimed(port):
                    self._used[version, protocol].add(port)
                    return opened
                # Held until another one is found, so that the kernel does not choose it again.
                claimed.callback(opened.close)
        raise OSError(
            errno.EADDRINUSE,
            "no remaining ports: those that the kernel chooses are node ports; keep"
            " net.ipv4.ip_local_port_range apart from them, or set --proxy-port-range",
        )


def _bound(version: int, protocol: Protocol, port: int) -> socket.socket:
    family = socket.AF_INET6 if version == 6 else socket.AF_INET
    opened = socket.socket(family, _KINDS[protocol] | socket.SOCK_NONBLOCK)
    try:
        if version == 6:
            opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        if protocol is Protocol.TCP:
            # Connections of an earlier process may still be in TIME_WAIT at that port.
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind(("::" if version == 6 else "0.0.0.0", port))
        if protocol is Protocol.TCP:
            opened.listen(BACKLOG)
    except OSError:
        opened.close()
        raise
    return opened


def _cannot_open(protocol: Protocol, port: int, error: OSError) -> OSError:
    reason = os.strerror(error.errno) if error.errno else str(error)
    where = f"port {port}" if port else "any port"
    return OSError(
        error.errno, f"cannot open {protocol.value} {where} for a proxy socket: {reason}"
    )
