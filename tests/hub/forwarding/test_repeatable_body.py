"""Request bodies that are sent to another server."""

from __future__ import annotations

import tracemalloc

from twisted.trial.unittest import SynchronousTestCase

from yurttunnel.hub.forwarding.repeatable_body import RepeatableBody

MOST = 8


class Exchange:
    """The exchange that has the body."""

    def __init__(self):
        self.calls = []

    def deliver_body(self, sink):
        """Record the delivery."""
        self.calls.append("deliver")

    def resumeProducing(self):
        """Record the request for more."""
        self.calls.append("resume")


class Sink:
    """An attempt at a server."""

    def __init__(self):
        self.pieces = []
        self.is_finished = False

    def write(self, data):
        """Receive a piece."""
        self.pieces.append(data)

    def finish(self, trailers=()):
        """Receive the end."""
        self.is_finished = True


class RepeatableBodyTests(SynchronousTestCase):
    """A first attempt, and a second one."""

    def setUp(self):
        """Begin the first attempt."""
        self.exchange, self.first, self.second = Exchange(), Sink(), Sink()
        self.body = RepeatableBody(self.exchange, MOST)
        self.assertFalse(self.body.begun)
        self.body.deliver(self.first)
        self.assertTrue(self.body.begun)

    def test_again_amid_it(self):
        """The second attempt gets the data so far, and alone the rest."""
        self.body.write(b"ab")
        self.body.write(b"cd")
        self.assertIsNone(self.body.whole)
        self.body.deliver(self.second)
        self.assertEqual(["deliver", "resume"], self.exchange.calls)
        self.body.write(b"ef")
        self.assertFalse(self.second.is_finished)
        self.body.finish()
        self.assertEqual(
            ([b"ab", b"cd"], [b"abcd", b"ef"]), (self.first.pieces, self.second.pieces)
        )
        self.assertEqual((False, True), (self.first.is_finished, self.second.is_finished))
        self.assertEqual(b"abcdef", self.body.whole)

    def test_again_after_its_end(self):
        """It gets the whole body, and no more is requested."""
        self.body.write(b"abc")
        self.body.finish()
        self.body.deliver(self.second)
        self.assertEqual(([b"abc"], True), (self.second.pieces, self.second.is_finished))
        self.assertEqual(["deliver"], self.exchange.calls)

    def test_small_pieces(self):
        """The memory of a stored body is little more than its size, whatever the pieces are."""
        data = bytes(range(256)) * 64
        body = RepeatableBody(self.exchange, len(data))
        self.first.write = lambda data: None
        body.deliver(self.first)
        tracemalloc.start()
        self.addCleanup(tracemalloc.stop)
        before = tracemalloc.get_traced_memory()[0]
        for start in range(0, len(data), 2):
            body.write(data[start : start + 2])
        self.assertLess(tracemalloc.get_traced_memory()[0] - before, 32 * 1024)
        body.finish()
        self.assertEqual(data, body.whole)

    def test_repeated_before_any_data(self):
        """The second attempt waits for it."""
        self.body.deliver(self.second)
        self.assertEqual([], self.second.pieces)
        self.assertEqual(["deliver", "resume"], self.exchange.calls)

    def test_too_long(self):
        """A body that is too long is forwarded, and no longer stored."""
        self.body.write(b"x" * MOST)
        self.assertTrue(self.body.repeatable)
        self.body.write(b"y")
        self.assertFalse(self.body.repeatable)
        self.body.finish()
        self.assertIsNone(self.body.whole)
        self.assertEqual([b"x" * MOST, b"y"], self.first.pieces)
