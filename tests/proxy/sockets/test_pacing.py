"""Tests of congestion control for nearby and distant peers."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from twisted.trial.unittest import SkipTest, SynchronousTestCase

from yurttunnel.proxy.sockets import pacing
from yurttunnel.proxy.sockets.pacing import NEARBY, Pacing

AVAILABLE = Path("/proc/sys/net/ipv4/tcp_available_congestion_control")
DEFAULT = Path("/proc/sys/net/ipv4/tcp_congestion_control")

NEAR, FAR = NEARBY, NEARBY + 1e-6


class Tcp:
    """A socket with a congestion control and a minimum round trip; ``None`` is not reported."""

    def __init__(self, control, seconds=None, refusing=False):
        self.control = control
        self.refusing = refusing
        self._info = bytes(148)
        if seconds is not None:
            self._info += struct.pack("=I", round(seconds * 1e6))

    def getsockopt(self, level, option, size):
        """Return the option."""
        known = {
            socket.TCP_CONGESTION: self.control.encode().ljust(16, b"\0"),
            socket.TCP_INFO: self._info,
        }
        return known[option][:size]

    def setsockopt(self, level, option, value):
        """Change the congestion control, if permitted."""
        if self.refusing:
            raise PermissionError
        assert option == socket.TCP_CONGESTION
        self.control = value.decode()


class PacingTests(SynchronousTestCase):
    """Which connections use which congestion control."""

    def begun(self, control, **more):
        """Return the initial congestion control on a machine with this one."""
        new = Tcp(control, **more)
        Pacing(control.encode()).use_reno(new)
        return new.control

    def with_bulk(self, machine, *arguments, **more):
        """Return the congestion control after the first bulk data, on a machine with this one."""
        connected = Tcp(*arguments, **more)
        Pacing(machine.encode()).use_bbr_if_distant(connected)
        return connected.control

    def test_begin(self):
        """No connection is paced at first, for any version of BBR."""
        self.assertEqual("reno", self.begun("bbr"))
        self.assertEqual("reno", self.begun("bbr2"))

    def test_bulk_to_a_peer_nearby(self):
        """BBR has no advantage there."""
        self.assertEqual("reno", self.with_bulk("bbr", "reno", NEAR))

    def test_bulk_to_a_peer_farther_away(self):
        """The machine's congestion control is used for them."""
        self.assertEqual("bbr", self.with_bulk("bbr", "reno", FAR))
        self.assertEqual("bbr2", self.with_bulk("bbr2", "reno", FAR))

    def test_a_machine_with_another_control(self):
        """Another congestion control is left unchanged, for any peer."""
        for control in ("cubic", "dctcp", "reno"):
            self.assertEqual(control, self.begun(control))
            self.assertEqual(control, self.with_bulk(control, control, NEAR))
            self.assertEqual(control, self.with_bulk(control, control, FAR))

    def test_a_route_with_a_control_of_its_own(self):
        """The kernel uses it from the beginning, and it stays for bulk data."""
        self.assertEqual("cubic", self.with_bulk("bbr", "cubic", FAR))

    def test_kernel_without_round_trip_times(self):
        """An old kernel does not report the minimum round trip: any peer counts as distant."""
        self.assertEqual("bbr", self.with_bulk("bbr", "reno", None))

    def test_where_it_is_not_permitted(self):
        """The connection is left unchanged."""
        self.assertEqual("bbr", self.begun("bbr", refusing=True))
        self.assertEqual("reno", self.with_bulk("bbr", "reno", FAR, refusing=True))


class KernelTests(SynchronousTestCase):
    """Behavior of this kernel; a connection within a machine has a nearby peer."""

    def setUp(self):
        """Use BBR, whatever the machine's congestion control is."""
        if "bbr" not in AVAILABLE.read_text().split():
            raise SkipTest("this kernel has no BBR")
        self.pacing = Pacing(b"bbr")

    @contextmanager
    def accepted(self) -> Iterator[socket.socket]:
        """Yield an accepted connection that has carried some data."""
        with closing(socket.socket(socket.AF_INET, socket.SOCK_STREAM)) as listening:
            self.set(listening, b"bbr")
            self.pacing.use_reno(listening)
            listening.bind(("127.0.0.1", 0))
            listening.listen()
            with (
                closing(socket.create_connection(listening.getsockname())) as client,
                closing(listening.accept()[0]) as served,
            ):
                for _ in range(64):
                    served.sendall(bytes(1024))
                    self.assertTrue(client.recv(1024))
                yield served

    def set(self, tcp: socket.socket, control: bytes) -> None:
        """Set the congestion control of a socket."""
        tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, control)

    def control(self, tcp: socket.socket) -> str:
        """Return the congestion control of a socket."""
        name = tcp.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
        return name.rstrip(b"\0").decode()

    def test_a_peer_nearby(self):
        """Accepted connections have Reno, as their listening socket has, and keep it."""
        with self.accepted() as served:
            self.assertEqual("reno", self.control(served))
            self.pacing.use_bbr_if_distant(served)
            self.assertEqual("reno", self.control(served))

    def test_a_peer_farther_away(self):
        """BBR is selected if the round trip takes longer than nearby."""
        self.patch(pacing, "NEARBY", 0.0)
        with self.accepted() as served:
            self.pacing.use_bbr_if_distant(served)
            self.assertEqual("bbr", self.control(served))

    def test_where_it_could_not_be_taken_back(self):
        """Everything is left unchanged: distant peers would never get BBR."""
        machine, real = DEFAULT.read_text().strip().encode(), socket.socket.setsockopt

        class Restricted(socket.socket):
            def setsockopt(self, level, option, value):
                if value == machine:
                    raise PermissionError
                real(self, level, option, value)

        self.patch(socket, "socket", Restricted)
        self.patch(pacing, "_BBR", machine)
        with closing(Restricted(socket.AF_INET, socket.SOCK_STREAM)) as new:
            pacing.pacing().use_reno(new)
            self.assertEqual(machine.decode(), self.control(new))

    def test_the_machine_s_own(self):
        """It is the congestion control of new sockets."""
        machine = DEFAULT.read_text().strip()
        with closing(socket.socket(socket.AF_INET, socket.SOCK_STREAM)) as new:
            pacing.pacing().use_reno(new)
            expected = "reno" if machine.startswith("bbr") else machine
            self.assertEqual(expected, self.control(new))
