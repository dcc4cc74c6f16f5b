"""The fakes provide the real interfaces; streams are in ``tests.tunnel.test_stream_contract``."""

from twisted.trial.unittest import SynchronousTestCase
from zope.interface.verify import verifyObject

from tests.fakes import MemoryConnection
from yurttunnel.tunnel.transports import IHalfCloseableTransport


class MemoryConnectionTests(SynchronousTestCase):
    """``MemoryConnection`` is a transport."""

    def test_interface(self):
        """A ``MemoryConnection`` provides the interface that local connections require."""
        verifyObject(IHalfCloseableTransport, MemoryConnection())
