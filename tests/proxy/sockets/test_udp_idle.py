"""Tests of the timeouts of UDP clients."""

from __future__ import annotations

from tests.proxy.sockets.lab import descriptors_in_use
from tests.proxy.sockets.udp_lab import UdpTestCase, received
from yurttunnel.proxy.sockets.udp_table import AFTER_REPLY, BEFORE_REPLY


class IdleTests(UdpTestCase):
    """How long a client is kept."""

    def test_a_late_reply(self):
        """A reply after two seconds arrives, and one just before the end of the first timeout."""
        endpoint, client = self.endpoint(), self.make()
        self.serve(endpoint)
        for seconds in (2, BEFORE_REPLY):
            self.say(client, b"?")
            self.pass_time(seconds)
            self.answer(endpoint)
            self.assertEqual(1, len(received(client)))

    def test_no_reply(self):
        """A client without a reply is removed, its socket closed; its endpoint has not failed."""
        endpoint = self.endpoint()
        self.serve(endpoint)
        before = descriptors_in_use()
        self.say(self.make(), b"?")
        self.pass_time(BEFORE_REPLY + 2)
        self.assertEqual(0, self.proxy.stats().active)
        self.assertEqual(before + 1, descriptors_in_use())
        [endpoint_state] = self.picker.endpoints()
        self.assertEqual((0, 0), (endpoint_state.active, endpoint_state.failures))

    def test_after_a_reply(self):
        """From the first reply on the longer timeout applies, from its last datagram on."""
        endpoint, client = self.endpoint(), self.make()
        self.serve(endpoint)
        for _ in range(3):
            self.say(client, b"?")
            self.answer(endpoint)
            self.pass_time(AFTER_REPLY)
        self.assertEqual(1, self.proxy.stats().active)
        self.assertEqual(1, self.proxy.stats().total)
        self.pass_time(2)
        self.assertEqual(0, self.proxy.stats().active)
        self.assertEqual([], self.reactor.getDelayedCalls())

    def test_times_that_change(self):
        """Changed timeouts apply to existing clients, too."""
        endpoint, client, silent = self.endpoint(), self.make(), self.make()
        self.serve(endpoint)
        self.say(client, b"?")
        self.answer(endpoint)
        self.say(silent, b"?")
        self.table.set_timeouts(3 * BEFORE_REPLY, AFTER_REPLY / 3)
        self.pass_time(2 * BEFORE_REPLY)
        self.assertEqual(2, self.proxy.stats().active)
        self.pass_time(2)
        self.assertEqual(1, self.proxy.stats().active)
        self.pass_time(BEFORE_REPLY)
        self.assertEqual(0, self.proxy.stats().active)

    def test_replies_count(self):
        """A client that only receives is kept as long as there are replies."""
        endpoint, client = self.endpoint(), self.make()
        self.serve(endpoint)
        self.say(client, b"subscribe")
        [(_, source)] = self.at(endpoint)
        for _ in range(20):
            self.endpoints[endpoint].sendto(b"news", source)
            self.turn()
            self.pass_time(10)
        self.assertEqual(20, len(received(client)))

    def test_no_endpoint_ever_replies(self):
        """A client that only sends keeps its endpoint, too."""
        endpoint, other = self.endpoint(), self.endpoint()
        self.serve(endpoint, other)
        client = self.make()
        for _ in range(50):
            self.say(client, b"<34>Oct 11 22:14:15 su")
            self.pass_time(1)
        self.assertEqual([0, 50], sorted(len(self.at(each)) for each in (endpoint, other)))

    def test_other_times(self):
        """Both timeouts are arguments, including those of the first kube-proxy."""
        self.use(before_reply=0.25, after_reply=0.25)
        endpoint, client = self.endpoint(), self.make()
        self.serve(endpoint)
        self.say(client, b"?")
        self.answer(endpoint)
        for _ in range(4):
            self.reactor.advance(0.0625)
        self.assertEqual(1, self.proxy.stats().active)
        self.reactor.advance(0.0625)
        self.reactor.advance(0.0625)
        self.assertEqual(0, self.proxy.stats().active)
