"""What every cache does, the one on the disk and the one in memory alike."""

from __future__ import annotations

import math
from dataclasses import dataclass

from yurttunnel.hub.cache.interfaces import Collection, KeptDocument, Scope, Stored
from yurttunnel.hub.media.interfaces import Item, ListMeta, TypeMeta

PODS = Collection("kubelet", "pods.v1.core", "json")
POD = TypeMeta("v1", "Pod")


def pod(name="p", version=1, namespace="n", body=b"{}", node="edge-1", **labels):
    """Make an item."""
    return Item(namespace, name, str(version), labels, node, body)


def page(version, token="", remaining=None):
    """Make what a list of pods says beside its items."""
    return ListMeta(POD, str(version), token, remaining)


@dataclass
class Read:
    """A list that has been read to its end."""

    names: list[str]
    version: str
    complete: bool


class CacheContract:
    """A mixin for tests; ``make_cache`` returns an ``ICache``, or a coroutine of one.

    The time of day of its clock is 1,000 seconds.
    """

    async def setUp(self):
        """Make the cache."""
        made = self.make_cache()
        self.cache = await made if hasattr(made, "__await__") else made

    def take_list(self, version, *items, scope=None, token="", next_token=""):
        """Have a list, or a page of it, come in."""
        listing = self.cache.begin_list(scope or Scope(PODS), token)
        listing.add(items)
        listing.complete(page(version, next_token))

    async def read(self, scope=None):
        """Read a list."""
        listed = await self.cache.list(scope or Scope(PODS))
        known = await self.cache.known_to(scope or Scope(PODS))
        if listed is None:
            self.assertIsNone(known)
            return None
        self.assertEqual(listed.meta.version if listed.complete else None, known)
        items = await self.items(listed)
        self.assertEqual([len(item.body) for item in items], list(listed.sizes))
        self.assertEqual(POD, listed.meta.type)
        return Read([item.name for item in items], listed.meta.version, listed.complete)

    async def items(self, listed):
        """Read all items, and close."""
        items = []
        while piece := await listed.read():
            items += piece
        listed.close()
        return items

    # -- objects -------------------------------------------------------------------------------

    async def test_an_object(self):
        """What was taken is got, with all that is looked at."""
        item = pod(version=7, body=b"\0\xff body", app="web", ü="")
        self.cache.upsert(PODS, POD, item)
        self.assertEqual(Stored(POD, item), await self.cache.get(PODS, "n", "p"))

    async def test_unknown_objects(self):
        """What nobody told of is not there."""
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
        """An object never becomes older; versions are compared as numbers."""
        self.cache.upsert(PODS, POD, pod(version=10, body=b'"new"'))
        self.cache.upsert(PODS, POD, pod(version=9, body=b'"old"'))
        found = await self.cache.get(PODS, "n", "p")
        self.assertEqual((b'"new"', "10"), (found.item.body, found.item.version))

    async def test_the_end_of_an_object(self):
        """What has ended is neither got nor listed."""
        self.take_list(5, pod("a"), pod("b"))
        self.cache.remove(Scope(PODS), pod("a", ""))
        self.assertIsNone(await self.cache.get(PODS, "n", "a"))
        self.assertEqual(["b"], (await self.read()).names)

    async def test_an_end_with_a_version(self):
        """An end that has a version is that of older objects only."""
        for name, version in (("older", 4), ("same", 5), ("newer", 6)):
            self.cache.upsert(PODS, POD, pod(name, version))
            self.cache.remove(Scope(PODS), pod(name, 5))
        self.assertIsNone(await self.cache.get(PODS, "n", "older"))
        self.assertIsNotNone(await self.cache.get(PODS, "n", "same"))
        self.assertIsNotNone(await self.cache.get(PODS, "n", "newer"))

    async def test_an_end_before_anything_is_written(self):
        """What has come and gone leaves a collection that is known, but no list of it."""
        self.cache.upsert(PODS, POD, pod("a", 4))
        self.cache.remove(Scope(PODS), pod("a", 5))
        self.assertEqual(Read([], "5", False), await self.read())

    async def test_an_end_in_all_forms(self):
        """An object can end in all forms and views of one client, and of that alone."""
        forms = (PODS, PODS._replace(form="json:Table.v1"), PODS._replace(view="status.phase=x"))
        others = (PODS._replace(client="kube-proxy"), PODS._replace(resource="nodes.v1.core"))
        for collection in (*forms, *others):
            self.cache.upsert(collection, POD, pod("a", 4))
            self.cache.upsert(collection, POD, pod("b", 4))
            self.cache.upsert(collection, POD, pod("c", 5))
        self.cache.forget_object(PODS.client, PODS.resource, "n", "a")
        self.cache.forget_object(PODS.client, PODS.resource, "n", "b", "5")
        self.cache.forget_object(PODS.client, PODS.resource, "n", "c", "5")
        for collection in forms:
            self.assertEqual(["c"], (await self.read(Scope(collection))).names)
        for collection in others:
            self.assertEqual(["a", "b", "c"], (await self.read(Scope(collection))).names)

    # -- lists ---------------------------------------------------------------------------------

    async def test_unknown_lists(self):
        """Of what nobody told of there is no list, which is not the same as an empty one."""
        self.assertIsNone(await self.read())
        self.take_list(5)
        self.assertEqual(Read([], "5", True), await self.read())
        self.assertIsNone(await self.read(Scope(PODS._replace(client="kube-proxy"))))

    async def test_a_list(self):
        """A list is in the order of namespaces and names, and replaces the one before."""
        self.take_list(5, pod("b"), pod("a"), pod("c", namespace="m"))
        self.assertEqual(Read(["c", "a", "b"], "5", True), await self.read())
        self.take_list(6, pod("b"))
        self.assertEqual(Read(["b"], "6", True), await self.read())

    async def test_objects_of_watches(self):
        """What a watch tells belongs to the list; its version grows by what is told of all."""
        self.take_list(5, pod("a"))
        self.cache.upsert(PODS, POD, pod("b", 8))
        self.assertEqual(Read(["a", "b"], "5", True), await self.read())
        self.cache.see(Scope(PODS), "5", "8")
        self.assertEqual(Read(["a", "b"], "8", True), await self.read())

    async def test_bookmarks(self):
        """A list is at the version up to which a watch has told of everything."""
        self.cache.see(Scope(PODS), "1", "3")
        self.assertIsNone(await self.read())
        self.take_list(5, pod("a"))
        self.cache.see(Scope(PODS), "5", "9")
        self.cache.see(Scope(PODS), "5", "7")
        self.assertEqual(Read(["a"], "9", True), await self.read())

    async def test_watches_that_began_later(self):
        """What a watch tells makes a list newer only if that is known up to the watch's start."""
        self.take_list(10, pod("a"), pod("gone"))
        self.cache.see(Scope(PODS), "20", "30")
        self.assertEqual(Read(["a", "gone"], "10", True), await self.read())
        # Two that are told of at once, each by the one before it.
        self.cache.see(Scope(PODS), "10", "15")
        self.cache.see(Scope(PODS), "15", "18")
        self.cache.see(Scope(PODS), "19", "30")
        self.cache.see(Scope(PODS), "10", "16")
        self.assertEqual("18", (await self.read()).version)
        self.take_list(20, pod("a"))
        self.cache.see(Scope(PODS), "20", "30")
        self.assertEqual(Read(["a"], "30", True), await self.read())

    async def test_versions_never_go_back(self):
        """The version of a list is the largest that it ever had."""
        self.take_list(5, pod("a"))
        self.cache.see(Scope(PODS), "5", "9")
        self.take_list(7, pod("a"))
        self.assertEqual(Read(["a"], "9", True), await self.read())

    async def test_versions_of_scopes(self):
        """A list has the version of what covers it, whatever is known of others."""
        everything, own, other = Scope(PODS), Scope(PODS, "n"), Scope(PODS, "m")
        self.take_list(100, pod("a"), scope=own)
        self.take_list(100, scope=other)
        self.cache.see(other, "100", "5000")
        self.cache.see(everything, "100", "6000")
        self.cache.upsert(PODS, POD, pod("b", 7000, namespace="m"))
        self.take_list(8000, scope=Scope(PODS, "n", "app=web"))
        self.assertEqual(Read(["a"], "100", True), await self.read(own))
        self.assertEqual(Read(["b"], "5000", True), await self.read(other))
        self.take_list(9000, pod("a"), pod("b", 7000, namespace="m"))
        self.assertEqual(Read(["a"], "9000", True), await self.read(own))
        self.cache.see(own, "100", "9001")
        self.assertEqual("9001", (await self.read(own)).version)
        self.assertEqual("9000", (await self.read(other)).version)

    async def test_single_objects_are_no_list(self):
        """What was only got is known to be a part."""
        self.cache.upsert(PODS, POD, pod("a", 3))
        self.assertEqual(Read(["a"], "3", False), await self.read())

    async def test_an_object_of_an_incomplete_list(self):
        """By its name it is listed as of its version, whatever is known of others."""
        name = Scope(PODS, "n", "", "metadata.name=a")
        self.cache.upsert(PODS, POD, pod("a", 50))
        self.take_list(900, pod("b", 900, namespace="m"), scope=Scope(PODS, "m"))
        self.assertEqual(Read(["a"], "50", False), await self.read(name))
        self.assertEqual(Read(["a"], "900", False), await self.read(Scope(PODS, "n")))
        self.cache.upsert(PODS, POD, pod("a", 40, namespace="l"))
        everywhere = name._replace(namespace="")
        self.assertEqual(Read(["a", "a"], "40", False), await self.read(everywhere))
        self.take_list(950, pod("a", 50), scope=name)
        self.assertEqual(Read(["a"], "950", True), await self.read(name))

    async def test_a_list_that_does_not_end(self):
        """A body that broke off changes nothing."""
        self.take_list(5, pod("a"))
        listing = self.cache.begin_list(Scope(PODS), "")
        listing.add([pod("b")])
        self.assertEqual(["a"], (await self.read()).names)
        listing.abandon()
        self.assertEqual(["a"], (await self.read()).names)

    async def test_snapshots(self):
        """A list that is read is what it was when it was asked for."""
        self.take_list(5, pod("a"), pod("b"))
        listed = await self.cache.list(Scope(PODS))
        self.take_list(6, pod("c", 6))
        self.assertEqual([1, 1], [int(item.version) for item in await self.items(listed)])
        self.assertEqual(["c"], (await self.read()).names)

    async def test_pieces(self):
        """A large list is read in pieces."""
        self.take_list(5, *(pod(f"p{n}", body=b"x" * 100_000) for n in range(9)))
        listed = await self.cache.list(Scope(PODS))
        first = await listed.read()
        self.assertTrue(1 <= len(first) < 9)
        self.assertEqual(9, len(first) + len(await self.items(listed)))

    # -- pages ---------------------------------------------------------------------------------

    async def test_pages(self):
        """All pages of a list together replace what was there."""
        self.take_list(4, pod("old"))
        self.take_list(5, pod("a"), next_token="2")
        self.take_list(5, pod("b"), token="2", next_token="3")
        self.assertEqual(["a", "b", "old"], (await self.read()).names)
        self.take_list(5, pod("c"), token="3")
        self.assertEqual(Read(["a", "b", "c"], "5", True), await self.read())

    async def test_pages_that_do_not_end(self):
        """The first pages alone are no whole list."""
        self.take_list(5, pod("a"), next_token="2")
        self.assertEqual(Read(["a"], "5", False), await self.read())

    async def test_the_last_page_alone(self):
        """A page whose beginning nobody saw removes nothing and makes nothing whole."""
        self.take_list(4, pod("old"))
        self.take_list(5, pod("z"), token="unknown")
        self.assertEqual(["old", "z"], (await self.read()).names)
        other = Scope(PODS._replace(client="other"))
        self.take_list(5, pod("z"), token="unknown", scope=other)
        self.assertFalse((await self.read(other)).complete)

    # -- scopes --------------------------------------------------------------------------------

    async def test_namespaces(self):
        """A list of a namespace replaces that namespace; of others, it says nothing."""
        self.take_list(5, pod("a"), pod("x", namespace="m"))
        self.take_list(6, pod("b"), scope=Scope(PODS, "n"))
        self.assertEqual(["x", "b"], (await self.read()).names)
        self.assertEqual(Read(["x"], "5", True), await self.read(Scope(PODS, "m")))
        other = PODS._replace(client="other")
        self.take_list(6, pod("b"), scope=Scope(other, "n"))
        self.assertEqual(Read([], "6", False), await self.read(Scope(other, "m")))
        self.assertFalse((await self.read(Scope(other))).complete)

    async def test_selectors(self):
        """Selectors are evaluated when a list is read."""
        self.take_list(5, pod("a", app="web"), pod("b", app="db"), pod("c", node="edge-2"))
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
        """Two selectors of one client do not disturb each other."""
        web, db = Scope(PODS, "", "app=web"), Scope(PODS, "", "app=db")
        self.take_list(5, pod("a", app="web"), pod("b", app="web"), scope=web)
        self.take_list(6, pod("c", app="db"), scope=db)
        self.take_list(7, pod("a", app="web"), scope=web)
        self.assertEqual(
            (["a"], True), ((await self.read(web)).names, (await self.read(web)).complete)
        )
        self.assertEqual(
            (["c"], True), ((await self.read(db)).names, (await self.read(db)).complete)
        )
        everything = await self.read()
        self.assertEqual((["a", "c"], False), (everything.names, everything.complete))

    async def whole(self, *scopes):
        """Tell of each scope whether it is complete."""
        return [(await self.read(scope)).complete for scope in scopes]

    async def test_leaving_a_selection(self):
        """What has left one selection may be there still: others that had it lack it until then."""
        one = pod("a", 90, app="web", tier="front")
        web, front, back = (
            Scope(PODS, "", text) for text in ("app=web", "tier=front", "tier=back")
        )
        everything, own, other = Scope(PODS), Scope(PODS, "n"), Scope(PODS, "m")
        web_here, name = web._replace(namespace="n"), own._replace(field_selector="metadata.name=a")
        scopes = everything, own, front, name, web, web_here, back, other
        for scope in scopes:
            self.take_list(100, *([] if scope in (back, other) else [one]), scope=scope)
        self.cache.remove(web, one._replace(version="150"))
        self.cache.see(web, "100", "150")
        # Those within the selection do not have it, and those that it was not in do not lack it.
        self.assertEqual([False] * 4 + [True] * 4, await self.whole(*scopes))
        self.assertEqual(Read([], "150", True), await self.read(web))
        self.cache.see(front, "100", "149")
        self.assertFalse((await self.read(front)).complete)
        self.cache.upsert(PODS, POD, pod("a", 150, tier="front"))
        self.cache.see(front, "100", "150")
        self.assertEqual(Read(["a"], "150", True), await self.read(front))
        self.take_list(140, scope=everything)
        self.assertEqual([False, False], await self.whole(everything, own))
        self.take_list(151, pod("a", 150, tier="front"), scope=everything)
        self.assertEqual([True] * 8, await self.whole(*scopes))

    async def test_leaving_a_selection_by_a_list(self):
        """So it is with what a list with a selector does not have any more."""
        web, other = Scope(PODS, "", "app=web"), Scope(PODS, "m")
        self.take_list(100, pod("a", 90, app="web"))
        self.take_list(100, scope=other)
        self.take_list(150, scope=web)
        self.assertEqual([False, True, True], await self.whole(Scope(PODS), web, other))
        self.cache.see(Scope(PODS), "100", "150")
        self.assertEqual([True, True, True], await self.whole(Scope(PODS), web, other))

    async def test_a_list_of_a_server_that_lags(self):
        """A list does not bring back what a newer one, or a page of such, has removed."""
        here = Scope(PODS, "n")
        for scope in (Scope(PODS), here):
            self.take_list(200, pod("a", 90), pod("b", 90))
            self.take_list(400, pod("a", 90))
            self.take_list(300, pod("a", 90), pod("b", 90), pod("c", 250), scope=scope)
            self.assertEqual(Read(["a"], "400", True), await self.read())
            self.take_list(300, pod("a", 90), pod("b", 90), scope=scope, next_token="more")
            self.take_list(300, pod("c", 250), scope=scope, token="more")
            self.assertEqual(Read(["a"], "400", True), await self.read(here))
        # What is newer than the list is not known to have gone.
        self.take_list(500, pod("a", 90), pod("b", 450), scope=here)
        self.assertEqual(Read(["a", "b"], "500", True), await self.read(here))
        # Nor does it lack what has left a selection of another namespace.
        self.take_list(550, scope=Scope(PODS, "n", "", "metadata.name=b"))
        self.take_list(600, scope=Scope(PODS, "m", "app=web"))
        self.take_list(520, pod("a", 90), pod("b", 450), scope=here)
        self.assertEqual(Read(["a"], "520", True), await self.read(here))

    async def test_a_list_after_a_restore(self):
        """As etcd was restored from a backup, objects are older; a list that is newer has them."""
        self.take_list(400, pod("a", 90), pod("b", 350), pod("c", 360))
        old = pod("b", 80, app="old")
        self.take_list(359, pod("a", 90), old, pod("c", 70))
        self.assertEqual("80", (await self.cache.get(PODS, "n", "b")).item.version)
        self.assertEqual("360", (await self.cache.get(PODS, "n", "c")).item.version)
        self.take_list(401, pod("a", 90), old, pod("c", 70), pod("d", 75))
        self.assertEqual(Read(["a", "b", "c", "d"], "401", True), await self.read())
        for one in (old, pod("c", 70)):
            self.assertEqual(one, (await self.cache.get(PODS, "n", one.name)).item)

    async def test_a_late_list_of_what_has_left(self):
        """What has left a newer list's selector may be there: the late one lacks it until then."""
        web, other = Scope(PODS, "", "app=web"), Scope(PODS, "m")
        self.take_list(400, scope=web)
        self.take_list(300, scope=other)
        self.take_list(300, pod("a", 90, app="web"), pod("b", 90))
        self.assertEqual([True, False, True], await self.whole(web, Scope(PODS), other))
        self.assertEqual(["b"], (await self.read()).names)
        self.cache.see(Scope(PODS), "300", "400")
        self.assertEqual(Read(["b"], "400", True), await self.read())

    async def test_what_leaves_between_pages(self):
        """So does one whose earlier page had what the selector's list has removed meanwhile."""
        web, own = Scope(PODS, "", "app=web"), Scope(PODS, "n", "app=web")
        for scope, whole in ((Scope(PODS), False), (own, True)):
            self.take_list(300, pod("a", 90, app="web"), scope=scope, next_token="more")
            self.take_list(400, scope=web)
            self.take_list(300, pod("b", 90, app="web"), scope=scope, token="more")
            self.assertEqual([True, whole], await self.whole(web, scope))
            self.assertEqual([], (await self.read(web)).names)

    async def test_leaving_what_lasts(self):
        """What goes from a name, a namespace or its node is not there any more."""
        one, scopes = pod("a", 90), (Scope(PODS), Scope(PODS, "n", "", "metadata.name=b"))
        for version, fields in ((150, "metadata.name=a"), (250, "spec.nodeName=edge-1")):
            for scope in scopes:
                self.take_list(version - 50, *([one] if scope == Scope(PODS) else []), scope=scope)
            self.cache.remove(Scope(PODS, "n", "", fields), one._replace(version=str(version)))
            self.assertEqual([True, True], await self.whole(*scopes))
            self.assertIsNone(await self.cache.get(PODS, "n", "a"))
            one = one._replace(version=str(version + 10))
        self.take_list(300, pod("a", 290, node=""))
        waiting = Scope(PODS, "", "", "spec.nodeName=")
        self.cache.remove(waiting, pod("a", 350, node=""))
        self.assertEqual([False], await self.whole(Scope(PODS)))

    # -- clients -------------------------------------------------------------------------------

    async def test_forgotten_clients(self):
        """Components that are kept no longer are forgotten, whoever owned their tokens."""
        for client in ("a", "a owner", "b", "b owner"):
            self.take_list(5, pod(), scope=Scope(PODS._replace(client=client)))
        self.cache.use(PODS._replace(client="a"))
        self.cache.forget(lambda component: component == "b")
        for client, there in (("a", False), ("a owner", False), ("b", True), ("b owner", True)):
            read = await self.read(Scope(PODS._replace(client=client)))
            self.assertEqual(there, read is not None, client)

    async def test_documents_of_all(self):
        """What all share stays, whichever clients are forgotten."""
        document = KeptDocument("application/json", b"{}")
        self.cache.keep_document("", "/version", "json", document)
        self.take_list(5, pod())
        self.cache.forget(lambda component: False)
        self.assertIsNone(await self.read())
        self.assertEqual(document, await self.cache.document("", "/version", "json"))

    # -- documents, events and tokens ----------------------------------------------------------

    async def test_documents(self):
        """A document is kept by who has it, its path and its form; a later one replaces it."""
        for body in (b"old", b"new"):
            self.cache.keep_document("", "/version", "json", KeptDocument("application/json", body))
        found = await self.cache.document("", "/version", "json")
        self.assertEqual(KeptDocument("application/json", b"new"), found)
        for key in (("a", "/version", "json"), ("", "/api", "json"), ("", "/version", "x")):
            self.assertIsNone(await self.cache.document(*key))

    async def test_events(self):
        """Events are kept in their order until they are dropped."""
        for n in range(3):
            whose = ("token", "owner") if n else ("",)
            self.cache.keep_event(f"/{n}", "application/json", b"%d" % n, *whose)
        first, second = await self.cache.kept_events(2)
        self.assertEqual(("/0", "application/json", b"0", "", ""), first[1:])
        self.assertEqual(("/1", "application/json", b"1", "token", "owner"), second[1:])
        self.cache.drop_event(first.id)
        self.assertEqual(["/1", "/2"], [event.path for event in await self.cache.kept_events(9)])

    async def test_tokens(self):
        """A token has an owner once it was accepted, until it expires or is refused."""
        self.assertIsNone(await self.cache.token_owner(b"digest"))
        self.cache.accept_token(b"digest", "somebody", math.inf)
        self.assertEqual("somebody", await self.cache.token_owner(b"digest"))
        self.cache.refuse_token(b"digest")
        self.assertIsNone(await self.cache.token_owner(b"digest"))

    async def test_expired_tokens(self):
        """A token that has expired has no owner any more."""
        self.cache.accept_token(b"old", "somebody", 999.0)
        self.cache.accept_token(b"new", "somebody", 1001.0)
        self.assertIsNone(await self.cache.token_owner(b"old"))
        self.assertEqual("somebody", await self.cache.token_owner(b"new"))
