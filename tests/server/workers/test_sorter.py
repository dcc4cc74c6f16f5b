"""Whose a connection to the agents' port is, by its ClientHello."""

from __future__ import annotations

import socket

from twisted.internet.address import IPv4Address
from twisted.internet.protocol import Factory
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from tests.fakes import MemoryConnection
from tests.server.hellos import client_hello
from tests.tunnel.direct.users import User
from yurttunnel.server.workers.sorter import AgentSorter
from yurttunnel.tunnel.connection import HELLO_TIMEOUT, MAX_UNFINISHED
from yurttunnel.tunnel.placement import placement_of, placement_protocol

IN_WORKER, IN_FIRST = "edge-1", "edge-5"


class PassableConnection(MemoryConnection):
    """One whose socket can be given up."""

    released = False

    def getHandle(self):
        """Stand for its socket by itself."""
        return self

    def release(self):
        """Give it up."""
        self.released = True
        self.stopReading()
        return socket.socket()


class Workers:
    """Two processes, of which the second one is a list."""

    def __init__(self):
        self.on_room = []
        self.room = 1000
        self.taken = []

    def worker_for(self, placement):
        """Choose as the workers do."""
        return placement % 2

    def take_agent(self, number, connection, received):
        """Take it, if there is room."""
        if not self.room:
            return False
        self.room -= 1
        self.taken.append((number, connection, received))
        return True

    def make_room(self, number, room):
        """Report that a worker has room for so many."""
        self.room = room
        for callback in self.on_room:
            callback(number)


def hello_of(node):
    """Return the ClientHello of a node's agent."""
    return client_hello("server.test", alpn=("yurttunnel/1", placement_protocol(node).decode()))


class SorterTests(SynchronousTestCase):
    """Connections, in one piece or in many."""

    def setUp(self):
        """Make a sorter."""
        self.clock = Clock()
        self.workers = Workers()
        self.served = []
        here = Factory.forProtocol(lambda: self.served.append(User()) or self.served[-1])
        self.sorter = AgentSorter(self.clock, here, self.workers)

    def connect(self):
        """Accept a connection."""
        protocol = self.sorter.buildProtocol(IPv4Address("TCP", "192.0.2.1", 1))
        return PassableConnection().open(protocol)

    def test_a_node_of_a_worker_is_passed_on(self):
        """With all that was read, and nothing is kept of it here."""
        for size in (1, 7, 10_000):
            connection, hello = self.connect(), hello_of(IN_WORKER)
            for begin in range(0, len(hello), size):
                connection.receive(hello[begin : begin + size])
            self.assertEqual(self.workers.taken.pop(), (1, connection, hello))
            self.assertTrue(connection.released)
        self.assertEqual(len(self.sorter.waiting), 0)
        self.assertEqual(self.served, [])

    def test_all_others_are_served_here(self):
        """Nodes of the first process, peers that tell no placement, and what is not TLS."""
        for hello in (hello_of(IN_FIRST), client_hello(None), b"GET / HTTP/1.1\r\n\r\n"):
            connection = self.connect()
            connection.receive(hello)
            self.assertEqual(bytes(self.served[-1].received), hello)
            connection.receive(b"more")
            self.assertEqual(bytes(self.served[-1].received), hello + b"more")
        self.assertEqual(self.workers.taken, [])
        self.assertEqual(len(self.sorter.waiting), 0)

    def test_a_connection_waits_for_its_worker(self):
        """It is passed on when the worker takes connections again."""
        self.workers.room = 0
        connection = self.connect()
        connection.receive(hello_of(IN_WORKER))
        self.assertFalse(connection.reading)
        self.workers.make_room(2, 1)
        self.assertFalse(connection.released)
        self.workers.make_room(1, 1)
        self.assertEqual(len(self.workers.taken), 1)
        self.assertTrue(connection.released)

    def test_a_crowd_is_passed_on_in_its_order(self):
        """As many at a time as the worker takes, and none is lost."""
        self.workers.room = 2
        crowd = [self.connect() for _ in range(7)]
        for connection in crowd:
            connection.receive(hello_of(IN_WORKER))
        for passed in (2, 4, 6, 7):
            self.assertEqual([one.released for one in crowd], [n < passed for n in range(7)])
            self.workers.make_room(1, 2)
        self.assertEqual([connection for _, connection, _ in self.workers.taken], crowd)
        self.assertEqual(len(self.sorter.waiting), 0)

    def test_nobody_waits_for_ever(self):
        """Neither for a ClientHello nor for a worker."""
        silent, kept, gone = self.connect(), self.connect(), self.connect()
        self.workers.room = 0
        kept.receive(hello_of(IN_WORKER))
        gone.break_off(ConnectionResetError())
        self.clock.advance(HELLO_TIMEOUT)
        self.assertTrue(silent.aborted and kept.aborted)
        self.assertFalse(gone.aborted)
        # Nobody has been told of the end yet.
        self.workers.make_room(1, 1000)
        self.assertEqual(self.workers.taken, [])
        self.assertEqual(len(self.sorter.waiting), 0)

    def test_the_oldest_makes_room(self):
        """As for handshakes that are not over; who is served counts no more."""
        served = self.connect()
        served.receive(hello_of(IN_FIRST))
        silent = [self.connect() for _ in range(MAX_UNFINISHED)]
        connection, hello = self.connect(), hello_of(IN_WORKER)
        self.assertEqual([one.aborted for one in silent], [True] + [False] * (len(silent) - 1))
        self.assertFalse(served.aborted)
        connection.receive(hello)
        self.assertEqual(self.workers.taken, [(1, connection, hello)])
        self.assertEqual(len(self.sorter.waiting), MAX_UNFINISHED - 1)

    def test_the_end_of_the_server(self):
        """Whoever is still waiting is aborted, and no timer is left."""
        connection = self.connect()
        self.sorter.close()
        self.assertTrue(connection.aborted)
        self.assertEqual(self.clock.getDelayedCalls(), [])


class PlacementTests(SynchronousTestCase):
    """The protocol that nobody selects."""

    def test_as_specified(self):
        """It is as docs/protocol.md has it."""
        self.assertEqual(placement_protocol("edge-1"), b"yurttunnel-node/df594d71")
        self.assertEqual(placement_of([b"yurttunnel/1", b"yurttunnel-node/0000000a"]), 10)

    def test_anything_else_is_none(self):
        """What is only like it does not count."""
        for protocol in (b"yurttunnel-node/", b"yurttunnel-node/0000000A", b"yurttunnel-node/1"):
            self.assertIsNone(placement_of([protocol, b"yurttunnel/1"]))
        self.assertIsNone(placement_of([]))
