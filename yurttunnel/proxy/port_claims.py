"""Ports of this machine that are portals, claimed so that no other program takes them.

Rules redirect packets for such a port past any program that listens there, which would then get no
clients without knowing why. So the proxy binds each port, and detects a port that is already taken.

A TCP socket claims its port without listening: while there are no rules, connections to it are
reset. With a socket that listens and never accepts, as kube-proxy's, clients would hang. A UDP
socket has no such state: when it is bound to an interface that does not exist it still claims the
port, but the kernel delivers no datagram to it, and replies that the port is unreachable.
"""

from __future__ import annotations

import contextlib
import errno
import socket
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from typing import NamedTuple

from zope.interface import implementer

from yurttunnel.ops.slices import visit
from yurttunnel.proxy.interfaces import IPortClaims
from yurttunnel.proxy.sockets.listening import listen, refuse, reuse_address
from yurttunnel.proxy.state.virtual_services import (
    Address,
    Key,
    Network,
    Portal,
    Protocol,
    VirtualService,
    has_node_ports,
)

_SO_BINDTOIFINDEX = 62
"""Of asm-generic/socket.h, since Linux 5.0. An older kernel queues datagrams that no rule
redirects, up to the size of the socket's buffer, and their clients get no response."""

_NO_INTERFACE = 0x7FFFFFFF
"""The highest interface index, which Linux never reaches."""


MAX_ADDRESSES = 16
"""The maximum number of addresses at which node ports are claimed one by one, each by a socket. A
machine may have thousands, such as those that ipvs leaves behind; then the port is claimed at all
addresses."""


class _Binding(NamedTuple):
    """What one socket claims; ``address`` is ``None`` for all addresses."""

    version: int
    protocol: Protocol
    address: Address | None
    port: int

    @property
    def wildcard(self) -> _Binding:
        """The place at all addresses, whose socket includes this one."""
        return self._replace(address=None)

    def __str__(self) -> str:
        where = "" if self.address is None else f" of {self.address}"
        return f"{self.protocol.value} port {self.port}{where} (IPv{self.version})"


_Claimants = list[tuple[Key, Portal]]


@implementer(IPortClaims)
class PortClaims:
    """Claims ports in the network namespace that it is called in.

    ``own_addresses`` returns the addresses of this machine: external addresses of others are not
    claimed. ``is_proxy_port(version, protocol, port)`` returns whether this process itself uses a
    port. Node ports are served at the addresses in ``node_ports``; if it has no networks of a
    family, at all addresses of that family.
    """

    def __init__(
        self,
        own_addresses: Callable[[], Collection[Address]],
        is_proxy_port: Callable[[int, Protocol, int], bool],
        node_ports: Iterable[Network] = (),
    ) -> None:
        self._own_addresses = own_addresses
        self._is_proxy_port = is_proxy_port
        self._node_ports = tuple(node_ports)
        self._sockets: dict[_Binding, socket.socket] = {}
        # By place and requested address: a portal with this address takes precedence over a node
        # port.
        self._owners: dict[tuple[_Binding, Address | None], Key] = {}

    def claim(
        self, services: Mapping[Key, VirtualService]
    ) -> Generator[str, None, Mapping[tuple[Key, Portal], str]]:
        wanted = yield from self._wanted(services)
        # A socket for one address would conflict with the one for all addresses.
        needed = {
            binding
            for binding in wanted
            if binding == binding.wildcard or binding.wildcard not in wanted
        }
        self._close(self._sockets.keys() - needed)
        problems: dict[tuple[Key, Portal], str] = {}
        owners: dict[tuple[_Binding, Address | None], Key] = {}

        def assign(binding: _Binding) -> None:
            claimants = wanted[binding]
            problem = self._claim(binding)
            if problem is not None:
                problems.update((claimant, problem) for claimant in claimants)
                return
            for key, portal in claimants:
                place = binding, portal.address
                if place not in owners:
                    owners[place] = self._owner(place, claimants)
                if key != owners[place]:
                    problems[key, portal] = f"{binding} already belongs to {owners[place]}"

        yield from visit(sorted(wanted, key=lambda one: one.address is not None), assign)
        self._owners = owners
        return problems

    def release(self) -> None:
        self._close(list(self._sockets))
        self._owners.clear()

    def _wanted(
        self, services: Mapping[Key, VirtualService]
    ) -> Generator[str, None, dict[_Binding, _Claimants]]:
        own = self._own_addresses()
        wanted: dict[_Binding, _Claimants] = {}
        node_port_addresses = {
            version: self._node_port_addresses(version, own) for version in (4, 6)
        }

        def add(service: VirtualService) -> None:
            key = service.key
            for portal in service.portals:
                if portal.address is None:
                    addresses = node_port_addresses[key.version]
                else:
                    is_claimed = portal.is_external and portal.address in own
                    addresses = [portal.address] if is_claimed else []
                for address in addresses:
                    binding = _Binding(key.version, key.protocol, address, portal.port)
                    wanted.setdefault(binding, []).append((key, portal))

        yield from visit(services.values(), add)
        return wanted

    def _node_port_addresses(
        self, version: int, own: Collection[Address]
    ) -> Sequence[Address | None]:
        """Return the addresses at which node ports are claimed, because they are served there."""
        networks = [each for each in self._node_ports if each.version == version]
        if not networks or any(not each.prefixlen for each in networks):
            return [None]
        addresses = [
            address
            for address in own
            # Binding to a link-local address would also require the interface.
            if address.version == version
            and not (version == 6 and address.is_link_local)
            and has_node_ports(address, networks)
        ]
        return addresses if len(addresses) <= MAX_ADDRESSES else [None]

    def _owner(self, claim: tuple[_Binding, Address | None], claimants: _Claimants) -> Key:
        """Return the previous owner if it still requests the place, so that no service loses it."""
        keys = [key for key, portal in claimants if portal.address == claim[1]]
        former = self._owners.get(claim)
        return former if former in keys else min(keys, key=str)

    def _claim(self, binding: _Binding) -> str | None:
        """Claim a place unless it is claimed; return why that is not possible."""
        if binding in self._sockets or binding.wildcard in self._sockets:
            return None
        try:
            self._sockets[binding] = _claiming_socket(binding)
        except OSError as error:
            if error.errno == errno.EADDRNOTAVAIL:
                # The address has just been removed, or is not usable yet: nobody else can bind it
                # either.
                return None
            ours = self._is_proxy_port(binding.version, binding.protocol, binding.port)
            return _failure_text(binding, error, ours)
        return None

    def _close(self, bindings: Collection[_Binding]) -> None:
        for binding in bindings:
            self._sockets.pop(binding).close()


def _claiming_socket(binding: _Binding) -> socket.socket:
    """Return a socket that claims a place; raises ``OSError``."""
    family = socket.AF_INET6 if binding.version == 6 else socket.AF_INET
    tcp = binding.protocol is Protocol.TCP
    opened = socket.socket(family, socket.SOCK_STREAM if tcp else socket.SOCK_DGRAM)
    try:
        if binding.version == 6:
            opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        if tcp:
            reuse_address(opened)
        opened.bind(("" if binding.address is None else str(binding.address), binding.port))
        if tcp:
            # Until it listens, it would share the port with all who want to listen.
            listen(opened)
            refuse(opened)
        else:
            with contextlib.suppress(OSError):
                opened.setsockopt(socket.SOL_SOCKET, _SO_BINDTOIFINDEX, _NO_INTERFACE)
    except OSError:
        opened.close()
        raise
    return opened


def _failure_text(binding: _Binding, error: OSError, ours: bool) -> str:
    if ours and error.errno == errno.EADDRINUSE:
        return (
            f"{binding} is a proxy port of this process: choose another port, or keep node ports"
            " out of --proxy-port-range, or of net.ipv4.ip_local_port_range, and start it again"
        )
    if error.errno == errno.EADDRINUSE:
        table = "t" if binding.protocol is Protocol.TCP else "u"
        return (
            f"{binding} is in use by another process: choose another port, or stop the process"
            f" that `ss -{table}anp sport = :{binding.port}` shows"
        )
    return f"{binding} cannot be claimed: {error.strerror}"
