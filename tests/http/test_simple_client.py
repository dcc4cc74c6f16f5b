"""Requests of this process, and their responses."""

from __future__ import annotations

import weakref

from twisted.internet.defer import CancelledError
from twisted.internet.error import ConnectionDone, ConnectionLost
from twisted.internet.testing import MemoryReactorClock
from twisted.trial.unittest import SynchronousTestCase

from tests.fakes import MemoryConnection
from tests.http.support import settle
from yurttunnel.http.client import ClientConnection
from yurttunnel.http.interfaces import ExchangeFailed
from yurttunnel.http.simple_client import fetch, send, write_whole_request

HOST = [(b"Host", b"api")]


class Reader:
    """A consumer of a body."""

    def take(self, data):
        """Store a piece."""


class AskingTestCase(SynchronousTestCase):
    """A connection whose origin the test simulates."""

    def setUp(self):
        """Connect."""
        self.clock = MemoryReactorClock()
        self.connection = ClientConnection(self.clock)
        self.origin = MemoryConnection(self.clock).open(self.connection)


class AskingTests(AskingTestCase):
    """Whole responses."""

    def sent(self):
        """Return what the origin has received."""
        settle(self.clock, self.origin)
        return self.origin.sent

    def test_get(self):
        """A request without a body returns head and body, and the connection stays open."""
        answered = fetch(self.connection, b"GET", b"/readyz", HOST)
        self.assertEqual(b"GET /readyz HTTP/1.1\r\nHost: api\r\n\r\n", self.sent())
        self.origin.receive(b"HTTP/1.1 102 Processing\r\n\r\n")
        self.origin.receive(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\no")
        self.assertNoResult(answered)
        self.origin.receive(b"k")
        answer = self.successResultOf(answered)
        self.assertEqual((200, b"ok"), (answer.status, answer.body))
        self.assertTrue(self.connection.reusable)

    def test_body(self):
        """A body is sent with its length."""
        answered = fetch(self.connection, b"PUT", b"/", HOST, b"{}")
        self.assertEqual(b"PUT / HTTP/1.1\r\nHost: api\r\nContent-Length: 2\r\n\r\n{}", self.sent())
        self.origin.receive(b"HTTP/1.1 204 No Content\r\n\r\n")
        self.assertEqual(204, self.successResultOf(answered).status)

    def test_long_answer(self):
        """A body that is too long is truncated."""
        answered = fetch(self.connection, b"GET", b"/", HOST, max_body=5)
        self.origin.receive(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n123")
        self.origin.receive(b"456789")
        self.assertEqual(b"12345", self.successResultOf(answered).body)

    def test_request_that_cannot_be_sent(self):
        """An invalid request closes the connection, which nothing else would release."""
        self.failureResultOf(fetch(self.connection, b"GET", b"/ bad", HOST), ValueError)
        self.assertEqual(b"", self.sent())
        self.assertIsInstance(self.origin.closed_with, ConnectionDone)

    def test_failure(self):
        """A truncated response fails, and so does a request on a closed connection."""
        answered = fetch(self.connection, b"GET", b"/", HOST)
        self.origin.break_off(ConnectionLost())
        self.failureResultOf(answered, ExchangeFailed)
        self.failureResultOf(fetch(self.connection, b"GET", b"/", HOST), ExchangeFailed)

    def test_cancel(self):
        """Cancelling, before or after the head of the response, closes the connection."""
        for begun in (b"", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n123"):
            self.setUp()
            answered = fetch(self.connection, b"GET", b"/", HOST)
            self.origin.receive(begun)
            answered.cancel()
            self.failureResultOf(answered, CancelledError)
            self.assertTrue(self.origin.aborted)


class ReadingTests(AskingTestCase):
    """A response whose body is read piece by piece."""

    def begin(self):
        """Return a response whose body has not arrived."""
        request = write_whole_request(b"GET", b"/", HOST, b"")
        begun = send(self.connection, request, b"")
        self.origin.receive(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n")
        return self.successResultOf(begun)

    def test_pieces(self):
        """Pieces are passed on as they arrive, and the end is reported."""
        pieces = []
        response = self.begin()
        read = response.read(pieces.append)
        self.origin.receive(b"123")
        self.assertEqual(([b"123"], False), (pieces, response.ended))
        self.origin.receive(b"456")
        self.successResultOf(read)
        self.assertEqual(([b"123", b"456"], True), (pieces, response.ended))

    def test_what_the_reader_raises(self):
        """An exception of the reader ends the exchange and is reported; no more data follows."""
        pieces = []

        def take(data):
            pieces.append(data)
            raise KeyError

        read = self.begin().read(take)
        self.origin.receive(b"123")
        self.failureResultOf(read, KeyError)
        self.assertTrue(self.origin.aborted)
        self.origin.receive(b"456")
        self.assertEqual([b"123"], pieces)

    def test_a_reader_is_released_at_the_end(self):
        """A reader may hold a large body, and the connection is kept for a minute."""
        reader = Reader()
        gone = weakref.ref(reader)
        read = self.begin().read(reader.take)
        self.origin.receive(b"123")
        del reader
        self.assertIsNotNone(gone())
        alive_at_the_end = []
        read.addCallback(lambda _: alive_at_the_end.append(gone()))
        self.origin.receive(b"456")
        self.assertEqual([None], alive_at_the_end)
        self.assertTrue(self.connection.reusable)

    def test_a_connection_that_ends_before_the_body_is_read(self):
        """Reading after the connection has been lost fails."""
        response = self.begin()
        self.origin.break_off(ConnectionLost())
        self.failureResultOf(response.read(bytes), ExchangeFailed)
