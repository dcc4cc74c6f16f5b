"""The identity and the figures of a session."""

from __future__ import annotations

import datetime

from twisted.internet.interfaces import IPushProducer
from zope.interface.verify import verifyObject

from tests.tunnel.memory import SESSION_ID, Acceptor
from tests.tunnel.sessions import SessionTestCase
from yurttunnel.tunnel.interfaces import IStreamAcceptor, IStreamOpener


class IdentityTests(SessionTestCase):
    """The identity and the figures of a session."""

    def test_interfaces(self):
        """A session opens streams, and is its connection's producer."""
        self.assertTrue(verifyObject(IStreamOpener, self.pair.server))
        self.assertTrue(verifyObject(IPushProducer, self.pair.server))
        self.assertTrue(verifyObject(IStreamAcceptor, Acceptor()))

    def test_session_id(self):
        """Both ends use the session id that the server has assigned."""
        self.assertEqual(SESSION_ID, self.pair.server.session_id)
        self.assertEqual(SESSION_ID, self.pair.agent.session_id)

    def test_snapshot(self):
        """A snapshot has the current figures."""
        self.join()
        self.near.write(b"12345")
        self.far.write(b"123")
        self.pair.pass_time(1)
        snapshot = self.pair.server.snapshot()
        self.assertEqual("edge-1", snapshot.node)
        self.assertEqual(SESSION_ID.hex(), snapshot.session_id)
        self.assertEqual((1, 5, 3), (snapshot.streams, snapshot.bytes_sent, 3))
        self.assertEqual(3, snapshot.bytes_received)
        self.assertEqual("test 1", snapshot.version)
        self.assertEqual("192.0.2.1:40000", snapshot.address)
        self.assertEqual(0.0, snapshot.round_trip)
        self.assertIsNone(snapshot.certificate_not_after)
        self.assertEqual(datetime.UTC, snapshot.since.tzinfo)
        self.assertTrue(snapshot.connected)
        self.pair.cut()
        self.assertFalse(self.pair.server.snapshot().connected)

    def test_software_that_is_not_named(self):
        """A peer that does not name its software has an unknown version."""
        self.pair.server.wire.peer.properties.clear()
        self.assertEqual("unknown", self.pair.server.snapshot().version)

    def test_bytes_are_counted(self):
        """The process counts the payload of all sessions, in both directions."""
        self.join()
        for _ in range(2):
            self.near.write(bytes(500))
            self.far.write(bytes(5))
            self.pair.pump()
        server = self.pair.server_context.counters
        agent = self.pair.agent_context.counters
        self.assertEqual((1000, 10), (server.bytes_sent, server.bytes_received))
        self.assertEqual((10, 1000), (agent.bytes_sent, agent.bytes_received))
        self.assertEqual((1, 1), (server.sessions_started, agent.sessions_started))
