"""Tests of datagrams that endpoints, or routers before them, reject."""

from __future__ import annotations

import socket
import struct
from ipaddress import ip_address

from twisted.logger import capturedLogs, formatEvent

from tests.e2e.network.namespaces import wait_for_ipv6
from tests.proxy.sockets.lab import descriptors_in_use
from tests.proxy.sockets.udp_lab import UdpTestCase, received
from tests.steering.netlink.support import KernelTestCase
from yurttunnel.proxy.sockets.dialing import LOOP_REASON
from yurttunnel.proxy.sockets.udp import MAX_TRIES
from yurttunnel.proxy.sockets.udp_table import BEFORE_REPLY, MAX_BUFFERED
from yurttunnel.proxy.state.virtual_services import Endpoint


class RefusedTests(UdpTestCase):
    """Endpoints without a listener (ICMP port unreachable)."""

    def test_the_first_datagram(self):
        """It is sent again to another endpoint, without an error for the client."""
        for _ in range(6):
            endpoint = self.endpoint()
            self.serve(endpoint, self.dead(), self.dead())
            client = self.make()
            self.say(client, b"?")
            self.answer(endpoint)
            self.assertEqual([b"?"], [data for data, _ in received(client)])
            self.assertEqual([], received(client))
            self.end()

    def test_several_datagrams_at_once(self):
        """The first one is sent again, before those that followed it."""
        endpoint, dead = self.endpoint(), self.dead()
        self.serve(dead, endpoint)
        # So that the other one is next.
        self.picker.pick("192.0.2.1", [dead])
        client = self.make()
        for data in (b"1", b"2", b"3"):
            client.sendto(data, ("127.0.0.1", self.proxy.port))
        self.turn()
        self.assertEqual([b"1", b"2", b"3"], [data for data, _ in self.at(endpoint)])
        self.assertEqual([0, 1], sorted(each.failures for each in self.picker.endpoints()))

    def test_all_refuse(self):
        """Each is tried once, and the client is removed; the next datagram starts again."""
        dead = [self.dead() for _ in range(MAX_TRIES + 1)]
        self.serve(*dead)
        client = self.make()
        self.say(client, b"?")
        stats = self.proxy.stats()
        self.assertEqual((0, 1, 1), (stats.active, stats.total, stats.failed))
        endpoint_state = self.picker.endpoints()
        self.assertEqual([0, 1, 1, 1, 1], sorted(each.failures for each in endpoint_state))
        self.assertEqual({"", "Connection refused"}, {each.last_failure for each in endpoint_state})
        self.assertEqual({0}, {each.active for each in endpoint_state})
        self.say(client, b"?")
        self.assertEqual(2, self.proxy.stats().failed)

    def test_an_endpoint_ends_later(self):
        """The next datagram is served by another one."""
        endpoints = [self.endpoint(), self.endpoint()]
        self.serve(*endpoints)
        client = self.make()
        self.say(client, b"1")
        [own] = [each for each in endpoints if self.was_asked(each)]
        [other] = {*endpoints} - {own}
        self.answer_to(own, client)
        self.endpoints[own].close()
        self.say(client, b"2")
        self.say(client, b"3")
        self.answer(other)
        self.assertEqual([b"3"], [data for data, _ in received(client)])
        self.assertEqual(1, self.proxy.stats().total)

    def was_asked(self, endpoint):
        """Return whether a datagram waits at an endpoint."""
        try:
            return bool(self.endpoints[endpoint].recv(10, socket.MSG_PEEK))
        except BlockingIOError:
            return False

    def answer_to(self, endpoint, client):
        """Have the endpoint reply, and the client read it."""
        self.answer(endpoint)
        self.assertEqual(1, len(received(client)))

    def test_loop(self):
        """A proxy socket of this process is not used as an endpoint: nothing loops, and a client is
        served by another endpoint.
        """
        good, own = self.endpoint(), self.serve()
        other = self.sockets.open(self.service(), self.picker)
        self.addCleanup(lambda: self.successResultOf(other.stop(0)))
        loops = [Endpoint(ip_address("127.0.0.1"), each.port) for each in (own, other)]
        self.update(*loops)
        before = descriptors_in_use()
        with capturedLogs() as events:
            self.say(self.make(), b"?")
        self.assertEqual(before + 1, descriptors_in_use())
        [text] = map(formatEvent, events)
        self.assertRegex(text, f"shop/dns:http UDP IPv4 got no endpoint: 127.*: {LOOP_REASON}")
        self.assertEqual((1, 1), (own.stats().total, own.stats().failed))
        self.assertEqual(0, other.stats().total)
        self.assertEqual({LOOP_REASON}, {each.last_failure for each in self.picker.endpoints()})
        self.update(*loops, good)
        self.say(self.make(), b"!")
        self.assertEqual([b"!"], [data for data, _ in self.at(good)])

    def test_fewer_endpoints_than_tries(self):
        """None is tried twice, and none keeps a connection."""
        self.serve(self.dead(), self.dead())
        self.say(self.make(), b"?")
        counts = [(each.failures, each.active) for each in self.picker.endpoints()]
        self.assertEqual([(1, 0), (1, 0)], counts)

    def test_one_recovers(self):
        """After an endpoint has replied, those that refused earlier may be tried again."""
        first, second = self.endpoint(), self.endpoint()
        self.serve(first, second)
        self.picker.pick("192.0.2.1", [second])
        client = self.make()
        self.say(client, b"1")
        self.answer_to(second, client)
        self.endpoints[second].close()
        self.say(client, b"2")
        self.say(client, b"3")
        self.answer_to(first, client)
        self.reopen(second)
        self.endpoints[first].close()
        self.say(client, b"4")
        self.say(client, b"5")
        self.answer_to(second, client)
        self.assertEqual(1, self.proxy.stats().total)

    def test_a_silent_endpoint_returns(self):
        """An ejected endpoint that never replies returns when it has not refused a client for long,
        whether that client continues to send or not.
        """
        for times in (1, 10):
            dead = self.dead()
            self.serve(dead)
            for _ in range(2):
                self.say(self.make(), b"?")
            self.assertIsNotNone(self.picker.endpoints()[0].ejected_until)
            self.reopen(dead)
            self.pass_time(10)
            client = self.make()
            for _ in range(times):
                self.say(client, b"!")
                self.pass_time(1)
            self.pass_time(0 if times > 1 else BEFORE_REPLY + 1)
            self.assertIsNone(self.picker.endpoints()[0].ejected_until)
            self.end()

    def reopen(self, endpoint):
        """Have an endpoint listen again."""
        self.endpoints[endpoint] = self.make(port=endpoint.port)

    def test_ejection(self):
        """One that has refused some clients gets no more of them."""
        endpoint, dead = self.endpoint(), self.dead()
        self.serve(endpoint, dead)
        for _ in range(20):
            self.say(self.make(), b"?")
            self.answer(endpoint)
        [endpoint_state] = [each for each in self.picker.endpoints() if each.endpoint == dead]
        self.assertEqual(2, endpoint_state.failures)
        self.assertIsNotNone(endpoint_state.ejected_until)

    def test_stored_first_datagrams(self):
        """Their total size is limited, and those of served clients are released."""
        endpoint = self.endpoint()
        self.serve(endpoint)
        large = bytes(60_000)
        for _ in range(MAX_BUFFERED // len(large) + 5):
            self.say(self.make(), large)
            self.at(endpoint)
        self.assertFalse(self.table.reserve(len(large)))
        self.update()
        self.assertTrue(self.table.reserve(MAX_BUFFERED))
        self.table.release(MAX_BUFFERED)
        self.update(endpoint)
        self.say(self.make(), large)
        self.pass_time(BEFORE_REPLY + 2)
        self.assertTrue(self.table.reserve(MAX_BUFFERED))

    def test_datagram_that_is_not_stored_is_sent(self):
        """Without space, a first datagram is sent to an endpoint all the same."""
        endpoint = self.endpoint()
        self.serve(endpoint)
        self.table.reserve(MAX_BUFFERED)
        self.say(self.make(), b"?")
        self.assertEqual([b"?"], [data for data, _ in self.at(endpoint)])


class RouterTests(UdpTestCase, KernelTestCase):
    """ICMPv6 errors of routers about a datagram; the kernel computes the checksum."""

    version = 6

    def setUp(self):
        """Make two endpoints, and a client whose first datagram has reached one of them."""
        KernelTestCase.setUp(self)
        wait_for_ipv6()
        UdpTestCase.setUp(self)
        self.both = [self.endpoint(), self.endpoint()]
        self.serve(*self.both)
        self.client = self.make()
        self.say(self.client, b"1")
        [(self.first, self.source)] = self.asked()

    def asked(self):
        """Return the endpoints that datagrams have reached, and their sources."""
        return [(each, source) for each in self.both for _, source in self.at(each)]

    def tell(self, kind, code, value=0):
        """Have a router send an error about the last datagram."""
        one = ip_address("::1").packed
        udp = struct.pack("!HHHH", self.source[1], self.first.port, 9, 0) + b"1"
        about = struct.pack("!IHBB", 6 << 28, len(udp), socket.IPPROTO_UDP, 64) + one + one + udp
        with socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6) as router:
            router.sendto(struct.pack("!BBHI", kind, code, 0, value) + about, ("::1", 0))

    def failures(self):
        """Return the failures of the endpoints."""
        return [each.failures for each in self.picker.endpoints()]

    def test_too_big(self):
        """The client keeps its endpoint and its port, whether the error appears as an event of its
        socket, on reading a reply, or on its next datagram, which is the only loss.
        """
        self.tell(2, 0, 1280)
        self.turn()
        self.tell(2, 0, 1280)
        self.endpoints[self.first].sendto(b"!", self.source)
        self.turn()
        self.tell(2, 0, 1280)
        self.say(self.client, b"2")
        self.say(self.client, b"3")
        self.assertEqual({(self.first, self.source)}, set(self.asked()))
        self.assertEqual([b"!"], [data for data, _ in received(self.client)])
        self.assertEqual(([0, 0], 1), (self.failures(), self.proxy.stats().total))

    def test_prohibited(self):
        """As with IPv4, the endpoint has failed, and the datagram is sent to another one."""
        for code in (1, 5, 6):
            self.tell(1, code)
            self.turn()
            self.assertEqual([0, 1], sorted(self.failures()))
            [(other, _)] = self.asked()
            self.assertNotEqual(self.first, other)
            self.end()
            self.setUp()
