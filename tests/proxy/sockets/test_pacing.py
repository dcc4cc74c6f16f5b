"""Congestion control of connections that carry bulk."""

from __future__ import annotations

import socket
import struct
from contextlib import closing
from pathlib import Path

from twisted.trial.unittest import SkipTest, SynchronousTestCase

from yurttunnel.proxy.sockets.pacing import NEARBY, quicken

AVAILABLE = Path("/proc/sys/net/ipv4/tcp_available_congestion_control")

NEAR, FAR = NEARBY, NEARBY + 1e-6


class Connected:
    """A connection with a control and the shortest time of a round trip; ``None`` is not told."""

    def __init__(self, control, seconds, refusing=False):
        self.control = control
        self.refusing = refusing
        self._info = bytes(148)
        if seconds is not None:
            self._info += struct.pack("=I", round(seconds * 1e6))

    def getsockopt(self, level, option, size):
        """Tell what is."""
        known = {
            socket.TCP_CONGESTION: self.control.encode().ljust(16, b"\0"),
            socket.TCP_INFO: self._info,
        }
        return known[option][:size]

    def setsockopt(self, level, option, value):
        """Change the control, if that is permitted."""
        if self.refusing:
            raise PermissionError
        assert option == socket.TCP_CONGESTION
        self.control = value.decode()


class QuickenTests(SynchronousTestCase):
    """Which connections get another control."""

    def control(self, *arguments, **more):
        """Return what a connection has afterwards."""
        connected = Connected(*arguments, **more)
        quicken(connected)
        return connected.control

    def test_a_peer_nearby(self):
        """BBR, of any version, has no path to find there."""
        self.assertEqual("reno", self.control("bbr", NEAR))
        self.assertEqual("reno", self.control("bbr2", NEAR))

    def test_a_peer_farther_away(self):
        """It is there for that one."""
        self.assertEqual("bbr", self.control("bbr", FAR))

    def test_another_control(self):
        """It stays: nothing is known against it."""
        self.assertEqual("cubic", self.control("cubic", NEAR))
        self.assertEqual("dctcp", self.control("dctcp", NEAR))

    def test_where_the_kernel_does_not_tell(self):
        """An old one knows no shortest round trip."""
        self.assertEqual("bbr", self.control("bbr", None))

    def test_where_it_is_not_permitted(self):
        """The connection goes on as it was."""
        self.assertEqual("bbr", self.control("bbr", NEAR, refusing=True))

    def test_the_kernel(self):
        """A connection within this machine is a near one; so it is when it has carried much."""
        if "bbr" not in AVAILABLE.read_text().split():
            raise SkipTest("this kernel has no BBR")
        with (
            closing(socket.create_server(("127.0.0.1", 0))) as listening,
            closing(socket.create_connection(listening.getsockname())) as client,
            closing(listening.accept()[0]) as served,
        ):
            served.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"bbr")
            for _ in range(64):
                served.sendall(bytes(1024))
                self.assertTrue(client.recv(1024))
            quicken(served)
            control = served.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
            self.assertEqual(b"reno", control.rstrip(b"\0"))
