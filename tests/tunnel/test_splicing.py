"""Two streams that are joined, as between servers."""

from __future__ import annotations

from twisted.internet.error import ConnectionDone
from twisted.trial.unittest import SynchronousTestCase

from tests.fakes import FakeStream, Recorder
from yurttunnel.tunnel.interfaces import StreamFailed
from yurttunnel.tunnel.splicing import splice_streams
from yurttunnel.wire.codes import Code


class JoinTests(SynchronousTestCase):
    """``left`` and ``right`` are the users of the far ends of two streams that are joined."""

    def setUp(self):
        """Join two streams."""
        self.left_far, left_near = FakeStream.pair()
        self.right_far, self.right_near = FakeStream.pair()
        self.left, self.right = Recorder(), Recorder()
        self.left_far.attach(self.left)
        self.right_far.attach(self.right)
        self.left_far.write(b"early")
        splice_streams(left_near, self.right_near)

    def test_bytes(self):
        """Data is forwarded in both directions, beginning with data that was there before."""
        self.left_far.write(b" and late")
        self.right_far.write(b"answer")
        self.assertEqual((b"early and late", b"answer"), (self.right.received, self.left.received))

    def test_half_close(self):
        """Each direction ends separately; after both the streams have ended without an error."""
        self.left_far.loseWriteConnection()
        self.assertEqual((1, 0), (self.right.read_ended, self.left.read_ended))
        self.right_far.write(b"answer")
        self.right_far.loseWriteConnection()
        self.assertEqual(b"answer", self.left.received)
        for user in (self.left, self.right):
            (end,) = user.ended_with
            self.assertIsInstance(end, ConnectionDone)

    def test_slow_end(self):
        """The data left for a stalled reader is limited as after a close."""
        self.right_far.pauseProducing()
        self.left_far.write(b"late")
        self.left_far.loseWriteConnection()
        self.right_far.loseWriteConnection()
        self.assertTrue(self.right_near.disconnecting)

    def test_reset(self):
        """A reset is forwarded with its code and text, from either stream."""
        self.right_far.abort(Code.CONNECTION_LOST, "the kubelet has died")
        (end,) = self.left.ended_with
        self.assertIsInstance(end, StreamFailed)
        self.assertEqual((Code.CONNECTION_LOST, "the kubelet has died"), (end.code, end.text))

    def test_reset_by_the_other(self):
        """A reset is forwarded in the other direction, too."""
        self.left_far.abort(Code.CANCELLED, "kubectl has left")
        self.assertEqual(Code.CANCELLED, self.right.ended_with[0].code)

    def test_back_pressure(self):
        """A reader that stops pauses the writer at the other end, which resumes later."""
        producer = _Producer()
        self.left_far.registerProducer(producer, True)
        self.right_far.pauseProducing()
        sent = b"early"
        while not producer.paused and len(sent) < 100 * FakeStream.window:
            sent += b"x" * 4096
            self.left_far.write(b"x" * 4096)
        self.assertTrue(producer.paused)
        self.assertLess(len(sent), 4 * FakeStream.window)
        self.right_far.resumeProducing()
        self.assertFalse(producer.paused)
        self.assertEqual(sent, self.right.received)


class _Producer:
    """Records whether it is paused."""

    paused = False

    def pauseProducing(self):
        """Record the call."""
        self.paused = True

    def resumeProducing(self):
        """Record the call."""
        self.paused = False

    def stopProducing(self):
        """Do nothing."""
