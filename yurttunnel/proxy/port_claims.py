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
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from zope.interface import implementer

from yurttunnel.proxy.interfaces import IPortClaims
from yurttunnel.proxy.sockets.listening import listen, refuse, share_with_the_past
from yurttunnel.proxy.state.virtual_services import (
    Address,
    Key,
    Network,
    Portal,
    Protocol,
    has_node_ports,
)

_SO_BINDTOIFINDEX = 62
"""Of asm-generic/socket.h, since Linux 5.0. An older kernel queues datagrams that no rule
redirects, up to the size of the socket's buffer, and their clients get no response."""

_NO_INTERFACE = 0x7FFFFFFF
"""The highest interface index, which Linux never reaches."""


MOST_ADDRESSES = 16
"""The maximum number of addresses at which node ports are claimed one by one, each by a socket. A
machine may have thousands, such as those that ipvs leaves behind; then the port is claimed at all
addresses."""


class _Place(NamedTuple):
    """What one socket claims; ``address`` is ``None`` for all addresses."""

    version: int
    protocol: Protocol
    address: Address | None
    port: int

    @property
    def everywhere(self) -> _Place:
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
        self._sockets: dict[_Place, socket.socket] = {}
        # By place and requested address: a portal with this address takes precedence over a node
        # port.
        self._owners: dict[tuple[_Place, Address | None], Key] = {}

    def want(self, portals: Mapping[Key, Sequence[Portal]]) -> Mapping[tuple[Key, Portal], str]:
        """See :class:`IPortClaims`."""
        wanted = self._wanted(portals)
        # A socket for one address would conflict with the one for all addresses.
        needed = {
            place for place in wanted if place == place.everywhere or place.everywhere not in wanted
        }
        self._close(self._sockets.keys() - needed)
        problems: dict[tuple[Key, Portal], str] = {}
        owners: dict[tuple[_Place, Address | None], Key] = {}
        for place in sorted(wanted, key=lambda one: one.address is not None):
            claimants = wanted[place]
            problem = self._hold(place)
            if problem is not None:
                problems.update((claimant, problem) for claimant in claimants)
                continue
            for key, portal in claimants:
                what = place, portal.address
                if what not in owners:
                    owners[what] = self._owner(what, claimants)
                if key != owners[what]:
                    problems[key, portal] = f"{place} is that of {owners[what]} already"
        self._owners = owners
        return problems

    def release(self) -> None:
        """See :class:`IPortClaims`."""
        self._close(list(self._sockets))
        self._owners.clear()

    def _wanted(self, portals: Mapping[Key, Sequence[Portal]]) -> dict[_Place, _Claimants]:
        own = self._own_addresses()
        wanted: dict[_Place, _Claimants] = {}
        at_node_ports = {version: self._at_node_ports(version, own) for version in (4, 6)}
        for key, its in portals.items():
            for portal in its:
                if portal.address is None:
                    addresses = at_node_ports[key.version]
                else:
                    is_held = portal.is_external and portal.address in own
                    addresses = [portal.address] if is_held else []
                for address in addresses:
                    place = _Place(key.version, key.protocol, address, portal.port)
                    wanted.setdefault(place, []).append((key, portal))
        return wanted

    def _at_node_ports(self, version: int, own: Collection[Address]) -> Sequence[Address | None]:
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
        return addresses if len(addresses) <= MOST_ADDRESSES else [None]

    def _owner(self, what: tuple[_Place, Address | None], claimants: _Claimants) -> Key:
        """Return the previous owner if it still requests the place, so that no service loses it."""
        keys = [key for key, portal in claimants if portal.address == what[1]]
        former = self._owners.get(what)
        return former if former in keys else min(keys, key=str)

    def _hold(self, place: _Place) -> str | None:
        """Claim a place unless it is claimed; return why that is not possible."""
        if place in self._sockets or place.everywhere in self._sockets:
            return None
        try:
            self._sockets[place] = _holding(place)
        except OSError as error:
            if error.errno == errno.EADDRNOTAVAIL:
                # The address has just been removed, or is not usable yet: nobody else can bind it
                # either.
                return None
            ours = self._is_proxy_port(place.version, place.protocol, place.port)
            return _why(place, error, ours)
        return None

    def _close(self, places: Collection[_Place]) -> None:
        for place in places:
            self._sockets.pop(place).close()


def _holding(place: _Place) -> socket.socket:
    """Return a socket that claims a place; raises ``OSError``."""
    family = socket.AF_INET6 if place.version == 6 else socket.AF_INET
    tcp = place.protocol is Protocol.TCP
    made = socket.socket(family, socket.SOCK_STREAM if tcp else socket.SOCK_DGRAM)
    try:
        if place.version == 6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        if tcp:
            share_with_the_past(made)
        made.bind(("" if place.address is None else str(place.address), place.port))
        if tcp:
            # Until it listens, it would share the port with all who want to listen.
            listen(made)
            refuse(made)
        else:
            with contextlib.suppress(OSError):
                made.setsockopt(socket.SOL_SOCKET, _SO_BINDTOIFINDEX, _NO_INTERFACE)
    except OSError:
        made.close()
        raise
    return made


def _why(place: _Place, error: OSError, ours: bool) -> str:
    if ours and error.errno == errno.EADDRINUSE:
        return (
            f"{place} is a proxy port of this process: choose another port, or keep node ports out"
            " of --proxy-port-range, or of net.ipv4.ip_local_port_range, and start it again"
        )
    if error.errno == errno.EADDRINUSE:
        table = "t" if place.protocol is Protocol.TCP else "u"
        return (
            f"{place} is in use by another process: choose another port, or stop the process"
            f" that `ss -{table}anp sport = :{place.port}` shows"
        )
    return f"{place} cannot be held: {error.strerror}"
