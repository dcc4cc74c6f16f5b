"""Tests of destroying sockets of programs on this machine."""

from __future__ import annotations

import socket
import threading
import time
from ipaddress import ip_address

from tests.steering.netlink.support import KernelTestCase
from yurttunnel.steering.marks import SocketMarker
from yurttunnel.steering.netlink import sock_diag
from yurttunnel.steering.netlink.conntrack_table import ConntrackTuple
from yurttunnel.steering.netlink.netlink_socket import NetlinkSocket
from yurttunnel.steering.netlink.sock_diag import (
    NETLINK_SOCK_DIAG,
    destroy,
    wait_until_delivered,
)

FAMILIES = {4: (socket.AF_INET, "127.0.0.1"), 6: (socket.AF_INET6, "::1")}


class ConnectionTestCase(KernelTestCase):
    """Connections of the kernel, in a separate network."""

    def connection(self, version, prepare=lambda sock: None):
        """Make a connection; return the client's socket, and the other one."""
        family, address = FAMILIES[version]
        listening = socket.create_server((address, 0), family=family)
        self.addCleanup(listening.close)
        began = socket.socket(family)
        self.addCleanup(began.close)
        prepare(began)
        began.settimeout(10)
        began.connect(listening.getsockname())
        accepted, _ = listening.accept()
        self.addCleanup(accepted.close)
        accepted.settimeout(10)
        return began, accepted


class DestroyTests(ConnectionTestCase):
    """Connections that are destroyed."""

    def destroy(self, version, began):
        """Destroy the connection of a socket."""
        (address, source_port, *_), (_, port, *_) = began.getsockname(), began.getpeername()
        packed = ip_address(address).packed
        with NetlinkSocket(NETLINK_SOCK_DIAG) as netlink:
            ends = ConntrackTuple(socket.IPPROTO_TCP, packed, source_port, packed, port)
            destroy(netlink, version, ends)

    def test_both_ends_are_notified(self):
        """A reader at either end is woken with an error."""
        for version in FAMILIES:
            began, accepted = self.connection(version)
            self.destroy(version, began)
            self.assertRaises(ConnectionAbortedError, began.recv, 1)
            self.assertRaises(ConnectionResetError, accepted.recv, 1)

    def test_own(self):
        """A connection of the server itself continues."""
        began, accepted = self.connection(4, SocketMarker())
        self.destroy(4, began)
        accepted.sendall(b"x")
        self.assertEqual(b"x", began.recv(1))

    def test_none(self):
        """A connection without a socket here is no error."""
        began, _ = self.connection(4)
        self.destroy(4, began)
        with NetlinkSocket(NETLINK_SOCK_DIAG) as netlink:
            destroy(netlink, 4, ConntrackTuple(socket.IPPROTO_TCP, bytes(4), 1, bytes(4), 2))


class DeliveryTests(ConnectionTestCase):
    """Connections whose peers have not read all data when they are closed."""

    def closed(self, version):
        """Close a connection with more data than the peer's kernel accepts; return its port, and
        the peer.

        The peer has closed its direction, so that nothing is reset.
        """
        began, accepted = self.connection(version)
        port = accepted.getsockname()[1]
        began.shutdown(socket.SHUT_WR)
        self.assertEqual(b"", accepted.recv(1))
        accepted.setblocking(False)
        try:
            while True:
                accepted.send(bytes(65536))
        except BlockingIOError:
            accepted.close()
        return port, began

    def waited(self, ports, seconds):
        """Return the time of the wait."""
        began = time.monotonic()
        wait_until_delivered(ports, seconds)
        return time.monotonic() - began

    def test_until_it_is_read(self):
        """The wait ends when the last byte has been read, in both families."""
        for version in FAMILIES:
            port, peer = self.closed(version)
            waiting = threading.Thread(target=wait_until_delivered, args=({port}, 60))
            waiting.start()
            self.addCleanup(waiting.join)
            time.sleep(0.1)
            self.assertTrue(waiting.is_alive())
            while peer.recv(1 << 20):
                pass
            waiting.join(20)
            self.assertFalse(waiting.is_alive())

    def test_for_so_long(self):
        """For a peer that reads nothing, the wait ends after the timeout."""
        port, _ = self.closed(4)
        self.assertGreater(self.waited({port}, 0.3), 0.3)

    def test_other_ports(self):
        """Other connections are not waited for, nor is an open one."""
        _, peer = self.closed(4)
        _, accepted = self.connection(4)
        self.assertLess(self.waited({peer.getsockname()[1], accepted.getsockname()[1]}, 60), 30)

    def test_a_kernel_that_does_not_respond(self):
        """There is no wait if the kernel has no such netlink, or rejects the request."""
        port, _ = self.closed(4)
        for name, bad in (("NETLINK_SOCK_DIAG", 31), ("_BY_FAMILY", 99)):
            patched = self.patch(sock_diag, name, bad)
            self.assertLess(self.waited({port}, 60), 30)
            patched.restore()
