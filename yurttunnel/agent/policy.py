"""The destinations that an agent may connect to: the patterns of ``--allow-destination``.

:class:`DestinationPolicy` decides twice. May this *name* be resolved: only if a pattern allows the
name itself, so that nobody can use the node's DNS to exfiltrate data. May this *address* be
connected to: checked last, for the very address that is passed to ``connect``, so that neither the
spelling of an address nor the response of a name server can circumvent it.

The agent's own meta port is not a service of the node: it shows the node that its agent is alive.
Everyone who could open streams to it could use up its connections, which the kubelet's probes need.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import NamedTuple

from yurttunnel.http.authority import (
    CACHED,
    Address,
    Network,
    canonical_address,
    canonical_host,
    join_authority,
    parse_address,
    parse_host,
    parse_network,
)
from yurttunnel.ops import flags
from yurttunnel.tunnel.kubelet_ports import KUBELET_PORTS

DEFAULT_META_PORT = 10266
"""The agent's own."""

LOCALHOST_PROXY_PORTS = (DEFAULT_META_PORT, 10267)
"""The default ``localhost-proxy-ports`` of OpenYurt's ConfigMap ``yurt-tunnel-server-cfg``."""

NO_DEFAULT = "no-default"
"""The pattern that removes the default destinations instead of adding one."""

_EVERY_PORT = (1, 65535)


@lru_cache(CACHED)
def dialed_host(text: str) -> Address | str:
    """Return the address that a connection to ``text`` reaches, or the name in its canonical form.

    The unspecified address becomes loopback, where the kernel connects it, and a zone id is kept
    where it matters (link-local). Raises ``ValueError`` with a reason if ``text`` is neither.
    """
    if "%" in text:
        return _connected_address(IPv6Address(parse_host(text)))
    host = canonical_host(text)
    return host if isinstance(host, str) else _connected_address(host)


def names_this_machine(address: Address) -> bool:
    """Return whether ``address`` belongs to this machine: only then can it be bound."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((str(address), 0))
    except OSError:
        return False
    return True


def _connected_address(address: Address) -> Address:
    """Return the address that a connection to ``address`` actually reaches."""
    address = canonical_address(address)
    if isinstance(address, IPv6Address) and address.scope_id and not address.is_link_local:
        address = IPv6Address(int(address))
    if address.is_unspecified:
        return IPv4Address("127.0.0.1") if address.version == 4 else IPv6Address("::1")
    return address


class Pattern(NamedTuple):
    """One allowed destination: a network or a name, and a range of ports.

    ``name`` starts with a dot if it stands for all names below a domain.
    """

    network: Network | None
    name: str | None
    first_port: int = 1
    last_port: int = 65535

    def __str__(self) -> str:
        """Return it in the form of ``--allow-destination``."""
        host = self._host()
        if not self.has_ports:
            return host
        last = "" if self.first_port == self.last_port else f"-{self.last_port}"
        return f"{join_authority(host, self.first_port)}{last}"

    def _host(self) -> str:
        if self.name is not None:
            return f"*{self.name}" if self.name.startswith(".") else self.name
        network = self.network
        assert network is not None
        one = network.prefixlen == network.max_prefixlen
        return str(network.network_address if one else network)

    @property
    def has_ports(self) -> bool:
        """Whether it specifies ports."""
        return (self.first_port, self.last_port) != _EVERY_PORT

    def allows_name(self, name: str, port: int) -> bool:
        """Return whether this pattern names ``name``, which is canonical."""
        if self.name is None or not self.first_port <= port <= self.last_port:
            return False
        return name.endswith(self.name) if self.name.startswith(".") else name == self.name

    def allows_address(self, address: Address, port: int) -> bool:
        """Return whether ``address``, which is canonical, lies in this pattern's network."""
        return (
            self.network is not None
            and self.first_port <= port <= self.last_port
            and address.version == self.network.version
            and address in self.network
        )


def parse_pattern(text: str) -> Pattern:
    """Parse one ``--allow-destination``.

    ``HOST`` is an address, a network (``10.0.0.0/8``), a name or ``*.domain``; a port (``:443``) or
    a range of ports (``:8000-8100``) may follow. IPv6 with a port is in brackets:
    ``[fd00::1]:443``, ``[fd00::/8]:443``.

    Raises ``ValueError`` with a one-line reason.
    """
    host, ports = _split_ports(text.strip())
    first, last = _parse_ports(ports) if ports is not None else _EVERY_PORT
    if not host:
        raise ValueError(f"{text!r} names no host")
    if host.startswith("*"):
        return Pattern(None, _parse_suffix(host), first, last)
    if "/" in host:
        return Pattern(parse_network(host), None, first, last)
    # In any spelling: as a dialed address it would mean loopback.
    address = parse_address(host.partition("%")[0])
    if address is not None and address.is_unspecified:
        raise ValueError(f"{text!r} is no destination: every address is 0.0.0.0/0 and ::/0")
    canonical = dialed_host(host)
    if isinstance(canonical, str):
        return Pattern(None, canonical, first, last)
    if isinstance(canonical, IPv6Address):
        # The policy checks addresses, not interfaces: a zone id in a pattern would promise a
        # distinction that networks cannot make.
        if canonical.scope_id is not None:
            raise ValueError(f"{text!r} has a zone id: write the address without it")
        return Pattern(IPv6Network(canonical), None, first, last)
    return Pattern(IPv4Network(canonical), None, first, last)


def _split_ports(text: str) -> tuple[str, str | None]:
    """Split ``HOST`` from the ports after it; ``None`` if there are none."""
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise ValueError(f"{text!r} is not [IPv6 address]:port")
        if ":" not in host:
            raise ValueError(f"{text!r} has no IPv6 address in its brackets")
        return host, rest[1:] if rest else None
    if text.count(":") > 1:
        # Without brackets a port cannot be distinguished from the last group of the address, except
        # after the prefix length of a network.
        address, slash, rest = text.partition("/")
        length, colon, ports = rest.partition(":")
        return address + slash + length, ports if colon else None
    host, colon, ports = text.partition(":")
    return host, ports if colon else None


def _parse_ports(text: str) -> tuple[int, int]:
    """Parse ``443`` or ``8000-8100``."""
    first_text, dash, last_text = text.partition("-")
    first = flags.port(first_text)
    last = flags.port(last_text) if dash else first
    if first > last:
        raise ValueError(f"{text!r} is no range of ports: the first is above the last")
    return first, last


def _parse_suffix(host: str) -> str:
    """Return ``.domain`` for ``*.domain``."""
    if not host.startswith("*.") or "*" in host[1:]:
        raise ValueError(
            f"{host!r}: a star stands only before a domain, as in *.example.org; every address is"
            " 0.0.0.0/0 and ::/0"
        )
    domain = canonical_host(host[2:])
    if not isinstance(domain, str):
        raise ValueError(f"{host!r} puts a star before an address: write a network instead")
    return "." + domain


class DestinationPolicy:
    """Decides what the agent of one node may connect to.

    ``node`` is the node's name, for messages. ``own_addresses`` are the node's own: its node IP and
    the addresses of its identifiers. They are allowed on every port, and loopback on the ports of
    the kubelet and of the localhost proxies; ``patterns`` are allowed in addition. If
    ``keep_default`` is false, only the patterns are allowed.

    ``meta_port`` is the agent's own, 0 if it has none. At addresses of the node, and at others for
    which ``is_here(address)`` is true, it needs a pattern with ports.
    """

    def __init__(
        self,
        node: str,
        own_addresses: Iterable[Address],
        patterns: Sequence[Pattern] = (),
        keep_default: bool = True,
        *,
        meta_port: int = 0,
        is_here: Callable[[Address], bool] = names_this_machine,
    ) -> None:
        self._node = node
        self._node_addresses = frozenset(map(_connected_address, own_addresses))
        self._meta_port = meta_port
        self._is_here = is_here
        self.use(patterns, keep_default)

    def use(self, patterns: Sequence[Pattern], keep_default: bool) -> None:
        """Apply these to new connections; existing ones are not affected."""
        self._patterns = tuple(patterns)
        self._own: frozenset[Address] = frozenset()
        self._loopback_ports: frozenset[int] = frozenset()
        if keep_default:
            self._own = self._node_addresses
            self._loopback_ports = KUBELET_PORTS.union(LOCALHOST_PROXY_PORTS) - {self._meta_port}

    def describe(self) -> list[str]:
        """Return the allowed destinations, one per line."""
        lines = [
            f"{address}, every port: the node's own" for address in sorted(map(str, self._own))
        ]
        if self._loopback_ports:
            ports = ", ".join(map(str, sorted(self._loopback_ports)))
            lines.append(f"loopback, ports {ports}: the kubelet and the localhost proxies")
        lines += [f"{pattern}: by --allow-destination" for pattern in self._patterns]
        if self._meta_port:
            lines.append(
                f"not port {self._meta_port} here, the agent's own, unless a line names it"
            )
        return lines

    def may_look_up(self, name: str, port: int) -> bool:
        """Return whether ``name`` (canonical) may be resolved for a connection to ``port``."""
        return any(pattern.allows_name(name, port) for pattern in self._patterns)

    def may_connect(self, address: Address, port: int, looked_up: bool = False) -> bool:
        """Return whether a connection to ``address`` and ``port`` is allowed.

        ``looked_up`` is whether the address was resolved from a name that :meth:`may_look_up`
        allowed. Such a name may resolve to any address except those with another meaning on every
        host (loopback, link-local, unspecified, multicast): otherwise whoever controls the name
        would choose what is reached on the node itself. These must be allowed as addresses.
        """
        address = _connected_address(address)
        if port == self._meta_port and self._is_own(address):
            return any(
                pattern.has_ports and pattern.allows_address(address, port)
                for pattern in self._patterns
            )
        if address in self._own:
            return True
        if port in self._loopback_ports and address.is_loopback:
            return True
        if any(pattern.allows_address(address, port) for pattern in self._patterns):
            return True
        return looked_up and not (
            address.is_loopback or address.is_link_local or address.is_multicast
        )

    def _is_own(self, address: Address) -> bool:
        return address.is_loopback or address in self._node_addresses or self._is_here(address)

    def denial(self, host: Address | str, port: int) -> str:
        """Return the message for the caller: what was denied, where, and which flag allows it."""
        flag_value = destination(host, port)
        return (
            f"the agent of node {self._node} may not connect to {flag_value}; the agent's flag"
            f" --allow-destination {flag_value} would allow it"
        )


def destination(host: Address | str, port: int) -> str:
    """Return ``host:port``, with IPv6 in brackets."""
    return join_authority(str(host), port)
