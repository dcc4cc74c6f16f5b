"""Shutdown of the CONNECT front end."""

from __future__ import annotations

from twisted.internet.error import ConnectionLost

from tests.server.frontends.connecting import ConnectTestCase, connect
from yurttunnel.wire.codes import Code


class CloseTests(ConnectTestCase):
    """``ConnectFactory.close`` aborts everything."""

    def test_every_connection_is_aborted(self):
        """``close`` aborts connections in every state, from an unread head to a lingering error."""
        joined, target = self.join()
        established = self.open(connect())
        self.session.dials[-1].succeed()
        connections = [
            joined,
            established,
            self.open(),
            self.open(connect()),
            self.open(connect("edge-9:80")),
        ]
        self.factory.close()
        self.assertTrue(all(connection.aborted for connection in connections))
        self.assertTrue(self.session.dials[-1].cancelled)
        self.assertEqual(len(target.ended_with), 1)


class DrainTests(ConnectTestCase):
    """``ConnectFactory.drain`` waits for data that callers have yet to read."""

    def drain(self):
        """Start to drain; return its ``Deferred``."""
        return self.factory.drain()

    def test_idle(self):
        """Without connections ``drain`` completes at once."""
        self.successResultOf(self.drain())

    def test_a_caller_that_reads_slowly(self):
        """The stream has ended, and its last data is in the caller's transport."""
        connection, _ = self.join()
        connection.receive_end()
        far = self.session.dials[0].far
        far.write(b"x" * 60_000)
        far.loseWriteConnection()
        drained = self.drain()
        self.assertIsNone(connection.protocol._user.stream)
        self.assertNoResult(drained)
        connection.turns()
        self.assertEqual(connection.sent, b"x" * 60_000)
        self.successResultOf(drained)

    def test_every_wait(self):
        """All pending calls of ``drain`` complete."""
        connection, _ = self.join()
        waits = [self.drain(), self.drain()]
        connection.break_off(ConnectionLost())
        for drained in waits:
            self.successResultOf(drained)

    def test_callers_without_a_request(self):
        """Connections without a byte of a head are closed, others get their response."""
        silent, begun, dialing = self.open(), self.open(connect()[:9]), self.open(connect())
        drained = self.drain()
        self.assertEqual([True, False, False], [c.aborted for c in (silent, begun, dialing)])
        begun.receive(connect()[9:])
        for dial, connection in zip(self.session.dials, (dialing, begun), strict=True):
            dial.fail(Code.GOING_AWAY, "the server is about to stop")
            self.assert_answer(connection, 503, "about to stop")
            self.assertNoResult(drained)
            connection.receive_end()
            connection.turns()
        self.successResultOf(drained)

    def test_callers_that_are_refused(self):
        """Callers with an error response have the linger time to read it."""
        refused = self.open(connect("edge-9:80"))
        drained = self.drain()
        self.assertFalse(refused.aborted)
        self.assert_answer(refused, 503, "no agent is connected")
        self.assertNoResult(drained)
        refused.receive_end()
        refused.turns()
        self.successResultOf(drained)

    def test_callers_that_do_not_end(self):
        """``close`` ends the wait."""
        self.join()
        drained = self.drain()
        self.assertNoResult(drained)
        self.factory.close()
        self.successResultOf(drained)
