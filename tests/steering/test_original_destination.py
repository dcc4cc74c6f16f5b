"""The kernel's record of redirected connections."""

from __future__ import annotations

import errno
import socket
from ipaddress import ip_address

from twisted.trial.unittest import SynchronousTestCase

from tests.steering.redirecting import (
    REDIRECTED,
    TRANSLATED,
    redirecting_network,
)
from yurttunnel.steering.original_destination import (
    SocketAddress,
    original_destination,
    redirect_source,
)

LISTENER = 7000

# Documentation addresses, which no machine has (RFC 5737, RFC 3849).
NODES = {4: "192.0.2.9", 6: "2001:db8::9"}
LOOPBACK = {4: "127.0.0.1", 6: "::1"}


class KernelTests(SynchronousTestCase):
    """A real kernel with iptables."""

    def setUp(self):
        """Redirect connections to a listener of both families."""
        redirecting_network(self, LISTENER)
        self.listener = self.listen("::")

    def listen(self, address, port=LISTENER):
        """Listen, on ``::`` also for IPv4."""
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        both = family == socket.AF_INET6
        listener = socket.create_server((address, port), family=family, dualstack_ipv6=both)
        listener.settimeout(10)
        self.addCleanup(listener.close)
        return listener

    def accepted(self, address, port, listener=None):
        """Connect, and return the listener's side of the connection."""
        caller = socket.create_connection((address, port), timeout=10)
        self.addCleanup(caller.close)
        connection, _ = (listener or self.listener).accept()
        self.addCleanup(connection.close)
        return connection

    def test_redirected(self):
        """The original destination is returned in both families, however it was redirected."""
        for version, node in NODES.items():
            for port in (REDIRECTED, TRANSLATED):
                connection = self.accepted(node, port)
                self.assertEqual(connection.family, socket.AF_INET6)
                asked = SocketAddress(ip_address(node), port)
                self.assertEqual(asked.address.version, version)
                self.assertEqual(original_destination(connection), asked)
                self.assertEqual(redirect_source(connection), asked)

    def test_a_listener_of_ipv4_only(self):
        """Its sockets are of another family, with the same result."""
        self.listener.close()
        listener = self.listen("0.0.0.0")
        for port in (REDIRECTED, TRANSLATED):
            connection = self.accepted(NODES[4], port, listener)
            self.assertEqual(connection.family, socket.AF_INET)
            self.assertEqual(redirect_source(connection), SocketAddress(ip_address(NODES[4]), port))

    def test_not_redirected(self):
        """A direct connection has no original destination."""
        for loopback in LOOPBACK.values():
            connection = self.accepted(loopback, LISTENER)
            self.assertIsNone(redirect_source(connection))
            asked = original_destination(connection)
            self.assertEqual(asked, SocketAddress(ip_address(loopback), LISTENER))


class UntrackedTests(SynchronousTestCase):
    """Connections that the kernel does not track, or is said not to."""

    def accepted(self, address):
        """Connect to a listener, and return its side of the connection."""
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with socket.create_server((address, 0), family=family) as listener:
            caller = socket.create_connection(listener.getsockname()[:2], timeout=10)
            self.addCleanup(caller.close)
            connection, _ = listener.accept()
        self.addCleanup(connection.close)
        return connection

    def test_here(self):
        """Connections that were not redirected have no original destination."""
        for address in LOOPBACK.values():
            self.assertIsNone(redirect_source(self.accepted(address)))

    def test_untracked(self):
        """The kernel then knows no original destination."""
        for number in (errno.ENOENT, errno.ENOPROTOOPT):
            for own in (("127.0.0.1", 1), ("fe80::1%lo", 1, 0, 1), ("::ffff:127.0.0.1", 1, 0, 0)):
                connection = _Untracked(own, number)
                self.assertIsNone(original_destination(connection))
                self.assertIsNone(redirect_source(connection))


class _Untracked:
    """A socket whose connection is not tracked."""

    def __init__(self, own, number):
        self.own = own
        self.number = number

    def getsockname(self):
        return self.own

    def getsockopt(self, *_):
        raise OSError(self.number, "")


class TextTests(SynchronousTestCase):
    """The readable form."""

    def test_text(self):
        """An IPv6 address has brackets."""
        self.assertEqual(str(SocketAddress(ip_address("192.0.2.9"), 1)), "192.0.2.9:1")
        self.assertEqual(str(SocketAddress(ip_address("2001:db8::9"), 1)), "[2001:db8::9]:1")
