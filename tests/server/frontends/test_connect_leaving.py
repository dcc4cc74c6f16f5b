"""Callers of CONNECT that leave."""

from __future__ import annotations

from twisted.internet.error import ConnectionDone, ConnectionLost

from tests.server.frontends.connecting import ConnectTestCase, HalfClosingConnection, connect
from yurttunnel.tunnel.interfaces import StreamFailed
from yurttunnel.wire.codes import Code


class ClosingConnection(HalfClosingConnection):
    """A connection whose peer closes both directions."""

    def end(self, peer):
        """Close both."""
        peer.close()


class LeavingTests(ConnectTestCase):
    """A caller may leave at any time."""

    def test_while_the_head_is_read(self):
        """A caller that leaves before its head is complete causes no dial."""
        connection = self.open(b"CONNECT edge-1")
        connection.receive_end()
        connection.turns()
        self.assertIsInstance(connection.closed_with, ConnectionDone)
        self.assertEqual(len(self.factory.heads), 0)

    def test_while_the_dial_is_pending(self):
        """The dial is canceled, whether the caller closes or resets the connection."""
        connection = self.open(connect(), ClosingConnection)
        connection.receive_end()
        connection.turns()
        self.open(connect()).break_off(ConnectionLost())
        self.assertEqual([dial.cancelled for dial in self.session.dials], [True, True])
        self.assertEqual(connection.sent, b"")

    def test_while_the_200_goes_out(self):
        """The stream is reset."""
        connection = self.open(connect())
        target = self.session.dials[0].succeed()
        connection.break_off(ConnectionLost())
        (end,) = target.ended_with
        self.assertIsInstance(end, StreamFailed)
        self.assertEqual(end.code, Code.CANCELLED)

    def test_when_the_dial_succeeds_in_spite_of_its_cancellation(self):
        """A stream that arrives late is reset."""
        connection = self.open(connect())
        dial = self.session.dials[0]
        dial.opening._canceller = lambda opening: dial.succeed()
        connection.break_off(ConnectionLost())
        connection.turns()
        self.assertIsNotNone(dial.near._end)

    def test_when_joined(self):
        """The stream is reset with the broken connection."""
        connection, target = self.join()
        connection.break_off(ConnectionLost())
        (end,) = target.ended_with
        self.assertEqual(end.code, Code.CONNECTION_LOST)
