"""Tests of the kernel's notifications about addresses and routes."""

from __future__ import annotations

import select
import socket

from twisted.internet.testing import MemoryReactor

from tests.e2e.network.namespaces import run
from tests.steering.netlink.support import KernelTestCase
from yurttunnel.steering.netlink.address_events import AddressEvents

SECONDS = 10
"""The timeout of the kernel; it is done when the requesting program has ended."""


class AddressEventsTests(KernelTestCase):
    """A network namespace whose addresses change."""

    def setUp(self):
        """Listen to it."""
        super().setUp()
        self.reactor = MemoryReactor()
        self.changes = 0
        self.events = AddressEvents(self.reactor, self.count)
        self.events.startService()
        self.addCleanup(self.events.stopService)

    def count(self):
        """Count a change."""
        self.changes += 1

    def is_notified(self, seconds=SECONDS):
        """Return whether a change is reported within this time."""
        poll = select.poll()
        poll.register(self.events.fileno(), select.POLLIN)
        if not poll.poll(seconds * 1000):
            return False
        before = self.changes
        self.events.doRead()
        return self.changes > before

    def test_address(self):
        """A new address is reported, and a removed one."""
        self.assertEqual([self.events], self.reactor.getReaders())
        self.assertFalse(self.is_notified(0))
        self.network.add("192.0.2.7")
        self.assertTrue(self.is_notified())
        self.assertFalse(self.is_notified(0))
        self.network.remove("192.0.2.7")
        self.assertTrue(self.is_notified())

    def test_route(self):
        """Routes are reported as well: one may lead to a link without an address."""
        for family, pod in (("-4", "10.9.0.5"), ("-6", "fd09::5")):
            self.assertFalse(self.is_notified(0))
            run("ip", family, "route", "add", pod, "dev", "lo")
            self.assertTrue(self.is_notified())

    def test_many(self):
        """Many at once are reported in few turns, and all are read in the end."""
        for number in range(1, 41):
            self.network.add(f"192.0.2.{number}")
        turns = 0
        while self.is_notified(0):
            turns += 1
        self.assertTrue(1 <= turns <= 8, turns)

    def test_overflow(self):
        """An overflow of the kernel's buffer is a change, too."""
        kernel = socket.socket(fileno=socket.dup(self.events.fileno()))
        self.addCleanup(kernel.close)
        kernel.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        for number in range(1, 41):
            self.network.add(f"192.0.2.{number}")
        self.assertTrue(self.is_notified())

    def test_stop(self):
        """After a stop nothing is read."""
        self.events.stopService()
        self.assertEqual(([], -1), (self.reactor.getReaders(), self.events.fileno()))
