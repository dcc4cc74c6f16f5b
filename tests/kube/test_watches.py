"""The client's watches and pages, with a server that the test plays."""

from __future__ import annotations

import json

from twisted.internet.defer import CancelledError

from tests.kube.conversations import AnswersTestCase
from yurttunnel.kube import responses
from yurttunnel.kube.client import CALL_SECONDS
from yurttunnel.kube.errors import (
    ApiError,
    ApiUnreachable,
    Expired,
    NotAllowed,
    WatchInterrupted,
)
from yurttunnel.kube.resources import NODES, PODS
from yurttunnel.kube.responses import FIRST_PAGE, PAGE_BYTES


class WatchTests(AnswersTestCase):
    """Watches over a connection."""

    def watch(self, timeout=100):
        """Begin a watch; its events are stored."""
        self.events = []
        self.watching = self.client.watch(
            NODES,
            lambda kind, obj: self.events.append((kind, obj)),
            resource_version="1",
            timeout=timeout,
        )
        self.network.settle()

    def begin(self, timeout=100):
        """Begin a watch, and respond."""
        self.watch(timeout)
        self.send_raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")

    def send_raw(self, data):
        """Send bytes."""
        self.server.transport.write(data)
        self.network.settle()

    def send(self, data):
        """Send a chunk."""
        self.send_raw(b"%x\r\n%b\r\n" % (len(data), data))

    def event(self, change="ADDED", **obj):
        """Encode an event as a line."""
        return json.dumps({"type": change, "object": obj}).encode() + b"\n"

    def failed(self, kind=ApiUnreachable):
        """Return the error, after which the connection is closed."""
        error = self.failureResultOf(self.watching, kind).value
        self.network.settle()
        self.assertIsNotNone(self.server.transport.closed_with)
        return error

    def test_cut_anywhere(self):
        """Events are the same however the data is fragmented."""
        data = self.event(a="é\n") + b"\n\r\n" + self.event("MODIFIED", b=2) + self.event(c=3)
        expected = [("ADDED", {"a": "é\n"}), ("MODIFIED", {"b": 2}), ("ADDED", {"c": 3})]
        for size in (1, 2, 3, 7, 30, 1000):
            self.begin()
            for start in range(0, len(data), size):
                self.send(data[start : start + size])
            self.assertEqual(expected, self.events)
            self.send_raw(b"0\r\n\r\n")
            self.assertIsNone(self.successResultOf(self.watching))

    def test_error_event(self):
        """An error event fails the watch with its error."""
        self.begin()
        self.send(self.event() + self.event("ERROR", **self.status(410, "Expired", "too old")))
        error = self.failed(Expired)
        self.assertEqual("too old (410 Expired)", str(error))
        self.assertEqual(1, len(self.events))

    def test_nothing_after_an_error(self):
        """Events after an error are ignored."""
        self.begin()
        self.send(self.event("ERROR", code="x") + self.event() + b"rest")
        self.failed(ApiError)
        self.assertEqual([], self.events)

    def test_no_event(self):
        """An invalid event fails the watch."""
        for line in (b"{", b"[]", b'{"type": 1, "object": {}}', b'{"type": "ADDED"}', b"\xff"):
            self.begin()
            self.send(self.event() + line + b"\n")
            self.assertIn("invalid event", str(self.failed()))
            self.assertEqual(1, len(self.events))

    def test_too_long(self):
        """An event over the limit fails the watch, whether it is complete or not."""
        self.patch(responses.Events.__init__, "__defaults__", (100,))
        for data in (b"x" * 101, b"x" * 101 + b"\n"):
            self.begin()
            self.send(self.event(a="b" * 60))
            self.send(data)
            self.assertIn("more than 100 bytes", str(self.failed()))

    def test_ends_within_an_event(self):
        """A watch that ends within an event fails."""
        self.begin()
        self.send(self.event()[:-1])
        self.send_raw(b"0\r\n\r\n")
        self.failureResultOf(self.watching, ApiUnreachable)

    def test_connection_lost(self):
        """A watch that loses its connection fails, with a type that depends on the response."""
        self.begin()
        self.network.cut_off()
        self.assertIn("watch of http://api:8001/", str(self.failed(WatchInterrupted)))
        self.network.refusing = False
        self.watch()
        self.network.cut_off()
        self.assertNotIsInstance(self.failed(), WatchInterrupted)

    def test_refused(self):
        """A watch can be rejected."""
        self.watch()
        self.answer(403, self.status(403, "Forbidden"))
        self.failureResultOf(self.watching, NotAllowed)

    def test_no_answer(self):
        """A watch without a response times out as other calls do."""
        self.watch(timeout=1000)
        self.clock.advance(CALL_SECONDS)
        self.assertIn("no answer within 30 s", str(self.failed()))

    def test_silence(self):
        """A watch that does not end half a minute after its timeout is aborted."""
        self.begin(timeout=100)
        self.clock.advance(129)
        self.assertNoResult(self.watching)
        self.clock.advance(1)
        self.assertNotIsInstance(self.failed(), WatchInterrupted)

    def test_cancelled(self):
        """A cancelled watch closes its connection."""
        self.begin()
        self.watching.cancel()
        self.failed(CancelledError)

    def test_handler_fails(self):
        """An exception of the event callback fails the watch."""
        self.watching = self.client.watch(
            NODES, lambda kind, obj: 1 / 0, resource_version="1", timeout=10
        )
        self.network.settle()
        self.send_raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        self.send(self.event() + self.event())
        self.failed(ZeroDivisionError)

    def test_cancelled_by_an_event(self):
        """An event callback may cancel the watch."""
        seen = []

        def cancel(kind, obj):
            seen.append(kind)
            self.watching.cancel()

        self.watching = self.client.watch(NODES, cancel, resource_version="1", timeout=10)
        self.network.settle()
        self.send_raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        self.send(self.event() + self.event())
        self.failed(CancelledError)
        self.assertEqual(["ADDED"], seen)


class PageTests(AnswersTestCase):
    """Page sizes."""

    def limits(self, size, count=4, desired=250):
        """Read pages of objects of this size; return the requested limits."""
        found = []
        for _ in range(count):
            asked = self.client.list(PODS, limit=desired)
            found.append(int(self.requests().partition("limit=")[2].split()[0].split("&")[0]))
            self.answer(200, {"items": ["x" * size] * found[-1]})
            self.successResultOf(asked)
        return found

    def test_small_objects(self):
        """For small objects, the desired number is requested after the first page."""
        self.assertEqual([FIRST_PAGE, 250, 250, 250], self.limits(100))

    def test_big_objects(self):
        """For large objects, the limit keeps pages small."""
        first, *others = self.limits(20_000)
        self.assertEqual(FIRST_PAGE, first)
        for each in others:
            self.assertTrue(25 <= each <= PAGE_BYTES / 20_000, each)

    def test_huge_objects(self):
        """At least one object is requested."""
        self.assertEqual([2, 1], self.limits(2 * PAGE_BYTES, 2, desired=2))

    def test_unlimited(self):
        """Without a limit, the whole list is requested."""
        asked = self.client.list(PODS)
        self.assertIn("GET /prefix/api/v1/pods HTTP/1.1", self.requests())
        self.answer(200, {"items": []})
        self.successResultOf(asked)
