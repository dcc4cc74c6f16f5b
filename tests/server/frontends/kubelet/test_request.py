"""Labels of requests, and requests that follow."""

from __future__ import annotations

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from tests.server.frontends.kubelet.fakes import head, request
from yurttunnel.server.frontends.kubelet import request as request_module
from yurttunnel.server.frontends.kubelet.metrics import InterceptionCounters, RequestMetrics
from yurttunnel.server.frontends.kubelet.request import follows, path_class_of, verb_of


class LabelTests(SynchronousTestCase):
    """Labels have few values, whatever callers send."""

    def test_verbs(self):
        """A method that kubelets know is itself, any other is ``other``."""
        self.assertEqual("GET", verb_of(head("GET")))
        self.assertEqual("DELETE", verb_of(head("DELETE")))
        self.assertEqual("other", verb_of(head("PROPFIND")))

    def test_paths(self):
        """A path is represented by its first segment, if kubelets serve that."""
        for target, expected in (
            ("/metrics", "/metrics"),
            ("/metrics/cadvisor?x=y", "/metrics"),
            ("/containerLogs/default/web/web?follow=true", "/containerLogs"),
            ("/exec/default/web/web?command=cat&command=/etc/shadow", "/exec"),
            ("/pods", "/pods"),
            ("/pods?x", "/pods"),
            ("/", "other"),
            ("//metrics", "other"),
            ("/Metrics", "other"),
            ("/metrics%2f", "other"),
            ("/secret-path", "other"),
            ("*", "other"),
        ):
            self.assertEqual(expected, path_class_of(head(target=target)), target)


class FollowTests(SynchronousTestCase):
    """Requests whose responses may begin or end at any time."""

    def test_follow_and_watch(self):
        """Requests that follow or watch, in each spelling that kubelets treat as true."""
        for query in (
            "follow=true",
            "follow=1",
            "a=b&follow=True&c=d",
            "follow",
            "follow&a=b",
            "follow=",
            "follow=falsely",
            "watch=true",
            "watch=t",
        ):
            self.assertTrue(follows(head(target=f"/containerLogs/a/b/c?{query}")), query)

    def test_others(self):
        """No others, including those with similar parameters."""
        for target in (
            "/containerLogs/a/b/c",
            "/containerLogs/a/b/c?follow=false",
            "/containerLogs/a/b/c?follow=False&a=b",
            "/containerLogs/a/b/c?follow=0",
            "/containerLogs/a/b/c?x=follow%3Dtrue",
            "/exec/a/b/c?command=follow&command=watch",
            "/follow=true",
            "/pods?watched=true",
            "/pods?unfollow=true",
        ):
            self.assertFalse(follows(head(target=target)), target)

    def test_not_ascii(self):
        """Other parameters that are not ASCII are handled."""
        query = "command=%C3%BCber&command=%FF"
        self.assertTrue(follows(head(target=f"/exec/a/b/c?{query}&follow=true")))
        self.assertFalse(follows(head(target=f"/exec/a/b/c?{query}&command=watch%C3")))

    def test_once(self):
        """A query is parsed once per request, since it can be long."""
        parsed = []
        self.patch(request_module, "follows", lambda head: parsed.append(head) or True)
        intercepted = request(head(target="/pods?watch=true"))
        counters = InterceptionCounters()
        RequestMetrics(Clock(), counters).wrap(lambda intercepted: None)(intercepted)
        intercepted.exchange.end(200)
        self.assertTrue(intercepted.follows)
        self.assertEqual(1, len(parsed))
        self.assertEqual([0] * 8, counters.durations.buckets)

    def test_long(self):
        """The longest accepted query is handled like a short one."""
        for part in ("follow&", "follow=0&", "watch=false&", "a=b&", "&", "%C3", "follow"):
            target = f"/pods?{part * (480_000 // len(part))}"
            self.assertEqual(part == "follow&", follows(head(target=target)), part)
