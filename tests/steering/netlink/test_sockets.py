"""Sockets of programs on this machine are ended."""

from __future__ import annotations

import socket
from ipaddress import ip_address

from twisted.trial.unittest import SynchronousTestCase

from tests.e2e.cluster.network import OwnNetwork
from yurttunnel.steering.marks import OwnMark
from yurttunnel.steering.netlink.conversation import Conversation
from yurttunnel.steering.netlink.flows import NETLINK_SOCK_DIAG, Ends, destroy

FAMILIES = {4: (socket.AF_INET, "127.0.0.1"), 6: (socket.AF_INET6, "::1")}


class DestroyTests(SynchronousTestCase):
    """By the kernel, in a network of its own."""

    def setUp(self):
        """Go there."""
        network = OwnNetwork([])
        self.addCleanup(network.close)

    def connection(self, version, prepare=lambda sock: None):
        """Make a connection; gives the socket that has begun it, and the other one."""
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

    def destroy(self, version, began):
        """End the connection of a socket."""
        (address, source_port, *_), (_, port, *_) = began.getsockname(), began.getpeername()
        packed = ip_address(address).packed
        with Conversation(NETLINK_SOCK_DIAG) as conversation:
            destroy(conversation, version, Ends(packed, source_port, packed, port))

    def test_both_ends_are_told(self):
        """Whoever waits to read is woken with an error, at either end."""
        for version in FAMILIES:
            began, accepted = self.connection(version)
            self.destroy(version, began)
            self.assertRaises(ConnectionAbortedError, began.recv, 1)
            self.assertRaises(ConnectionResetError, accepted.recv, 1)

    def test_own(self):
        """A connection of the server itself goes on."""
        began, accepted = self.connection(4, OwnMark())
        self.destroy(4, began)
        accepted.sendall(b"x")
        self.assertEqual(b"x", began.recv(1))

    def test_none(self):
        """A connection without a socket here is no error."""
        began, _ = self.connection(4)
        self.destroy(4, began)
        with Conversation(NETLINK_SOCK_DIAG) as conversation:
            destroy(conversation, 4, Ends(bytes(4), 1, bytes(4), 2))
