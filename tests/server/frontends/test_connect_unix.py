"""CONNECT on a Unix socket."""

from __future__ import annotations

import socket

from twisted.internet.address import UNIXAddress
from twisted.internet.error import ConnectionLost

from tests.fakes import MemoryConnection
from tests.server.frontends.connecting import ESTABLISHED, ConnectTestCase, connect
from yurttunnel.wire.codes import Code


class UnixConnection(MemoryConnection):
    """A connection on a real pair of Unix sockets, of which ``caller`` is the caller's."""

    def __init__(self, reactor):
        super().__init__(reactor)
        self.own, self.caller = socket.socketpair()

    def getHandle(self):
        """Return the server's socket."""
        return self.own

    def getHost(self):
        """Return the address of a Unix socket."""
        return UNIXAddress(b"/run/yurttunnel/connect.sock")

    def getPeer(self):
        """Return the address of an unnamed Unix socket."""
        return UNIXAddress(b"")

    def writeSomeData(self, data):
        """Send, also to the caller's socket."""
        self.own.sendall(data)
        return super().writeSomeData(data)

    def connectionLost(self, reason):
        """Close both sockets with the connection."""
        super().connectionLost(reason)
        self.own.close()
        self.caller.close()

    def read(self):
        """Return the result of one read of the caller."""
        return self.caller.recv(4096, socket.MSG_DONTWAIT)


class SlowToEndConnection(UnixConnection):
    """A connection that ends some iterations after it was aborted."""

    def abortConnection(self):
        """Abort it later."""
        self.reactor.callLater(1, super().abortConnection)


class UnixTests(ConnectTestCase):
    """On a Unix socket nothing follows the 200 until the caller has read it.

    The data of several writes to a Unix socket may be returned by one read.
    """

    def tearDown(self):
        """No timer may remain, either."""
        self.factory.heads.stop()
        self.assertEqual(self.reactor.getDelayedCalls(), [])
        super().tearDown()

    def establish(self, greeting=b""):
        """Open a connection, and send the 200 to a caller that does not read."""
        connection = self.open(connect(), UnixConnection)
        target = self.session.dials[-1].succeed(greeting=greeting)
        connection.turns()
        return connection, target

    def test_a_target_that_sends_at_once(self):
        """A target's data waits while the caller does not read, and is then sent."""
        connection, _ = self.establish(greeting=b"SSH-2.0-edge\r\n")
        for _ in range(20):
            self.reactor.advance(0.1)
            connection.turn()
        self.assertEqual(connection.read(), ESTABLISHED)
        self.reactor.advance(2.1)
        connection.turns()
        self.assertEqual(connection.read(), b"SSH-2.0-edge\r\n")

    def test_a_caller_that_reads_at_once_is_not_delayed(self):
        """A millisecond later the target's data arrives."""
        connection, _ = self.establish(greeting=b"hello")
        self.assertEqual(connection.read(), ESTABLISHED)
        self.reactor.advance(0.001)
        connection.turns()
        self.assertEqual(connection.read(), b"hello")

    def test_a_caller_that_sends_first(self):
        """Data that the caller sends first reaches the target without delay."""
        connection, target = self.establish()
        self.assertEqual(connection.read(), ESTABLISHED)
        connection.receive(b"question")
        self.assertEqual(target.received, b"question")
        self.assertTrue(connection.reading)

    def test_a_caller_that_sends_without_reading(self):
        """Sending does not imply reading; the data is kept, and the caller is paused."""
        connection, target = self.establish(greeting=b"hello")
        connection.receive(b"one ")
        self.assertFalse(connection.reading)
        self.assertEqual((target.received, connection.read()), (b"", ESTABLISHED))
        self.reactor.advance(0.001)
        connection.turns()
        self.assertEqual((target.received, connection.read()), (b"one ", b"hello"))

    def test_a_caller_that_never_reads(self):
        """After 4 s the stream is joined anyway: callers are not watched forever."""
        connection, _ = self.establish(greeting=b"hello")
        self.assertEqual(connection.segments, [ESTABLISHED])
        for _ in range(60):
            self.reactor.advance(0.1)
            connection.turn()
        self.assertEqual(connection.read(), ESTABLISHED + b"hello")

    def test_a_caller_that_leaves_without_reading(self):
        """The stream is reset, and the caller is no longer waited for."""
        connection, target = self.establish(greeting=b"hello")
        connection.break_off(ConnectionLost())
        (end,) = target.ended_with
        self.assertEqual(end.code, Code.CANCELLED)

    def test_a_caller_that_has_left_is_no_longer_polled(self):
        """While its connection ends it does not count as having read its response."""
        connection = self.open(connect(), SlowToEndConnection)
        target = self.session.dials[-1].succeed()
        connection.turns()
        connection.caller.close()
        connection.receive_end()
        (end,) = target.ended_with
        self.assertEqual(end.code, Code.CANCELLED)
        self.reactor.advance(0.5)
        connection.turns()
        self.reactor.advance(0.5)
        self.assertTrue(connection.aborted)
