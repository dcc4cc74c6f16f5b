"""Datagrams of clients to endpoints, and the replies back."""

from __future__ import annotations

import errno
import hashlib
import os
import socket
import struct
from ipaddress import ip_address
from pathlib import Path
from unittest import mock

from twisted.internet.error import ConnectionLost
from twisted.logger import capturedLogs, formatEvent
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase
from zope.interface.verify import verifyObject

from tests.e2e.network.namespaces import wait_for_ipv6
from tests.proxy.sockets.udp_lab import LOOPBACK, UdpTestCase, datagram_socket, received
from tests.steering.netlink.support import KernelTestCase, command
from yurttunnel.proxy.interfaces import IProxySocket, IProxySockets
from yurttunnel.proxy.sockets.dialing import LOOP
from yurttunnel.proxy.sockets.local_address import from_local_address
from yurttunnel.proxy.sockets.udp import MOST_TRIES
from yurttunnel.proxy.sockets.udp_table import AFTER_REPLY, BEFORE_REPLY, MOST_KEPT
from yurttunnel.proxy.state.virtual_services import Endpoint, Protocol


class CarryingTests(UdpTestCase):
    """What arrives."""

    def test_interfaces(self):
        """They have what they should have."""
        verifyObject(IProxySockets, self.sockets)
        verifyObject(IProxySocket, self.serve(self.endpoint()))

    def test_sizes(self):
        """Datagrams of any size go both ways intact, the empty one and the largest included."""
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
        """It has one socket to one endpoint, and others are spread."""
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
        """Datagrams that wait are all taken, and in their order, in both directions."""
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
        """What does not come from the endpoint does not go to the client."""
        endpoint, client, other = self.endpoint(), self.make(), self.make()
        self.serve(endpoint)
        self.say(client, b"?")
        [(_, source)] = self.at(endpoint)
        other.sendto(b"!", source)
        self.turn()
        self.assertEqual([], received(client))

    def test_a_defect_costs_one_datagram(self):
        """It is told, and the port serves on."""
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
        """Nothing is kept of a client, and it is counted."""
        self.serve()
        self.say(self.make(), b"?")
        stats = self.proxy.stats()
        self.assertEqual((0, 1), (stats.active, stats.failed))

    def test_clients_in_vain(self):
        """They are told of once in a minute, whatever they send."""
        self.serve()
        with capturedLogs() as told:
            for _ in range(3):
                self.say(self.make(), b"?")
            self.reactor.advance(60)
            self.say(self.make(), b"?")
        first, second = map(formatEvent, told)
        self.assertIn("is served by no endpoint: it has no endpoints", first)
        self.assertIn("(2 more like this were not shown)", second)


class SixTests(CarryingTests):
    """The same by IPv6."""

    version = 6


class AddressTests(UdpTestCase):
    """Several addresses of this machine."""

    def test_the_address_of_the_reply(self):
        """It leaves from where the client has sent to, though the socket is the wildcard's."""
        endpoint, client = self.endpoint(), self.make()
        self.serve(endpoint)
        for address in ("127.0.0.1", "127.0.0.77", "127.3.2.1"):
            self.say(client, b"?", to=address)
            self.answer(endpoint)
            self.assertEqual([(b"?", (address, self.proxy.port))], received(client))


class SixAddressTests(UdpTestCase, KernelTestCase):
    """Several addresses of IPv6."""

    version = 6

    def setUp(self):
        """Have some."""
        KernelTestCase.setUp(self)
        for address in ("fd00:20::1", "fd00:20::2"):
            command("ip", "address", "add", f"{address}/128", "dev", "lo", "nodad")
        wait_for_ipv6()
        UdpTestCase.setUp(self)

    def test_the_address_of_the_reply(self):
        """It leaves from where the client has sent to."""
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
        """The route to the client tells, whichever address it leaves from."""
        for address, interface in (("192.0.2.1", slice(4)), ("2001:db8::1", slice(16, 20))):
            [(_, _, told)] = from_local_address(ip_address(address).packed)
            self.assertEqual(bytes(4), told[interface])


class IdleTests(UdpTestCase):
    """How long a client is remembered."""

    def test_a_late_reply(self):
        """A reply after two seconds arrives, and one just before the end of the first wait."""
        endpoint, client = self.endpoint(), self.make()
        self.serve(endpoint)
        for seconds in (2, BEFORE_REPLY):
            self.say(client, b"?")
            self.pass_time(seconds)
            self.answer(endpoint)
            self.assertEqual(1, len(received(client)))

    def test_no_reply(self):
        """A client without a reply is forgotten, its socket closed, its endpoint not blamed."""
        endpoint = self.endpoint()
        self.serve(endpoint)
        before = self.descriptors_open()
        self.say(self.make(), b"?")
        self.pass_time(BEFORE_REPLY + 2)
        self.assertEqual(0, self.proxy.stats().active)
        self.assertEqual(before + 1, self.descriptors_open())
        [told] = self.picker.endpoints()
        self.assertEqual((0, 0), (told.active, told.failures))

    def test_after_a_reply(self):
        """From the first reply on it is remembered for longer, from its last datagram on."""
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
        """Other times count for the clients that there are, too."""
        endpoint, client, silent = self.endpoint(), self.make(), self.make()
        self.serve(endpoint)
        self.say(client, b"?")
        self.answer(endpoint)
        self.say(silent, b"?")
        self.table.remember(3 * BEFORE_REPLY, AFTER_REPLY / 3)
        self.pass_time(2 * BEFORE_REPLY)
        self.assertEqual(2, self.proxy.stats().active)
        self.pass_time(2)
        self.assertEqual(1, self.proxy.stats().active)
        self.pass_time(BEFORE_REPLY)
        self.assertEqual(0, self.proxy.stats().active)

    def test_replies_count(self):
        """Who only listens is remembered while there is something to hear."""
        endpoint, client = self.endpoint(), self.make()
        self.serve(endpoint)
        self.say(client, b"subscribe")
        [(_, source)] = self.at(endpoint)
        for _ in range(20):
            self.endpoints[endpoint].sendto(b"news", source)
            self.turn()
            self.pass_time(10)
        self.assertEqual(20, len(received(client)))

    def test_nobody_replies_ever(self):
        """Who only talks keeps its endpoint, too."""
        endpoint, other = self.endpoint(), self.endpoint()
        self.serve(endpoint, other)
        client = self.make()
        for _ in range(50):
            self.say(client, b"<34>Oct 11 22:14:15 su")
            self.pass_time(1)
        self.assertEqual([0, 50], sorted(len(self.at(each)) for each in (endpoint, other)))

    def test_other_times(self):
        """Both times are arguments, those of the first kube-proxy included."""
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


class RefusedTests(UdpTestCase):
    """Endpoints where nobody listens (ICMP port unreachable)."""

    def test_the_first_datagram(self):
        """It is sent again to another endpoint: the client notices nothing."""
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
        """The first one is sent again, before those that came behind it."""
        endpoint, dead = self.endpoint(), self.dead()
        self.serve(dead, endpoint)
        # So that it is the other one's turn.
        self.picker.pick("192.0.2.1", [dead])
        client = self.make()
        for data in (b"1", b"2", b"3"):
            client.sendto(data, ("127.0.0.1", self.proxy.port))
        self.turn()
        self.assertEqual([b"1", b"2", b"3"], [data for data, _ in self.at(endpoint)])
        self.assertEqual([0, 1], sorted(each.failures for each in self.picker.endpoints()))

    def test_all_refuse(self):
        """Each is asked once, and the client is forgotten; the next datagram begins anew."""
        dead = [self.dead() for _ in range(MOST_TRIES + 1)]
        self.serve(*dead)
        client = self.make()
        self.say(client, b"?")
        stats = self.proxy.stats()
        self.assertEqual((0, 1, 1), (stats.active, stats.total, stats.failed))
        told = self.picker.endpoints()
        self.assertEqual([0, 1, 1, 1, 1], sorted(each.failures for each in told))
        self.assertEqual({"", "Connection refused"}, {each.last_failure for each in told})
        self.assertEqual({0}, {each.active for each in told})
        self.say(client, b"?")
        self.assertEqual(2, self.proxy.stats().failed)

    def test_an_endpoint_ends_later(self):
        """The next datagram that comes is served by another one."""
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
        """Have the endpoint answer, and the client take it."""
        self.answer(endpoint)
        self.assertEqual(1, len(received(client)))

    def test_loop(self):
        """A proxy socket of this process is no endpoint, its own or another's: nothing goes round,
        and a client is served by one that is.
        """
        good, own = self.endpoint(), self.serve()
        other = self.sockets.open(self.service(), self.picker)
        self.addCleanup(lambda: self.successResultOf(other.stop(0)))
        loops = [Endpoint(ip_address("127.0.0.1"), each.port) for each in (own, other)]
        self.update(*loops)
        before = self.descriptors_open()
        with capturedLogs() as told:
            self.say(self.make(), b"?")
        self.assertEqual(before + 1, self.descriptors_open())
        [text] = map(formatEvent, told)
        self.assertRegex(text, f"shop/dns:http UDP IPv4 is served by no endpoint: 127.*: {LOOP}")
        self.assertEqual((1, 1), (own.stats().total, own.stats().failed))
        self.assertEqual(0, other.stats().total)
        self.assertEqual({LOOP}, {each.last_failure for each in self.picker.endpoints()})
        self.update(*loops, good)
        self.say(self.make(), b"!")
        self.assertEqual([b"!"], [data for data, _ in self.at(good)])

    def test_fewer_endpoints_than_tries(self):
        """None is asked twice, and none is left with a connection that is none."""
        self.serve(self.dead(), self.dead())
        self.say(self.make(), b"?")
        told = [(each.failures, each.active) for each in self.picker.endpoints()]
        self.assertEqual([(1, 0), (1, 0)], told)

    def test_one_comes_back(self):
        """Where an endpoint has replied, those that refused before are tried again after it."""
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
        """One that was left out returns when it has not refused a client for long, and never
        replies: whether that client goes on talking, or falls silent."""
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
        [told] = [each for each in self.picker.endpoints() if each.endpoint == dead]
        self.assertEqual(2, told.failures)
        self.assertIsNotNone(told.ejected_until)

    def test_datagrams_that_are_kept(self):
        """There is a bound on all of them together, and nothing stays of those that were served."""
        endpoint = self.endpoint()
        self.serve(endpoint)
        large = bytes(60_000)
        for _ in range(MOST_KEPT // len(large) + 5):
            self.say(self.make(), large)
            self.at(endpoint)
        self.assertFalse(self.table.keep(len(large)))
        self.update()
        self.assertTrue(self.table.keep(MOST_KEPT))
        self.table.keep_no_more(MOST_KEPT)
        self.update(endpoint)
        self.say(self.make(), large)
        self.pass_time(BEFORE_REPLY + 2)
        self.assertTrue(self.table.keep(MOST_KEPT))

    def test_what_is_not_kept_is_sent(self):
        """Where there is no room a first datagram goes to an endpoint all the same."""
        endpoint = self.endpoint()
        self.serve(endpoint)
        self.table.keep(MOST_KEPT)
        self.say(self.make(), b"?")
        self.assertEqual([b"?"], [data for data, _ in self.at(endpoint)])


class RouterTests(UdpTestCase, KernelTestCase):
    """What routers tell of a datagram, by ICMPv6: the kernel makes its checksum."""

    version = 6

    def setUp(self):
        """Have two endpoints, and a client whose first datagram has come to one of them."""
        KernelTestCase.setUp(self)
        wait_for_ipv6()
        UdpTestCase.setUp(self)
        self.both = [self.endpoint(), self.endpoint()]
        self.serve(*self.both)
        self.client = self.make()
        self.say(self.client, b"1")
        [(self.first, self.source)] = self.asked()

    def asked(self):
        """Return the endpoints that datagrams have come to, and from where."""
        return [(each, source) for each in self.both for _, source in self.at(each)]

    def tell(self, kind, code, value=0):
        """Have a router tell something of the datagram that has been sent last."""
        one = ip_address("::1").packed
        udp = struct.pack("!HHHH", self.source[1], self.first.port, 9, 0) + b"1"
        about = struct.pack("!IHBB", 6 << 28, len(udp), socket.IPPROTO_UDP, 64) + one + one + udp
        with socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6) as router:
            router.sendto(struct.pack("!BBHI", kind, code, 0, value) + about, ("::1", 0))

    def failures(self):
        """Return what is held against the endpoints."""
        return [each.failures for each in self.picker.endpoints()]

    def test_too_big(self):
        """The client keeps its endpoint and its port, whoever meets the error: the event of its
        socket, a reply that is read, or its next datagram, which alone is lost.
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
        """As with IPv4, the endpoint is blamed, and the datagram sent again to another one."""
        for code in (1, 5, 6):
            self.tell(1, code)
            self.turn()
            self.assertEqual([0, 1], sorted(self.failures()))
            [(other, _)] = self.asked()
            self.assertNotEqual(self.first, other)
            self.end()
            self.setUp()


class UpdateTests(UdpTestCase):
    """Endpoints that come and go."""

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
        """They are ended in some turns of the reactor, none of which takes long."""
        endpoint = self.endpoint()
        self.serve(endpoint)
        before = self.descriptors_open()
        for number in range(1000):
            with datagram_socket(f"127.1.{number // 250}.{number % 250}") as client:
                self.say(client, b"?")
        self.assertEqual(1000, self.proxy.stats().active)
        self.update()
        self.assertLess(self.proxy.stats().active, 1000)
        while self.proxy.stats().active:
            self.reactor.advance(0)
        self.assertEqual(before, self.descriptors_open())

    def test_an_unchanged_service(self):
        """Clients stay."""
        endpoint = self.endpoint()
        self.serve(endpoint)
        self.say(self.make(), b"?")
        self.update(endpoint)
        self.assertEqual(1, self.proxy.stats().active)


class LimitTests(UdpTestCase):
    """How many clients there are."""

    def test_ten_thousand_clients(self):
        """No more descriptors are used than there may be clients, and all are served."""
        self.use(most=200)
        endpoint = self.endpoint()
        self.serve(endpoint)
        before = self.descriptors_open()
        for number in range(10_000):
            with datagram_socket(f"127.1.{number // 250}.{number % 250}") as client:
                self.say(client, b"?")
                self.answer(endpoint)
                self.assertEqual(b"?", client.recv(10))
            if number % 100 == 0:
                self.assertLessEqual(self.descriptors_open(), before + 201)
        stats = self.proxy.stats()
        self.assertEqual((200, 0), (stats.active, stats.failed))
        self.assertEqual(10_000, stats.total)

    def test_who_makes_room(self):
        """It is the client that has been idle for longest, of all services if need be."""
        self.use(most=3)
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
        """Where the process has too many, the oldest goes, answered or not, of any service."""
        self.use(most=3)
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
        # The first one has gone for the fourth, the third for the fifth.
        self.assertEqual([1, 2], [each.stats().active for each in (self.proxy, other)])
        self.assertEqual([2, 3], [each.stats().total for each in (self.proxy, other)])

    def stop(self, proxy):
        """Stop at once."""
        stopped = proxy.stop(0)
        self.reactor.advance(0)
        self.successResultOf(stopped)

    def test_one_service(self):
        """A service has no more clients than one may have, those first that came last."""
        self.use(most=10, most_of_service=2)
        endpoint = self.endpoint()
        self.serve(endpoint)
        for client in self.make_apart(5):
            self.say(client, b"?")
            self.pass_time(1)
        self.assertEqual(2, self.proxy.stats().active)

    def test_share_of_an_address(self):
        """It has as many clients as it leaves free, of all and of a service: beyond that its own
        that has been idle for longest goes, and no other's.
        """
        for limits in ({"most": 8}, {"most_of_service": 8}):
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
        """Make clients, each with an address of its own."""
        return [self.make(f"127.0.1.{number}") for number in range(1, count + 1)]

    def test_no_descriptor_is_left(self):
        """A client that is idle makes room for one that comes; without any it is counted."""
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


class SourceTests(UdpTestCase, KernelTestCase):
    """From which address of this machine endpoints are sent to."""

    def setUp(self):
        """Have a network beside loopback."""
        KernelTestCase.setUp(self)
        command("ip", "link", "add", "near", "type", "veth", "peer", "name", "far")
        for link in ("near", "far"):
            command("ip", "link", "set", link, "up")
        command("ip", "address", "add", "10.5.0.1/24", "dev", "near")
        UdpTestCase.setUp(self)

    def test_after_another_endpoint(self):
        """It is the one that leads there, not that which has led to the first endpoint."""
        dead, away = self.dead(), Endpoint(ip_address("10.5.0.2"), 53)
        self.serve(dead, away)
        before = self.descriptors_open()
        for _ in range(2):
            self.say(self.make(), b"?")
        clients = list(self.proxy.clients.values())
        self.assertEqual([away] * 2, [each.endpoint for each in clients])
        sources = [each._socket.getsockname()[0] for each in clients]
        self.assertEqual(["10.5.0.1"] * 2, sources)
        self.assertEqual(
            {away: False, dead: True},
            {each.endpoint: each.failures > 0 for each in self.picker.endpoints()},
        )
        self.assertEqual(before + 4, self.descriptors_open())

    def test_no_socket_is_left(self):
        """The endpoint is not blamed, and the client ends."""
        self.serve(self.dead(), self.dead())
        made, opened = socket.socket, []

        def socket_of_few(*arguments, **more):
            opened.append(arguments)
            if len(opened) == 2:
                raise OSError(errno.EMFILE, "Too many open files")
            return made(*arguments, **more)

        client = self.make()
        self.patch(socket, "socket", socket_of_few)
        with capturedLogs() as told:
            self.say(client, b"?")
        [text] = map(formatEvent, told)
        self.assertIn("is served by no endpoint: no socket: Too many open files", text)
        self.assertEqual((0, 1), (self.proxy.stats().active, self.proxy.stats().failed))
        self.assertEqual([0, 1], sorted(each.failures for each in self.picker.endpoints()))
        self.assertEqual([0, 0], [each.active for each in self.picker.endpoints()])

    def test_no_watch_is_left(self):
        """The endpoint is not blamed, and the client ends; the next one is served."""
        self.serve(self.endpoint())
        watch, clients = self.descriptors.addReader, [self.make() for _ in range(2)]

        def refuse(member):
            self.patch(self.descriptors, "addReader", watch)
            raise OSError(errno.ENOSPC, "No space left on device")

        self.patch(self.descriptors, "addReader", refuse)
        with capturedLogs() as told:
            self.say(clients[0], b"?")
        [text] = map(formatEvent, told)
        self.assertIn("is served by no endpoint: no socket: No space left on device", text)
        [endpoint] = self.picker.endpoints()
        self.assertEqual((0, 0), (endpoint.active, endpoint.failures))
        self.say(clients[1], b"?")
        self.assertEqual((1, 1), (self.proxy.stats().active, self.proxy.stats().failed))

    def test_no_watch_for_a_proxy_socket(self):
        """It has no port then, which is free for the next attempt."""
        full = OSError(errno.ENOSPC, "No space left on device")
        with mock.patch.object(self.descriptors, "addReader", side_effect=full):
            self.assertRaises(OSError, self.serve, self.endpoint())
        [port] = self.allocator.opened
        self.assertFalse(self.allocator.is_used(4, Protocol.UDP, port))
        self.make(port=port)

    def test_no_address_to_come_from(self):
        """No endpoint is to blame; another one is tried."""
        self.serve(self.endpoint(), self.endpoint())
        connect, connected = socket.socket.connect, []

        class Sourceless(socket.socket):
            def connect(self, address):
                connected.append(address)
                if len(connected) == 1:
                    raise OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address")
                connect(self, address)

        self.patch(socket, "socket", Sourceless)
        self.say(self.make(), b"?")
        self.assertEqual(2, len(set(connected)))
        self.assertEqual((1, 0), (self.proxy.stats().active, self.proxy.stats().failed))
        self.assertEqual([0, 0], [each.failures for each in self.picker.endpoints()])
        self.assertEqual([0, 1], sorted(each.active for each in self.picker.endpoints()))


class KernelLimitTests(UdpTestCase, KernelTestCase):
    """Limits of the kernel."""

    def setUp(self):
        """Have a kernel of one's own, nearly."""
        KernelTestCase.setUp(self)
        UdpTestCase.setUp(self)

    def test_no_local_port_is_left(self):
        """The endpoint is not blamed, and a client that is idle makes room for the next one."""
        endpoint = self.endpoint()
        self.serve(endpoint)
        clients = [self.make() for _ in range(4)]
        Path("/proc/sys/net/ipv4/ip_local_port_range").write_text("20000 20001")
        for client in clients[:3]:
            self.say(client, b"?")
        stats = self.proxy.stats()
        self.assertEqual((1, 1), (stats.active, stats.failed))
        [told] = self.picker.endpoints()
        self.assertEqual((1, 0), (told.active, told.failures))
        self.say(clients[3], b"?")
        self.assertEqual(2, self.proxy.stats().active)

    def test_a_burst(self):
        """Datagrams of a thousand clients wait rather than be lost, while others are served."""
        self.serve(self.endpoint())
        client = self.make()
        for _ in range(1000):
            client.sendto(bytes(64), ("127.0.0.1", self.proxy.port))
        self.turn()
        self.assertEqual(64_000, self.proxy.stats().received)


class StopTests(UdpTestCase):
    """The end of a proxy socket."""

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
        """Clients of before are served until they are idle or time is over; no new ones."""
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
        """It has ended when the last client has."""
        self.serve(self.endpoint())
        self.say(self.make(), b"1")
        stopped = self.proxy.stop(100)
        self.pass_time(BEFORE_REPLY + 2)
        self.assertIsNone(self.successResultOf(stopped))

    def test_without_a_time(self):
        """Clients of before are served until they are idle, or a time that is set later is over."""
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
        before = self.descriptors_open()
        self.descriptors.connectionLost(Failure(ConnectionLost()))
        self.assertLess(self.descriptors_open(), before)
        self.assertIsNone(self.successResultOf(self.proxy.stop(5)))
        self.pass_time(1)
