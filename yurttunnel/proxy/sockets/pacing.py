"""Using BBR for distant peers only, if it is this machine's congestion control.

BBR paces its packets with timers, at the rate that it has measured. Within a machine or a rack that
rate is limited only by processors, whose time the timers use. A connection that has started with
BBR keeps its timers, even if its congestion control changes later. So connections start with Reno,
and those to distant peers switch to BBR after they have carried some data. See "The service proxy"
of ``docs/performance.md``.
"""

from __future__ import annotations

import contextlib
import socket
import struct

NEARBY = 0.0002
"""The minimum round-trip time to a nearby peer in seconds, within a machine or a rack."""

_BBR = b"bbr"
"""The prefix of the names of all its versions."""

_RENO = b"reno"
"""The congestion control that every kernel has, and that any process may select (tcp(7))."""

_NAME_BYTES = 16
"""``TCP_CA_NAME_MAX`` of net/tcp.h."""

_MIN_RTT, _INFO_BYTES = struct.Struct("=I"), 152
"""``tcpi_min_rtt`` of ``struct tcp_info`` of linux/tcp.h, in microseconds, is the last field of
that many bytes; kernels before Linux 4.6 do not have it."""


class Pacing:
    """Selects between Reno and ``control``, the machine's congestion control, if that is BBR.

    Any other congestion control is left unchanged.
    """

    def __init__(self, control: bytes) -> None:
        self._bbr = control if control.startswith(_BBR) else None

    def use_reno(self, unconnected: socket.socket) -> None:
        """Start the connections of a TCP socket, accepted or connected, with Reno."""
        if self._bbr is not None:
            _control_by(_RENO, unconnected)

    def use_bbr_if_distant(self, connected: socket.socket) -> None:
        """Switch a TCP connection to BBR if its peer is farther away than :data:`NEARBY`."""
        if self._bbr is None or _shortest_round_trip(connected) <= NEARBY:
            return
        # A route's own congestion control (``congctl`` of ip-route(8)) stays, unless it is Reno.
        if _control(connected) == _RENO:
            _control_by(self._bbr, connected)


def pacing() -> Pacing:
    """Return the pacing for this machine as it is configured now.

    Everything is left unchanged if this process may not change congestion controls and change them
    back.
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
    """Return the congestion control of a socket; empty if the kernel does not report it."""
    with contextlib.suppress(OSError):
        name = tcp.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, _NAME_BYTES)
        return name.rstrip(b"\0")
    return b""


def _control_by(name: bytes, tcp: socket.socket) -> None:
    # Data is delivered with either congestion control.
    with contextlib.suppress(OSError):
        tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name)


def _shortest_round_trip(connected: socket.socket) -> float:
    """Return the minimum round-trip time in seconds; infinite if the kernel does not report it."""
    try:
        info = connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
    except OSError:
        info = b""
    if len(info) < _INFO_BYTES:
        return float("inf")
    microseconds: int = _MIN_RTT.unpack_from(info, _INFO_BYTES - _MIN_RTT.size)[0]
    return microseconds / 1e6
