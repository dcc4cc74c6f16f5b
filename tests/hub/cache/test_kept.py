"""Limits and lifetimes of documents, events, tokens and clients."""

from __future__ import annotations

import hashlib

from twisted.internet.defer import Deferred

from tests.hub.cache.caches import (
    ALL,
    NODES,
    POD,
    PODS,
    item,
    read_all,
    report_list,
)
from tests.hub.cache.test_store import CacheTestCase
from yurttunnel.hub.cache import clients, documents, events, store, tokens
from yurttunnel.hub.cache.cached_list import MAX_AGE, READ_TIMEOUT
from yurttunnel.hub.cache.clients import HOUR, MAX_IDLE_HOURS
from yurttunnel.hub.cache.interfaces import CachedDocument, CacheFailed, Scope
from yurttunnel.hub.cache.queue import CHANGES_SECONDS
from yurttunnel.hub.cache.store import MAX_CONCURRENT_READS
from yurttunnel.hub.cache.writer import BATCH_SECONDS


class BoundTests(CacheTestCase):
    """Limits of their numbers and sizes."""

    def stored(self, most: int = 10_000) -> list[str]:
        """Return the paths of the stored events."""
        return [event.path for event in self.result(self.cache.stored_events(most))]

    def test_number_of_events(self) -> None:
        """Over the limit of events the oldest are evicted, which is counted."""
        for number in range(events.MAX_EVENTS + 10):
            self.cache.store_event(f"/{number}", "application/json", b"{}", "")
        kept = self.stored()
        self.assertEqual([f"/{number}" for number in range(10, events.MAX_EVENTS + 10)], kept)
        self.assertEqual(
            (events.MAX_EVENTS, 10), (self.cache.stats.events, self.cache.stats.events_lost)
        )

    def test_size_of_events(self) -> None:
        """The same applies to their size."""
        for number in range(40):
            self.cache.store_event(f"/{number}", "application/json", bytes(1024 * 1024), "")
        self.assertEqual([f"/{number}" for number in range(24, 40)], self.stored())
        self.assertEqual((16, 24), (self.cache.stats.events, self.cache.stats.events_lost))

    def test_tokens_of_events(self) -> None:
        """Tokens count like bodies."""
        for number in range(20):
            self.cache.store_event(f"/{number}", "application/json", b"{}", "t" * 1024 * 1024)
        self.assertEqual([f"/{number}" for number in range(5, 20)], self.stored())

    def test_events_of_one_account(self) -> None:
        """Over its share an account loses its own oldest events, and nobody else does."""
        for owner in ("", "n:other"):
            self.cache.store_event(f"/{owner}", "application/json", b"{}", owner, owner)
        for number in range(events.MAX_EVENTS):
            self.cache.store_event(f"/{number}", "application/json", b"{}", "a token", "n:web")
        most = events.OWNER_SHARE // events.MIN_EVENT_SIZE
        expected = [f"/{number}" for number in range(events.MAX_EVENTS - most, events.MAX_EVENTS)]
        self.assertEqual(["/", "/n:other", *expected], self.stored())
        self.assertEqual(events.MAX_EVENTS - most, self.cache.stats.events_lost)

    def test_events_of_one_account_over_restarts(self) -> None:
        """However often it fills its share, its lost events count against no other account."""
        self.cache.store_event("/", "application/json", b"{}", "")
        share = events.OWNER_SHARE // events.MIN_EVENT_SIZE
        for outage in range(events.MAX_EVENTS // share + 2):
            for number in range(share):
                path = f"/{outage}/{number}"
                self.cache.store_event(path, "application/json", b"{}", "a token", "n:web")
            self.restart()
            expected = [f"/{outage}/{number}" for number in range(share)]
            self.assertEqual(["/", *expected], self.stored())
            self.assertEqual(1 + share, self.cache.stats.events)

    def test_events_at_once(self) -> None:
        """Many events at once are limited together, not one by one."""
        for number in range(2_000):
            self.cache.store_event(f"/{number}", "application/json", b"{}", "")
        self.assertEqual(2_000, len(self.stored()))
        for owner in ("", "n:web"):
            self.assertLess(self.steps(owner, 200), 3 * self.steps(owner, 1), owner)

    def steps(self, owner: str, number: int) -> int:
        """Return the number of SQLite steps for storing that many events, in thousands."""
        steps: list[None] = []
        connection = self.cache._writer._database._connection
        connection.set_progress_handler(lambda: steps.append(None), 1_000)
        for _ in range(number):
            self.cache.store_event("/", "application/json", b"{}", owner, owner)
        self.clock.advance(BATCH_SECONDS)
        connection.set_progress_handler(None, 0)
        self.assertEqual(0, self.cache.stats.queued)
        return len(steps)

    def test_events_after_a_restart(self) -> None:
        """They survive a restart, and ids are never reused."""
        for number in range(3):
            self.cache.store_event(f"/{number}", "application/json", b"{}", "a token")
        ids = [event.id for event in self.result(self.cache.stored_events(9))]
        self.restart()
        self.assertEqual(["/0", "/1", "/2"], self.stored())
        self.assertEqual(3, self.cache.stats.events)
        for id in ids:
            self.cache.delete_event(id)
        self.restart()
        self.cache.store_event("/3", "application/json", b"{}", "")
        self.cache.delete_event(ids[-1])
        self.assertEqual(["/3"], self.stored())
        self.assertEqual(1, self.cache.stats.events)

    def test_number_of_documents(self) -> None:
        """Over the limit of documents those that changed longest ago are evicted."""
        for number in range(documents.MAX_DOCUMENTS + 5):
            document = CachedDocument("application/json", b"%d" % number)
            self.cache.store_document("", f"/{number}", "json", document)
        for number, there in ((0, False), (4, False), (5, True), (documents.MAX_DOCUMENTS, True)):
            found = self.result(self.cache.document("", f"/{number}", "json"))
            self.assertEqual(there, found is not None, number)

    def test_size_of_documents(self) -> None:
        """The same applies to their size."""
        self.patch(documents, "MAX_BYTES", 100_000)
        for number in range(5):
            document = CachedDocument("application/json", bytes(30_000))
            self.cache.store_document("", f"/{number}", "json", document)
        there = [
            self.result(self.cache.document("", f"/{number}", "json")) is not None
            for number in range(5)
        ]
        self.assertEqual([False, False, True, True, True], there)

    def test_tokens(self) -> None:
        """Over the limit of tokens those that expire first are evicted."""
        self.patch(tokens, "MAX_TOKENS", 10)
        digests = [hashlib.sha256(b"%d" % number).digest() for number in range(12)]
        for number, digest in enumerate(digests):
            self.cache.store_token(digest, f"owner {number}", 1000.0 - number)
        owners = [self.result(self.cache.token_owner(digest)) for digest in digests]
        self.assertEqual([*(f"owner {number}" for number in range(10)), None, None], owners)

    def test_a_token_again(self) -> None:
        """A token that is accepted repeatedly is written once, until it is rejected."""
        digest = hashlib.sha256(b"").digest()
        for _ in range(3):
            self.cache.store_token(digest, "owner", 1000.0)
            waits = self.cache.stats.queued > 0
            self.assertEqual("owner", self.result(self.cache.token_owner(digest)))
        self.assertFalse(waits)
        self.cache.delete_token(digest)
        self.cache.store_token(digest, "owner", 1000.0)
        self.assertEqual("owner", self.result(self.cache.token_owner(digest)))
        self.cache.delete_token(digest)
        self.restart()
        self.assertIsNone(self.result(self.cache.token_owner(digest)))


class ClientTests(CacheTestCase):
    """Clients without requests, and clients for which there is no room."""

    def scope(self, client: str) -> Scope:
        """Return all pods of a client."""
        return Scope(PODS._replace(client=client))

    def is_known(self, client: str) -> bool:
        """Return whether any data of a client is cached."""
        return self.read(self.scope(client)) is not None

    def pass_hours(self, hours: int, *using: str) -> None:
        """Advance by hours, in each of which these clients send requests."""
        for _ in range(hours):
            for client in using:
                self.cache.record_use(self.scope(client).collection)
            self.clock.advance(HOUR)
            self.clock.advance(BATCH_SECONDS)

    def test_forgotten(self) -> None:
        """A client without requests for 30 days is evicted, except the kubelet and watches."""
        for client in ("kubelet", "kubelet owner", "coredns", "gone"):
            report_list(self.cache, [item("a")], 5, self.scope(client))
        self.pass_hours(MAX_IDLE_HOURS, "coredns")
        self.assertTrue(self.is_known("gone"))
        self.pass_hours(1, "coredns")
        self.assertEqual(
            [True, False, True, False],
            [self.is_known(each) for each in ("kubelet", "kubelet owner", "coredns", "gone")],
        )
        self.assertEqual(2, self.cache.stats.evicted)

    def test_without_the_cloud(self) -> None:
        """Hours without any response of the API do not count, however many they are."""
        report_list(self.cache, [item("a")], 5, self.scope("coredns"))
        self.pass_hours(2 * MAX_IDLE_HOURS)
        self.restart()
        self.pass_hours(MAX_IDLE_HOURS)
        self.assertTrue(self.is_known("coredns"))

    def test_no_room(self) -> None:
        """If the file is full, the client with the oldest request is evicted, never the kubelet."""
        self.restart(max_bytes=1_000_000)
        items = [item(f"pod-{number}", body=bytes(5_700)) for number in range(40)]
        for client in ("kubelet", "old", "new"):
            report_list(self.cache, items, 5, self.scope(client))
            self.assertTrue(self.is_known(client))
            self.pass_hours(1)
        report_list(self.cache, items, 5, self.scope("newest"))
        self.assertEqual(
            [True, False, True, True],
            [self.is_known(each) for each in ("kubelet", "old", "new", "newest")],
        )
        self.assertIsNone(self.cache.problem())
        self.assertEqual(1, self.cache.stats.evicted)
        self.assertLess(self.cache.stats.size, 1_000_000)

    def test_no_room_for_kubelet(self) -> None:
        """If no client can be evicted, this is reported, and existing data stays."""
        self.restart(max_bytes=200_000)
        report_list(self.cache, [item("a")], 5)
        self.assertEqual({"a": "1"}, self.names())
        items = [item(f"pod-{number}", 9, body=bytes(5_700)) for number in range(100)]
        report_list(self.cache, items, 10)
        self.clock.advance(1)
        self.assertIn(
            "has reached its limit of 0 MB with the data of kubelet", self.cache.problem()
        )
        self.assertEqual({"a": "1"}, self.names())

    def start_bounded(self, max_bytes: int) -> None:
        """Start another cache with one pod of the kubelet and one of kube-proxy."""
        self.stop()
        self.directory /= "bounded"
        self.start(max_bytes=max_bytes)
        for client in ("kubelet", "kube-proxy"):
            report_list(self.cache, [item("a")], 5, self.scope(client))
        self.clock.advance(1)

    def test_a_list_that_does_not_fit(self) -> None:
        """Nobody is evicted for a list that would not fit even then; later writes are done."""
        for max_bytes, kubelets in ((300_000, 0), (800_000, 60)):
            self.start_bounded(max_bytes)
            items = [item(f"pod-{number}", body=bytes(5_700)) for number in range(100)]
            report_list(self.cache, [item("a"), *items[:kubelets]], 6)
            report_list(self.cache, [item("old")], 6, self.scope("coredns"))
            self.clock.advance(1)
            report_list(self.cache, items, 7, self.scope("coredns"))
            self.clock.advance(1)
            self.assertIn("with the data of coredns", self.cache.problem())
            self.cache.upsert(PODS, POD, item("a", 9))
            self.cache.advance(ALL, "6", "9")
            self.clock.advance(1)
            self.assertIsNone(self.cache.problem())
            self.assertEqual(0, self.cache.stats.evicted)
            self.assertEqual(1, self.cache.stats.dropped)
            for _ in range(2):
                self.assertEqual("9", self.names()["a"])
                self.assertTrue(self.is_known("kube-proxy"))
                _, complete, found = self.read(self.scope("coredns"))
                self.assertEqual((False, ["old"]), (complete, [each.name for each in found]))
                self.restart()
            report_list(self.cache, items[:1], 10, self.scope("coredns"))
            self.assertTrue(self.read(self.scope("coredns"))[1])

    def fulfil(self) -> int:
        """Fill the file with the kubelet's pods; return the number written."""
        for number in range(100):
            self.cache.upsert(PODS, POD, item(f"pod-{number}", 10 + number, body=bytes(5_700)))
            self.clock.advance(1)
            if self.cache.problem() is not None:
                return number + 1
        raise AssertionError("there is room without end")

    def test_writes_after_one_that_does_not_fit(self) -> None:
        """Deletions behind a change without room are done, and make room."""
        self.start_bounded(300_000)
        number = self.fulfil()
        self.assertIn("with the data of kubelet", self.cache.problem())
        self.assertEqual(0, self.cache.stats.evicted)
        self.cache.upsert(PODS, POD, item("large", 400, body=bytes(400_000)))
        self.clock.pump([1] * 31)
        self.assertEqual((True, number), (self.read()[1], len(self.names())))
        self.cache.remove_object("kubelet", PODS.resource, "default", "pod-0", "402")
        self.cache.remove(ALL, item("pod-1", 402))
        self.clock.pump([1] * 31)
        self.assertEqual((False, number - 2), (self.read()[1], len(self.names())))
        report_list(self.cache, [item("a")], 500)
        self.assertEqual((True, {"a": "1"}), (self.read()[1], self.names()))
        self.assertIsNone(self.cache.problem())

    def test_removals_first(self) -> None:
        """Additions and deletions at the same time fit if they fit together."""
        self.start_bounded(300_000)
        number = 30
        items = [item(f"pod-{each}", 501, body=bytes(5_700)) for each in range(number)]
        report_list(self.cache, items, 502)
        self.assertEqual(number, len(self.names()))
        for each in range(20):
            self.cache.upsert(NODES, POD, item(f"new-{each}", 503, body=bytes(5_700)))
        for each in range(20):
            self.cache.remove(ALL, item(f"pod-{each}", 504))
        self.cache.advance(ALL, "502", "504")
        self.assertEqual(number - 20, len(self.names()))
        self.assertEqual(20, len(self.names(Scope(NODES))))
        self.assertTrue(self.read()[1])
        self.assertIsNone(self.cache.problem())

    def test_another_limit(self) -> None:
        """A higher limit applies at once; a limit below the file's size stops its growth."""
        self.restart(max_bytes=200_000)
        items = [item(f"pod-{number}", 9, body=bytes(5_700)) for number in range(100)]
        report_list(self.cache, items, 10)
        self.clock.advance(1)
        self.assertIsNotNone(self.cache.problem())
        self.cache.set_limit(4_000_000)
        report_list(self.cache, items, 10)
        report_list(self.cache, items, 10, self.scope("coredns"))
        # The backoff before the next attempt.
        self.clock.advance(60)
        self.assertEqual(100, len(self.names()))
        self.assertTrue(self.is_known("coredns"))
        self.assertEqual(4_000_000, self.cache.stats.max_size)
        size = self.cache.stats.size
        self.cache.set_limit(1_000_000)
        report_list(self.cache, items, 10, self.scope("flannel"))
        self.clock.advance(60)
        self.assertTrue(self.is_known("flannel"))
        self.assertFalse(self.is_known("coredns"))
        self.assertLessEqual(self.cache.stats.size, size)

    def test_another_limit_of_a_large_file(self) -> None:
        """Once a file has become smaller than its new limit, it does not grow beyond it."""
        self.patch(clients, "_SLACK", 10)
        items = [item(f"pod-{number}", 9, body=bytes(57_000)) for number in range(100)]
        report_list(self.cache, items, 10, self.scope("gone"))
        self.assertTrue(self.is_known("gone"))
        self.cache.set_limit(2_000_000)
        self.cache.evict(lambda component: False)
        self.assertFalse(self.is_known("gone"))
        self.pass_hours(2, "kubelet")
        for each in items:
            self.cache.upsert(PODS, POD, each)
            self.clock.advance(1)
        self.assertIn("its limit of 2 MB", str(self.cache.problem()))
        self.assertLessEqual(self.cache.stats.size, 2_000_000)

    def test_room_is_given_back(self) -> None:
        """Free pages are returned to the file system, hour by hour."""
        items = [item(f"pod-{number}", body=bytes(57_000)) for number in range(1000)]
        report_list(self.cache, items, 5, self.scope("gone"))
        self.assertTrue(self.is_known("gone"))
        path = self.directory / "cache.db"
        self.cache.evict(lambda component: False)
        self.assertFalse(self.is_known("gone"))
        self.pass_hours(4, "kubelet")
        self.restart()
        self.assertLess(path.stat().st_size, 20_000_000)


class ListedTests(CacheTestCase):
    """Lists that are read slowly, or not at all."""

    def setUp(self) -> None:
        """Store some lists."""
        super().setUp()
        report_list(self.cache, [item("a")], 5)
        self.assertEqual({"a": "1"}, self.names())

    def test_too_slow(self) -> None:
        """A snapshot is closed after some time; a later read fails with a message."""
        listed = self.result(self.cache.list(ALL))
        self.clock.advance(MAX_AGE)
        failure = self.failureResultOf(listed.read())
        self.assertIn("was not read to its end in time", failure.getErrorMessage())
        listed.close()

    def test_log(self) -> None:
        """Overlapping reads of lists do not make the log grow forever."""
        self.patch(store, "MAX_LOG_SIZE", 6_000_000)
        log = self.directory / "cache.db-wal"
        first = listed = self.result(self.cache.list(ALL))
        for _ in range(40):
            for _ in range(10):
                self.cache.store_event("/", "application/json", bytes(20_000), "")
                self.clock.advance(1)
            following = self.result(self.cache.list(ALL))
            listed.close()
            listed = following
        self.assertLess(log.stat().st_size, 12_000_000)
        self.failureResultOf(first.read())
        self.assertEqual(1, len(self.result(listed.read())))
        listed.close()

    def test_log_of_before(self) -> None:
        """A log that was long closes no list that begins later, while nothing is written."""
        self.patch(store, "MAX_LOG_SIZE", 1_000_000)
        report_list(self.cache, [item("a", 2, body=bytes(2_000_000))], 6)
        self.assertEqual({"a": "2"}, self.names())
        self.clock.advance(1)
        listed = self.result(self.cache.list(ALL))
        self.clock.advance(MAX_AGE - 1)
        self.assertEqual(1, len(self.result(listed.read())))
        listed.close()

    def test_many(self) -> None:
        """The number of concurrent reads is limited; the next one waits, and fails if all last."""
        listed = [self.result(self.cache.list(ALL)) for _ in range(MAX_CONCURRENT_READS)]
        waits = self.cache.list(ALL)
        self.clock.advance(READ_TIMEOUT)
        why = str(self.failureResultOf(waits, CacheFailed).value)
        self.assertEqual("too many lists are read from the cache at a time", why)
        waits = Deferred.fromCoroutine(read_all(self.cache))
        self.clock.advance(1)
        self.assertNoResult(waits)
        for each in listed:
            each.close()
        self.assertIsNotNone(self.result(waits))


class NameTests(CacheTestCase):
    """Names chosen by an attacker."""

    def test_names(self) -> None:
        """They are treated as names only."""
        names = (
            "..",
            "a/b",
            "%2e%2e%2f",
            "a\0b",
            "'; DROP TABLE objects; --",
            "x" * 253,
            "ü",
            "_%",
        )
        for name in names:
            self.cache.upsert(PODS, POD, item(name, namespace=name))
            found = self.result(self.cache.get(PODS, name, name))
            self.assertEqual((name, name), found.item[:2])
        self.assertEqual(set(names), set(self.names()))
        for name in names:
            self.assertEqual({name: "1"}, self.names(Scope(PODS, name)))
        self.restart()
        self.assertEqual(set(names), set(self.names()))
        self.assertEqual(
            {"cache.db", "cache.db-wal", "cache.db-shm"},
            {path.name for path in self.directory.iterdir()},
        )
        self.cache.remove(Scope(PODS), item("_%", "", namespace="_%"))
        self.assertEqual(len(names) - 1, len(self.names()))


class BatchTests(CacheTestCase):
    """Changes are collected for a moment."""

    def test_together(self) -> None:
        """Changes within 200 ms are one transaction, with other writes within 50 ms."""
        self.get("a")
        commits: list[str] = []
        connection = self.cache._writer._database._connection
        connection.set_trace_callback(
            lambda statement: commits.append(statement) if statement == "COMMIT" else None
        )
        for number in range(100):
            self.cache.upsert(PODS, POD, item(f"pod-{number}"))
        self.clock.advance(CHANGES_SECONDS - 0.001)
        self.assertEqual([], commits)
        self.clock.advance(0.001)
        self.assertEqual(["COMMIT"], commits)
        self.cache.upsert(PODS, POD, item("pod"))
        self.cache.store_event("/", "application/json", b"{}", "")
        self.clock.advance(BATCH_SECONDS - 0.001)
        self.assertEqual(["COMMIT"], commits)
        self.clock.advance(0.001)
        self.assertEqual(2 * ["COMMIT"], commits)
        self.assertEqual(0, self.cache.stats.queued)
