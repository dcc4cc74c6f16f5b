"""Ports of this machine that are portals, held so that no other program takes them.

Rules lead what comes to such a port elsewhere, past any program that listens there: it would wonder
why nobody calls. So each port is bound, and a port that is taken is known.

A TCP socket holds its port without listening: what reaches it while there are no rules is reset,
where a socket that listens and never accepts, as kube-proxy's, would have clients hang. A UDP
socket has no such state: bound to an
interface that does not exist it still holds the port, but the kernel finds it for no datagram, and
answers that the port is unreachable.
"""

from __future__ import annotations

import contextlib
import errno
import socket
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from zope.interface import implementer

from yurttunnel.proxy.interfaces import IClaims
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
"""Of asm-generic/socket.h, from Linux 5.0 on. An older one keeps datagrams that no rule leads, up
to the size of a socket's buffer, and their clients wait."""

_NO_INTERFACE = 0x7FFFFFFF
"""The highest number of one, which Linux never comes to."""


MOST_ADDRESSES = 16
"""At which node ports are held one by one, each by a socket. A machine may have thousands, such as
those that ipvs leaves behind; then all addresses are held."""


class _Place(NamedTuple):
    """What one socket holds; ``address`` is ``None`` for any."""

    version: int
    protocol: Protocol
    address: Address | None
    port: int

    @property
    def everywhere(self) -> _Place:
        """The place whose socket holds this one, too."""
        return self._replace(address=None)

    def __str__(self) -> str:
        where = "" if self.address is None else f" of {self.address}"
        return f"{self.protocol.value} port {self.port}{where} (IPv{self.version})"


_Claimants = list[tuple[Key, Portal]]


@implementer(IClaims)
class Claims:
    """Holds ports of the network namespace that it is called in.

    ``own_addresses`` gives this machine's: external addresses of others are not held.
    ``is_proxy_port(version, protocol, port)`` says whether this process itself has a port.
    ``node_ports`` have the addresses that serve node ports; none of a family are all of it.
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
        # By what is wanted: an address itself goes before a node port there.
        self._owners: dict[tuple[_Place, Address | None], Key] = {}

    def want(self, portals: Mapping[Key, Sequence[Portal]]) -> Mapping[tuple[Key, Portal], str]:
        """See :class:`IClaims`."""
        wanted = self._wanted(portals)
        # A socket for one address would be in the way of the one for any.
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
        """See :class:`IClaims`."""
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
        """Return where node ports are held, which is where they are served."""
        networks = [each for each in self._node_ports if each.version == version]
        if not networks or any(not each.prefixlen for each in networks):
            return [None]
        addresses = [
            address
            for address in own
            # To be bound to such a one takes the interface as well.
            if address.version == version
            and not (version == 6 and address.is_link_local)
            and has_node_ports(address, networks)
        ]
        return addresses if len(addresses) <= MOST_ADDRESSES else [None]

    def _owner(self, what: tuple[_Place, Address | None], claimants: _Claimants) -> Key:
        """Return the former one, if it is still there: nothing is taken from a service."""
        keys = [key for key, portal in claimants if portal.address == what[1]]
        former = self._owners.get(what)
        return former if former in keys else min(keys, key=str)

    def _hold(self, place: _Place) -> str | None:
        """Hold a place, unless it is held; return why that cannot be."""
        if place in self._sockets or place.everywhere in self._sockets:
            return None
        try:
            self._sockets[place] = _holding(place)
        except OSError as error:
            if error.errno == errno.EADDRNOTAVAIL:
                # The address has just gone, or is not usable yet: nobody else can have it either.
                return None
            ours = self._is_proxy_port(place.version, place.protocol, place.port)
            return _why(place, error, ours)
        return None

    def _close(self, places: Collection[_Place]) -> None:
        for place in places:
            self._sockets.pop(place).close()


def _holding(place: _Place) -> socket.socket:
    """Return a socket that holds a place; raises ``OSError``."""
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
            # Before it listens, it shares the port with all who would.
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
