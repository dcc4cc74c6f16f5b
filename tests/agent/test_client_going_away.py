"""What a client does when its server goes away."""

from __future__ import annotations

import random

from tests.agent.clients import ClientTestCase
from yurttunnel.agent.connection_group import FIRST_DELAY
from yurttunnel.tunnel.session import FEW_NUMBERS, SUCCESSION
from yurttunnel.wire.codes import Code
from yurttunnel.wire.frames import MAX_STREAM


class GoingAwayTests(ClientTestCase):
    """A server that goes away."""

    def setUp(self):
        """Have a stream through a server that goes away, and another server to go to."""
        super().setUp()
        self.connect()
        self.near, self.far = self.stream()
        self.old = self.client.sessions()[0]
        self.leaving, before = self.listener, self.listener
        self.start_server()
        before.drain("the server is about to stop")
        self.network.settle()
        self.attempt()

    def test_new_session(self):
        """A new session begins on a new connection while the old one's streams go on."""
        new, old = self.client.sessions()
        self.assertIs(self.old, old)
        self.assertTrue(new.connected and old.connected and self.client.connected)
        self.assertEqual(1, len(self.listener.sessions()))
        self.near.transport.write(b"still here")
        self.network.pass_time(5)
        self.assertEqual(b"still here", bytes(self.far.received))

    def test_end_of_the_old(self):
        """The end of the old session, and of its connection, does not concern the new one."""
        new = self.client.sessions()[0]
        self.near.transport.abortConnection()
        self.network.pass_time(2)
        self.assertTrue(self.old.closed)
        self.assertEqual([new], self.client.sessions())
        self.assertTrue(new.connected)
        self.assertEqual(2, self.network.attempts)
        self.assertIsNone(self.client.last_error)

    def test_loss_of_the_old(self):
        """When the old session's connection breaks nobody brings it back: its streams end."""
        new = self.client.sessions()[0]
        self.network.links[0].cut()
        self.network.settle()
        self.assertEqual(Code.SESSION_LOST, self.far.reasons[0].value.code)
        self.assertEqual([new], self.client.sessions())
        self.assertEqual(2, self.network.attempts)

    def test_loss_of_the_new(self):
        """The new session is resumed like any other while the old one is still there."""
        new = self.client.sessions()[0]
        self.network.links[-1].cut()
        self.attempt()
        self.assertEqual([new, self.old], self.client.sessions())
        self.assertTrue(new.connected and self.old.connected)

    def test_stop(self):
        """Both end when the agent stops."""
        self.client.drain("the agent is about to stop")
        self.network.pass_time(1)
        self.assertEqual([self.old], self.client.sessions())
        self.client.close(Code.GOING_AWAY, "the agent has stopped")
        self.network.settle()
        self.assertEqual([], self.client.sessions())
        self.leaving.close_sessions(Code.GOING_AWAY, "over")


class NumbersTests(ClientTestCase):
    """A session whose numbers of streams run out."""

    def test_another_session(self):
        """Another one begins in time, and the streams of the first go on to their end."""
        self.connect()
        session = self.client.sessions()[0]
        numbers = self.registry.find("edge-1").tunnel.wire._table
        numbers.next_number = MAX_STREAM - 2 * FEW_NUMBERS
        near, far = self.stream()
        self.network.pass_time(2)
        self.assertEqual([session], self.client.sessions())
        self.stream()
        self.network.pass_time(2)
        new, old = self.client.sessions()
        self.assertIs(session, old)
        self.assertTrue(new.connected)
        near.transport.write(b"still here")
        self.stream()
        self.assertEqual((b"still here", 1), (bytes(far.received), len(new.wire.streams)))
        for number, stream in list(old.wire.streams.items()):
            self.assertGreaterEqual(number, MAX_STREAM - 2 * FEW_NUMBERS)
            stream.events.abortConnection()
        self.network.pass_time(SUCCESSION)
        self.assertEqual([new], self.client.sessions())

    def test_nobody_misses_the_node_meanwhile(self):
        """The first session serves until another one is there, also when no stream is open."""
        self.patch(random, "uniform", lambda low, high: high)
        self.connect()
        first = self.registry.find("edge-1").tunnel
        first.wire._table.next_number = MAX_STREAM - 2 * FEW_NUMBERS
        for _ in range(2):
            near, _ = self.stream()
            near.transport.abortConnection()
        for _ in range(20):
            self.assertFalse(self.registry.find("edge-1").tunnel.wire.refuses_streams)
            self.network.pass_time(0.05, 0.05)
        self.assertIsNot(first, self.registry.find("edge-1").tunnel)
        self.network.pass_time(SUCCESSION)
        self.assertTrue(first.closed)


class LeavingTests(ClientTestCase):
    """A server that goes away, and nobody there yet who takes its place."""

    def test_one_attempt(self):
        """The end of the old connection is no reason for another attempt beside the first."""
        self.patch(random, "uniform", lambda low, high: high)
        self.connect()
        self.listener.drain("the server is about to stop")
        self.network.settle()
        self.start_server()
        self.network.pass_time(FIRST_DELAY - 0.1, 0.05)
        self.assertEqual(([], 1), (self.client.sessions(), self.network.attempts))
        self.network.pass_time(2)
        self.assertEqual(2, self.network.attempts)
        self.assertTrue(self.client.connected)
