"""The common part of the listeners for callers."""

from __future__ import annotations

from twisted.internet.testing import MemoryReactorClock
from twisted.trial.unittest import SynchronousTestCase

from tests.fakes import FakeSession, MemoryConnection
from yurttunnel.server.frontends.calls import DialingConnection, DialingFactory
from yurttunnel.server.registry import SessionRegistry


class Asking(DialingConnection):
    """A caller that requests a stream when it sends something."""

    def dataReceived(self, data):
        """Request it."""
        self.dial("edge-1", "127.0.0.1", 80)

    def stream_opened(self, stream):
        """Relay."""
        self.join(stream)

    def dial_failed(self, error):
        """Leave."""
        self.transport.loseConnection()


class DrainTests(SynchronousTestCase):
    """``drain`` closes idle connections, and waits for the others."""

    def setUp(self):
        """Connect edge-1, and two callers."""
        self.reactor = MemoryReactorClock()
        registry = SessionRegistry(self.reactor)
        self.session = FakeSession("edge-1")
        registry.add(self.session)
        self.factory = DialingFactory(registry)
        self.idle, self.asking = (self.open() for _ in range(2))
        self.asking.receive(b"x")

    def open(self):
        """Open a connection."""
        return MemoryConnection(self.reactor).open(Asking(self.factory))

    def test_idle_caller(self):
        """A connection without a request is closed at once, one that waits for a stream is not."""
        drained = self.factory.drain()
        self.assertTrue(self.idle.aborted)
        self.assertFalse(self.asking.aborted)
        self.assertNoResult(drained)
        self.asking.break_off(ConnectionError())
        self.successResultOf(drained)

    def test_caller_after_its_stream(self):
        """After the end of a stream its caller may still have data to read."""
        drained = self.factory.drain()
        self.session.dials[0].succeed(greeting=b"hello")
        far = self.session.dials[0].far
        far.loseWriteConnection()
        self.asking.receive_end()
        self.assertIsNone(self.asking.protocol.stream)
        self.assertNoResult(drained)
        self.asking.turn()
        self.assertEqual(self.asking.sent, b"hello")
        self.successResultOf(drained)
