"""Tests of datagrams from clients to endpoints, and of replies."""

from __future__ import annotations

import hashlib
import os
from ipaddress import ip_address
from unittest import mock

from twisted.logger import capturedLogs, formatEvent
from twisted.trial.unittest import SynchronousTestCase
from zope.interface.verify import verifyObject

from tests.proxy.sockets.lab import LOOPBACK, descriptors_in_use
from tests.proxy.sockets.udp_lab import UdpTestCase, datagram_socket, received
from tests.steering.netlink.support import KernelTestCase
from yurttunnel.proxy.interfaces import IProxySocket, IProxySockets
from yurttunnel.proxy.sockets.local_address import from_local_address


class ForwardedTrafficTests(UdpTestCase):
    """Forwarding."""

    def test_interfaces(self):
        """The sockets provide their interfaces."""
        verifyObject(IProxySockets, self.sockets)
        verifyObject(IProxySocket, self.serve(self.endpoint()))

    def test_sizes(self):
        """Datagrams of any size go both ways intact, including the empty one and the largest."""
        endpoint, client = self.endpoint(), self.make()
        self.serve(endpoint)
        for size in (0, 1, 9_000, 60_000, 65_507):
            sent = os.urandom(size)
            self.say(client, sent)
            self.answer(endpoint)
            [(data, source)] = received(client)
            self.assertEqual(hashlib.sha256(sent).digest(), hashlib.sha256(data).digest())
            self.assertEqual(self.proxy.port, source[1])
        stats = self.proxy.stats()
        self.assertEqual((1, 1, 0), (stats.active, stats.total, stats.failed))
        self.assertEqual((134_508, 134_508), (stats.received, stats.sent))

    def test_a_client_keeps_its_endpoint(self):
        """It has one socket to one endpoint, and other clients are spread."""
        endpoints = [self.endpoint() for _ in range(3)]
        self.serve(*endpoints)
        for _ in range(3):
            client = self.make()
            for _ in range(4):
                self.say(client, b"?")
        for endpoint in endpoints:
            came = self.at(endpoint)
            self.assertEqual([b"?"] * 4, [data for data, _ in came])
            self.assertEqual(1, len({source for _, source in came}))

    def test_many_at_once(self):
        """Waiting datagrams are all forwarded, in order, in both directions."""
        endpoint, client = self.endpoint(), self.make()
        self.serve(endpoint)
        many = [b"%d" % number for number in range(150)]
        for data in many:
            client.sendto(data, (LOOPBACK[self.version], self.proxy.port))
        self.turn()
        came = self.at(endpoint)
        self.assertEqual(many, [data for data, _ in came])
        for data in many:
            self.endpoints[endpoint].sendto(data, came[0][1])
        self.turn()
        self.assertEqual(many, [data for data, _ in received(client)])

    def test_others_cannot_reply(self):
        """Datagrams from other senders than the endpoint do not reach the client."""
        endpoint, client, other = self.endpoint(), self.make(), self.make()
        self.serve(endpoint)
        self.say(client, b"?")
        [(_, source)] = self.at(endpoint)
        other.sendto(b"!", source)
        self.turn()
        self.assertEqual([], received(client))

    def test_a_defect_costs_one_datagram(self):
        """It is logged, and the port continues to serve."""
        endpoint, client = self.endpoint(), self.make()
        self.serve(endpoint)
        with mock.patch.object(self.picker, "pick", side_effect=ZeroDivisionError):
            self.say(client, b"?")
        self.assertEqual(1, len(self.flushLoggedErrors(ZeroDivisionError)))
        other = self.make()
        self.say(other, b"!")
        self.answer(endpoint)
        self.assertEqual([b"!"], [data for data, _ in received(other)])

    def test_no_endpoints(self):
        """The client is not kept, and counted as failed."""
        self.serve()
        self.say(self.make(), b"?")
        stats = self.proxy.stats()
        self.assertEqual((0, 1), (stats.active, stats.failed))

    def test_clients_in_vain(self):
        """They are logged once a minute, whatever they send."""
        self.serve()
        with capturedLogs() as events:
            for _ in range(3):
                self.say(self.make(), b"?")
            self.reactor.advance(60)
            self.say(self.make(), b"?")
        first, second = map(formatEvent, events)
        self.assertIn("got no endpoint: it has no endpoints", first)
        self.assertIn("(2 more like this were not shown)", second)


class IPv6Tests(ForwardedTrafficTests):
    """The same with IPv6."""

    version = 6


class AddressTests(UdpTestCase):
    """Several addresses of this machine."""

    def test_the_address_of_the_reply(self):
        """It is the one that the client has sent to, though the socket is bound to the wildcard."""
        endpoint, client = self.endpoint(), self.make()
        self.serve(endpoint)
        for address in ("127.0.0.1", "127.0.0.77", "127.3.2.1"):
            self.say(client, b"?", to=address)
            self.answer(endpoint)
            self.assertEqual([(b"?", (address, self.proxy.port))], received(client))


class IPv6AddressTests(UdpTestCase, KernelTestCase):
    """Several addresses of IPv6."""

    version = 6
    addresses = ("fd00:20::1", "fd00:20::2")

    def setUp(self):
        """Enter the network."""
        KernelTestCase.setUp(self)
        UdpTestCase.setUp(self)

    def test_the_address_of_the_reply(self):
        """It is the one that the client has sent to."""
        endpoint, client = self.endpoint(), self.make()
        self.serve(endpoint)
        for address in ("::1", "fd00:20::2", "fd00:20::1"):
            self.say(client, b"?", to=address)
            self.answer(endpoint)
            [(data, source)] = received(client)
            self.assertEqual((b"?", address), (data, source[0]))


class InterfaceTests(SynchronousTestCase):
    """By which interface a reply leaves."""

    def test_any(self):
        """The route to the client decides, for any source address."""
        for address, interface in (("192.0.2.1", slice(4)), ("2001:db8::1", slice(16, 20))):
            [(_, _, control)] = from_local_address(ip_address(address).packed)
            self.assertEqual(bytes(4), control[interface])


class UpdateTests(UdpTestCase):
    """Changes of endpoints."""

    def test_a_removed_endpoint(self):
        """Its clients end at once, and their next datagrams go to others."""
        endpoints = [self.endpoint(), self.endpoint()]
        self.serve(*endpoints)
        clients = [self.make() for _ in range(6)]
        for client in clients:
            self.say(client, b"1")
        for endpoint in endpoints:
            self.assertEqual(3, len(self.at(endpoint)))
        self.update(endpoints[1])
        self.assertEqual(3, self.proxy.stats().active)
        for client in clients:
            self.say(client, b"2")
        self.assertEqual([], self.at(endpoints[0]))
        self.assertEqual(6, len(self.at(endpoints[1])))

    def test_thousands_of_clients(self):
        """They are ended over several reactor turns, none of which takes long."""
        endpoint = self.endpoint()
        self.serve(endpoint)
        before = descriptors_in_use()
        for number in range(1000):
            with datagram_socket(f"127.1.{number // 250}.{number % 250}") as client:
                self.say(client, b"?")
        self.assertEqual(1000, self.proxy.stats().active)
        self.update()
        self.assertLess(self.proxy.stats().active, 1000)
        while self.proxy.stats().active:
            self.reactor.advance(0)
        self.assertEqual(before, descriptors_in_use())

    def test_an_unchanged_service(self):
        """Clients stay."""
        endpoint = self.endpoint()
        self.serve(endpoint)
        self.say(self.make(), b"?")
        self.update(endpoint)
        self.assertEqual(1, self.proxy.stats().active)
