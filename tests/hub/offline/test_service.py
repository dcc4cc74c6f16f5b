"""What goes wrong while a request is answered without the cloud, and what is counted."""

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
    """Have the second piece of each list be unreadable."""
    list_now = case.cache.list

    def breaking(scope):
        listed = case.successResultOf(list_now(scope))
        read = listed.read
        first = read()
        answers = [first, fail(CacheFailed("the disk is broken"))]
        listed.read = lambda: answers.pop(0)
        return succeed(listed)

    case.patch(case.cache, "list", breaking)


class FailureTests(OfflineTestCase):
    """What goes wrong."""

    def test_interface(self):
        """It is what the hub's listeners hand requests to."""
        verifyObject(IOffline, self.offline)

    def test_disks_that_fail(self):
        """A cache that cannot be read is told of in its words."""
        self.patch(self.cache, "get", lambda *key: fail(CacheFailed("the disk is broken")))
        self.assert_status(503, "ServiceUnavailable", "the disk is broken", TARGET)

    def test_disks_that_fail_before_it_is_known_who_asks(self):
        """Also when it is asked whose a token is, or what a write needs to know."""
        token = service_account_token("n", "web")
        spec = {"boundObjectRef": {"kind": "Pod", "name": "p"}}
        for read, target, *how in (
            ("token_owner", TARGET, b"GET", b"", b"Authorization: Bearer " + token.encode()),
            ("get", "/api/v1/nodes", b"POST", b"{}"),
            ("get", ACCOUNT_TOKEN, b"POST", json.dumps({"spec": spec}).encode()),
        ):
            method, body, *fields = how
            self.patch(self.cache, read, lambda *key: fail(CacheFailed("the disk is broken")))
            status, _, content = self.ask(target, *fields, method=method, body=body)
            self.assertEqual(503, status)
            self.assertIn(b"the disk is broken", content, target)

    def test_lists_that_break_off(self):
        """A list that cannot be read to its end does not look whole; nobody calls it a defect."""
        self.keep("services.v1.core", *(item(f"s{n:04}", data="x" * 1000) for n in range(1000)))
        break_lists(self)
        connection = self.server.connect()
        connection.receive(request(b"/api/v1/services", b"User-Agent: kubelet"))
        settle(self.clock, connection)
        self.assertTrue(connection.aborted)

    def test_defects(self):
        """A defect is a 500 and stands in the log."""

        def defect(*key):
            raise ZeroDivisionError

        self.patch(self.cache, "get", defect)
        self.assert_status(500, "InternalError", "defect", TARGET)
        self.assertEqual(1, len(self.flushLoggedErrors(ZeroDivisionError)))

    def test_the_hub_stops(self):
        """What is being answered when the hub stops is told so."""
        self.patch(self.cache, "get", lambda *key: Deferred())
        connection = self.open(TARGET)
        self.successResultOf(self.offline.stopService())
        settle(self.clock, connection)
        self.assertIn(b"the hub is stopping", connection.sent)

    def test_clients_that_leave(self):
        """Nothing is left of a client that leaves while its request is on its way."""
        connection = self.open("/api/v1/namespaces/n/events", b"Content-Length: 10", method=b"POST")
        connection.abortConnection()
        self.assertEqual({("create", "none"): 1}, dict(self.offline.answers))


class KeptOnlyTests(OfflineTestCase):
    """Requests that the API may answer still."""

    if_kept = True

    def assert_silent(self, target, *fields):
        """Check that nothing is sent."""
        self.assertEqual(b"", self.open(target, *fields).sent)
        self.assertEqual([False], self.found)
        self.assertEqual({}, self.offline.answers)
        self.found.clear()

    def test_kept(self):
        """What is kept is answered, and counted."""
        self.keep("services.v1.core", item("a"))
        self.keep_document("/version", b"{}")
        for target in (TARGET, "/api/v1/services", "/version"):
            self.assertEqual(200, self.ask(target)[0])
        self.assertEqual([True] * 3, self.found)
        counts = {("get", "200"): 2, ("list", "200"): 1}
        self.assertEqual(counts, self.offline.answers)

    def test_not_kept(self):
        """What is not, or not for whoever asks, is not answered."""
        for target in (TARGET, "/api/v1/services", "/version"):
            self.assert_silent(target)
        self.keep("services.v1.core", item("b"))
        self.assert_silent(TARGET)
        self.assert_silent("/api/v1/services?resourceVersion=999")
        self.assert_silent("/api/v1/services", b"Authorization: Bearer abc")

    def test_disks_that_fail(self):
        """Nor is it when the disk fails."""
        self.patch(self.cache, "get", lambda *key: fail(CacheFailed("the disk is broken")))
        self.assert_silent(TARGET)

    def test_lists_that_break_off(self):
        """An answer that has begun is broken off."""
        self.keep("services.v1.core", *(item(f"s{n:04}", data="x" * 1000) for n in range(1000)))
        break_lists(self)
        self.assertTrue(self.open("/api/v1/services").aborted)
        self.assertEqual([True], self.found)

    def test_the_hub_stops(self):
        """Nobody is told that it stops, but by whoever has the request."""
        self.patch(self.cache, "get", lambda *key: Deferred())
        connection = self.open(TARGET)
        self.successResultOf(self.offline.stopService())
        self.assertEqual(([False], b""), (self.found, connection.sent))


class MetricTests(OfflineTestCase):
    """What is counted."""

    def test_metrics(self):
        """Answers are counted by verb and status, and watches while they are parked."""
        self.keep("services.v1.core", item("a"))
        for _ in range(2):
            self.ask(TARGET)
        self.ask(TARGET, method=b"DELETE")
        self.ask("/version")
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
