"""The contract of all caches, on disk and in memory."""

from __future__ import annotations

import math
from dataclasses import dataclass

from yurttunnel.hub.cache.interfaces import CachedDocument, Collection, Scope, Stored
from yurttunnel.hub.media.interfaces import Item, ListMeta, TypeMeta

PODS = Collection("kubelet", "pods.v1.core", "json")
POD = TypeMeta("v1", "Pod")


def pod(name="p", version=1, namespace="n", body=b"{}", node="edge-1", **labels):
    """Create an item."""
    return Item(namespace, name, str(version), labels, node, body)


def page(version, token="", remaining=None):
    """Create the metadata of a list of pods."""
    return ListMeta(POD, str(version), token, remaining)


@dataclass
class Read:
    """A list that has been read completely."""

    names: list[str]
    version: str
    complete: bool


class CacheContract:
    """A mixin for tests; ``make_cache`` returns an ``ICache``, or a coroutine that does.

    The time of day of its clock is 1,000 seconds.
    """

    async def setUp(self):
        """Create the cache."""
        made = self.make_cache()
        self.cache = await made if hasattr(made, "__await__") else made

    def receive_list(self, version, *items, scope=None, token="", next_token=""):
        """Add a list, or a page of one."""
        listing = self.cache.begin_list(scope or Scope(PODS), token)
        listing.add(items)
        listing.complete(page(version, next_token))

    async def read(self, scope=None):
        """Read a list."""
        listed = await self.cache.list(scope or Scope(PODS))
        known = await self.cache.known_version(scope or Scope(PODS))
        if listed is None:
            self.assertIsNone(known)
            return None
        self.assertEqual(listed.meta.version if listed.complete else None, known)
        items = await self.items(listed)
        self.assertEqual([len(item.body) for item in items], list(listed.sizes))
        self.assertEqual(POD, listed.meta.type)
        return Read([item.name for item in items], listed.meta.version, listed.complete)

    async def items(self, listed):
        """Read all items, and close the list."""
        items = []
        while piece := await listed.read():
            items += piece
        listed.close()
        return items

    # -- objects -------------------------------------------------------------------------------

    async def test_an_object(self):
        """A stored object can be read with all its fields."""
        item = pod(version=7, body=b"\0\xff body", app="web", ü="")
        self.cache.upsert(PODS, POD, item)
        self.assertEqual(Stored(POD, item), await self.cache.get(PODS, "n", "p"))

    async def test_unknown_objects(self):
        """Unknown objects are not found."""
        self.assertIsNone(await self.cache.get(PODS, "n", "p"))
        self.cache.upsert(PODS, POD, pod())
        for collection, namespace, name in (
            (PODS, "n", "q"),
            (PODS, "m", "p"),
            (PODS._replace(client="kube-proxy"), "n", "p"),
            (PODS._replace(form="protobuf"), "n", "p"),
            (PODS._replace(view="status.phase=Running"), "n", "p"),
        ):
            self.assertIsNone(await self.cache.get(collection, namespace, name))

    async def test_older_objects(self):
        """An object is never replaced by an older one; versions are compared as numbers."""
        self.cache.upsert(PODS, POD, pod(version=10, body=b'"new"'))
        self.cache.upsert(PODS, POD, pod(version=9, body=b'"old"'))
        found = await self.cache.get(PODS, "n", "p")
        self.assertEqual((b'"new"', "10"), (found.item.body, found.item.version))

    async def test_deferred_writes(self):
        """Deferred calls come in their order, before all later writes and before a read."""
        called = []

        def defer(version):
            self.cache.defer(PODS.client, lambda: called.append(version), 100)
            self.cache.defer(
                PODS.client, lambda: self.cache.upsert(PODS, POD, pod(version=version)), 100
            )

        defer(1)
        self.cache.remove(Scope(PODS), pod(version=2))
        self.assertEqual([1], called)
        self.assertIsNone(await self.cache.get(PODS, "n", "p"))
        defer(3)
        defer(4)
        self.assertEqual("4", (await self.cache.get(PODS, "n", "p")).item.version)
        self.assertEqual([1, 3, 4], called)

    async def test_deferred_before_a_removal(self):
        """An object whose addition was deferred is removed afterwards."""
        self.cache.defer(PODS.client, lambda: self.cache.upsert(PODS, POD, pod()), 100)
        self.cache.remove_object(PODS.client, PODS.resource, "n", "p")
        self.assertIsNone(await self.cache.get(PODS, "n", "p"))

    async def test_deferred_before_a_bookmark(self):
        """A version is known once the deferred writes before it are done."""
        self.receive_list(5, pod("a", 4))
        self.cache.defer(PODS.client, lambda: self.cache.upsert(PODS, POD, pod("b", 6)), 100)
        self.cache.advance(Scope(PODS), "5", "7")
        self.assertEqual(Read(["a", "b"], "7", True), await self.read())

    async def test_deferred_before_a_list(self):
        """A list that lacks an object removes it, although its addition was deferred."""
        self.receive_list(5, pod("a", 4))
        self.cache.defer(PODS.client, lambda: self.cache.upsert(PODS, POD, pod("b", 6)), 100)
        self.receive_list(7, pod("a", 4))
        self.assertEqual(Read(["a"], "7", True), await self.read())

    async def test_the_end_of_an_object(self):
        """A deleted object can be neither read nor listed."""
        self.receive_list(5, pod("a"), pod("b"))
        self.cache.remove(Scope(PODS), pod("a", ""))
        self.assertIsNone(await self.cache.get(PODS, "n", "a"))
        self.assertEqual(["b"], (await self.read()).names)

    async def test_an_end_with_a_version(self):
        """A deletion with a version removes only older objects."""
        for name, version in (("older", 4), ("same", 5), ("newer", 6)):
            self.cache.upsert(PODS, POD, pod(name, version))
            self.cache.remove(Scope(PODS), pod(name, 5))
        self.assertIsNone(await self.cache.get(PODS, "n", "older"))
        self.assertIsNotNone(await self.cache.get(PODS, "n", "same"))
        self.assertIsNotNone(await self.cache.get(PODS, "n", "newer"))

    async def test_an_end_before_anything_is_written(self):
        """An object that is added and deleted at once leaves a known collection without a list."""
        self.cache.upsert(PODS, POD, pod("a", 4))
        self.cache.remove(Scope(PODS), pod("a", 5))
        self.assertEqual(Read([], "5", False), await self.read())

    async def test_an_end_in_all_forms(self):
        """An object can be removed from all forms and views of a single client."""
        forms = (PODS, PODS._replace(form="json:Table.v1"), PODS._replace(view="status.phase=x"))
        others = (PODS._replace(client="kube-proxy"), PODS._replace(resource="nodes.v1.core"))
        for collection in (*forms, *others):
            self.cache.upsert(collection, POD, pod("a", 4))
            self.cache.upsert(collection, POD, pod("b", 4))
            self.cache.upsert(collection, POD, pod("c", 5))
        self.cache.remove_object(PODS.client, PODS.resource, "n", "a")
        self.cache.remove_object(PODS.client, PODS.resource, "n", "b", "5")
        self.cache.remove_object(PODS.client, PODS.resource, "n", "c", "5")
        for collection in forms:
            self.assertEqual(["c"], (await self.read(Scope(collection))).names)
        for collection in others:
            self.assertEqual(["a", "b", "c"], (await self.read(Scope(collection))).names)

    async def test_unknown_changes(self):
        """Lists are incomplete until they are known up to the version of unknown changes."""
        inside, outside = Scope(PODS, "n"), Scope(PODS, "m")
        other = PODS._replace(client="kube-proxy")
        for scope in (Scope(PODS), inside, outside, Scope(other)):
            self.receive_list(5, pod("a"), scope=scope)
        self.cache.mark_changed(PODS.client, PODS.resource, "n", "7")
        self.cache.advance(Scope(PODS), "5", "6")
        self.assertFalse((await self.read()).complete)
        self.assertFalse((await self.read(inside)).complete)
        self.assertTrue((await self.read(outside)).complete)
        self.assertTrue((await self.read(Scope(other))).complete)
        self.cache.advance(Scope(PODS), "6", "7")
        self.assertTrue((await self.read(inside)).complete)
        self.cache.mark_changed(PODS.client, PODS.resource, "n", "")
        self.assertFalse((await self.read(inside)).complete)
        self.assertTrue((await self.read(outside)).complete)
        self.cache.advance(Scope(PODS), "7", "8")
        self.assertTrue((await self.read(inside)).complete)

    async def test_an_unknown_change_of_one_object(self):
        """It is removed if nothing was listed with it; else the list is incomplete."""
        alone, listed = PODS, PODS._replace(form="json:Table.v1")
        self.receive_list(5, scope=Scope(alone, "m"))
        self.receive_list(5, pod("a"), pod("b"), scope=Scope(listed, "n"))
        for name in "ab":
            self.cache.upsert(alone, POD, pod(name))
        self.cache.mark_changed(PODS.client, PODS.resource, "n", "", "a")
        self.assertEqual(["b"], (await self.read(Scope(alone, "n"))).names)
        self.assertTrue((await self.read(Scope(alone, "m"))).complete)
        self.assertEqual(Read(["a", "b"], "5", False), await self.read(Scope(listed, "n")))

    async def test_a_change_that_lists_may_know(self):
        """With version 0 an object is only removed if nothing was listed with it."""
        alone, listed = PODS, PODS._replace(form="json:Table.v1")
        self.receive_list(5, pod("a"), scope=Scope(listed, "n"))
        self.cache.upsert(alone, POD, pod("a"))
        self.cache.mark_changed(PODS.client, PODS.resource, "n", "0", "a")
        self.assertEqual([], (await self.read(Scope(alone, "n"))).names)
        self.assertEqual(Read(["a"], "5", True), await self.read(Scope(listed, "n")))

    # -- lists ---------------------------------------------------------------------------------

    async def test_unknown_lists(self):
        """An unknown list is ``None``, not an empty list."""
        self.assertIsNone(await self.read())
        self.receive_list(5)
        self.assertEqual(Read([], "5", True), await self.read())
        self.assertIsNone(await self.read(Scope(PODS._replace(client="kube-proxy"))))

    async def test_a_list(self):
        """A list is ordered by namespace and name, and replaces the previous list."""
        self.receive_list(5, pod("b"), pod("a"), pod("c", namespace="m"))
        self.assertEqual(Read(["c", "a", "b"], "5", True), await self.read())
        self.receive_list(6, pod("b"))
        self.assertEqual(Read(["b"], "6", True), await self.read())

    async def test_objects_of_watches(self):
        """Events of a watch update the list; its version increases with complete reports."""
        self.receive_list(5, pod("a"))
        self.cache.upsert(PODS, POD, pod("b", 8))
        self.assertEqual(Read(["a", "b"], "5", True), await self.read())
        self.cache.advance(Scope(PODS), "5", "8")
        self.assertEqual(Read(["a", "b"], "8", True), await self.read())

    async def test_bookmarks(self):
        """The version of a list is the version up to which a watch has reported everything."""
        self.cache.advance(Scope(PODS), "1", "3")
        self.assertIsNone(await self.read())
        self.receive_list(5, pod("a"))
        self.cache.advance(Scope(PODS), "5", "9")
        self.cache.advance(Scope(PODS), "5", "7")
        self.assertEqual(Read(["a"], "9", True), await self.read())

    async def test_watches_that_began_later(self):
        """A watch increases the version of a list only if that is known up to the watch's start."""
        self.receive_list(10, pod("a"), pod("gone"))
        self.cache.advance(Scope(PODS), "20", "30")
        self.assertEqual(Read(["a", "gone"], "10", True), await self.read())
        # Two watches at once, each of which continues the other.
        self.cache.advance(Scope(PODS), "10", "15")
        self.cache.advance(Scope(PODS), "15", "18")
        self.cache.advance(Scope(PODS), "19", "30")
        self.cache.advance(Scope(PODS), "10", "16")
        self.assertEqual("18", (await self.read()).version)
        self.receive_list(20, pod("a"))
        self.cache.advance(Scope(PODS), "20", "30")
        self.assertEqual(Read(["a"], "30", True), await self.read())

    async def test_versions_never_go_back(self):
        """The version of a list never decreases."""
        self.receive_list(5, pod("a"))
        self.cache.advance(Scope(PODS), "5", "9")
        self.receive_list(7, pod("a"))
        self.assertEqual(Read(["a"], "9", True), await self.read())

    async def test_versions_of_scopes(self):
        """The version of a list is that of the scopes that cover it, not of others."""
        everything, own, other = Scope(PODS), Scope(PODS, "n"), Scope(PODS, "m")
        self.receive_list(100, pod("a"), scope=own)
        self.receive_list(100, scope=other)
        self.cache.advance(other, "100", "5000")
        self.cache.advance(everything, "100", "6000")
        self.cache.upsert(PODS, POD, pod("b", 7000, namespace="m"))
        self.receive_list(8000, scope=Scope(PODS, "n", "app=web"))
        self.assertEqual(Read(["a"], "100", True), await self.read(own))
        self.assertEqual(Read(["b"], "5000", True), await self.read(other))
        self.receive_list(9000, pod("a"), pod("b", 7000, namespace="m"))
        self.assertEqual(Read(["a"], "9000", True), await self.read(own))
        self.cache.advance(own, "100", "9001")
        self.assertEqual("9001", (await self.read(own)).version)
        self.assertEqual("9000", (await self.read(other)).version)

    async def test_single_objects_are_no_list(self):
        """Objects that were only read individually form an incomplete list."""
        self.cache.upsert(PODS, POD, pod("a", 3))
        self.assertEqual(Read(["a"], "3", False), await self.read())

    async def test_an_object_of_an_incomplete_list(self):
        """A list of one name has the version of the object, whatever is known of others."""
        name = Scope(PODS, "n", "", "metadata.name=a")
        self.cache.upsert(PODS, POD, pod("a", 50))
        self.receive_list(900, pod("b", 900, namespace="m"), scope=Scope(PODS, "m"))
        self.assertEqual(Read(["a"], "50", False), await self.read(name))
        self.assertEqual(Read(["a"], "900", False), await self.read(Scope(PODS, "n")))
        self.cache.upsert(PODS, POD, pod("a", 40, namespace="l"))
        everywhere = name._replace(namespace="")
        self.assertEqual(Read(["a", "a"], "40", False), await self.read(everywhere))
        self.receive_list(950, pod("a", 50), scope=name)
        self.assertEqual(Read(["a"], "950", True), await self.read(name))

    async def test_a_list_that_does_not_end(self):
        """A body that was aborted changes nothing."""
        self.receive_list(5, pod("a"))
        listing = self.cache.begin_list(Scope(PODS), "")
        listing.add([pod("b")])
        self.assertEqual(["a"], (await self.read()).names)
        listing.abandon()
        self.assertEqual(["a"], (await self.read()).names)

    async def test_snapshots(self):
        """A list that is being read does not change."""
        self.receive_list(5, pod("a"), pod("b"))
        listed = await self.cache.list(Scope(PODS))
        self.receive_list(6, pod("c", 6))
        self.assertEqual([1, 1], [int(item.version) for item in await self.items(listed)])
        self.assertEqual(["c"], (await self.read()).names)

    async def test_pieces(self):
        """A large list is read in pieces."""
        self.receive_list(5, *(pod(f"p{n}", body=b"x" * 100_000) for n in range(9)))
        listed = await self.cache.list(Scope(PODS))
        first = await listed.read()
        self.assertTrue(1 <= len(first) < 9)
        self.assertEqual(9, len(first) + len(await self.items(listed)))

    # -- pages ---------------------------------------------------------------------------------

    async def test_pages(self):
        """The pages of a list together replace the previous list."""
        self.receive_list(4, pod("old"))
        self.receive_list(5, pod("a"), next_token="2")
        self.receive_list(5, pod("b"), token="2", next_token="3")
        self.assertEqual(["a", "b", "old"], (await self.read()).names)
        self.receive_list(5, pod("c"), token="3")
        self.assertEqual(Read(["a", "b", "c"], "5", True), await self.read())

    async def test_pages_that_do_not_end(self):
        """The first pages alone do not form a complete list."""
        self.receive_list(5, pod("a"), next_token="2")
        self.assertEqual(Read(["a"], "5", False), await self.read())

    async def test_the_last_page_alone(self):
        """A last page without the first pages removes nothing and completes nothing."""
        self.receive_list(4, pod("old"))
        self.receive_list(5, pod("z"), token="unknown")
        self.assertEqual(["old", "z"], (await self.read()).names)
        other = Scope(PODS._replace(client="other"))
        self.receive_list(5, pod("z"), token="unknown", scope=other)
        self.assertFalse((await self.read(other)).complete)

    # -- scopes --------------------------------------------------------------------------------

    async def test_namespaces(self):
        """A list of a namespace replaces only the objects of that namespace."""
        self.receive_list(5, pod("a"), pod("x", namespace="m"))
        self.receive_list(6, pod("b"), scope=Scope(PODS, "n"))
        self.assertEqual(["x", "b"], (await self.read()).names)
        self.assertEqual(Read(["x"], "5", True), await self.read(Scope(PODS, "m")))
        other = PODS._replace(client="other")
        self.receive_list(6, pod("b"), scope=Scope(other, "n"))
        self.assertEqual(Read([], "6", False), await self.read(Scope(other, "m")))
        self.assertFalse((await self.read(Scope(other))).complete)

    async def test_selectors(self):
        """Selectors are evaluated when a list is read."""
        self.receive_list(5, pod("a", app="web"), pod("b", app="db"), pod("c", node="edge-2"))
        for labels, fields, names in (
            ("app=web", "", ["a"]),
            ("app in (web,db)", "metadata.name!=a", ["b"]),
            ("", "spec.nodeName=edge-1", ["a", "b"]),
            ("", "metadata.name=c", ["c"]),
            ("app=none", "", []),
        ):
            scope = Scope(PODS, "", labels, fields)
            self.assertEqual(Read(names, "5", True), await self.read(scope))

    async def test_selected_lists(self):
        """Lists with different selectors of one client are independent."""
        web, db = Scope(PODS, "", "app=web"), Scope(PODS, "", "app=db")
        self.receive_list(5, pod("a", app="web"), pod("b", app="web"), scope=web)
        self.receive_list(6, pod("c", app="db"), scope=db)
        self.receive_list(7, pod("a", app="web"), scope=web)
        self.assertEqual(
            (["a"], True), ((await self.read(web)).names, (await self.read(web)).complete)
        )
        self.assertEqual(
            (["c"], True), ((await self.read(db)).names, (await self.read(db)).complete)
        )
        everything = await self.read()
        self.assertEqual((["a", "c"], False), (everything.names, everything.complete))

    async def whole(self, *scopes):
        """Return for each scope whether it is complete."""
        return [(await self.read(scope)).complete for scope in scopes]

    async def test_leaving_a_selection(self):
        """An object that left a selection may exist: other scopes with it are incomplete."""
        one = pod("a", 90, app="web", tier="front")
        web, front, back = (
            Scope(PODS, "", text) for text in ("app=web", "tier=front", "tier=back")
        )
        everything, own, other = Scope(PODS), Scope(PODS, "n"), Scope(PODS, "m")
        web_here, name = web._replace(namespace="n"), own._replace(field_selector="metadata.name=a")
        scopes = everything, own, front, name, web, web_here, back, other
        for scope in scopes:
            self.receive_list(100, *([] if scope in (back, other) else [one]), scope=scope)
        self.cache.remove(web, one._replace(version="150"))
        self.cache.advance(web, "100", "150")
        # Scopes within the selection, and scopes that never had the object, stay complete.
        self.assertEqual([False] * 4 + [True] * 4, await self.whole(*scopes))
        self.assertEqual(Read([], "150", True), await self.read(web))
        self.cache.advance(front, "100", "149")
        self.assertFalse((await self.read(front)).complete)
        self.cache.upsert(PODS, POD, pod("a", 150, tier="front"))
        self.cache.advance(front, "100", "150")
        self.assertEqual(Read(["a"], "150", True), await self.read(front))
        self.receive_list(140, scope=everything)
        self.assertEqual([False, False], await self.whole(everything, own))
        self.receive_list(151, pod("a", 150, tier="front"), scope=everything)
        self.assertEqual([True] * 8, await self.whole(*scopes))

    async def test_leaving_a_selection_by_a_list(self):
        """The same applies to objects that are missing from a list with a selector."""
        web, other = Scope(PODS, "", "app=web"), Scope(PODS, "m")
        self.receive_list(100, pod("a", 90, app="web"))
        self.receive_list(100, scope=other)
        self.receive_list(150, scope=web)
        self.assertEqual([False, True, True], await self.whole(Scope(PODS), web, other))
        self.cache.advance(Scope(PODS), "100", "150")
        self.assertEqual([True, True, True], await self.whole(Scope(PODS), web, other))

    async def test_a_list_of_a_server_that_lags(self):
        """A late list does not restore objects that a newer list or page has removed."""
        here = Scope(PODS, "n")
        for scope in (Scope(PODS), here):
            self.receive_list(200, pod("a", 90), pod("b", 90))
            self.receive_list(400, pod("a", 90))
            self.receive_list(300, pod("a", 90), pod("b", 90), pod("c", 250), scope=scope)
            self.assertEqual(Read(["a"], "400", True), await self.read())
            self.receive_list(300, pod("a", 90), pod("b", 90), scope=scope, next_token="more")
            self.receive_list(300, pod("c", 250), scope=scope, token="more")
            self.assertEqual(Read(["a"], "400", True), await self.read(here))
        # An object that is newer than the list is not known to be deleted.
        self.receive_list(500, pod("a", 90), pod("b", 450), scope=here)
        self.assertEqual(Read(["a", "b"], "500", True), await self.read(here))
        # It is not incomplete because of a selection in another namespace, either.
        self.receive_list(550, scope=Scope(PODS, "n", "", "metadata.name=b"))
        self.receive_list(600, scope=Scope(PODS, "m", "app=web"))
        self.receive_list(520, pod("a", 90), pod("b", 450), scope=here)
        self.assertEqual(Read(["a"], "520", True), await self.read(here))

    async def test_a_list_after_a_restore(self):
        """After a restore of etcd versions are lower; a list with a newer version stores them."""
        self.receive_list(400, pod("a", 90), pod("b", 350), pod("c", 360))
        old = pod("b", 80, app="old")
        self.receive_list(359, pod("a", 90), old, pod("c", 70))
        self.assertEqual("80", (await self.cache.get(PODS, "n", "b")).item.version)
        self.assertEqual("360", (await self.cache.get(PODS, "n", "c")).item.version)
        self.receive_list(401, pod("a", 90), old, pod("c", 70), pod("d", 75))
        self.assertEqual(Read(["a", "b", "c", "d"], "401", True), await self.read())
        for one in (old, pod("c", 70)):
            self.assertEqual(one, (await self.cache.get(PODS, "n", one.name)).item)

    async def test_a_late_list_of_objects_that_left(self):
        """A late list is incomplete if it has objects that left a newer list's selection."""
        web, other = Scope(PODS, "", "app=web"), Scope(PODS, "m")
        self.receive_list(400, scope=web)
        self.receive_list(300, scope=other)
        self.receive_list(300, pod("a", 90, app="web"), pod("b", 90))
        self.assertEqual([True, False, True], await self.whole(web, Scope(PODS), other))
        self.assertEqual(["b"], (await self.read()).names)
        self.cache.advance(Scope(PODS), "300", "400")
        self.assertEqual(Read(["b"], "400", True), await self.read())

    async def test_what_leaves_between_pages(self):
        """The same applies if an earlier page had objects that the other list has removed."""
        web, own = Scope(PODS, "", "app=web"), Scope(PODS, "n", "app=web")
        for scope, whole in ((Scope(PODS), False), (own, True)):
            self.receive_list(300, pod("a", 90, app="web"), scope=scope, next_token="more")
            self.receive_list(400, scope=web)
            self.receive_list(300, pod("b", 90, app="web"), scope=scope, token="more")
            self.assertEqual([True, whole], await self.whole(web, scope))
            self.assertEqual([], (await self.read(web)).names)

    async def test_leaving_what_lasts(self):
        """An object that left a name, a namespace or its node no longer exists."""
        one, scopes = pod("a", 90), (Scope(PODS), Scope(PODS, "n", "", "metadata.name=b"))
        for version, fields in ((150, "metadata.name=a"), (250, "spec.nodeName=edge-1")):
            for scope in scopes:
                self.receive_list(
                    version - 50, *([one] if scope == Scope(PODS) else []), scope=scope
                )
            self.cache.remove(Scope(PODS, "n", "", fields), one._replace(version=str(version)))
            self.assertEqual([True, True], await self.whole(*scopes))
            self.assertIsNone(await self.cache.get(PODS, "n", "a"))
            one = one._replace(version=str(version + 10))
        self.receive_list(300, pod("a", 290, node=""))
        waiting = Scope(PODS, "", "", "spec.nodeName=")
        self.cache.remove(waiting, pod("a", 350, node=""))
        self.assertEqual([False], await self.whole(Scope(PODS)))

    # -- clients -------------------------------------------------------------------------------

    async def test_forgotten_clients(self):
        """Clients that are no longer cached are evicted, whatever owner their tokens have."""
        for client in ("a", "a owner", "b", "b owner"):
            self.receive_list(5, pod(), scope=Scope(PODS._replace(client=client)))
        self.cache.record_use(PODS._replace(client="a"))
        self.cache.evict(lambda component: component == "b")
        for client, there in (("a", False), ("a owner", False), ("b", True), ("b owner", True)):
            read = await self.read(Scope(PODS._replace(client=client)))
            self.assertEqual(there, read is not None, client)

    async def test_documents_of_all(self):
        """Shared documents stay, whichever clients are evicted."""
        document = CachedDocument("application/json", b"{}")
        self.cache.store_document("", "/version", "json", document)
        self.receive_list(5, pod())
        self.cache.evict(lambda component: False)
        self.assertIsNone(await self.read())
        self.assertEqual(document, await self.cache.document("", "/version", "json"))

    # -- documents, events and tokens ----------------------------------------------------------

    async def test_documents(self):
        """A document is stored by client, path and form; a later one replaces it."""
        for body in (b"old", b"new"):
            self.cache.store_document(
                "", "/version", "json", CachedDocument("application/json", body)
            )
        found = await self.cache.document("", "/version", "json")
        self.assertEqual(CachedDocument("application/json", b"new"), found)
        for key in (("a", "/version", "json"), ("", "/api", "json"), ("", "/version", "x")):
            self.assertIsNone(await self.cache.document(*key))

    async def test_events(self):
        """Events are stored in order until they are dropped."""
        for n in range(3):
            whose = ("token", "owner") if n else ("",)
            self.cache.store_event(f"/{n}", "application/json", b"%d" % n, *whose)
        first, second = await self.cache.stored_events(2)
        self.assertEqual(("/0", "application/json", b"0", "", ""), first[1:])
        self.assertEqual(("/1", "application/json", b"1", "token", "owner"), second[1:])
        self.cache.delete_event(first.id)
        self.assertEqual(["/1", "/2"], [event.path for event in await self.cache.stored_events(9)])

    async def test_tokens(self):
        """A token has an owner after it was accepted, until it expires or is rejected."""
        self.assertIsNone(await self.cache.token_owner(b"digest"))
        self.cache.store_token(b"digest", "somebody", math.inf)
        self.assertEqual("somebody", await self.cache.token_owner(b"digest"))
        self.cache.delete_token(b"digest")
        self.assertIsNone(await self.cache.token_owner(b"digest"))

    async def test_expired_tokens(self):
        """A token that has expired has no owner."""
        self.cache.store_token(b"old", "somebody", 999.0)
        self.cache.store_token(b"new", "somebody", 1001.0)
        self.assertIsNone(await self.cache.token_owner(b"old"))
        self.assertEqual("somebody", await self.cache.token_owner(b"new"))
