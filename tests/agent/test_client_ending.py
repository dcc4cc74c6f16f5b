"""The end of a client."""

from __future__ import annotations

from twisted.test.iosim import FakeTransport

from tests.agent.clients import ClientTestCase
from yurttunnel.agent.connection_group import MAX_DELAY
from yurttunnel.tunnel.connection import CLOSE_TIMEOUT
from yurttunnel.wire.codes import Code


class StopTests(ClientTestCase):
    """The end of the client in each state: nothing remains, and nothing starts again."""

    def stop_by(self, stop):
        """Stop; then check that nothing remains, now and later."""
        attempts = self.network.attempts
        stop()
        self.network.pass_time(1)
        self.assertEqual([], self.client.sessions())
        self.assertEqual([], self.network.open_links)
        self.network.hangs, self.network.problem = False, None
        self.clock.advance(2 * CLOSE_TIMEOUT)
        self.assertEqual([], self.clock.getDelayedCalls())
        self.assertEqual(attempts, self.network.attempts)
        self.assertEqual([], self.warnings)

    def in_each_way(self, prepare):
        """Put clients into a state, and stop each in a different way."""
        for stop in (
            lambda: self.client.drain("the agent is about to stop"),
            lambda: self.client.close(Code.GOING_AWAY, "the agent has stopped"),
        ):
            self.start_server()
            self.client = self.make_client(self.issuer.node())
            prepare()
            self.warnings.clear()
            self.stop_by(stop)

    def test_before_start(self):
        """A client that was not started never starts."""
        self.in_each_way(lambda: None)

    def test_connecting(self):
        """An attempt is cancelled."""

        def prepare():
            self.network.hangs = True
            self.client.start()

        self.in_each_way(prepare)
        self.assertEqual(2, self.network.cancelled)
        self.assertEqual(0, self.client.failed_attempts)

    def test_waiting(self):
        """The delay before the next attempt is cancelled."""

        def prepare():
            self.network.refuse()
            self.client.start()
            self.delay()

        self.in_each_way(prepare)

    def test_second_attempt(self):
        """An attempt after a delay is cancelled, too."""

        def prepare():
            self.network.refuse()
            self.client.start()
            self.network.hangs = True
            self.clock.advance(self.delay() + 1e-6)
            self.assertEqual(0, len(self.clock.getDelayedCalls()))

        self.in_each_way(prepare)
        self.assertEqual(2, self.network.cancelled)

    def test_handshake(self):
        """A connection whose handshake is incomplete is aborted."""
        self.in_each_way(self.client_start)

    def client_start(self):
        """Start, and deliver nothing."""
        self.client.start()

    def test_hello_sent(self):
        """So is one without the server's HELLO."""

        def prepare():
            self.listener.hello_received = lambda connection, hello: None
            self.client.start()
            self.network.settle()
            self.assertEqual(1, len(self.network.open_links))

        self.in_each_way(prepare)

    def test_connected(self):
        """A session without streams ends gracefully."""
        self.in_each_way(self.connect)
        self.assertEqual([], self.listener.sessions())

    def test_disconnected(self):
        """A session without a connection ends if it has no streams."""

        def prepare():
            self.connect()
            self.network.cut()
            self.network.refuse()

        self.in_each_way(prepare)

    def test_disconnected_with_streams(self):
        """Closing ends it together with its streams."""
        self.connect()
        _, far = self.stream()
        self.network.cut()
        self.stop_by(lambda: self.client.close(Code.GOING_AWAY, "the agent has stopped"))
        self.assertEqual(Code.GOING_AWAY, far.reasons[0].value.code)

    def test_coming_back(self):
        """The same holds while its connection is being established."""

        def prepare():
            self.connect()
            self.network.cut()
            self.clock.advance(self.delay() + 1e-6)
            self.assertEqual(1, len(self.network.open_links))

        self.in_each_way(prepare)

    def test_drain_with_streams(self):
        """Streams continue while the client drains; the session ends with the last one."""
        self.connect()
        near, far = self.stream()
        self.client.drain("the agent is about to stop")
        self.network.pass_time(5)
        near.transport.write(b"still here")
        self.network.settle()
        self.assertEqual(b"still here", bytes(far.received))
        self.logged.clear()
        near.transport.abortConnection()
        self.network.pass_time(1)
        self.assertEqual([], self.client.sessions())
        self.assertEqual({Code.GOING_AWAY: 1}, self.closed_with(self.server.counters))
        # That the connection ends with the session is not worth a log line.
        [events] = self.logged
        self.assertIn("session ended: the session has been drained", events)

    def test_server_is_notified(self):
        """The server learns that the agent has stopped: closing drops no sent data."""

        def abort(transport):
            transport.stream.clear()
            transport.disconnecting = True

        self.patch(FakeTransport, "abortConnection", abort)
        self.connect()
        near, _ = self.stream()
        self.client.close(Code.GOING_AWAY, "the agent has stopped")
        self.network.settle()
        self.assertEqual(Code.GOING_AWAY, near.reasons[0].value.code)
        self.assertIn("the agent has stopped", near.reasons[0].value.text)


class DrainTests(ClientTestCase):
    """A draining client that loses its connection reconnects for its streams only."""

    def setUp(self):
        """Open a stream."""
        super().setUp()
        self.connect()
        self.near, self.far = self.stream()

    def drain(self):
        """Drain."""
        self.client.drain("the agent is about to stop")

    def assert_resumed_until_the_end(self):
        """Check that the stream is served, that the session ends with it, and that nothing
        reconnects.

        The client is about to make the attempt that resumes the session.
        """
        self.attempt()
        self.assertTrue(self.client.connected)
        self.near.transport.write(b"still here")
        self.network.pass_time(2)
        self.assertEqual(b"still here", bytes(self.far.received))
        self.near.transport.abortConnection()
        self.assert_over()

    def assert_over(self):
        """Check that the client has no session and makes no attempt."""
        attempts = self.network.attempts
        self.network.pass_time(2)
        self.network.problem = None
        self.network.pass_time(2 * MAX_DELAY, 1)
        self.assertEqual(([], []), (self.client.sessions(), self.listener.sessions()))
        self.assertLessEqual(self.network.attempts, attempts + 1)
        self.assertEqual([], self.clock.getDelayedCalls())

    def test_lost_before(self):
        """A session without a connection at the start of the drain is resumed."""
        self.network.cut()
        self.drain()
        self.assert_resumed_until_the_end()

    def test_lost_meanwhile(self):
        """So is one that loses it during the drain, at either step of GOAWAY."""
        self.drain()
        self.network.cut()
        self.assert_resumed_until_the_end()

    def test_lost_late(self):
        """So is one that has completed GOAWAY already."""
        self.drain()
        self.network.pass_time(2)
        self.network.cut()
        self.assert_resumed_until_the_end()

    def test_unknown_session(self):
        """A server that does not know the session gets no new one."""
        self.drain()
        self.network.cut()
        self.start_server()
        self.attempt()
        self.assertEqual(Code.SESSION_LOST, self.far.reasons[0].value.code)
        self.assert_over()
        self.assertEqual({Code.GOING_AWAY: 1}, self.closed_with(self.server.counters))

    def test_streams_end_meanwhile(self):
        """If the last stream ends before the client is back, its caller is still notified.

        The same holds if it has ended before the drain begins.
        """
        for steps in ((self.drain, self.abort), (self.abort, self.drain)):
            self.network.cut()
            for step in steps:
                step()
            self.attempt()
            self.assertEqual(Code.CANCELLED, self.near.reasons[0].value.code)
            self.assert_over()
            self.client = self.make_client(self.issuer.node())
            self.connect()
            self.near, self.far = self.stream()

    def abort(self):
        """Reset the stream at the agent."""
        self.far.transport.abortConnection()

    def test_last_words(self):
        """Unacknowledged data of the last stream is also a reason to reconnect."""
        self.near.transport.loseWriteConnection()
        self.network.pass_time(1)
        self.drain()
        self.network.pass_time(1)
        self.network.links[-1].lost = True
        self.far.transport.write(b"last words")
        self.far.transport.loseWriteConnection()
        self.network.settle()
        self.network.cut()
        self.attempt()
        self.assertEqual(b"last words", bytes(self.near.received))
        self.assert_over()

    def test_nothing_but_goaway(self):
        """GOAWAY alone is no reason to reconnect, at either step."""
        self.near.transport.abortConnection()
        for seconds in (0, 1):
            self.network.pass_time(1)
            self.network.links[-1].lost = True
            self.drain()
            self.network.pass_time(seconds)
            self.network.cut()
            self.network.settle()
            self.assertEqual([], self.client.sessions())
            self.assert_over()
            self.client = self.make_client(self.issuer.node())
            self.connect()

    def test_window_over(self):
        """The session ends with the resume window."""
        self.drain()
        self.network.cut()
        self.network.refuse()
        self.network.pass_time(31)
        self.assertEqual(Code.SESSION_LOST, self.far.reasons[0].value.code)
        self.assert_over()

    def test_close(self):
        """Closing ends it while it waits to reconnect."""
        self.drain()
        self.network.cut()
        self.client.close(Code.GOING_AWAY, "the agent has stopped")
        self.network.pass_time(30)
        self.assert_over()
