"""Deferred parsing of lists, from the reader's view."""

from __future__ import annotations

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import implementer
from zope.interface.verify import verifyClass

from yurttunnel.http.interfaces import IBodySink
from yurttunnel.hub.cache.interfaces import IIncomingList
from yurttunnel.hub.forwarding.deferred_parse import DeferredParse, IdleScheduler
from yurttunnel.kube.protobuf_fields import BadBody

SLICE = 4


class Sink:
    """The client."""

    def __init__(self):
        self.got = b""
        self.ended = False

    def write(self, data):
        """Receive a piece."""
        self.got += data

    def finish(self, trailers=()):
        """Receive the end."""
        self.ended = True


class RecordingCacher:
    """Reads a body; a ``?`` in it cannot be parsed."""

    def __init__(self):
        self.read_so_far = b""
        self.state = "begun"

    def read(self, data):
        """Process a piece."""
        if b"?" in data:
            raise BadBody("a question")
        self.read_so_far += data

    def end(self):
        """Process the end."""
        self.state = "ended"

    def abandon(self):
        """Discard the body."""
        self.state = "abandoned"


@implementer(IIncomingList)
class Listing:
    """Records the lag of the body; there is room for ``room`` bytes."""

    def __init__(self):
        self.report = []
        self.room = 1000

    def lag(self, size, ended):
        """See ``IIncomingList``."""
        self.report.append((size, ended))
        return size <= self.room

    def add(self, items):
        """See ``IIncomingList``."""

    def complete(self, meta):
        """See ``IIncomingList``."""

    def abandon(self):
        """See ``IIncomingList``."""


class ReadBehindTests(SynchronousTestCase):
    """A body in slices of four bytes."""

    def setUp(self):
        """Begin a body."""
        self.clock = Clock()
        self.turns = IdleScheduler(self.clock)
        self.sink, self.cacher, self.listing = Sink(), RecordingCacher(), Listing()
        self.unread = []
        self.body = self.begin()

    def begin(self):
        """Begin to read a body."""
        return DeferredParse(
            self.sink, self.cacher, self.unread.append, self.listing, self.turns, SLICE
        )

    def turn(self):
        """Run one reactor iteration; calls scheduled during it wait for the next one."""
        due, self.clock.calls = self.clock.calls, []
        for call in due:
            call.called = True
            call.func(*call.args)

    def test_interfaces(self):
        """The fakes provide the real interfaces."""
        self.assertTrue(verifyClass(IBodySink, DeferredParse))
        self.assertTrue(verifyClass(IIncomingList, Listing))

    def test_short(self):
        """A body no longer than a slice is read before the client gets its end."""
        self.body.write(b"abc")
        self.assertEqual((b"abc", b""), (self.sink.got, self.cacher.read_so_far))
        self.sink.finish = lambda trailers: self.assertEqual("ended", self.cacher.state)
        self.body.finish()
        self.assertEqual(b"abc", self.cacher.read_so_far)
        self.assertEqual([], self.clock.getDelayedCalls())

    def test_more_comes(self):
        """While more data arrives in each iteration, nothing is read; then one slice in each."""
        for _ in range(3):
            self.body.write(b"abcde")
            self.turn()
        self.assertEqual((b"abcde" * 3, b""), (self.sink.got, self.cacher.read_so_far))
        self.turn()
        self.assertEqual(b"abcd", self.cacher.read_so_far)
        self.turn()
        self.assertEqual(b"abcdeabc", self.cacher.read_so_far)

    def test_stall(self):
        """A body that stalls has no timer, and is read further when it continues."""
        self.body.write(b"abcdef")
        for _ in range(3):
            self.turn()
        self.assertEqual(b"abcd", self.cacher.read_so_far)
        self.assertEqual([], self.clock.getDelayedCalls())
        self.body.write(b"ghijkl")
        self.body.finish()
        for _ in range(4):
            self.turn()
        self.assertEqual((b"abcdefghijkl", "ended"), (self.cacher.read_so_far, self.cacher.state))

    def test_end(self):
        """The client gets the end before the rest is read; reads of the cache wait for it."""
        self.body.write(b"abcdefghi")
        self.body.finish()
        self.assertTrue(self.sink.ended)
        self.assertEqual((b"", "begun"), (self.cacher.read_so_far, self.cacher.state))
        self.assertEqual((9, True), self.listing.report[-1])
        for size in (5, 1):
            self.turn()
            self.assertEqual((size, True), self.listing.report[-1])
        self.turn()
        self.assertEqual((b"abcdefghi", "ended"), (self.cacher.read_so_far, self.cacher.state))
        self.turn()
        self.assertEqual([], self.clock.getDelayedCalls())

    def test_several(self):
        """Several lists are read in turn."""
        bodies = [self.body, self.begin()]
        for body in bodies:
            body.write(b"abcdefgh")
            body.finish()
        for read in (b"abcd", b"abcdabcd"):
            self.turn()
            self.assertEqual(read, self.cacher.read_so_far)

    def test_unreadable(self):
        """A body that cannot be parsed still reaches its client, and is reported once."""
        self.body.write(b"abcdef?")
        for _ in range(3):
            self.turn()
        self.body.write(b"ghijkl?")
        self.body.finish()
        for _ in range(3):
            self.turn()
        self.assertEqual((b"abcdef?ghijkl?", True), (self.sink.got, self.sink.ended))
        self.assertEqual((1, "abandoned"), (len(self.unread), self.cacher.state))
        self.assertEqual([], self.clock.getDelayedCalls())

    def test_no_room(self):
        """A list without room is forwarded, and nothing of it is cached."""
        self.listing.room = 5
        self.body.write(b"abc")
        self.body.write(b"def")
        report = list(self.listing.report)
        self.body.write(b"ghijkl")
        self.body.finish()
        self.turn()
        self.assertEqual((b"abcdefghijkl", True), (self.sink.got, self.sink.ended))
        self.assertEqual(("abandoned", b""), (self.cacher.state, self.cacher.read_so_far))
        self.assertEqual(report, self.listing.report)
        self.assertEqual([], self.unread)

    def test_client_leaves(self):
        """Nothing more of an abandoned body is read."""
        self.body.write(b"abcdefgh")
        self.body.abandon()
        for _ in range(3):
            self.turn()
        self.assertEqual(("abandoned", b""), (self.cacher.state, self.cacher.read_so_far))
        self.assertEqual([], self.clock.getDelayedCalls())

    def test_defect(self):
        """An error in one iteration is logged, and the other lists continue."""
        self.body.write(b"abcdefgh")
        self.listing.lag = lambda size, ended: 1 // 0
        self.turn()
        self.turn()
        self.assertEqual(1, len(self.flushLoggedErrors(ZeroDivisionError)))
        self.listing, self.cacher = Listing(), RecordingCacher()
        self.begin().write(b"abcdefgh")
        self.turn()
        self.turn()
        self.assertEqual(b"abcd", self.cacher.read_so_far)

    def test_close(self):
        """After the hub is closed nothing is read."""
        self.body.write(b"abcdefgh")
        self.body.finish()
        self.turns.close()
        self.assertEqual([], self.clock.getDelayedCalls())
