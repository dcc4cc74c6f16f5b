"""Clients, endpoints and a UDP proxy socket on loopback, where datagrams arrive at once.

The test turns the reactor, and advances the clock.
"""

from __future__ import annotations

import contextlib
import select
import socket

from twisted.trial.unittest import SynchronousTestCase

from tests.proxy.services import key, service
from tests.proxy.sockets.lab import LOOPBACK, HandReactor, endpoint_at
from yurttunnel.proxy.balancing.picker import EndpointPicker
from yurttunnel.proxy.sockets.ports import PortAllocator
from yurttunnel.proxy.sockets.udp import UdpSockets
from yurttunnel.proxy.sockets.udp_table import UdpClientTable
from yurttunnel.proxy.state.virtual_services import Protocol
from yurttunnel.tunnel.direct.descriptors import DescriptorSet

MOST_TURNS = 200
"""The maximum number of turns to serve everything; each reads as much of a socket as allowed."""


def datagram_socket(address, port=0):
    """Return a non-blocking socket that is bound to ``address``."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    made = socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
    made.bind((address, port))
    return made


def received(by):
    """Return the datagrams that wait at a socket, and their sources."""
    found = []
    with contextlib.suppress(BlockingIOError):
        while True:
            found.append(by.recvfrom(70_000))
    return found


class UdpTestCase(SynchronousTestCase):
    """Support for tests of one service; ``version`` is that of IP."""

    version = 4

    def setUp(self):
        """Make a reactor, and no service yet."""
        self.reactor = HandReactor()
        self.descriptors = DescriptorSet(self.reactor)
        self.allocator = PortAllocator()
        self.endpoints = {}
        self.use()

    def use(self, **limits):
        """Make the table of clients with ``limits``."""
        self.table = UdpClientTable(self.reactor, **limits)
        self.sockets = UdpSockets(self.reactor, self.descriptors, self.allocator, self.table)

    def make(self, address=None, port=0):
        """Make a socket that is closed in the end."""
        made = datagram_socket(address or LOOPBACK[self.version], port)
        self.addCleanup(made.close)
        return made

    def endpoint(self):
        """Make an endpoint that listens; :meth:`at` reads it."""
        made = self.make()
        found = endpoint_at(made)
        self.endpoints[found] = made
        return found

    def dead(self):
        """Make an endpoint without a listener."""
        found = self.endpoint()
        self.endpoints.pop(found).close()
        return found

    def service(self, *endpoints):
        """Make the service."""
        return service(endpoints, key=key("dns", Protocol.UDP, self.version))

    def serve(self, *endpoints):
        """Open the proxy socket of a service with ``endpoints``."""
        made = self.service(*endpoints)
        self.picker = EndpointPicker(self.reactor, made)
        self.proxy = self.sockets.open(made, self.picker)
        self.addCleanup(self.end)
        return self.proxy

    def update(self, *endpoints):
        """Change the endpoints of the service."""
        made = self.service(*endpoints)
        self.picker.update(made)
        self.proxy.update(made)
        self.turn()

    def end(self):
        """Leave nothing open."""
        stopped = self.proxy.stop(0)
        self.reactor.advance(0)
        self.assertIsNone(self.successResultOf(stopped))
        self.assertEqual([], self.reactor.readers)
        self.assertEqual([], self.reactor.getDelayedCalls())

    def turn(self):
        """Serve all that is ready."""
        for _ in range(MOST_TURNS):
            ready = select.select(self.reactor.readers, (), (), 0)[0]
            if not ready:
                return
            for reader in ready:
                reader.doRead()
        self.fail("it goes round")

    def say(self, client, data, to=None):
        """Send from a client to the proxy socket, and serve it."""
        client.sendto(data, (to or LOOPBACK[self.version], self.proxy.port))
        self.turn()

    def at(self, endpoint):
        """Return what an endpoint has received, and from where."""
        return received(self.endpoints[endpoint])

    def answer(self, endpoint):
        """Send back what an endpoint has received."""
        for data, source in self.at(endpoint):
            self.endpoints[endpoint].sendto(data, source)
        self.turn()

    def pass_time(self, seconds):
        """Let time pass in small steps."""
        for _ in range(round(seconds / 0.25)):
            self.reactor.advance(0.25)
            self.turn()
