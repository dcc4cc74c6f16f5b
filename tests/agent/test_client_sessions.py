"""The session that a client's connection carries."""

from __future__ import annotations

from tests.agent.clients import ClientTestCase
from yurttunnel import __version__
from yurttunnel.wire.codes import Code
from yurttunnel.wire.hello import Limits


class SessionTests(ClientTestCase):
    """The session that a connection carries."""

    def test_hello(self):
        """The client sends its identifiers and version, and receives the server's version."""
        self.connect()
        hello = self.listener.sessions()[0].wire.peer
        self.assertEqual(
            {"software": "test 1", "identifiers": "host=edge-1"}, dict(hello.properties)
        )
        snapshot = self.client.sessions()[0].snapshot()
        self.assertEqual(("server.test:10262", __version__), (snapshot.node, snapshot.version))
        self.assertIsNone(self.client.last_error)

    def test_other_limits(self):
        """Changed limits apply to new sessions."""
        self.settings.limits = Limits(resume_window=1_000)
        self.connect()
        self.assertEqual(1_000, self.listener.sessions()[0].wire.peer.limits.resume_window)

    def test_resume(self):
        """After a lost connection the session continues where it was, in both directions."""
        self.connect()
        near, far = self.stream()
        session = self.client.sessions()[0]
        near.transport.write(b"one ")
        far.transport.write(b"eins ")
        self.network.settle()
        near.transport.write(b"two")
        far.transport.write(b"zwei")
        self.network.cut()
        self.assertFalse(self.client.connected)
        self.attempt()
        self.assertEqual([session], self.client.sessions())
        self.assertTrue(self.client.connected)
        self.assertEqual((b"eins zwei", b"one two"), (bytes(near.received), bytes(far.received)))
        self.assertEqual((1, 1), (self.server.counters.resumptions, session.resumptions))

    def test_silent(self):
        """A silent connection is dropped, and the session continues."""
        self.connect()
        near, _ = self.stream()
        old = self.network.links[-1]
        old.lost = True
        self.clock.advance(0)
        session = self.client.sessions()[0]
        while session.connected:
            self.clock.advance(0.25)
        old.cut()
        self.attempt()
        self.assertTrue(self.client.connected)
        self.assertEqual(["made"], near.events)

    def test_unknown_session(self):
        """A restarted server's new session replaces the old one on the same connection."""
        self.connect()
        _, far = self.stream()
        old = self.client.sessions()[0]
        self.network.cut()
        self.start_server()
        self.attempt()
        self.assertTrue(old.closed)
        self.assertEqual(Code.SESSION_LOST, far.reasons[0].value.code)
        self.assertTrue(self.client.connected)
        self.assertEqual(2, self.network.attempts)
        self.assertEqual(1, len(self.listener.sessions()))
        self.assertEqual({Code.SESSION_LOST: 1}, self.closed_with(self.context.counters))

    def test_other_identifiers_for_a_session_that_is_unknown(self):
        """The claimed identifiers are those in the HELLO that started the new session."""
        identifiers = ["host=edge-1"]
        self.settings.identifiers = lambda: identifiers[0]
        self.connect()
        self.network.cut()
        self.start_server()
        identifiers[0] = ""
        self.attempt()
        self.assertEqual("", self.client.sent_identifiers)
        self.assertEqual(
            "", self.listener.sessions()[0].wire.peer.properties["identifiers"], "at the server"
        )

    def test_other_identifiers_for_a_session_that_goes_on(self):
        """The claimed identifiers of a resumed session are unchanged, whatever the HELLO that
        resumes it contains.
        """
        identifiers = ["host=edge-1"]
        self.settings.identifiers = lambda: identifiers[0]
        self.connect()
        self.network.cut()
        identifiers[0] = ""
        self.attempt()
        self.assertEqual("host=edge-1", self.client.sent_identifiers)

    def test_window_over(self):
        """After the resume window the session ends, and a new one starts as soon as possible."""
        self.connect()
        _, far = self.stream()
        self.network.cut()
        self.network.refuse()
        self.network.pass_time(31)
        self.assertEqual(Code.SESSION_LOST, far.reasons[0].value.code)
        self.assertEqual([], self.client.sessions())
        self.network.problem = None
        self.attempt()
        self.assertTrue(self.client.connected)

    def test_window_over_before_the_answer(self):
        """A session that ends while its resumption is requested is rejected; a new one starts."""
        self.connect()
        near, _ = self.stream()
        old = self.client.sessions()[0]
        near.transport.write(b"x")
        self.network.settle()
        self.network.cut()
        ready = self.client.connection_ready

        def request_too_late(connection):
            ready(connection)
            old.close(Code.SESSION_LOST, "the peer did not reconnect in time")

        self.patch(self.client, "connection_ready", request_too_late)
        self.attempt()
        self.assertEqual([], self.client.sessions())
        self.assertIn("ended here meanwhile", self.client.last_error)
        ends = {Code.SESSION_LOST: 1}
        self.assertEqual(ends, self.closed_with(self.server.counters))
        self.assertEqual(ends, self.closed_with(self.context.counters))
        self.assertEqual(Code.SESSION_LOST, near.reasons[0].value.code)
        self.client.connection_ready = ready
        self.attempt()
        self.assertTrue(self.client.connected)
        self.assertNotEqual(old.session_id, self.client.sessions()[0].session_id)

    def test_revoked(self):
        """A session closed by the server is over; the client tries to start another."""
        self.connect()
        self.revoked = True
        self.listener.revoke("edge-1")
        self.network.settle()
        self.assertEqual([], self.client.sessions())
        self.attempt()
        self.assertIn("revoked", self.client.last_error)
        self.assertEqual({Code.REVOKED: 1}, self.closed_with(self.context.counters))
