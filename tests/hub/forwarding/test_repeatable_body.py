"""Bodies of requests that are tried at another server."""

from __future__ import annotations

import tracemalloc

from twisted.trial.unittest import SynchronousTestCase

from yurttunnel.hub.forwarding.repeatable_body import RepeatableBody

MOST = 8


class Exchange:
    """What is asked of the exchange that has the body."""

    def __init__(self):
        self.calls = []

    def deliver_body(self, sink):
        """Be asked for it."""
        self.calls.append("deliver")

    def resumeProducing(self):
        """Be asked for more."""
        self.calls.append("resume")


class Sink:
    """An attempt at a server."""

    def __init__(self):
        self.pieces = []
        self.is_finished = False

    def write(self, data):
        """Take a piece."""
        self.pieces.append(data)

    def finish(self, trailers=()):
        """Take the end."""
        self.is_finished = True


class RepeatableBodyTests(SynchronousTestCase):
    """A first attempt, and another."""

    def setUp(self):
        """Begin the first one."""
        self.exchange, self.first, self.second = Exchange(), Sink(), Sink()
        self.body = RepeatableBody(self.exchange, MOST)
        self.assertFalse(self.body.begun)
        self.body.deliver(self.first)
        self.assertTrue(self.body.begun)

    def test_again_amid_it(self):
        """What has come goes to the second one, which gets the rest as the only one."""
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
        """All of it is there, and nothing more is asked for."""
        self.body.write(b"abc")
        self.body.finish()
        self.body.deliver(self.second)
        self.assertEqual(([b"abc"], True), (self.second.pieces, self.second.is_finished))
        self.assertEqual(["deliver"], self.exchange.calls)

    def test_small_pieces(self):
        """What is kept takes little more than its bytes, however it comes."""
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

    def test_again_before_anything_has_come(self):
        """The second one waits for it."""
        self.body.deliver(self.second)
        self.assertEqual([], self.second.pieces)
        self.assertEqual(["deliver", "resume"], self.exchange.calls)

    def test_too_long(self):
        """It is passed on, and kept no more."""
        self.body.write(b"x" * MOST)
        self.assertTrue(self.body.repeatable)
        self.body.write(b"y")
        self.assertFalse(self.body.repeatable)
        self.body.finish()
        self.assertIsNone(self.body.whole)
        self.assertEqual([b"x" * MOST, b"y"], self.first.pieces)
