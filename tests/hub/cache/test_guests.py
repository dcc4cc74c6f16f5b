"""Guests, which are not the node's own components, take no room from those."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable

from twisted.internet.defer import Deferred

from tests.hub.cache.caches import (
    POD,
    PODS,
    HeldJobs,
    item,
    read_all,
    report_list,
)
from tests.hub.cache.logged_cache import BODY, LoggedCacheTestCase
from yurttunnel.hub.cache import clients, objects, queue, schema, store
from yurttunnel.hub.cache.clients import HOUR, MAX_IDLE_HOURS
from yurttunnel.hub.cache.interfaces import CachedDocument, Scope
from yurttunnel.hub.cache.lists import MAX_LISTS
from yurttunnel.hub.cache.store import MAX_CONCURRENT_READS
from yurttunnel.hub.cache.writer import BATCH_SECONDS
from yurttunnel.hub.media.interfaces import ListMeta

PROXY = "kube-proxy"
"""One of the node's own components."""


def pods_of(client: str) -> Scope:
    """Return all pods of a client; with an owner it is a guest."""
    return Scope(PODS._replace(client=client))


def some(number: int):
    """Return that number of pods of 5.7 KB."""
    return [item(f"pod-{each:03}", body=BODY) for each in range(number)]


class GuestTestCase(LoggedCacheTestCase):
    """A cache of 1 MB."""

    options: dict[str, int] = {"max_bytes": 1_000_000}

    def setUp(self) -> None:
        """Create it, and store the kubelet's objects."""
        self.writer = HeldJobs()
        super().setUp()
        self.restart(writer=self.writer, **self.options)
        report_list(self.cache, some(2), 5, pods_of("kubelet"))

    def store(self, client: str, number: int) -> None:
        """Store a list of that many pods for a client, and advance the clock by an hour."""
        report_list(self.cache, some(number), 5, pods_of(client))
        self.clock.advance(HOUR)
        self.clock.advance(BATCH_SECONDS)

    def number(self, client: str) -> int:
        """Return the number of a client's cached pods."""
        found = self.read(pods_of(client))
        return 0 if found is None else len(found[2])


class RoomTests(GuestTestCase):
    """The size of the file."""

    def test_the_node_first(self) -> None:
        """If it is full, guests are evicted, however old the last request of the node's own is."""
        self.store(PROXY, 60)
        self.store("app a", 50)
        self.store("kubelet", 60)
        self.assertEqual([60, 60, 0], [self.number(each) for each in (PROXY, "kubelet", "app a")])
        self.assertIsNone(self.cache.problem())

    def test_many_go(self) -> None:
        """If many guests have to be evicted for the node's own data, all other clients stay."""
        for number in range(40):
            self.store(f"name-{number} a", 2)
        self.store(PROXY, 60)
        self.store("kubelet", 40)
        self.assertEqual([60, 40], [self.number(each) for each in (PROXY, "kubelet")])
        there = [number for number in range(40) if self.number(f"name-{number} a")]
        self.assertEqual(list(range(40 - len(there), 40)), there)
        self.assertGreater(len(there), 5)

    def test_no_room_for_a_guest(self) -> None:
        """A guest's data is not cached if it would displace data of the node's own."""
        self.store(PROXY, 70)
        self.store("kubelet", 60)
        self.store("app a", 60)
        self.assertEqual([70, 60, 0], [self.number(each) for each in (PROXY, "kubelet", "app a")])
        self.assertIsNone(self.cache.problem())
        self.assertEqual(
            1, self.count_logs("the cache") and self.count_logs("raise --cache-max-bytes")
        )
        self.assertEqual(1, self.cache.stats.dropped)

    def test_a_share(self) -> None:
        """All guests together use at most half of the file, even if the rest is free."""
        for client in ("app a", "app b", "app c"):
            self.store(client, 35)
        self.assertEqual([0, 35, 35], [self.number(f"app {owner}") for owner in "abc"])
        self.assertLess(self.cache.stats.size, 600_000)

    def test_by_owner(self) -> None:
        """The owner that uses most is evicted first, however many names it uses."""
        self.store("dns b", 25)
        for number in range(5):
            self.store(f"name-{number} a", 20)
        self.assertEqual(25, self.number("dns b"))
        kept = [self.number(f"name-{number} a") for number in range(5)]
        self.assertEqual([0, 0, 0, 20, 20], kept)

    def test_what_is_counted(self) -> None:
        """Changes, removals and evictions are counted with their current sizes."""
        collection = pods_of("app a").collection
        for version in range(1, 50):
            self.cache.upsert(collection, POD, item("a", version, body=BODY * version))
        self.cache.upsert(collection, POD, item("b", 50, body=BODY))
        self.cache.remove(Scope(collection), item("a", 51))
        self.store("app b", 70)
        self.assertEqual([1, 70], [self.number(f"app {owner}") for owner in "ab"])

    def test_selectors(self) -> None:
        """Selectors take room, too: lists with long selectors are limited as well."""
        # The first has as many bytes with fewer characters.
        for owner, filling in (("a", "\U0001f600" * 5_000), ("b", "x" * 20_000)):
            before = self.cache.stats.evicted
            for number in range(20):
                fields = f"metadata.name={number}{filling}"
                scope = pods_of(f"app {owner}")._replace(field_selector=fields)
                report_list(self.cache, [], 5, scope)
                self.clock.advance(BATCH_SECONDS)
            self.assertEqual(0, self.number(f"app {owner}"))
            self.assertGreater(self.cache.stats.evicted, before)

    def test_selectors_that_go(self) -> None:
        """Deleted selectors release their room."""
        connection = sqlite3.connect(":memory:")
        self.addCleanup(connection.close)
        connection.executescript(schema.TABLES)
        row = objects.upsert_collection(connection, pods_of("app a").collection, POD, 5)
        for labels, fields in (("a=1", ""), ("", "metadata.name=\U0001f600"), ("ä", "ö")):
            scope = pods_of("app a")._replace(label_selector=labels, field_selector=fields)
            objects.mark_listed(connection, row, scope, b"", 5, 0)
        connection.execute("DELETE FROM scopes")
        self.assertEqual([(0,)], connection.execute("SELECT bytes FROM collections").fetchall())

    def test_many_collections(self) -> None:
        """The number of guests' collections is limited; the owner with most is evicted first."""
        self.patch(clients, "MAX_COLLECTIONS", 6)
        self.store("dns b", 1)
        for number in range(4):
            self.store(f"name-{number} a", 1)
        for number in range(3):
            view = pods_of("web c").collection._replace(view=f"a={number}")
            report_list(self.cache, some(1), 5, Scope(view))
            self.clock.advance(BATCH_SECONDS)
        self.assertEqual([2, 1], [self.number(each) for each in ("kubelet", "dns b")])
        self.assertEqual([0, 0, 1, 1], [self.number(f"name-{number} a") for number in range(4)])
        self.assertEqual(5, self.cache.stats.clients)

    def test_no_eviction_needed(self) -> None:
        """A guest's write does not sort the guests as long as all may stay."""
        compared = []
        self.patch(clients._Usage, "rank", lambda usage: compared.append(usage.client) or (0, 0))
        self.patch(clients, "MAX_COLLECTIONS", 2)
        self.store("dns b", 1)
        self.store("web a", 1)
        self.assertEqual([], compared)
        self.store("more a", 1)
        self.assertIn("web a", compared)

    def test_messages(self) -> None:
        """The log does not grow with each guest that is evicted."""
        self.patch(clients, "MAX_COLLECTIONS", 1)
        for number in range(20):
            report_list(self.cache, [], 5, pods_of(f"name-{number} a"))
            self.clock.advance(BATCH_SECONDS)
        self.assertEqual(19, self.cache.stats.evicted)
        self.assertEqual(1, self.count_logs("was deleted"))


class EventTests(GuestTestCase):
    """Events of pods; their creators get the response that they are stored."""

    def stored(self) -> int:
        """Return the number of stored events."""
        return len(self.result(self.cache.stored_events(100)))

    def create(self, token: str, number: int) -> int:
        """Create events in batches until none is accepted; return the number accepted."""
        taken = 0
        while self.cache.event_problem(token) is None:
            for _ in range(number):
                self.cache.store_event("/events", "application/json", BODY, token, token)
            taken += number
            self.clock.advance(BATCH_SECONDS)
        return taken

    def test_no_room(self) -> None:
        """Accepted events are stored once there is room, and no others are accepted before."""
        self.store(PROXY, 60)
        self.store("kubelet", 56)
        taken = self.create("token", 3)
        self.assertLess(self.stored(), taken)
        self.assertIn("has no room for the Events", self.cache.event_problem("token"))
        self.assertIsNone(self.cache.problem())
        self.assertIsNone(self.cache.event_problem(""))
        self.pass_time(200)
        self.assertLess(self.stored(), taken)
        self.assertEqual([60, 56], [self.number(each) for each in (PROXY, "kubelet")])
        self.assertEqual(0, self.cache.stats.dropped)
        self.cache.evict(lambda component: component == "kubelet")
        self.pass_time(61)
        self.assertEqual(taken, self.stored())
        self.assertIsNone(self.cache.event_problem("token"))
        self.assertEqual(0, self.cache.stats.queued)

    def test_no_room_for_kubelets(self) -> None:
        """Events of the node are not accepted, either, if no client can be evicted."""
        self.store("kubelet", 1)
        for number in range(200):
            self.cache.upsert(PODS, POD, item(f"more-{number}", 6, body=BODY))
            self.clock.advance(BATCH_SECONDS)
        self.pass_time(61)
        self.assertEqual(0, self.create("", 1))
        report_list(self.cache, some(1), 7, pods_of("kubelet"))
        self.pass_time(100)
        self.assertIsNone(self.cache.event_problem(""))
        self.cache.store_event("/events", "application/json", BODY, "", "")
        self.assertEqual(1, self.stored())

    def test_the_end(self) -> None:
        """Events without room are lost at shutdown, which is logged."""
        self.store("kubelet", 120)
        self.create("token", 3)
        self.stop()
        self.assertEqual(1, self.count_logs("The last changes were not written"))


class DocumentTests(GuestTestCase):
    """Documents, which any client can have cached, and all share."""

    def store_documents(self, number: int, size: int = 30_000) -> None:
        """Store that many documents."""
        for each in range(number):
            document = CachedDocument("application/json", bytes(size))
            self.cache.store_document("", f"/openapi/v3/{each}/{size}", "json", document)
            self.clock.advance(BATCH_SECONDS)

    def documents(self, size: int = 30_000) -> list[int]:
        """Return the numbers of the stored documents."""
        found = {
            number: self.result(self.cache.document("", f"/openapi/v3/{number}/{size}", "json"))
            for number in range(40)
        }
        return [number for number, document in found.items() if document is not None]

    def assert_gone(self, number: int) -> None:
        """Assert that the eviction of this many documents is logged and counted."""
        self.assertEqual(number, self.cache.stats.evicted_documents)
        said = self.count_logs("of the cached discovery and OpenAPI responses were deleted")
        self.assertEqual(number > 0, said > 0)
        self.assertLess(said, 3)

    def test_the_node_first(self) -> None:
        """They take no room that the node's own need, and the newest stay."""
        self.store(PROXY, 60)
        self.store_documents(40)
        self.store("kubelet", 65)
        self.assertEqual([60, 65], [self.number(each) for each in (PROXY, "kubelet")])
        self.assertIsNone(self.cache.problem())
        self.assertEqual([36, 37, 38, 39], self.documents())
        self.assert_gone(36)

    def test_nothing_to_evict(self) -> None:
        """They are evicted, if necessary all of them, before any of the node's own clients."""
        self.store(PROXY, 70)
        self.store_documents(40)
        self.store("kubelet", 80)
        self.assertEqual([70, 80], [self.number(each) for each in (PROXY, "kubelet")])
        self.assertEqual([], self.documents())
        self.assert_gone(40)

    def test_guests(self) -> None:
        """They belong to the guests' half, and guests do not displace them."""
        self.store_documents(5)
        for client in ("app a", "app b", "app c"):
            self.store(client, 30)
        self.assertEqual([0, 0, 30], [self.number(f"app {owner}") for owner in "abc"])
        self.assertEqual([0, 1, 2, 3, 4], self.documents())
        self.assertLess(self.cache.stats.size, 600_000)
        self.assert_gone(0)

    def test_a_share(self) -> None:
        """However many there are, a quarter of the file is for other data of guests."""
        self.store("app a", 35)
        self.store_documents(40)
        self.assertEqual(35, self.number("app a"))
        self.assertEqual(list(range(32, 40)), self.documents())
        self.assert_gone(32)

    def test_a_large_one(self) -> None:
        """A document that is larger than the limit is not stored, and displaces no other."""
        self.store_documents(5)
        self.store_documents(1, 300_000)
        self.assertEqual([0, 1, 2, 3, 4], self.documents())
        self.assertEqual([], self.documents(300_000))
        self.assert_gone(1)


class WaitingTests(GuestTestCase):
    """Memory for queued writes."""

    options = {"max_queued": 100_000}

    def test_changes(self) -> None:
        """However much guests write while the disk hangs, nothing of the node's own is dropped."""
        self.assertEqual(2, self.number("kubelet"))
        self.writer.holds = True
        for each in some(5):
            self.cache.upsert(pods_of(PROXY).collection, POD, each)
        for number in range(100):
            changed = item(f"pod-{number}", body=BODY)
            self.cache.upsert(pods_of("app a").collection, POD, changed)
        self.assertGreater(self.cache.stats.dropped, 0)
        self.writer.release()
        self.assertEqual(5, self.number(PROXY))
        self.assertLess(self.number("app a"), 100)

    def assert_kept(self, write: Callable[[int], object], repetitions: int = 200) -> None:
        """Assert that nothing of other accounts is dropped if ``write(number)`` is repeated."""
        report_list(self.cache, some(1), 6, pods_of("app b"))
        self.assertTrue(self.is_complete("app b"))
        self.writer.holds = True
        self.cache.upsert(pods_of("app b").collection, POD, item("before", 7))
        for number in range(repetitions):
            write(number)
        self.assertGreater(self.cache.stats.dropped, 0)
        self.cache.upsert(pods_of("app b").collection, POD, item("after", 8))
        report_list(self.cache, some(1), 9, pods_of("web c"))
        self.assertEqual(0, self.cache.stats.refused)
        self.writer.release()
        self.clock.advance(BATCH_SECONDS)
        self.assertEqual([3, 1], [self.number(each) for each in ("app b", "web c")])
        self.assertTrue(self.is_complete("app b"))

    def test_shares_of_changes(self) -> None:
        """However many changes an account receives, the lists of others stay complete.

        Its own oldest changes are dropped, under all of its names, and they are incomplete.
        """
        collection = pods_of("app a").collection
        report_list(self.cache, some(1), 6, pods_of("app a"))
        self.assert_kept(
            lambda number: self.cache.upsert(
                collection._replace(client=f"name-{number % 3} a" if number % 2 else "app a"),
                POD,
                item(f"new-{number}", 7, body=BODY),
            )
        )
        self.assertFalse(self.is_complete("app a"))
        self.assertEqual({}, self.cache._writer.guests._used)

    def test_shares_of_documents(self) -> None:
        """However many documents are received, all other data of guests is written."""
        self.assert_kept(
            lambda number: self.cache.store_document(
                "", f"/openapi/v3/{number}", "json", CachedDocument("application/json", BODY)
            )
        )

    def test_shares_of_deletions(self) -> None:
        """However many objects an account deletes, all other data of guests is written."""
        self.assert_kept(
            lambda number: self.cache.remove_object(
                "app a", PODS.resource, "default", f"pod-{number}"
            )
        )

    def test_names(self) -> None:
        """With too many incomplete collections, all of the guests are incomplete."""
        self.patch(queue, "MAX_INCOMPLETE", 3)
        self.assertEqual(2, self.number("kubelet"))
        report_list(self.cache, some(1), 6, pods_of("app a"))
        self.assertTrue(self.is_complete("app a"))
        self.writer.holds = True
        for number in range(200):
            self.cache.upsert(pods_of(f"name-{number} b").collection, POD, item("a", body=BODY))
        marker = next(iter(self.cache._writer.guests._queued))
        self.assertLessEqual(len(marker.collections), 3)
        self.writer.release()
        self.clock.advance(BATCH_SECONDS)
        self.assertFalse(self.is_complete("app a"))
        self.assertTrue(self.is_complete("kubelet"))
        report_list(self.cache, some(1), 7, pods_of("app a"))
        self.assertTrue(self.is_complete("app a"))

    def is_complete(self, client: str) -> bool:
        """Return whether the list of a client's pods is complete."""
        found = self.read(pods_of(client))
        assert found is not None
        return bool(found[1])

    def test_lists(self) -> None:
        """A guest's list that is too large leaves room for one of the node's own."""
        self.writer.holds = True
        listing = self.cache.begin_list(pods_of("app a"), "")
        listing.add(some(6))
        report_list(self.cache, some(10), 6, pods_of(PROXY))
        self.assertEqual(0, self.cache.stats.refused)
        listing.add(some(6))
        self.assertEqual(1, self.cache.stats.refused)
        self.writer.release()
        self.assertEqual(10, self.number(PROXY))

    def test_shares_of_lists(self) -> None:
        """A guest that receives its lists slowly does not keep those of other owners from memory.

        Its own largest list is refused, however many names it uses.
        """
        self.writer.holds = True
        slow = [self.cache.begin_list(pods_of(f"name-{n} a"), "") for n in range(3)]
        for number, listing in enumerate(slow):
            listing.add(some(number + 1))
        self.assertEqual(0, self.cache.stats.refused)
        for owner, number in (("b", 2), ("c", 1)):
            report_list(self.cache, some(number), 6, pods_of(f"app {owner}"))
        self.assertEqual(1, self.cache.stats.refused)
        for listing in slow:
            listing.complete(ListMeta(POD, "6"))
        self.writer.release()
        cached = [self.number(f"app {owner}") for owner in ("b", "c")]
        self.assertEqual([2, 1], cached)
        self.assertEqual([1, 2, 0], [self.number(f"name-{n} a") for n in range(3)])

    def test_reading(self) -> None:
        """Reads of the node's own data do not wait for guests' writes."""
        self.assertEqual(2, self.number("kubelet"))
        self.writer.holds = True
        self.cache.upsert(pods_of("app a").collection, POD, item("a"))
        self.clock.advance(BATCH_SECONDS)
        self.assertEqual(2, self.number("kubelet"))
        self.writer.release()

    def test_pages(self) -> None:
        """However many lists guests begin, the next page of the node's own list is recognized."""
        report_list(self.cache, some(2), 6, pods_of(PROXY), next_token="two")
        for number in range(2 * MAX_LISTS):
            report_list(self.cache, [], 6, pods_of("app a"), next_token=f"{number}")
        report_list(self.cache, [item("z")], 6, pods_of(PROXY), token="two")
        _, complete, items = self.read(pods_of(PROXY))
        self.assertEqual((True, 3), (complete, len(items)))


class UseTests(GuestTestCase):
    """The times of last requests."""

    def test_names(self) -> None:
        """However many collections a guest uses, few are remembered, and hours are counted."""
        self.patch(store, "MAX_USED", 3)
        for number in range(20):
            self.cache.record_use(pods_of(f"name-{number} a").collection)
            self.cache.begin_list(pods_of(f"other-{number} a"), "").abandon()
            self.assertLessEqual(len(self.cache._used), 3)
        for _ in range(MAX_IDLE_HOURS + 1):
            self.cache.record_use(pods_of(PROXY).collection)
            self.clock.advance(HOUR)
            self.clock.advance(BATCH_SECONDS)
        self.assertEqual(2, self.number("kubelet"))


class SlotTests(GuestTestCase):
    """Concurrent reads of lists."""

    def test_slots(self) -> None:
        """However many lists guests read slowly, the node's own lists are read."""
        self.store("app a", 1)
        held = [self.result(self.cache.list(pods_of("app a"))) for _ in range(MAX_CONCURRENT_READS)]
        waits = Deferred.fromCoroutine(read_all(self.cache, pods_of("app a")))
        self.assertEqual(2, self.number("kubelet"))
        self.assertNoResult(waits)
        for each in held:
            each.close()
        self.assertIsNotNone(self.result(waits))
