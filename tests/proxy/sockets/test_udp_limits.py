"""Tests of the limits of UDP clients, and of eviction."""

from __future__ import annotations

import errno
import socket
from pathlib import Path

from tests.proxy.sockets.lab import descriptors_in_use
from tests.proxy.sockets.udp_lab import UdpTestCase, datagram_socket
from tests.steering.netlink.support import KernelTestCase


class LimitTests(UdpTestCase):
    """How many clients there are."""

    def test_ten_thousand_clients(self):
        """There are no more descriptors than clients allowed, and all clients are served."""
        self.use(max_clients=200)
        endpoint = self.endpoint()
        self.serve(endpoint)
        before = descriptors_in_use()
        for number in range(10_000):
            with datagram_socket(f"127.1.{number // 250}.{number % 250}") as client:
                self.say(client, b"?")
                self.answer(endpoint)
                self.assertEqual(b"?", client.recv(10))
            if number % 100 == 0:
                self.assertLessEqual(descriptors_in_use(), before + 201)
        stats = self.proxy.stats()
        self.assertEqual((200, 0), (stats.active, stats.failed))
        self.assertEqual(10_000, stats.total)

    def test_which_client_is_evicted(self):
        """The client that has been idle longest is evicted, of all services if necessary."""
        self.use(max_clients=3)
        endpoint = self.endpoint()
        self.serve(endpoint)
        *clients, another = self.make_apart(4)
        for client in clients:
            self.say(client, b"1")
            self.answer(endpoint)
            self.pass_time(2)
        self.say(clients[0], b"2")
        self.at(endpoint)
        self.say(another, b"1")
        self.at(endpoint)
        for client in (clients[0], clients[2]):
            self.say(client, b"3")
        self.assertEqual(4, self.proxy.stats().total)
        self.say(clients[1], b"3")
        self.assertEqual(5, self.proxy.stats().total)

    def test_of_another_service(self):
        """Over the limit of the process the oldest is evicted, answered or not, of any service."""
        self.use(max_clients=3)
        endpoint = self.endpoint()
        self.serve(endpoint)
        other = self.sockets.open(self.service(endpoint), self.picker)
        self.addCleanup(self.stop, other)
        clients = self.make_apart(5)
        self.say(clients[0], b"?")
        self.answer(endpoint)
        for proxy, client in ((self.proxy, 1), (other, 2), (other, 3), (self.proxy, 1), (other, 4)):
            self.pass_time(1.25)
            clients[client].sendto(b"?", ("127.0.0.1", proxy.port))
            self.turn()
        # The first one was evicted for the fourth, the third for the fifth.
        self.assertEqual([1, 2], [each.stats().active for each in (self.proxy, other)])
        self.assertEqual([2, 3], [each.stats().total for each in (self.proxy, other)])

    def stop(self, proxy):
        """Stop at once."""
        stopped = proxy.stop(0)
        self.reactor.advance(0)
        self.successResultOf(stopped)

    def test_one_service(self):
        """A service has at most its limit of clients; the oldest are evicted."""
        self.use(max_clients=10, max_per_service=2)
        endpoint = self.endpoint()
        self.serve(endpoint)
        for client in self.make_apart(5):
            self.say(client, b"?")
            self.pass_time(1)
        self.assertEqual(2, self.proxy.stats().active)

    def test_share_of_an_address(self):
        """An address may have as many clients as are free, of all and of a service: beyond that its
        own client that has been idle longest is evicted, and no other's.
        """
        for limits in ({"max_clients": 8}, {"max_per_service": 8}):
            self.use(**limits)
            endpoint = self.endpoint()
            self.serve(endpoint)
            first, *others = self.make_apart(4)
            self.say(first, b"1")
            many = [self.make() for _ in range(20)]
            for client in many:
                self.answer(endpoint)
                self.pass_time(1)
                self.say(many[0], b"2")
                self.say(client, b"2")
            self.at(endpoint)
            self.assertEqual(1 + 4, self.proxy.stats().active)
            for client in (first, many[0], *many[-3:], *others):
                self.say(client, b"3")
            self.assertEqual(8, len(self.at(endpoint)))
            self.assertEqual((8, 1 + 20 + 3), (self.proxy.stats().active, self.proxy.stats().total))
            self.end()

    def make_apart(self, count):
        """Make clients with different addresses."""
        return [self.make(f"127.0.1.{number}") for number in range(1, count + 1)]

    def test_no_descriptor_is_left(self):
        """An idle client is evicted for a new one; without one, the new one counts as failed."""
        endpoint = self.endpoint()
        self.serve(endpoint)
        first, second = self.make(), self.make()
        self.say(first, b"1")
        made, refused = socket.socket, [True]

        def socket_of_few(*arguments, **more):
            if refused and refused.pop():
                raise OSError(errno.EMFILE, "too many open files")
            return made(*arguments, **more)

        self.patch(socket, "socket", socket_of_few)
        self.say(second, b"2")
        self.assertEqual(1, self.proxy.stats().active)
        self.assertEqual([b"1", b"2"], [data for data, _ in self.at(endpoint)])
        refused[:] = [True, True]
        self.say(first, b"3")
        self.assertEqual(1, self.proxy.stats().failed)
        self.say(first, b"4")
        self.assertEqual([b"4"], [data for data, _ in self.at(endpoint)])


class KernelLimitTests(UdpTestCase, KernelTestCase):
    """Limits of the kernel."""

    def setUp(self):
        """Simulate kernel limits."""
        KernelTestCase.setUp(self)
        UdpTestCase.setUp(self)

    def test_no_local_port_is_left(self):
        """The endpoint has not failed, and an idle client is evicted for the next one."""
        endpoint = self.endpoint()
        self.serve(endpoint)
        clients = [self.make() for _ in range(4)]
        Path("/proc/sys/net/ipv4/ip_local_port_range").write_text("20000 20001")
        for client in clients[:3]:
            self.say(client, b"?")
        stats = self.proxy.stats()
        self.assertEqual((1, 1), (stats.active, stats.failed))
        [endpoint_state] = self.picker.endpoints()
        self.assertEqual((1, 0), (endpoint_state.active, endpoint_state.failures))
        self.say(clients[3], b"?")
        self.assertEqual(2, self.proxy.stats().active)

    def test_a_burst(self):
        """Datagrams of a thousand clients are queued, and not lost, while others are served."""
        self.serve(self.endpoint())
        client = self.make()
        for _ in range(1000):
            client.sendto(bytes(64), ("127.0.0.1", self.proxy.port))
        self.turn()
        self.assertEqual(64_000, self.proxy.stats().received)
