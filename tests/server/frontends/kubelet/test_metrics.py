"""The middleware ``metrics``."""

from __future__ import annotations

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from tests.server.frontends.kubelet.fakes import head, request
from yurttunnel.ops.failures import Failures
from yurttunnel.server.frontends.kubelet.metrics import InterceptionCounters, RequestMetrics


class RequestMetricsTests(SynchronousTestCase):
    """Counters and their labels."""

    def setUp(self):
        """Create the middleware."""
        self.clock = Clock()
        self.counters = InterceptionCounters()
        self.failures = Failures(self.clock)
        middleware = RequestMetrics(self.clock, self.counters, self.failures)
        self.handle = middleware.wrap(lambda intercepted: None)

    def begin(self, *arguments, **fields):
        """Start a request; return its exchange."""
        intercepted = request(head(*arguments, **fields))
        self.handle(intercepted)
        return intercepted.exchange

    def test_in_hand(self):
        """Requests in flight are counted by verb and path."""
        first, second = self.begin("GET", "/pods"), self.begin("GET", "/pods?x=y")
        other = self.begin("BREW", "/coffee")
        self.assertEqual(2, self.counters.in_flight["GET", "/pods"])
        self.assertEqual(1, self.counters.in_flight["other", "other"])
        for exchange in (first, second, other):
            exchange.end(200)
        self.assertEqual(0, self.counters.in_flight.total())

    def test_answered(self):
        """Completed requests are also counted by status."""
        for status in (200, 200, 503, 0, 299, 599):
            self.begin("GET", "/pods").end(status)
        counts = {code: n for (_, _, code), n in self.counters.completed.items()}
        self.assertEqual({"200": 2, "503": 1, "none": 1, "2xx": 1, "5xx": 1}, counts)

    def test_failures(self):
        """The server's own errors are recorded, those of kubelets are not."""
        self.begin("GET", "/pods").end(404)
        self.begin("GET", "/pods").fail(503, "no agent is connected for edge-1")
        [failure] = self.failures.newest_first()
        self.assertEqual(
            ("kubelets", "192.0.2.99", 503, "r-1", "no agent is connected for edge-1"),
            (failure.kind, failure.who, failure.status, failure.request_id, failure.text),
        )

    def test_unauthenticated_callers(self):
        """A 401 is the server's own, too; without a response nothing is recorded."""
        for status in (401, 0):
            intercepted = request(head("GET", "/pods"))
            self.handle(intercepted)
            intercepted.refusal = "the Kubernetes API does not accept the bearer token"
            intercepted.exchange.end(status)
        [failure] = self.failures.newest_first()
        self.assertEqual((401, intercepted.refusal), (failure.status, failure.text))

    def test_durations(self):
        """Durations are recorded, except those of upgrades and of requests that follow."""
        exchange = self.begin("GET", "/pods")
        self.clock.advance(0.05)
        exchange.end(200)
        for endless in (
            self.begin("GET", "/containerLogs/a/b/c?follow=true"),
            self.begin("POST", "/exec/a/b/c", Connection="Upgrade", Upgrade="SPDY/3.1"),
        ):
            self.clock.advance(1000)
            endless.end(200)
        self.assertEqual([0, 0, 1, 0, 0, 0, 0, 0], self.counters.durations.buckets)
        self.assertAlmostEqual(0.05, self.counters.durations.total_seconds)
        self.begin("GET", "/pods")
        exchange = self.begin("GET", "/pods")
        self.clock.advance(1000)
        exchange.end(200)
        self.assertEqual(1, self.counters.durations.buckets[-1])
