"""Bulk to a peer that is next to this machine goes unpaced.

BBR sends by timers, at the pace that it has found the path to take. Within a machine or a rack
that path is no more than processors and their timers: with BBR a byte takes them twice the time.
See "The service proxy" of ``docs/performance.md``.
"""

from __future__ import annotations

import contextlib
import socket
import struct

NEARBY = 0.0002
"""Seconds of the shortest round trip to such a peer: what it takes within a machine or a rack."""

_PACED = b"bbr"
"""What the names of such controls begin with."""

_UNPACED = b"reno"
"""The control that every kernel has, and lets everybody use (tcp(7))."""

_NAME_BYTES = 16
"""``TCP_CA_NAME_MAX`` of net/tcp.h."""

_MIN_RTT, _INFO_BYTES = struct.Struct("=I"), 152
"""``tcpi_min_rtt`` of ``struct tcp_info`` of linux/tcp.h is the last thing up to there, in
microseconds; kernels before Linux 4.6 do not have it."""


def unpace(connected: socket.socket) -> None:
    """Have a TCP connection control congestion without timers if its peer is :data:`NEARBY`.

    What an operator has chosen otherwise stays, and so does all for peers farther away.
    """
    # At worst it is as fast as it was.
    with contextlib.suppress(OSError):
        control = connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, _NAME_BYTES)
        if control.startswith(_PACED) and _shortest_round_trip(connected) <= NEARBY:
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, _UNPACED)


def _shortest_round_trip(connected: socket.socket) -> float:
    """Return it in seconds; infinite where the kernel does not tell."""
    info = connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
    if len(info) < _INFO_BYTES:
        return float("inf")
    microseconds: int = _MIN_RTT.unpack_from(info, _INFO_BYTES - _MIN_RTT.size)[0]
    return microseconds / 1e6
