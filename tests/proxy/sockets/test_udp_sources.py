"""Tests of the source of datagrams to endpoints."""

from __future__ import annotations

import errno
import socket
from ipaddress import ip_address
from unittest import mock

from twisted.logger import capturedLogs, formatEvent

from tests.e2e.network.namespaces import run
from tests.proxy.sockets.lab import descriptors_in_use
from tests.proxy.sockets.udp_lab import UdpTestCase
from tests.steering.netlink.support import KernelTestCase
from yurttunnel.proxy.state.virtual_services import Endpoint, Protocol


class SourceTests(UdpTestCase, KernelTestCase):
    """Which address of this machine is the source."""

    def setUp(self):
        """Add a network beside loopback."""
        KernelTestCase.setUp(self)
        run("ip", "link", "add", "near", "type", "veth", "peer", "name", "far")
        for link in ("near", "far"):
            run("ip", "link", "set", link, "up")
        run("ip", "address", "add", "10.5.0.1/24", "dev", "near")
        UdpTestCase.setUp(self)

    def test_after_another_endpoint(self):
        """It is the one for this endpoint, not that for the first one."""
        dead, away = self.dead(), Endpoint(ip_address("10.5.0.2"), 53)
        self.serve(dead, away)
        before = descriptors_in_use()
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
        self.assertEqual(before + 4, descriptors_in_use())

    def test_no_socket_is_left(self):
        """The endpoint has not failed, and the client ends."""
        self.serve(self.dead(), self.dead())
        made, opened = socket.socket, []

        def socket_of_few(*arguments, **more):
            opened.append(arguments)
            if len(opened) == 2:
                raise OSError(errno.EMFILE, "Too many open files")
            return made(*arguments, **more)

        client = self.make()
        self.patch(socket, "socket", socket_of_few)
        with capturedLogs() as events:
            self.say(client, b"?")
        [text] = map(formatEvent, events)
        self.assertIn("got no endpoint: no socket: Too many open files", text)
        self.assertEqual((0, 1), (self.proxy.stats().active, self.proxy.stats().failed))
        self.assertEqual([0, 1], sorted(each.failures for each in self.picker.endpoints()))
        self.assertEqual([0, 0], [each.active for each in self.picker.endpoints()])

    def test_no_watch_is_left(self):
        """The endpoint has not failed, and the client ends; the next one is served."""
        self.serve(self.endpoint())
        watch, clients = self.descriptors.addReader, [self.make() for _ in range(2)]

        def refuse(member):
            self.patch(self.descriptors, "addReader", watch)
            raise OSError(errno.ENOSPC, "No space left on device")

        self.patch(self.descriptors, "addReader", refuse)
        with capturedLogs() as events:
            self.say(clients[0], b"?")
        [text] = map(formatEvent, events)
        self.assertIn("got no endpoint: no socket: No space left on device", text)
        [endpoint] = self.picker.endpoints()
        self.assertEqual((0, 0), (endpoint.active, endpoint.failures))
        self.say(clients[1], b"?")
        self.assertEqual((1, 1), (self.proxy.stats().active, self.proxy.stats().failed))

    def test_no_watch_for_a_proxy_socket(self):
        """Its port is free for the next attempt."""
        full = OSError(errno.ENOSPC, "No space left on device")
        with mock.patch.object(self.descriptors, "addReader", side_effect=full):
            self.assertRaises(OSError, self.serve, self.endpoint())
        [port] = self.allocator.opened
        self.assertFalse(self.allocator.is_used(4, Protocol.UDP, port))
        self.make(port=port)

    def test_no_source_address(self):
        """No endpoint has failed; another one is tried."""
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
