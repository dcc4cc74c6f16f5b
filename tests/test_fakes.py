"""The fakes are what they stand for; streams are in ``tests.tunnel.test_stream_contract``."""

from twisted.trial.unittest import SynchronousTestCase
from zope.interface.verify import verifyObject

from tests.fakes import MemoryConnection
from yurttunnel.tunnel.transports import IHalfCloseableTransport


class MemoryConnectionTests(SynchronousTestCase):
    """``MemoryConnection`` is a transport."""

    def test_interface(self):
        """It provides what local connections need."""
        verifyObject(IHalfCloseableTransport, MemoryConnection())
