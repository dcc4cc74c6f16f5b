"""Limits and timeouts of CONNECT."""

from __future__ import annotations

from dataclasses import replace

from twisted.internet.error import ConnectionLost

from tests.server.frontends.connecting import ConnectTestCase, connect
from yurttunnel.http.head import HeadLimits
from yurttunnel.server.frontends.connect import SETTINGS
from yurttunnel.wire.codes import Code


class LimitTests(ConnectTestCase):
    """Every wait and every number has a limit."""

    settings = replace(SETTINGS, max_unread_heads=2, limits=HeadLimits(max_bytes=100))

    def setUp(self):
        """Allow four dials, of seven seconds."""
        super().setUp()
        self.factory.dial_timeout = 7.0
        self.factory.pending_dials.maximum = 4

    def test_slow_heads(self):
        """A caller that sends a byte occasionally gets 408 after the head's timeout."""
        connection = self.open()
        for value in connect()[:19]:
            self.reactor.advance(0.5)
            connection.receive(bytes([value]))
        self.reactor.advance(0.4)
        self.assertEqual(connection.sent, b"")
        self.reactor.advance(0.1)
        self.assert_answer(connection, 408, "in time")

    def test_a_head_in_time_ends_its_deadline(self):
        """A dial may take longer than a head."""
        connection = self.open(connect())
        self.reactor.advance(60)
        self.assertEqual(connection.sent, b"")
        self.assertIsNone(connection.closed_with)

    def test_unread_heads(self):
        """Above the limit of connections without a head, the oldest is aborted; others continue."""
        dialing, silent = self.open(connect()), self.open()
        slow, caller = self.open(connect()[:9]), self.open()
        self.assertEqual((silent.aborted, silent.sent), (True, b""))
        caller.receive(connect())
        self.assertEqual(len(self.session.dials), 2)
        newest = [self.open() for _ in range(2)]
        self.assertTrue(slow.aborted)
        self.assertEqual([], [each for each in (dialing, caller, *newest) if each.aborted])

    def test_ended_connections_make_room(self):
        """A connection that ends makes room, too."""
        self.open().break_off(ConnectionLost())
        self.open()
        last = self.open()
        last.turns()
        self.assertEqual(last.sent, b"")

    def test_connections_that_linger(self):
        """Above that limit of callers with an error response, the oldest is aborted."""
        callers = [self.open(b"\0") for _ in range(3)]
        self.assertEqual([caller.aborted for caller in callers], [True, False, False])
        self.assert_answer(callers[2], 400, "")

    def test_pending_dials(self):
        """Further dials of a caller above its share get 503; a result makes room."""
        self.open(connect())
        self.open(connect()).break_off(ConnectionLost())
        self.open(connect())
        self.assert_answer(self.open(connect()), 503, "2 dials are pending")
        self.session.dials[0].fail(Code.REFUSED, "refused")
        self.open(connect())
        self.assertEqual(len(self.session.dials), 4)

    def test_the_dial_timeout_is_passed_on(self):
        """The session enforces it."""
        self.open(connect())
        self.assertEqual(self.session.dials[0].timeout, 7.0)

    def test_limits_of_the_head(self):
        """The limits of the head can be configured."""
        self.assert_answer(self.open(b"CONNECT " + b"a" * 93), 431, "100 bytes")
