"""CONNECT over TLS."""

from __future__ import annotations

from dataclasses import replace

from twisted.internet.error import ConnectionDone, ConnectionLost
from twisted.python.failure import Failure

from tests.logged import Logged
from tests.server.frontends.connecting import (
    ESTABLISHED,
    ConnectTestCase,
    MemoryTLSConnection,
    connect,
)
from yurttunnel.pki.tls_errors import rejection_error
from yurttunnel.server.audit import Audit
from yurttunnel.server.frontends.connect import SETTINGS


class TLSTests(ConnectTestCase):
    """Over TLS, which has no half-close in Twisted."""

    def open(self, data=b"", connection_class=MemoryTLSConnection):
        """Open a TLS connection."""
        return super().open(data, connection_class)

    def test_no_byte_of_the_target_is_in_the_record_of_the_200(self):
        """Data that a target sends at once arrives in a later record."""
        connection = self.open(connect())
        self.session.dials[0].succeed(greeting=b"hello")
        connection.turns()
        self.assertEqual(connection.records, [ESTABLISHED, b"hello"])

    def test_the_target_ends_its_direction(self):
        """The caller gets close_notify, and has limited time to close."""
        connection, _ = self.join()
        far = self.session.dials[0].far
        far.write(b"last")
        far.loseWriteConnection()
        connection.turns()
        self.assertEqual(connection.sent, b"last")
        self.assertTrue(connection.close_notified)
        self.reactor.advance(5)
        self.assertTrue(connection.aborted)

    def test_a_caller_that_reads_slowly(self):
        """A caller has longer to read the end of the stream, but not unlimited time."""
        connection, _ = self.join()
        connection.transport.all_read = False
        self.session.dials[0].far.loseWriteConnection()
        self.reactor.advance(5)
        self.assertFalse(connection.aborted)
        self.reactor.advance(74)
        self.assertFalse(connection.aborted)
        self.reactor.advance(1)
        self.assertTrue(connection.aborted)

    def test_a_slow_caller_that_closes(self):
        """The server no longer waits for a slow caller that has closed."""
        connection, _ = self.join()
        connection.transport.all_read = False
        self.session.dials[0].far.loseWriteConnection()
        self.reactor.advance(5)
        self.assertEqual(len(self.factory.stalled), 1)
        connection.connectionLost(Failure(ConnectionDone()))
        self.assertEqual(len(self.factory.stalled), 0)

    def test_an_unread_error_response(self):
        """An unread error response, which is short, gets no additional time."""
        connection = self.open(connect("edge-9:80"))
        connection.transport.all_read = False
        connection.turns()
        self.reactor.advance(5)
        self.assertTrue(connection.aborted)

    def test_a_target_that_ends_after_the_caller_has_left(self):
        """The caller is no longer waited for."""
        connection, _ = self.join()
        # A stream may report the end of its target after it was released.
        side = self.session.dials[0].near._protocol
        connection.connectionLost(Failure(ConnectionDone()))
        side.readConnectionLost()
        self.assertEqual(len(self.factory.lingering), 0)

    def test_an_error_response(self):
        """An error response is sent and the connection closed; a caller that stays is aborted."""
        connection = self.open(connect("edge-9:80"))
        connection.turns()
        self.assertIn(b"503", connection.sent)
        self.assertTrue(connection.close_notified)
        self.reactor.advance(5)
        self.assertTrue(connection.aborted)

    def test_callers_that_tls_refuses(self):
        """Each reason is logged once a minute, with the address."""
        logged = Logged(self)
        for problem in ("it is one", "it is another", "it is one"):
            self.open(connection_class=UnfinishedTLSConnection).break_off(rejection_error(problem))
        self.open().break_off(rejection_error("it has been let in before"))
        lines = [line for line in logged if "a caller from" in line]
        expected = [
            f"a caller from 127.0.0.1 is refused: it is {what}" for what in ("one", "another")
        ]
        self.assertEqual(expected, lines)

    def test_a_caller_that_leaves_while_the_200_goes_out(self):
        """The stream is reset and nothing remains."""
        connection = self.open(connect())
        target = self.session.dials[0].succeed()
        connection.break_off(ConnectionLost())
        self.assertEqual(len(target.ended_with), 1)


class UnfinishedTLSConnection(MemoryTLSConnection):
    """A TLS connection whose handshake the test completes."""

    handshaken = False

    def getPeerCertificate(self):
        """Return none, which the audit log accepts."""

    def finish(self):
        """Complete the handshake."""
        self.protocol.handshakeCompleted()


class HandshakeTests(ConnectTestCase):
    """Callers are unauthenticated until their TLS handshake is complete."""

    settings = replace(SETTINGS, max_unread_heads=2, max_handshakes=3)

    def setUp(self):
        """Store log and audit lines."""
        super().setUp()
        self.lines = []
        self.factory.audit = Audit(self.reactor, self.lines.append)
        self.log = Logged(self)

    def open(self, data=b"", connection_class=UnfinishedTLSConnection):
        """Open a TLS connection."""
        return super().open(data, connection_class)

    def logged(self, word):
        """Return the log lines with ``word``."""
        return [line for line in self.log if word in line]

    def test_handshake_limit(self):
        """Above the limit of handshakes the oldest is disconnected, without a response."""
        unauthenticated = [self.open() for _ in range(6)]
        caller = self.open()
        caller.finish()
        caller.receive(connect())
        self.assertEqual(len(self.session.dials), 1)
        self.assertEqual([True] * 4 + [False] * 2, [each.aborted for each in unauthenticated])
        self.assertEqual({b""}, {each.sent for each in unauthenticated})

    def test_one_line_for_all_of_them(self):
        """The log has one line a minute, with the remedy; the audit log has none."""
        for _ in range(10):
            self.open()
        (line,) = self.logged("is disconnected")
        self.assertIn("a caller from 127.0.0.1 is disconnected: 3 newer ones", line)
        self.assertEqual(self.lines, [])

    def test_heads_count_apart(self):
        """Handshakes use no room of authenticated callers, nor the other way round."""
        for _ in range(3):
            self.open()
        callers = [self.open() for _ in range(3)]
        for caller in callers:
            caller.finish()
        self.assertEqual([caller.aborted for caller in callers], [True, False, False])
        (line,) = [line for line in self.logged("is disconnected") if "handshake" not in line]
        self.assertIn("a caller from 127.0.0.1 is disconnected: 2 newer ones", line)
        self.assertEqual(self.lines, [])
        self.assertFalse(self.open().aborted)

    def test_time(self):
        """Handshake and head have ten seconds together; then an authenticated caller gets 408."""
        unauthenticated, other, caller = self.open(), self.open(), self.open()
        self.reactor.advance(6)
        caller.finish()
        self.reactor.advance(4)
        self.assert_response(caller, b"HTTP/1.1 408 ")
        for each in (unauthenticated, other):
            self.assertTrue(each.aborted)
            self.assertEqual(each.sent, b"")
        (line,) = self.logged("is disconnected")
        self.assertIn("its TLS handshake took longer than 10 s", line)
        self.assertEqual(len(self.lines), 1)
        self.assertEqual(len(self.logged("answered 408")), 1)

    def assert_response(self, connection, status_line):
        """Check that the connection has a response."""
        connection.turns()
        self.assertTrue(connection.sent.startswith(status_line), connection.sent)

    def test_handshakes_that_end(self):
        """Completed and broken handshakes make room for others."""
        first, second, third = (self.open() for _ in range(3))
        first.finish()
        second.break_off(ConnectionLost())
        self.open()
        self.open()
        self.assertFalse(third.aborted)
        self.assertEqual(len(self.factory.handshakes), 3)

    def test_drain(self):
        """A server that stops waits for none of them."""
        unauthenticated = self.open()
        drained = self.factory.drain()
        self.assertTrue(unauthenticated.aborted)
        self.successResultOf(drained)
