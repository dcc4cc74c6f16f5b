"""Tests of stopping UDP proxy sockets."""

from __future__ import annotations

from twisted.internet.error import ConnectionLost
from twisted.python.failure import Failure

from tests.proxy.sockets.lab import descriptors_in_use
from tests.proxy.sockets.udp_lab import UdpTestCase, received
from yurttunnel.proxy.sockets.udp_table import BEFORE_REPLY
from yurttunnel.proxy.state.virtual_services import Protocol


class StopTests(UdpTestCase):
    """Stopping a proxy socket."""

    def test_at_once(self):
        """Its clients end, and its port is free."""
        self.serve(self.endpoint())
        self.say(self.make(), b"?")
        stopped = self.proxy.stop(0)
        self.reactor.advance(0)
        self.assertIsNone(self.successResultOf(stopped))
        self.assertEqual(0, len(self.table))
        self.assertFalse(self.allocator.is_used(4, Protocol.UDP, self.proxy.port))

    def test_draining(self):
        """Existing clients are served until they are idle or time is over; new ones are not."""
        endpoint = self.endpoint()
        self.serve(endpoint)
        client = self.make()
        self.say(client, b"1")
        stopped = self.proxy.stop(10)
        self.say(client, b"2")
        self.say(self.make(), b"x")
        self.assertEqual(1, self.proxy.stats().active)
        self.answer(endpoint)
        self.assertEqual([b"1", b"2"], [data for data, _ in received(client)])
        self.pass_time(9.5)
        self.assertNoResult(stopped)
        self.pass_time(0.5)
        self.assertIsNone(self.successResultOf(stopped))

    def test_drained(self):
        """It ends with the last client."""
        self.serve(self.endpoint())
        self.say(self.make(), b"1")
        stopped = self.proxy.stop(100)
        self.pass_time(BEFORE_REPLY + 2)
        self.assertIsNone(self.successResultOf(stopped))

    def test_without_a_time(self):
        """Existing clients are served until they are idle, or a later timeout expires."""
        self.serve(self.endpoint())
        client = self.make()
        self.say(client, b"1")
        stopped = self.proxy.stop(None)
        for _ in range(10):
            self.pass_time(BEFORE_REPLY)
            self.say(client, b"2")
        self.assertNoResult(stopped)
        _ = self.proxy.stop(1)
        self.pass_time(1)
        self.assertIsNone(self.successResultOf(stopped))

    def test_the_reactor_stops(self):
        """Everything is closed, and a later stop has nothing to do."""
        self.serve(self.endpoint())
        self.say(self.make(), b"?")
        before = descriptors_in_use()
        self.descriptors.connectionLost(Failure(ConnectionLost()))
        self.assertLess(descriptors_in_use(), before)
        self.assertIsNone(self.successResultOf(self.proxy.stop(5)))
        self.pass_time(1)
