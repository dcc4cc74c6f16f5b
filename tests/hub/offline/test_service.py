"""Errors of the offline side, and its metrics."""

from __future__ import annotations

import json

from twisted.internet.defer import Deferred, fail, succeed
from zope.interface.verify import verifyObject

from tests.http.support import request, settle
from tests.hub.offline.world import OfflineTestCase, item
from tests.hub.request.tokens import service_account_token
from tests.ops.scrapes import families
from yurttunnel.hub.cache.interfaces import CacheFailed
from yurttunnel.hub.interfaces import IOffline
from yurttunnel.hub.offline.service import METRICS

ACCOUNT_TOKEN = "/api/v1/namespaces/n/serviceaccounts/web/token"
TARGET = "/api/v1/namespaces/n/services/a"


def break_lists(case):
    """Make the second piece of each list unreadable."""
    list_now = case.cache.list

    def breaking(scope):
        listed = case.successResultOf(list_now(scope))
        read = listed.read
        first = read()
        responses = [first, fail(CacheFailed("the disk is broken"))]
        listed.read = lambda: responses.pop(0)
        return succeed(listed)

    case.patch(case.cache, "list", breaking)


class FailureTests(OfflineTestCase):
    """Errors."""

    def test_interface(self):
        """The class provides IOffline."""
        verifyObject(IOffline, self.offline)

    def test_disks_that_fail(self):
        """The error of a cache that cannot be read is in the response."""
        self.patch(self.cache, "get", lambda *key: fail(CacheFailed("the disk is broken")))
        self.assert_status(503, "ServiceUnavailable", "the disk is broken", TARGET)

    def test_disks_that_fail_before_the_owner_is_known(self):
        """This includes the lookup of a token's owner, and the reads of a write."""
        token = service_account_token("n", "web")
        spec = {"boundObjectRef": {"kind": "Pod", "name": "p"}}
        for read, target, *how in (
            ("token_owner", TARGET, b"GET", b"", b"Authorization: Bearer " + token.encode()),
            ("get", "/api/v1/nodes", b"POST", b"{}"),
            ("get", ACCOUNT_TOKEN, b"POST", json.dumps({"spec": spec}).encode()),
        ):
            method, body, *fields = how
            self.patch(self.cache, read, lambda *key: fail(CacheFailed("the disk is broken")))
            status, _, content = self.send_request(target, *fields, method=method, body=body)
            self.assertEqual(503, status)
            self.assertIn(b"the disk is broken", content, target)

    def test_lists_that_break_off(self):
        """A list that cannot be read completely is aborted, and is not logged as a defect."""
        self.store("services.v1.core", *(item(f"s{n:04}", data="x" * 1000) for n in range(1000)))
        break_lists(self)
        connection = self.server.connect()
        connection.receive(request(b"/api/v1/services", b"User-Agent: kubelet"))
        settle(self.clock, connection)
        self.assertTrue(connection.aborted)

    def test_defects(self):
        """A defect is a 500, and is logged."""

        def defect(*key):
            raise ZeroDivisionError

        self.patch(self.cache, "get", defect)
        self.assert_status(500, "InternalError", "defect", TARGET)
        self.assertEqual(1, len(self.flushLoggedErrors(ZeroDivisionError)))

    def test_the_hub_stops(self):
        """Requests in progress get a response when the hub stops."""
        self.patch(self.cache, "get", lambda *key: Deferred())
        connection = self.open(TARGET)
        self.successResultOf(self.offline.stopService())
        settle(self.clock, connection)
        self.assertIn(b"the hub is stopping", connection.sent)

    def test_clients_that_leave(self):
        """Nothing is left of a request whose client disconnects."""
        connection = self.open("/api/v1/namespaces/n/events", b"Content-Length: 10", method=b"POST")
        connection.abortConnection()
        self.assertEqual({("create", "none"): 1}, dict(self.offline.responses))


class CachedOnlyTests(OfflineTestCase):
    """Requests to which the API may still respond."""

    if_kept = True

    def assert_silent(self, target, *fields):
        """Assert that nothing is sent."""
        self.assertEqual(b"", self.open(target, *fields).sent)
        self.assertEqual([False], self.found)
        self.assertEqual({}, self.offline.responses)
        self.found.clear()

    def test_cached(self):
        """Cached data is served, and counted."""
        self.store("services.v1.core", item("a"))
        self.store_document("/version", b"{}")
        for target in (TARGET, "/api/v1/services", "/version"):
            self.assertEqual(200, self.send_request(target)[0])
        self.assertEqual([True] * 3, self.found)
        counts = {("get", "200"): 2, ("list", "200"): 1}
        self.assertEqual(counts, self.offline.responses)

    def test_not_cached(self):
        """If it is not cached, or not for this caller, nothing is sent."""
        for target in (TARGET, "/api/v1/services", "/version"):
            self.assert_silent(target)
        self.store("services.v1.core", item("b"))
        self.assert_silent(TARGET)
        self.assert_silent("/api/v1/services?resourceVersion=999")
        self.assert_silent("/api/v1/services", b"Authorization: Bearer abc")

    def test_disks_that_fail(self):
        """Nor is it if the disk fails."""
        self.patch(self.cache, "get", lambda *key: fail(CacheFailed("the disk is broken")))
        self.assert_silent(TARGET)

    def test_lists_that_break_off(self):
        """A response that has begun is aborted."""
        self.store("services.v1.core", *(item(f"s{n:04}", data="x" * 1000) for n in range(1000)))
        break_lists(self)
        self.assertTrue(self.open("/api/v1/services").aborted)
        self.assertEqual([True], self.found)

    def test_the_hub_stops(self):
        """No response is sent when the hub stops; the caller does that."""
        self.patch(self.cache, "get", lambda *key: Deferred())
        connection = self.open(TARGET)
        self.successResultOf(self.offline.stopService())
        self.assertEqual(([False], b""), (self.found, connection.sent))


class MetricTests(OfflineTestCase):
    """The metrics."""

    def test_metrics(self):
        """Responses are counted by verb and status, and watches while they are open."""
        self.store("services.v1.core", item("a"))
        for _ in range(2):
            self.send_request(TARGET)
        self.send_request(TARGET, method=b"DELETE")
        self.send_request("/version")
        self.open("/api/v1/services?watch=1")
        samples = {
            (
                sample.name.removeprefix("yurthub_offline_"),
                *sample.labels.values(),
            ): sample.value
            for family in families(METRICS, self.offline)
            for sample in family.samples
        }
        expected = {
            ("answers_total", "get", "200"): 2,
            ("answers_total", "delete", "503"): 1,
            ("answers_total", "get", "503"): 1,
            ("watches",): 1,
            ("events_kept_total",): 0,
            ("events_sent_total",): 0,
            ("events_dropped_total",): 0,
        }
        self.assertEqual(expected, samples)
