"""Large objects and documents while offline."""

from __future__ import annotations

import json

from tests.http.support import request
from tests.hub.offline.world import OfflineTestCase, item
from yurttunnel.hub.cache.store import MAX_CONCURRENT_READS
from yurttunnel.hub.offline.backpressure import MAX_BEING_SENT, READ_TIMEOUT

OPENAPI = "/openapi/v2"
ONE = "/api/v1/namespaces/n/configmaps/a"


class StalledTestCase(OfflineTestCase):
    """Clients that do not read."""

    def stalled(self, target):
        """Send a request, and do not read the response."""
        connection = self.server.connect()
        connection.receive(request(target.encode(), b"User-Agent: kubelet"))
        return connection


class CompleteResponseTests(StalledTestCase):
    """How they are sent."""

    def waiting(self, connection):
        """Return the number of bytes that wait for the client."""
        return len(connection.dataBuffer) + connection._tempDataLen

    def test_pace(self):
        """They are streamed no faster than their clients read."""
        document = bytes(range(256)) * 4000
        self.store_document(OPENAPI, document)
        self.store_one("configmaps.v1.core", item("a", data="x" * 1_000_000))
        for target in (OPENAPI, ONE):
            connection = self.stalled(target)
            while self.waiting(connection):
                self.assertLess(self.waiting(connection), 200_000)
                connection.turn()
            head, _, body = connection.sent.partition(b"\r\n\r\n")
            self.assertIn(b"\r\nContent-Length: %d" % len(body), head)
            if target == OPENAPI:
                self.assertEqual(document, body)
            else:
                self.assertEqual("x" * 1_000_000, json.loads(body)["data"])

    def test_head(self):
        """A response to HEAD has no body, and does not count."""
        self.store_document(OPENAPI, bytes(100_000))
        status, fields, body = self.send_request(OPENAPI, method=b"HEAD")
        self.assertEqual((200, b"100000", b""), (status, fields[b"content-length"], body))

    def test_limit(self):
        """Clients that do not read share a limit, and release their share when they disconnect."""
        self.store_document(OPENAPI, bytes(MAX_BEING_SENT // 2))
        self.store_document("/version", b"{}")
        first, _ = self.stalled(OPENAPI), self.stalled(OPENAPI)
        status = self.assert_status(503, "ServiceUnavailable", "too much", OPENAPI)
        self.assertEqual(1, status["details"]["retryAfterSeconds"])
        self.assertEqual(200, self.send_request("/version")[0])
        first.abortConnection()
        self.assertEqual(200, self.send_request(OPENAPI)[0])

    def test_pods(self):
        """A pod may use as much as it leaves free; the node has a limit of its own."""
        self.store_document(OPENAPI, bytes(MAX_BEING_SENT // 2))
        self.share_holder = "10.0.0.1"
        self.stalled(OPENAPI)
        self.assert_status(503, "ServiceUnavailable", "too much", OPENAPI)
        for self.share_holder in ("10.0.0.2", None):
            self.assertEqual(200, self.send_request(OPENAPI)[0])

    def test_time(self):
        """A client that does not read for too long is disconnected, which releases its share."""
        self.store_document(OPENAPI, bytes(MAX_BEING_SENT // 2))
        stalled = [self.stalled(OPENAPI) for _ in range(2)]
        self.clock.advance(READ_TIMEOUT - 1)
        self.assert_status(503, "ServiceUnavailable", "too much", OPENAPI)
        self.clock.advance(1)
        self.assertEqual(200, self.send_request(OPENAPI)[0])
        self.assertNotIn(None, [connection.closed_with for connection in stalled])


class ListTests(StalledTestCase):
    """Concurrent reads of lists."""

    def test_pods(self):
        """A pod may read as many as it leaves free, and one more when one has ended."""
        self.store("services.v1.core", *[item(f"s{n:03}", data="x" * 1000) for n in range(500)])
        self.share_holder = "10.0.0.1"
        targets = ("/api/v1/services", "/api/v1/services?watch=1")
        stalled = [self.stalled(targets[n % 2]) for n in range(MAX_CONCURRENT_READS // 2)]
        for target in targets:
            self.assert_status(503, "ServiceUnavailable", "too many lists", target)
        for self.share_holder in ("10.0.0.2", None):
            self.assertEqual(200, self.send_request(targets[0])[0])
        self.share_holder = "10.0.0.1"
        stalled.pop().abortConnection()
        self.assertEqual(200, self.send_request(targets[0])[0])
        for connection in stalled:
            connection.abortConnection()

    def test_all_pods(self):
        """A pod without any read can read one, however many the others read."""
        self.store("services.v1.core", *[item(f"s{n:03}", data="x" * 1000) for n in range(500)])
        stalled = []
        for n in range(MAX_CONCURRENT_READS + 2):
            self.share_holder = f"10.0.0.{n}"
            stalled.append(self.stalled("/api/v1/services"))
        self.assert_status(503, "ServiceUnavailable", "too many lists", "/api/v1/services")
        self.share_holder = "10.0.1.1"
        self.assertEqual(200, self.send_request("/api/v1/services")[0])
        for connection in stalled:
            connection.abortConnection()

    def test_time(self):
        """A pod that does not read for too long is disconnected, and its reads no longer count."""
        self.store("services.v1.core", *[item(f"s{n:03}", data="x" * 1000) for n in range(500)])
        self.share_holder = "10.0.0.1"
        targets = ("/api/v1/services", "/api/v1/services?watch=1")
        stalled = [self.stalled(targets[n % 2]) for n in range(MAX_CONCURRENT_READS // 2)]
        self.clock.advance(READ_TIMEOUT)
        self.assertEqual(200, self.send_request(targets[0])[0])
        self.assertNotIn(None, [connection.closed_with for connection in stalled])
