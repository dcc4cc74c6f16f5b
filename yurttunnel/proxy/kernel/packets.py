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

NO_WAY = {4: (0, 1), 6: (0, 3)}
"""The codes of such an error that mean that there is no route to the destination."""

TOO_BIG = 4
"""The ICMP code which means that a destination is unreachable only for packets of that size; the
sender must receive it (RFC 1191). ICMPv6 has a separate type for it."""

_IPV4_SIZE, _IPV6_SIZE = 20, 40


@dataclass(frozen=True, slots=True)
class Tried:
    """A client's first packet.

    It ``is_stale`` if the kernel assigns it to an earlier connection from the same port, and has
    sent it to the endpoint of that connection.
    """

    attempt: Attempt
    is_stale: bool


@dataclass(frozen=True, slots=True)
class Refused:
    """The endpoint, or a router on the path to it, has reported that nothing listens there.

    It ``is_stale`` like an attempt. ``has_no_way`` means that there is no route to the endpoint.
    """

    attempt: Attempt
    is_stale: bool = False
    has_no_way: bool = False


@dataclass(frozen=True, slots=True)
class _Packet:
    """The IP header; ``carried`` is the payload."""

    protocol: int
    source: Address
    destination: Address
    carried: bytes


def told(prefix: bytes, payload: bytes) -> Tried | Refused | None:
    """Parse a packet that the rules have logged.

    ``prefix`` is its log prefix. Return ``None`` if it is neither an attempt nor a refusal, or too
    short.
    """
    packet = _packet(payload)
    if packet is None:
        return None
    if packet.protocol in _UNREACHABLE:
        return _error(packet)
    if packet.protocol != socket.IPPROTO_TCP or len(packet.carried) <= _TCP_FLAGS:
        return None
    flags = packet.carried[_TCP_FLAGS]
    source, destination = _ends(packet)
    is_stale = prefix == STALE.encode()
    if flags & _RST:
        return Refused(_attempt(Protocol.TCP, destination, source), is_stale)
    if flags & (_SYN | _ACK) == _SYN:
        return Tried(_attempt(Protocol.TCP, source, destination), is_stale)
    return None


def _ends(packet: _Packet) -> tuple[Endpoint, Endpoint]:
    source_port, port = _PORTS.unpack_from(packet.carried)
    return Endpoint(packet.source, source_port), Endpoint(packet.destination, port)


def _attempt(protocol: Protocol, client: Endpoint, endpoint: Endpoint) -> Attempt:
    return Attempt(Target(protocol, endpoint), client.address, client.port)


def _error(packet: _Packet) -> Refused | None:
    """Return the endpoint that a router, or the endpoint's own machine, reports as unreachable."""
    if packet.carried[:1] != bytes([_UNREACHABLE[packet.protocol]]):
        return None
    if packet.protocol == socket.IPPROTO_ICMP and packet.carried[1:2] == bytes([TOO_BIG]):
        return None
    about = _packet(packet.carried[_ICMP_SIZE:])
    if about is None or about.protocol not in _PROTOCOLS or len(about.carried) < _PORTS.size:
        return None
    has_no_way = packet.carried[1] in NO_WAY[packet.source.version]
    return Refused(_attempt(_PROTOCOLS[about.protocol], *_ends(about)), has_no_way=has_no_way)


def _packet(payload: bytes) -> _Packet | None:
    version = payload[0] >> 4 if payload else 0
    if version == 4 and len(payload) >= _IPV4_SIZE:
        return _Packet(
            payload[9],
            IPv4Address(payload[12:16]),
            IPv4Address(payload[16:20]),
            payload[(payload[0] & 0xF) * 4 :],
        )
    if version == 6 and len(payload) >= _IPV6_SIZE:
        # Extension headers are not parsed: a client's first packet has none.
        return _Packet(
            payload[6], IPv6Address(payload[8:24]), IPv6Address(payload[24:40]), payload[40:]
        )
    return None
