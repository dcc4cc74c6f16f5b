"""How a client ends."""

from __future__ import annotations

from twisted.test.iosim import FakeTransport

from tests.agent.clients import ClientTestCase
from yurttunnel.agent.connection_group import LONGEST_DELAY
from yurttunnel.tunnel.connection import CLOSE_TIMEOUT
from yurttunnel.wire.codes import Code


class StopTests(ClientTestCase):
    """The end of the client in each of its states: nothing may be left, nothing begins again."""

    def stop_by(self, stop):
        """Stop; then check that there is nothing left, now and later."""
        attempts = self.network.attempts
        stop()
        self.network.pass_time(1)
        self.assertEqual([], self.client.sessions())
        self.assertEqual([], self.network.open_links)
        self.network.hangs, self.network.problem = False, None
        self.clock.advance(2 * CLOSE_TIMEOUT)
        self.assertEqual([], self.clock.getDelayedCalls())
        self.assertEqual(attempts, self.network.attempts)
        self.assertEqual([], self.warnings())

    def in_each_way(self, prepare):
        """Bring clients to a state, and stop each in another way."""
        for stop in (
            lambda: self.client.drain("the agent is about to stop"),
            lambda: self.client.close(Code.GOING_AWAY, "the agent has stopped"),
        ):
            self.start_server()
            self.client = self.make_client(self.issuer.node())
            prepare()
            self.events.clear()
            self.stop_by(stop)

    def test_before_start(self):
        """A client that has not begun never does."""
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
        """The delay before the next attempt ends."""

        def prepare():
            self.network.refuse()
            self.client.start()
            self.delay()

        self.in_each_way(prepare)

    def test_second_attempt(self):
        """An attempt that a delay has led to is cancelled as well."""

        def prepare():
            self.network.refuse()
            self.client.start()
            self.network.hangs = True
            self.clock.advance(self.delay() + 1e-6)
            self.assertEqual(0, len(self.clock.getDelayedCalls()))

        self.in_each_way(prepare)
        self.assertEqual(2, self.network.cancelled)

    def test_handshake(self):
        """A connection before the end of its handshake is aborted."""
        self.in_each_way(self.client_start)

    def client_start(self):
        """Start, and let nothing arrive."""
        self.client.start()

    def test_hello_sent(self):
        """So is one over which the server's HELLO has not come."""

        def prepare():
            self.listener.hello_received = lambda connection, hello: None
            self.client.start()
            self.network.settle()
            self.assertEqual(1, len(self.network.open_links))

        self.in_each_way(prepare)

    def test_connected(self):
        """A session without streams ends in order."""
        self.in_each_way(self.connect)
        self.assertEqual([], self.listener.sessions())

    def test_disconnected(self):
        """A live session without a connection ends when it has no streams."""

        def prepare():
            self.connect()
            self.network.cut()
            self.network.refuse()

        self.in_each_way(prepare)

    def test_disconnected_with_streams(self):
        """Closing ends it with its streams."""
        self.connect()
        _, far = self.stream()
        self.network.cut()
        self.stop_by(lambda: self.client.close(Code.GOING_AWAY, "the agent has stopped"))
        self.assertEqual(Code.GOING_AWAY, far.reasons[0].value.code)

    def test_coming_back(self):
        """So does one for which a connection is being made."""

        def prepare():
            self.connect()
            self.network.cut()
            self.clock.advance(self.delay() + 1e-6)
            self.assertEqual(1, len(self.network.open_links))

        self.in_each_way(prepare)

    def test_drain_with_streams(self):
        """Streams go on while the client drains; the last one's end is the session's."""
        self.connect()
        near, far = self.stream()
        self.client.drain("the agent is about to stop")
        self.network.pass_time(5)
        near.transport.write(b"still here")
        self.network.settle()
        self.assertEqual(b"still here", bytes(far.received))
        self.events.clear()
        near.transport.abortConnection()
        self.network.pass_time(1)
        self.assertEqual([], self.client.sessions())
        self.assertEqual({Code.GOING_AWAY: 1}, self.closed_with(self.server.counters))
        # That the connection ends with the session is nothing that somebody has to read.
        [told] = self.logged("info")
        self.assertIn("session ended: the session has been drained", told)

    def test_server_is_told(self):
        """The server hears that the agent has stopped: closing drops nothing that was sent."""

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
    """A client that drains while its connection is lost: it comes back for its streams only."""

    def setUp(self):
        """Have a stream."""
        super().setUp()
        self.connect()
        self.near, self.far = self.stream()

    def drain(self):
        """Drain."""
        self.client.drain("the agent is about to stop")

    def assert_resumed_until_the_end(self):
        """Check that the stream is served, that its end is the session's, and that nobody returns.

        The client is before the attempt that resumes.
        """
        self.attempt()
        self.assertTrue(self.client.connected)
        self.near.transport.write(b"still here")
        self.network.pass_time(2)
        self.assertEqual(b"still here", bytes(self.far.received))
        self.near.transport.abortConnection()
        self.assert_over()

    def assert_over(self):
        """Check that the client has no session and wants none."""
        attempts = self.network.attempts
        self.network.pass_time(2)
        self.network.problem = None
        self.network.pass_time(2 * LONGEST_DELAY, 1)
        self.assertEqual(([], []), (self.client.sessions(), self.listener.sessions()))
        self.assertLessEqual(self.network.attempts, attempts + 1)
        self.assertEqual([], self.clock.getDelayedCalls())

    def test_lost_before(self):
        """A session whose connection is lost when the drain begins is resumed."""
        self.network.cut()
        self.drain()
        self.assert_resumed_until_the_end()

    def test_lost_meanwhile(self):
        """So is one that loses it during the drain, at either step of going away."""
        self.drain()
        self.network.cut()
        self.assert_resumed_until_the_end()

    def test_lost_late(self):
        """So is one that has gone away already."""
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
        """When the last stream ends before the client is back its caller hears of it all the same.

        So it is when it has ended before the drain begins.
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
        """What may not have arrived of the last stream is worth a return, too."""
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
        """That the agent goes is no reason to come back, be it at either step."""
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
        """The end of the resume window is the end."""
        self.drain()
        self.network.cut()
        self.network.refuse()
        self.network.pass_time(31)
        self.assertEqual(Code.SESSION_LOST, self.far.reasons[0].value.code)
        self.assert_over()

    def test_close(self):
        """Closing ends it while it waits to come back."""
        self.drain()
        self.network.cut()
        self.client.close(Code.GOING_AWAY, "the agent has stopped")
        self.network.pass_time(30)
        self.assert_over()
