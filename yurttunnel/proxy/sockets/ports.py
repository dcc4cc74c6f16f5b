"""Ports of proxy sockets: from a range, or chosen by the kernel."""

from __future__ import annotations

import errno
import hashlib
import os
import socket
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from ipaddress import ip_address
from itertools import chain

from yurttunnel.proxy.sockets.listening import listen, reuse_address
from yurttunnel.proxy.state.virtual_services import Address, Endpoint, Key, Protocol

_MAX_CHOICES = 32
"""How often the kernel may choose a claimed port before it is reported as a failure."""

_KINDS = {Protocol.TCP: socket.SOCK_STREAM, Protocol.UDP: socket.SOCK_DGRAM}


WILDCARDS: Mapping[int, str] = {4: "0.0.0.0", 6: "::"}
"""The address of each family that means all addresses of this machine."""

LOOPBACKS: Mapping[int, str] = {4: "127.0.0.1", 6: "::1"}
"""The address of each family that only this machine can reach."""


class PortAllocator:
    """Opens sockets on a port of ``ports``; if that is ``None``, the kernel chooses.

    ``is_claimed`` returns whether a port is a portal, such as a node port: those are not used,
    since rules redirect their packets. ``addresses`` are the addresses of each family to listen on.
    The same number may be used once by each of TCP and UDP, IPv4 and IPv6, which are independent.
    """

    def __init__(
        self,
        ports: range | None = None,
        is_claimed: Callable[[int], bool] = lambda _: False,
        addresses: Mapping[int, str] = WILDCARDS,
    ) -> None:
        self._ports = ports
        self._is_claimed = is_claimed
        self._addresses = addresses
        self._used: dict[tuple[int, Protocol], set[int]] = {
            (version, protocol): set() for version in (4, 6) for protocol in Protocol
        }
        self.opened: set[int] = set()
        """All ports that have been open; some may be closed again."""

    def open(self, key: Key) -> socket.socket:
        """Return a non-blocking socket for ``key`` that is bound and, for TCP, listens.

        In a range, a key gets the same port in each process if that is free, so that the rules of
        an earlier process lead to it. Raises ``OSError`` with a message if no port or no socket is
        available.
        """
        if self._ports is None:
            opened = self._open_anywhere(key)
        else:
            opened = self._open_in_range(key, self._ports)
        self.opened.add(opened.getsockname()[1])
        return opened

    def close(self, opened: socket.socket) -> None:
        """Close a socket that :meth:`open` has returned; its port becomes free."""
        version = 6 if opened.family == socket.AF_INET6 else 4
        protocol = Protocol.TCP if opened.type == socket.SOCK_STREAM else Protocol.UDP
        self._used[version, protocol].discard(opened.getsockname()[1])
        opened.close()

    def is_used(self, version: int, protocol: Protocol, port: int) -> bool:
        """Return whether ``port`` is the port of a proxy socket."""
        return port in self._used[version, protocol]

    def is_loop(self, protocol: Protocol, endpoint: Endpoint) -> bool:
        """Return whether ``endpoint`` is a proxy socket of this process."""
        address = endpoint.address
        if not self.is_used(address.version, protocol, endpoint.port):
            return False
        own = ip_address(self._addresses[address.version])
        # Other programs may use the same number at another address.
        return _is_own(address) if own.is_unspecified else address == own or address.is_unspecified

    def _open_in_range(self, key: Key, ports: range) -> socket.socket:
        used = self._used[key.version, key.protocol]
        begin = _place(key, ports)
        for port in chain(ports[begin:], ports[:begin]):
            if port in used or self._is_claimed(port):
                continue
            try:
                opened = self._opened(key, port)
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise _cannot_open(key.protocol, port, error) from None
                continue
            used.add(port)
            return opened
        raise OSError(
            errno.EADDRINUSE,
            f"no remaining ports: all from {ports[0]} to {ports[-1]} are in use;"
            " widen --proxy-port-range",
        )

    def _open_anywhere(self, key: Key) -> socket.socket:
        with ExitStack() as claimed:
            for _ in range(_MAX_CHOICES):
                try:
                    opened = self._opened(key, 0)
                except OSError as error:
                    raise _cannot_open(key.protocol, 0, error) from None
                port: int = opened.getsockname()[1]
                if not self._is_claimed(port):
                    self._used[key.version, key.protocol].add(port)
                    return opened
                # Keep it open until another is found, so that the kernel does not choose it again.
                claimed.callback(opened.close)
        raise OSError(
            errno.EADDRINUSE,
            "no remaining ports: those that the kernel chooses are node ports; keep"
            " net.ipv4.ip_local_port_range apart from them, or set --proxy-port-range",
        )

    def _opened(self, key: Key, port: int) -> socket.socket:
        """Return a socket on ``port``; with 0 the kernel chooses one."""
        bound = self._bound(key, port)
        if key.protocol is Protocol.UDP:
            return bound
        if not port:
            # A socket keeps its port while it refuses clients only if it was bound to that number.
            with bound as chosen:
                bound = self._bound(key, chosen.getsockname()[1])
        try:
            listen(bound)
        except OSError:
            bound.close()
            raise
        return bound

    def _bound(self, key: Key, port: int) -> socket.socket:
        family = socket.AF_INET6 if key.version == 6 else socket.AF_INET
        bound = socket.socket(family, _KINDS[key.protocol] | socket.SOCK_NONBLOCK)
        try:
            if key.version == 6:
                bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            if key.protocol is Protocol.TCP:
                reuse_address(bound)
            bound.bind((self._addresses[key.version], port))
        except OSError:
            bound.close()
            raise
        return bound


def _place(key: Key, ports: range) -> int:
    digest = hashlib.sha256(str(key).encode()).digest()
    return int.from_bytes(digest[:4], "big") % len(ports)


def _cannot_open(protocol: Protocol, port: int, error: OSError) -> OSError:
    reason = os.strerror(error.errno) if error.errno else str(error)
    where = f"port {port}" if port else "any port"
    return OSError(
        error.errno, f"cannot open {protocol.value} {where} for a proxy socket: {reason}"
    )


def _is_own(address: Address) -> bool:
    """Return whether ``address`` is an address of this machine."""
    if address.is_loopback or address.is_unspecified:
        return True
    family = socket.AF_INET6 if address.version == 6 else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            # This sends nothing; for one of its own addresses, the machine uses the same address as
            # the source.
            probe.connect((str(address), 9))
        except OSError:
            return False
        return bool(probe.getsockname()[0] == str(address))
