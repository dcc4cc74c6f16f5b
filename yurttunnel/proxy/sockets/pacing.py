"""Bulk to a peer that is next to this machine is not sent at the pace of BBR.

BBR sends by timers, as fast as it has found the path to be. Within a machine or a rack that path is
no more than processors, of which the timers take their part. A connection that has begun with BBR
has timers for good, but by Reno they are set for up to twice what the path has carried
(``tcp_pacing_ss_ratio`` of ip-sysctl): few of them are waited for. See "The service proxy" of
``docs/performance.md``.
"""

from __future__ import annotations

import contextlib
import socket
import struct

NEARBY = 0.0002
"""Seconds of the shortest round trip to such a peer: what it takes within a machine or a rack."""

_BBR = b"bbr"
"""What the names of its versions begin with."""

_RENO = b"reno"
"""The control that every kernel has, and lets everybody use (tcp(7))."""

_NAME_BYTES = 16
"""``TCP_CA_NAME_MAX`` of net/tcp.h."""

_MIN_RTT, _INFO_BYTES = struct.Struct("=I"), 152
"""``tcpi_min_rtt`` of ``struct tcp_info`` of linux/tcp.h is the last thing up to there, in
microseconds; kernels before Linux 4.6 do not have it."""


def quicken(connected: socket.socket) -> None:
    """Have a TCP connection control congestion by Reno in the place of BBR to a peer nearby.

    Any other control stays, and so does BBR to peers farther away than :data:`NEARBY`.
    """
    # At worst it is as fast as it was.
    with contextlib.suppress(OSError):
        control = connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, _NAME_BYTES)
        if control.startswith(_BBR) and _shortest_round_trip(connected) <= NEARBY:
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, _RENO)


def _shortest_round_trip(connected: socket.socket) -> float:
    """Return it in seconds; infinite where the kernel does not tell."""
    info = connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
    if len(info) < _INFO_BYTES:
        return float("inf")
    microseconds: int = _MIN_RTT.unpack_from(info, _INFO_BYTES - _MIN_RTT.size)[0]
    return microseconds / 1e6
