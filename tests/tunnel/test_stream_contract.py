"""The contract of streams, for the stream of a session and for its fake."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from tests.fakes import FakeStream
from tests.tunnel.contract_stream import StreamContract
from tests.tunnel.memory import SessionPair


class TunnelStreamContractTests(StreamContract, SynchronousTestCase):
    """The stream of a session."""

    def setUp(self):
        """Connect two sessions."""
        self.pair = SessionPair()
        self.addCleanup(self.pair.close)

    def make_pair(self):
        """Open a stream."""
        return self.pair.streams()

    def settle(self):
        """Transfer everything between the sessions."""
        self.pair.pump()


class FakeStreamContractTests(StreamContract, SynchronousTestCase):
    """The fake with which other packages are tested."""

    def make_pair(self):
        """Return a stream in memory."""
        return FakeStream.pair()

    def settle(self):
        """Do nothing: data is delivered at once."""
