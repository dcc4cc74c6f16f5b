"""Parsing logged packets: the headers of IP, TCP, UDP and ICMP."""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address

from yurttunnel.proxy.kernel.targets import Attempt, Target
from yurttunnel.proxy.state.virtual_services import Address, Endpoint, Protocol

_PORTS = struct.Struct("!HH")
_PROTOCOLS = {each.number: each for each in Protocol}

_TCP_FLAGS, _SYN, _RST, _ACK = 13, 0x02, 0x04, 0x10
"""From the TCP header (RFC 9293, 3.1): the offset of the flags, and some flags."""

STALE = "stale"
"""The log prefix of packets that the kernel assigns to an earlier connection."""

_ICMP_SIZE = 8
"""The header of an error, which the original packet follows (RFC 792, RFC 4443)."""

_UNREACHABLE = {socket.IPPROTO_ICMP: 3, socket.IPPROTO_ICMPV6: 1}
"""The type of a destination-unreachable error."""

NO_ROUTE_CODES = {4: (0, 1), 6: (0, 3)}
"""The codes of such an error that mean that there is no route to the destination."""

TOO_BIG = 4
"""The ICMP code which means that a destination is unreachable only for packets of that size; the
sender must receive it (RFC 1191). ICMPv6 has a separate type for it."""

_IPV4_SIZE, _IPV6_SIZE = 20, 40


@dataclass(frozen=True, slots=True)
class LoggedAttempt:
    """A client's first packet.

    It ``is_stale`` if the kernel assigns it to an earlier connection from the same port, and has
    sent it to the endpoint of that connection.
    """

    attempt: Attempt
    is_stale: bool


@dataclass(frozen=True, slots=True)
class LoggedRefusal:
    """The endpoint, or a router on the path to it, has reported that nothing listens there.

    It ``is_stale`` like an attempt. ``has_no_route`` means that there is no route to the endpoint.
    """

    attempt: Attempt
    is_stale: bool = False
    has_no_route: bool = False


@dataclass(frozen=True, slots=True)
class _Packet:
    """The IP header; ``data`` is the payload."""

    protocol: int
    source: Address
    destination: Address
    payload: bytes


def parse_packet(prefix: bytes, data: bytes) -> LoggedAttempt | LoggedRefusal | None:
    """Parse a packet that the rules have logged.

    ``prefix`` is its log prefix. Return ``None`` if it is neither an attempt nor a refusal, or too
    short.
    """
    packet = _packet(data)
    if packet is None:
        return None
    if packet.protocol in _UNREACHABLE:
        return _error(packet)
    if packet.protocol != socket.IPPROTO_TCP or len(packet.payload) <= _TCP_FLAGS:
        return None
    flags = packet.payload[_TCP_FLAGS]
    source, destination = _ends(packet)
    is_stale = prefix == STALE.encode()
    if flags & _RST:
        return LoggedRefusal(_attempt(Protocol.TCP, destination, source), is_stale)
    if flags & (_SYN | _ACK) == _SYN:
        return LoggedAttempt(_attempt(Protocol.TCP, source, destination), is_stale)
    return None


def _ends(packet: _Packet) -> tuple[Endpoint, Endpoint]:
    source_port, port = _PORTS.unpack_from(packet.payload)
    return Endpoint(packet.source, source_port), Endpoint(packet.destination, port)


def _attempt(protocol: Protocol, client: Endpoint, endpoint: Endpoint) -> Attempt:
    return Attempt(Target(protocol, endpoint), client.address, client.port)


def _error(packet: _Packet) -> LoggedRefusal | None:
    """Return the endpoint that a router, or the endpoint's own machine, reports as unreachable."""
    if packet.payload[:1] != bytes([_UNREACHABLE[packet.protocol]]):
        return None
    if packet.protocol == socket.IPPROTO_ICMP and packet.payload[1:2] == bytes([TOO_BIG]):
        return None
    original = _packet(packet.payload[_ICMP_SIZE:])
    if (
        original is None
        or original.protocol not in _PROTOCOLS
        or len(original.payload) < _PORTS.size
    ):
        return None
    has_no_route = packet.payload[1] in NO_ROUTE_CODES[packet.source.version]
    return LoggedRefusal(
        _attempt(_PROTOCOLS[original.protocol], *_ends(original)), has_no_route=has_no_route
    )


def _packet(data: bytes) -> _Packet | None:
    version = data[0] >> 4 if data else 0
    if version == 4 and len(data) >= _IPV4_SIZE:
        return _Packet(
            data[9], IPv4Address(data[12:16]), IPv4Address(data[16:20]), data[(data[0] & 0xF) * 4 :]
        )
    if version == 6 and len(data) >= _IPV6_SIZE:
        # Extension headers are not parsed: a client's first packet has none.
        return _Packet(data[6], IPv6Address(data[8:24]), IPv6Address(data[24:40]), data[40:])
    return None
