"""Lists and their pages: what they replace, and when they are complete."""

from __future__ import annotations

from itertools import pairwise

from tests.hub.cache.caches import ALL, POD, PODS, item, report_list
from tests.hub.cache.test_store import CacheTestCase
from yurttunnel.hub.cache import lists, objects
from yurttunnel.hub.cache.interfaces import Scope
from yurttunnel.hub.cache.lists import MAX_LISTS, PAGE_SECONDS
from yurttunnel.hub.cache.objects import MAX_SCOPES
from yurttunnel.hub.cache.queue import MAX_PENDING
from yurttunnel.hub.cache.writer import BARRIER_SECONDS, BATCH_SECONDS
from yurttunnel.hub.media.interfaces import ListMeta


class ReplaceTests(CacheTestCase):
    """The effect of a list on existing objects."""

    def test_abandoned(self) -> None:
        """A list that was aborted changes nothing, whatever is added to it later."""
        report_list(self.cache, [item("a")], 5)
        listing = self.cache.begin_list(ALL, "")
        listing.add([item("a", 9), item("b", 9)])
        listing.abandon()
        listing.add([item("c", 9)])
        listing.complete(ListMeta(POD, "9"))
        listing.abandon()
        self.assertEqual({"a": "1"}, self.names())
        self.assertEqual(0, self.cache.stats.queued)

    def test_a_watch_was_faster(self) -> None:
        """Objects that are newer than the list stay, and so do those that a watch has added."""
        report_list(self.cache, [item("a")], 5)
        self.cache.upsert(PODS, POD, item("a", 12))
        self.cache.upsert(PODS, POD, item("b", 11))
        report_list(self.cache, [item("a", 1)], 10)
        self.assertEqual({"a": "12", "b": "11"}, self.names())
        report_list(self.cache, [item("a", 12)], 11)
        self.assertEqual({"a": "12"}, self.names())

    def test_deleted_meanwhile(self) -> None:
        """A list from before the deletion of an object does not restore it."""
        listing = self.cache.begin_list(ALL, "")
        listing.add([item("a"), item("b")])
        self.cache.remove(ALL, item("a", 8))
        listing.complete(ListMeta(POD, "5"))
        self.assertEqual({"b": "1"}, self.names())
        # There may be another object with that name.
        report_list(self.cache, [item("a", 9), item("b")], 10)
        self.assertEqual({"a": "9", "b": "1"}, self.names())

    def test_left_meanwhile(self) -> None:
        """A list from before an object left a selection is incomplete until it is newer."""
        one, web = item("a", labels={"app": "web"}), Scope(PODS, "", "app=web")
        for scope, whole in ((ALL, False), (Scope(PODS, "default"), False), (web, True)):
            listing = self.cache.begin_list(scope, "")
            listing.add([one])
            self.cache.remove(web, one._replace(version="8"))
            listing.complete(ListMeta(POD, "5", f"of {scope}"))
            report_list(self.cache, [item("b")], 5, scope, token=f"of {scope}")
            self.assertEqual(whole, self.read(scope)[1])
        self.cache.advance(ALL, "5", "8")
        self.assertEqual(("8", True), (self.read()[0].version, self.read()[1]))

    def test_left_between_pages(self) -> None:
        """So is a first list whose earlier page had it, and one with a deleted object."""
        one, web = item("a", labels={"app": "web"}), Scope(PODS, "", "app=web")
        listing = self.cache.begin_list(ALL, "")
        listing.add([one])
        listing.complete(ListMeta(POD, "5", "more"))
        self.assertEqual({"a": "1"}, self.names())
        self.cache.remove(web, one._replace(version="8"))
        report_list(self.cache, [item("b")], 5, token="more")
        self.assertEqual(({"b": "1"}, False), (self.names(), self.read()[1]))
        self.cache.advance(ALL, "5", "8")
        self.assertTrue(self.read()[1])

    def test_left_before_a_restart(self) -> None:
        """A late list is incomplete even if a newer list with the same gap exists."""
        one, web = item("a", labels={"app": "web"}), Scope(PODS, "", "app=web")
        here = Scope(PODS, "default")
        report_list(self.cache, [one, item("b")], 4)
        self.cache.remove(web, one._replace(version="6"))
        self.restart()
        report_list(self.cache, [one, item("b")], 3, here)
        self.assertEqual(({"b": "1"}, False), (self.names(here), self.read(here)[1]))
        self.cache.advance(here, "3", "5")
        self.assertFalse(self.read(here)[1])
        self.cache.advance(here, "3", "6")
        self.assertTrue(self.read(here)[1])

    def test_left_without_numbers(self) -> None:
        """If versions cannot be compared, other lists are incomplete until listed again."""
        one, web = item("a", "x", labels={"app": "web"}), Scope(PODS, "", "app=web")
        report_list(self.cache, [one], "x")
        report_list(self.cache, [one], "x", web)
        self.cache.remove(web, one._replace(version="y"))
        self.cache.advance(ALL, "x", "z")
        self.assertEqual([False, True], [self.read(scope)[1] for scope in (ALL, web)])
        report_list(self.cache, [], "z")
        self.assertTrue(self.read()[1])

    def test_lag(self) -> None:
        """Reads wait for a list that was received, and is still being parsed."""
        report_list(self.cache, [item("a")], 5)
        self.assertEqual({"a": "1"}, self.names())
        listing = self.cache.begin_list(ALL, "")
        self.assertTrue(listing.lag(1000, False))
        self.assertEqual(1000, self.cache.stats.queued)
        self.assertEqual({"a": "1"}, self.names())
        listing.lag(1000, True)
        reading = self.cache.list(ALL)
        self.clock.advance(BARRIER_SECONDS / 2)
        self.assertNoResult(reading)
        listing.lag(0, True)
        listing.add([item("b")])
        listing.complete(ListMeta(POD, "6"))
        self.clock.advance(BATCH_SECONDS)
        listed = self.result(reading)
        self.assertEqual(["b"], [each.name for each in self.result(listed.read())])
        listed.close()
        self.assertEqual(0, self.cache.stats.queued)

    def test_reported_while_a_list_is_parsed(self) -> None:
        """Writes after a list are ordered after it, as if it had been parsed at once."""
        listing = self.cache.begin_list(ALL, "")
        listing.lag(1000, True)
        self.cache.advance(ALL, "6", "20")
        self.cache.upsert(PODS, POD, item("c", 7))
        self.cache.remove_object("kubelet", "pods.v1.core", "default", "b")
        behind = self.cache.begin_list(ALL, "")
        behind.lag(1000, True)
        behind.add([item("c", 7)])
        behind.complete(ListMeta(POD, "7"))
        listing.add([item("a"), item("b")])
        reading = self.cache.list(ALL)
        self.assertNoResult(reading)
        listing.complete(ListMeta(POD, "6"))
        meta, _, items = self.read()
        self.result(reading).close()
        self.assertEqual(("20", ["c"]), (meta.version, [each.name for each in items]))
        self.assertEqual(0, self.cache.stats.queued)

    def test_pages_that_are_cut_late(self) -> None:
        """A short page is ordered after an earlier long one that is still being parsed."""
        report_list(self.cache, [item("gone")], 5)
        first, last = self.cache.begin_list(ALL, ""), self.cache.begin_list(ALL, "more")
        first.lag(1000, True)
        last.add([item("b")])
        last.complete(ListMeta(POD, "6"))
        first.add([item("a")])
        first.complete(ListMeta(POD, "6", "more"))
        self.assertEqual({"a": "1", "b": "1"}, self.names())

    def test_much_is_reported_while_a_list_is_parsed(self) -> None:
        """The number of writes that wait for the list is limited; more overtake it."""
        listing = self.cache.begin_list(ALL, "")
        listing.lag(1000, True)
        for number in range(2 * MAX_PENDING + 1):
            self.cache.upsert(PODS, POD, item("a", 10 + number))
        listing.add([item("a"), item("b")])
        listing.complete(ListMeta(POD, "9"))
        self.assertEqual({"a": str(10 + 2 * MAX_PENDING), "b": "1"}, self.names())
        self.assertEqual(0, self.cache.stats.queued)

    def test_lag_without_an_end(self) -> None:
        """Reads do not wait for a list that is abandoned, nor forever."""
        report_list(self.cache, [item("a")], 5)
        self.names()
        for end in (
            lambda _: self.clock.advance(BARRIER_SECONDS),
            lambda listing: listing.abandon(),
        ):
            listing = self.cache.begin_list(ALL, "")
            listing.lag(1000, True)
            reading = self.cache.list(ALL)
            self.assertNoResult(reading)
            end(listing)
            self.result(reading).close()
            listing.abandon()
        self.assertEqual(0, self.cache.stats.queued)
        self.assertFalse(listing.lag(10, False))

    def test_unchanged(self) -> None:
        """Objects with an unchanged version are not written."""
        items = [item(f"pod-{number}") for number in range(200)]
        report_list(self.cache, items, 5)
        self.assertEqual(200, len(self.names()))
        before = self.cache.stats.written
        report_list(self.cache, items, 6)
        self.assertEqual("6", self.read()[0].version)
        self.assertEqual(before, self.cache.stats.written)
        self.assertEqual(200, self.cache.stats.unchanged)

    def test_without_versions(self) -> None:
        """For objects without versions, such as metrics, the last one is stored."""
        for version in ("", "0"):
            for body in (b"1", b"2"):
                report_list(self.cache, [item("a", version, body=body)], version)
                self.assertEqual([body], [each.body for each in self.read()[2]])
            report_list(self.cache, [], version)
            self.assertEqual([], self.read()[2])

    def test_versions_that_are_no_numbers(self) -> None:
        """If versions of another API server cannot be compared, the last object is stored."""
        for version in ("b", "007", "a", "9" * 30):
            report_list(self.cache, [item("a", version)], version)
            self.assertEqual({"a": version}, self.names())
            self.assertEqual(version, self.read()[0].version)

    def test_the_version_never_goes_back(self) -> None:
        """The version of a list never decreases, also after a restart."""
        report_list(self.cache, [item("a", 9)], 10)
        report_list(self.cache, [item("a", 9)], 7)
        self.assertEqual("10", self.read()[0].version)
        self.cache.advance(ALL, "10", "12")
        self.assertEqual("12", self.read()[0].version)
        self.cache.advance(ALL, "12", "15")
        self.cache.advance(ALL, "12", "14")
        self.restart()
        self.assertEqual("15", self.read()[0].version)

    def test_watches_whose_versions_are_no_numbers(self) -> None:
        """A version that cannot be compared with the watch's start counts as known."""
        for known, since, version in ((10, "b", "11"), ("c", "5", "12"), ("d", "e", "f")):
            report_list(self.cache, [item("a")], known)
            self.cache.advance(ALL, since, version)
            self.assertEqual(version, self.read()[0].version)

    def test_columns(self) -> None:
        """The columns of a Table are those of the last list."""
        report_list(self.cache, [item("a")], 1, columns=b"[1]")
        self.assertEqual(b"[1]", self.read()[0].columns)
        report_list(self.cache, [item("a")], 2, columns=b"[2]")
        self.assertEqual(b"[2]", self.read()[0].columns)


class ScopeTests(CacheTestCase):
    """Lists of a part of a collection."""

    def test_by_name(self) -> None:
        """An empty list of one name removes that object."""
        report_list(self.cache, [item("a"), item("b")], 5)
        report_list(self.cache, [], 6, Scope(PODS, "default", "", "metadata.name=a"))
        self.assertEqual({"b": "1"}, self.names())

    def test_complete(self) -> None:
        """Only parts of a listed scope are complete."""
        self.cache.upsert(PODS, POD, item("a"))
        self.assertFalse(self.read()[1])
        report_list(self.cache, [item("a")], 5, Scope(PODS, "default", "app=x"))
        for scope, complete in (
            (Scope(PODS, "default", "app=x"), True),
            (Scope(PODS, "default", "app=x", "metadata.name=a"), True),
            (Scope(PODS, "default", "app=y"), False),
            (Scope(PODS, "other", "app=x"), False),
            (Scope(PODS, "", "app=x"), False),
            (Scope(PODS, "default"), False),
        ):
            self.assertEqual(complete, self.read(scope)[1], scope)
        report_list(self.cache, [], 6)
        self.assertTrue(self.read(Scope(PODS, "other", "app=y"))[1])

    def test_many_selections(self) -> None:
        """With too many selections those that were listed longest ago are removed.

        More can be kept of those without selectors.
        """
        self.patch(objects, "MAX_NAMESPACES", 200)
        for most, labels in ((MAX_SCOPES, "app=a"), (200, "")):
            scopes = [Scope(PODS, f"n{number}", labels) for number in range(most + 1)]
            for scope in (*scopes[:-1], scopes[0], scopes[-1]):
                report_list(self.cache, [], 5, scope)
            whole = [self.read(scope)[1] for scope in scopes]
            self.assertEqual([True, False, *[True] * (most - 1)], whole, labels)

    def test_many_parts(self) -> None:
        """However many parts of a list are also listed, all stay complete."""
        for scope in (ALL, *(Scope(PODS, f"n{number}", "a=b") for number in range(MAX_SCOPES + 1))):
            report_list(self.cache, [], 5, scope)
        self.assertTrue(self.read()[1])

    def test_collections_are_apart(self) -> None:
        """Clients, forms and views do not share objects."""
        others = (
            PODS._replace(client="kubelet system:serviceaccount:a:b"),
            PODS._replace(form="protobuf"),
            PODS._replace(view="status.phase=Running"),
        )
        report_list(self.cache, [item("a")], 5)
        for other in others:
            self.assertIsNone(self.read(Scope(other)))
            report_list(self.cache, [item("b")], 5, Scope(other))
        report_list(self.cache, [], 6)
        for other in others:
            self.assertEqual({"b": "1"}, self.names(Scope(other)))


class OrderTests(CacheTestCase):
    """Queued lists and changes are written in order of arrival."""

    def test_an_end_after_a_list(self) -> None:
        """An object that was deleted after the list stays deleted."""
        self.cache.upsert(PODS, POD, item("a", 3))
        report_list(self.cache, [item("a", 3)], 5)
        self.cache.remove(ALL, item("a", 10))
        self.assertEqual({}, self.names())


class PageTests(CacheTestCase):
    """Lists in pages."""

    def setUp(self) -> None:
        """Write an earlier list, with an object that no longer exists."""
        super().setUp()
        report_list(self.cache, [item("a"), item("gone")], 5)

    def test_many(self) -> None:
        """A page may have a single item."""
        tokens = ["", *map(str, range(1, 1_200)), ""]
        for number, (token, following) in enumerate(pairwise(tokens)):
            report_list(self.cache, [item(f"of-{number}")], 9, token=token, next_token=following)
        self.assertEqual({f"of-{number}" for number in range(1_200)}, set(self.names()))

    def test_too_many(self) -> None:
        """A list with too many objects is stored, and removes nothing; its names are not kept."""
        self.patch(lists, "MAX_NAMES", 3)
        report_list(self.cache, [item("a"), item("b")], 7, next_token="two")
        report_list(self.cache, [item("c"), item("d")], 7, token="two", next_token="three")
        [(pages, _)] = self.cache._incoming[False]._paged._next.values()
        self.assertEqual([], list(pages.names()))
        report_list(self.cache, [item("e")], 7, token="three")
        self.assertEqual({*"abcde", "gone"}, set(self.names()))
        report_list(self.cache, [item("a"), item("b")], 8, next_token="two")
        report_list(self.cache, [item("c")], 8, token="two")
        self.assertEqual(set("abc"), set(self.names()))

    def test_a_page_again(self) -> None:
        """A page that was aborted may be requested again."""
        report_list(self.cache, [item("a")], 7, next_token="two")
        listing = self.cache.begin_list(ALL, "two")
        listing.add([item("b")])
        listing.abandon()
        report_list(self.cache, [item("b")], 7, token="two")
        self.assertEqual({"a": "1", "b": "1"}, self.names())

    def test_another_scope(self) -> None:
        """A token is valid only for its own list."""
        report_list(self.cache, [item("b")], 7, next_token="two")
        report_list(self.cache, [], 7, Scope(PODS, "default"), token="two")
        self.assertIn("gone", self.names())

    def test_evicted_meanwhile(self) -> None:
        """If the client is evicted between two pages, the list is not complete."""
        report_list(self.cache, [item("a", 6)], 7, next_token="two")
        self.names()
        self.cache.evict(lambda client: False)
        self.assertIsNone(self.read())
        report_list(self.cache, [item("b")], 7, token="two", next_token="three")
        report_list(self.cache, [item("c")], 7, token="three")
        self.assertEqual(({"b": "1", "c": "1"}, False), (self.names(), self.read()[1]))
        report_list(self.cache, [item("a", 6)], 8, next_token="two")
        report_list(self.cache, [item("b")], 8, token="two")
        self.assertEqual(({"a": "6", "b": "1"}, True), (self.names(), self.read()[1]))

    def test_another_file_meanwhile(self) -> None:
        """The same applies if the file is removed between two pages."""
        report_list(self.cache, [item("a", 6)], 7, next_token="two")
        self.names()
        for path in self.directory.iterdir():
            path.unlink()
        report_list(self.cache, [item("b")], 7, token="two")
        self.clock.pump([1.0] * 31)
        self.assertEqual(({"b": "1"}, False), (self.names(), self.read()[1]))

    def test_late(self) -> None:
        """Pages are not expected forever, nor for any number of lists."""
        report_list(self.cache, [item("b")], 7, next_token="two")
        self.clock.advance(PAGE_SECONDS)
        report_list(self.cache, [], 7, token="two")
        self.assertIn("gone", self.names())
        for number in range(MAX_LISTS + 1):
            report_list(self.cache, [item("b")], 7, next_token=str(number))
        report_list(self.cache, [], 7, token="0")
        self.assertIn("gone", self.names())
        report_list(self.cache, [], 7, token="1")
        self.assertEqual({"b": "1"}, self.names())

    def test_many_pages(self) -> None:
        """However many pages a list has, it is one list; each page may be requested again."""
        report_list(self.cache, [item("b")], 7, next_token="two")
        nodes = Scope(PODS._replace(resource="nodes.v1.core"))
        for number in range(2 * MAX_LISTS):
            for _ in range(2):
                report_list(
                    self.cache,
                    [item(f"node-{number}")],
                    7,
                    nodes,
                    token=f"{number}" if number else "",
                    next_token=f"{number + 1}",
                )
        report_list(self.cache, [], 7, nodes, token=f"{2 * MAX_LISTS}")
        report_list(self.cache, [], 7, token="two")
        self.assertEqual(({"b": "1"}, True), (self.names(), self.read()[1]))
        self.assertEqual(2 * MAX_LISTS, len(self.names(nodes)))
        self.assertTrue(self.read(nodes)[1])

    def test_many_lists_that_have_ended(self) -> None:
        """A list is remembered until its last page, which may be requested again."""
        report_list(self.cache, [item("b")], 7, next_token="two")
        for number in range(MAX_LISTS):
            scope = Scope(PODS._replace(view=f"a={number}"))
            report_list(self.cache, [item("a")], 7, scope, next_token="two")
            for _ in range(2):
                report_list(self.cache, [], 7, scope, token="two")
                self.assertTrue(self.read(scope)[1])
        report_list(self.cache, [], 7, token="two")
        self.assertEqual({"b": "1"}, self.names())

    def test_restart(self) -> None:
        """After a restart the first pages are not known."""
        report_list(self.cache, [item("b")], 7, next_token="two")
        self.restart()
        report_list(self.cache, [], 7, token="two")
        self.assertEqual({"a": "1", "b": "1", "gone": "1"}, self.names())
