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
        """Return the address of a Unix socket that has none."""
        return UNIXAddress(b"")

    def writeSomeData(self, data):
        """Send, to the caller's socket too."""
        self.own.sendall(data)
        return super().writeSomeData(data)

    def connectionLost(self, reason):
        """Close both sockets with the connection."""
        super().connectionLost(reason)
        self.own.close()
        self.caller.close()

    def read(self):
        """Return what one read of the caller gives."""
        return self.caller.recv(4096, socket.MSG_DONTWAIT)


class SlowToEndConnection(UnixConnection):
    """One that ends some turns after it has been aborted."""

    def abortConnection(self):
        """Abort it soon."""
        self.reactor.callLater(1, super().abortConnection)


class UnixTests(ConnectTestCase):
    """On a Unix socket nothing follows the 200 until the caller has read it.

    What has been written to a Unix socket by several writes comes out by one read.
    """

    def tearDown(self):
        """No timer is left, either."""
        self.factory.heads.stop()
        self.assertEqual(self.reactor.getDelayedCalls(), [])
        super().tearDown()

    def establish(self, greeting=b""):
        """Open a connection, and have the 200 sent to a caller that does not read."""
        connection = self.open(connect(), UnixConnection)
        target = self.session.dials[-1].succeed(greeting=greeting)
        connection.turns()
        return connection, target

    def test_a_target_that_speaks_at_once(self):
        """Its bytes wait while the caller does not read, and then come by themselves."""
        connection, _ = self.establish(greeting=b"SSH-2.0-edge\r\n")
        for _ in range(20):
            self.reactor.advance(0.1)
            connection.turn()
        self.assertEqual(connection.read(), ESTABLISHED)
        self.reactor.advance(2.1)
        connection.turns()
        self.assertEqual(connection.read(), b"SSH-2.0-edge\r\n")

    def test_a_caller_that_reads_at_once_is_not_held_up(self):
        """A millisecond later the target is heard."""
        connection, _ = self.establish(greeting=b"hello")
        self.assertEqual(connection.read(), ESTABLISHED)
        self.reactor.advance(0.001)
        connection.turns()
        self.assertEqual(connection.read(), b"hello")

    def test_a_caller_that_speaks_first(self):
        """What it sends reaches the target with no delay."""
        connection, target = self.establish()
        self.assertEqual(connection.read(), ESTABLISHED)
        connection.receive(b"question")
        self.assertEqual(target.received, b"question")
        self.assertTrue(connection.reading)

    def test_a_caller_that_sends_without_reading(self):
        """That it sends says nothing; its bytes are kept for the target, and it is paused."""
        connection, target = self.establish(greeting=b"hello")
        connection.receive(b"one ")
        self.assertFalse(connection.reading)
        self.assertEqual((target.received, connection.read()), (b"", ESTABLISHED))
        self.reactor.advance(0.001)
        connection.turns()
        self.assertEqual((target.received, connection.read()), (b"one ", b"hello"))

    def test_a_caller_that_never_reads(self):
        """After 4 s the stream is joined all the same: nobody watches the caller for ever."""
        connection, _ = self.establish(greeting=b"hello")
        self.assertEqual(connection.segments, [ESTABLISHED])
        for _ in range(60):
            self.reactor.advance(0.1)
            connection.turn()
        self.assertEqual(connection.read(), ESTABLISHED + b"hello")

    def test_a_caller_that_leaves_without_reading(self):
        """The stream is reset, and nobody waits for the caller any longer."""
        connection, target = self.establish(greeting=b"hello")
        connection.break_off(ConnectionLost())
        (end,) = target.ended_with
        self.assertEqual(end.code, Code.CANCELLED)

    def test_a_caller_that_has_left_is_looked_at_no_more(self):
        """It is not taken for one that has read its answer while its connection still ends."""
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
