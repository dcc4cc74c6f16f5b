"""The contract of streams, held by the stream of a session and by its stand-in."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from tests.fakes import FakeStream
from tests.tunnel.contract_stream import StreamContract
from tests.tunnel.memory import SessionPair


class TunnelStreamContractTests(StreamContract, SynchronousTestCase):
    """The stream of a session."""

    def setUp(self):
        """Join two sessions."""
        self.pair = SessionPair()
        self.addCleanup(self.pair.close)

    def make_pair(self):
        """Open a stream."""
        return self.pair.streams()

    def settle(self):
        """Let the sessions exchange all they have."""
        self.pair.pump()


class FakeStreamContractTests(StreamContract, SynchronousTestCase):
    """The stream that other packages are tested with."""

    def make_pair(self):
        """Return a stream in memory."""
        return FakeStream.pair()

    def settle(self):
        """Do nothing: everything has arrived at once."""
