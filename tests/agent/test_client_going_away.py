"""Sessions that are set aside for others: their streams continue to their ends."""

from __future__ import annotations

import random

from tests.agent.replicas import ReplicaTests
from yurttunnel.agent.client import LEFT_SESSION_TIMEOUT
from yurttunnel.agent.connection_group import FIRST_DELAY
from yurttunnel.tunnel.session import MIN_STREAM_NUMBERS, REPLACEMENT_TIME
from yurttunnel.wire.codes import Code
from yurttunnel.wire.frames import MAX_STREAM

TEXT = "the server is about to stop"


class DrainingTests(ReplicaTests):
    """A test case with one server, which others may replace."""

    expected = None

    def setUp(self):
        """Connect."""
        super().setUp()
        self.replica("a")
        self.use("a")
        self.assertEqual([1], self.counts())
        [self.old] = self.servers.sessions()

    def present(self):
        """Return the sessions that were not set aside."""
        return [session for session in self.servers.sessions() if session is not self.old]

    def assert_goes_on(self, near, far):
        """Check that a stream carries data in both directions."""
        near.transport.write(b"still here")
        self.pass_time(1)
        self.assertEqual(b"still here", bytes(far.received))
        self.assertEqual((["made"], []), (near.events, far.reasons))


class GracefulCloseTests(DrainingTests):
    """A server that goes away."""

    def setUp(self):
        """Open a stream through a server that goes away, and start another server."""
        super().setUp()
        self.near, self.far = self.replicas[0].stream()
        self.behind.clear()
        self.replica("a")
        self.replicas[0].listener.drain(TEXT)
        self.pass_time(1)

    def test_new_session(self):
        """A new session starts on a new connection while the old one's streams continue."""
        [new] = self.present()
        self.assertTrue(new.connected and self.old.connected)
        self.assertEqual([0, 1], self.counts())
        self.pass_time(5)
        self.assert_goes_on(self.near, self.far)
        self.assertEqual("a:10262", new.peer_name)

    def test_end_of_the_old(self):
        """The end of the old session, and of its connection, does not affect the new one."""
        [new] = self.present()
        self.near.transport.abortConnection()
        self.pass_time(2)
        self.assertTrue(self.old.closed)
        self.assertEqual([new], self.servers.sessions())
        self.assertTrue(new.connected)
        self.assertEqual(2, len(self.dialed))
        self.assertEqual((None, []), (self.servers.warning(), self.warnings))

    def test_loss_of_the_old(self):
        """If the old session's connection breaks, a stopping server has closed the session, and so
        does the client.
        """
        [new] = self.present()
        self.links[0].cut()
        self.pass_time(31)
        self.assertEqual(Code.SESSION_LOST, self.far.reasons[0].value.code)
        self.assertEqual([new], self.servers.sessions())
        self.assertEqual([0, 1], self.counts())
        self.assertEqual([], self.warnings)

    def test_loss_of_the_new(self):
        """The new session is resumed like any other while the old one still exists."""
        [new] = self.present()
        self.links[-1].cut()
        self.pass_time(1)
        self.assertEqual([new], self.present())
        self.assertTrue(new.connected and self.old.connected)

    def test_stop(self):
        """Both end when the agent stops."""
        self.servers.drain("the agent is about to stop")
        self.pass_time(1)
        self.assertEqual(2, len(self.servers.sessions()), "the last stream of all ends all")
        self.servers.close(Code.GOING_AWAY, "the agent has stopped")
        self.settle()
        self.assertEqual([], self.servers.sessions())


class NumbersTests(DrainingTests):
    """A session that runs out of stream ids."""

    def setUp(self):
        """Leave few stream ids."""
        super().setUp()
        self.registry = self.replicas[0].registry
        self.first = self.registry.find("edge-1").tunnel
        self.first.wire._table.next_number = MAX_STREAM - 2 * MIN_STREAM_NUMBERS

    def test_another_session(self):
        """A new session starts in time, and the streams of the first continue to their end."""
        near, far = self.replicas[0].stream()
        self.pass_time(2)
        self.assertEqual([], self.present())
        self.replicas[0].stream()
        self.pass_time(2)
        [new] = self.present()
        self.assertTrue(new.connected)
        self.replicas[0].stream()
        self.assert_goes_on(near, far)
        self.assertEqual(1, len(new.wire.streams))
        for number, stream in list(self.old.wire.streams.items()):
            self.assertGreaterEqual(number, MAX_STREAM - 2 * MIN_STREAM_NUMBERS)
            stream.events.abortConnection()
        self.pass_time(REPLACEMENT_TIME)
        self.assertEqual([new], self.servers.sessions())

    def test_nobody_misses_the_node_meanwhile(self):
        """The first session serves until there is another one, even without open streams."""
        self.patch(random, "uniform", lambda low, high: high)
        for _ in range(2):
            near, _ = self.replicas[0].stream()
            near.transport.abortConnection()
        for _ in range(20):
            self.assertFalse(self.registry.find("edge-1").tunnel.wire.refuses_streams)
            self.pass_time(0.05, 0.05)
        self.assertIsNot(self.first, self.registry.find("edge-1").tunnel)
        self.pass_time(REPLACEMENT_TIME)
        self.assertTrue(self.first.closed)


class LeavingTests(DrainingTests):
    """A server that goes away while no other one can replace it."""

    def test_one_attempt(self):
        """All its agents are notified together, so each waits for a random time."""
        self.patch(random, "uniform", lambda low, high: high)
        self.replicas[0].listener.drain(TEXT)
        self.settle()
        self.behind.clear()
        self.replica("a")
        self.pass_time(FIRST_DELAY - 0.1, 0.05)
        self.assertEqual(([], 1), (self.servers.sessions(), len(self.dialed)))
        self.pass_time(2)
        self.assertEqual(2, len(self.dialed))
        self.assertEqual(1, self.servers.connected)


class NewIdentifiersTests(DrainingTests):
    """A session that has to be replaced, because the certificate now covers other identifiers."""

    def setUp(self):
        """Open a stream."""
        super().setUp()
        self.near, self.far = self.replicas[0].stream()

    def replace_session(self):
        """Send changed identifiers to the server."""
        self.identifiers = "host=edge-1&ipv4=192.0.2.7"
        self.servers.update_identifiers()

    def test_overtaking(self):
        """The new HELLO may arrive before the GOAWAY of the old session: no stream ends."""
        late, sent = self.links[0], []
        self.patch(late.client_io, "write", sent.append)
        self.replace_session()
        self.pass_time(1)
        self.assertTrue(sent, "the GOAWAY is on its way")
        self.assertEqual((1, 2), (self.servers.connected, len(self.servers.sessions())))
        self.assert_goes_on(self.near, self.far)
        self.assertFalse(self.old.closed)

    def test_no_gap(self):
        """The old session serves until there is a new one, even without a stream."""
        self.patch(random, "uniform", lambda low, high: high)
        self.near.transport.abortConnection()
        self.replace_session()
        while not self.servers.connected:
            self.assertTrue(self.replicas[0].registry.find("edge-1").connected)
            self.pass_time(0.05, step=0.05)
        self.pass_time(10)
        self.assertEqual(1, len(self.servers.sessions()))
        self.assertEqual(1, len(self.replicas[0].listener.sessions()))

    def test_the_old_one_loses_its_connection(self):
        """The old session is resumed for its streams, and ends with the last of them."""
        self.replace_session()
        self.pass_time(REPLACEMENT_TIME + 1)
        for _ in range(2):
            self.links[0].cut()
            self.links[-1].cut()
            self.pass_time(2)
            self.assert_goes_on(self.near, self.far)
            self.far.received.clear()
        [new] = self.present()
        self.assertTrue(new.connected)
        self.near.transport.abortConnection()
        self.pass_time(1)
        self.assertEqual([new], self.servers.sessions())
        self.assertEqual(1, len(self.replicas[0].listener.sessions()))

    def test_the_old_one_is_lost_before_the_server_hears_of_the_new_one(self):
        """A server that has not received GOAWAY waits for the agent as long as if it had."""
        late, sent = self.links[0], []
        self.patch(late.client_io, "write", sent.append)
        self.replace_session()
        late.cut()
        self.pass_time(2)
        self.assertTrue(sent)
        self.assertEqual(2, len(self.servers.sessions()))
        self.assert_goes_on(self.near, self.far)

    def test_the_old_one_has_no_stream(self):
        """Without streams it is not resumed, even if the server has forgotten it."""
        self.near.transport.abortConnection()
        self.pass_time(1)
        self.replace_session()
        self.links[0].cut()
        self.pass_time(2)
        self.assertNotIn(self.old, self.servers.sessions())
        self.assertEqual(2, len(self.dialed))
        self.assertEqual([1], self.counts())

    def test_both_are_lost(self):
        """Each client finds its own session, wherever else the agent may dial."""
        self.replica("b")
        self.use("a", "b")
        self.pass_time(2)
        self.replace_session()
        self.pass_time(1)
        self.replace_session()
        self.pass_time(REPLACEMENT_TIME + 1)
        self.cut()
        self.pass_time(5)
        self.assert_goes_on(self.near, self.far)
        self.assertEqual((2, 3), (self.servers.connected, len(self.servers.sessions())))


class NeverEndingTests(DrainingTests):
    """A server that sends GOAWAY in a session, and does not end it."""

    def setUp(self):
        """Have the server leave the first session."""
        super().setUp()
        [self.left] = self.replicas[0].listener.sessions()
        self.patch(self.left, "no_stream_left", lambda: None)
        self.near, self.far = self.replicas[0].stream()
        self.left.wire.go_away(Code.GOING_AWAY, TEXT)
        self.left.request_flush()

    def test_end(self):
        """The agent ends it with its last stream once another session serves the node."""
        self.pass_time(LEFT_SESSION_TIMEOUT + 5)
        self.assertEqual((2, 1), (len(self.servers.sessions()), len(self.present())))
        self.assert_goes_on(self.near, self.far)
        self.near.transport.abortConnection()
        self.pass_time(1)
        self.assertEqual(self.present(), self.servers.sessions())

    def test_only_route(self):
        """Until then it stays: the server may still open streams in it."""
        self.near.transport.abortConnection()
        self.replicas[0].up = False
        self.pass_time(2 * LEFT_SESSION_TIMEOUT)
        self.assertEqual([self.old], self.servers.sessions())
        self.replicas[0].up = True
        self.pass_time(2 * LEFT_SESSION_TIMEOUT)
        [new] = self.servers.sessions()
        self.assertIsNot(self.old, new)
