"""Where this machine's congestion control is BBR, only peers farther away are sent to by it.

BBR sends by timers, as fast as it has found the path to be. Within a machine or a rack that path is
no more than processors, of which the timers take their part. A connection that has begun with BBR
has timers for good, whatever it is given later, so connections begin with Reno, and those with
peers farther away get BBR once they have carried a little. See "The service proxy" of
``docs/performance.md``.
"""

from __future__ import annotations

import contextlib
import socket
import struct

NEARBY = 0.0002
"""Seconds of the shortest round trip to a peer nearby: what it takes within a machine or a rack."""

_BBR = b"bbr"
"""What the names of its versions begin with."""

_RENO = b"reno"
"""The control that every kernel has, and lets everybody use (tcp(7))."""

_NAME_BYTES = 16
"""``TCP_CA_NAME_MAX`` of net/tcp.h."""

_MIN_RTT, _INFO_BYTES = struct.Struct("=I"), 152
"""``tcpi_min_rtt`` of ``struct tcp_info`` of linux/tcp.h is the last thing up to there, in
microseconds; kernels before Linux 4.6 do not have it."""


class Pacing:
    """Chooses between Reno and ``control``, the machine's congestion control, if that is BBR.

    Any other control is left as it is.
    """

    def __init__(self, control: bytes) -> None:
        self._bbr = control if control.startswith(_BBR) else None

    def leave_out(self, unconnected: socket.socket) -> None:
        """Have the connections that a TCP socket is to accept, or to be, begin with Reno."""
        if self._bbr is not None:
            _control_by(_RENO, unconnected)

    def bring_in(self, connected: socket.socket) -> None:
        """Have a TCP connection go on by BBR if its peer is farther away than :data:`NEARBY`."""
        if self._bbr is None or _shortest_round_trip(connected) <= NEARBY:
            return
        # A route's own control (``congctl`` of ip-route(8)) stays, where that is not Reno.
        if _control(connected) == _RENO:
            _control_by(self._bbr, connected)


def pacing() -> Pacing:
    """Return the pacing of this machine, as it is set up now.

    All is left as it is where this process must not change controls and take that back.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as new:
        control = _control(new)
        try:
            for name in (_RENO, control):
                new.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name)
        except OSError:
            return Pacing(b"")
        return Pacing(control)


def _control(tcp: socket.socket) -> bytes:
    """Return the name of a socket's control; nothing where the kernel does not tell."""
    with contextlib.suppress(OSError):
        name = tcp.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, _NAME_BYTES)
        return name.rstrip(b"\0")
    return b""


def _control_by(name: bytes, tcp: socket.socket) -> None:
    # Whoever is paced, or is not, gets everything all the same.
    with contextlib.suppress(OSError):
        tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name)


def _shortest_round_trip(connected: socket.socket) -> float:
    """Return it in seconds; infinite where the kernel does not tell."""
    try:
        info = connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
    except OSError:
        info = b""
    if len(info) < _INFO_BYTES:
        return float("inf")
    microseconds: int = _MIN_RTT.unpack_from(info, _INFO_BYTES - _MIN_RTT.size)[0]
    return microseconds / 1e6
