"""Lists in pages and in tables, online and then offline."""

from __future__ import annotations

from tests.e2e.hub.clients import TABLE_FIRST, contents, names
from tests.e2e.hub.cloud import Cloud
from tests.e2e.hub.node_requests import ALL_PODS, SERVICES
from tests.e2e.hub.programs import Hub
from tests.e2e.hub.support import HubTestCase

MANY = 1200
PAGE = 500


class PageTests(HubTestCase):
    """Pages."""

    async def start_furnished(self) -> tuple[Cloud, Hub]:
        """Start with more pods than fit in two pages; the hub starts when all exist.

        While they are created, the API, which is in this process, does not respond.
        """
        cloud = await self.start_cloud()
        for number in range(MANY):
            cloud.add_pod(f"web-{number:04}")
        return cloud, await self.start_hub(cloud)

    async def all_pages(self, client, path: str, limit: int):
        """List page by page; return all items."""
        items, token = [], ""
        while True:
            query = {"limit": str(limit), **({"continue": token} if token else {})}
            page = await client.get(path, **query)
            self.assertLessEqual(len(page["items"]), limit)
            items += page["items"]
            token = page["metadata"].get("continue", "")
            if not token:
                return {"items": items}

    async def test_pages_are_one_list(self) -> None:
        """A client that has read all pages online gets all objects offline."""
        cloud, hub = await self.start_furnished()
        client = self.client(hub, "flanneld")
        online = await self.all_pages(client, ALL_PODS, PAGE)
        self.assertEqual(len(online["items"]), MANY)
        await self.disconnect(cloud, hub)
        complete = await client.get(ALL_PODS)
        self.assertEqual(contents(complete), contents(online))
        self.assertEqual(contents(await self.all_pages(client, ALL_PODS, PAGE)), contents(online))

    async def test_one_page_does_not_replace_the_list(self) -> None:
        """A client that reads the first page of a complete list again still has all of it."""
        cloud, hub = await self.start_furnished()
        client = self.client(hub, "flanneld")
        await client.get(ALL_PODS)
        first = await client.get(ALL_PODS, limit=str(PAGE))
        self.assertEqual(len(first["items"]), PAGE)
        await self.disconnect(cloud, hub)
        self.assertEqual(len((await client.get(ALL_PODS))["items"]), MANY)

    async def test_objects_deleted_between_paged_lists_are_removed(self) -> None:
        """The last page removes objects of the earlier list that no page has."""
        cloud, hub = await self.start_furnished()
        client = self.client(hub, "flanneld")
        await client.get(ALL_PODS)
        for number in (0, PAGE, MANY - 1):
            cloud.remove("pods", f"web-{number:04}", "default")
        cloud.add_pod("new")
        online = await self.all_pages(client, ALL_PODS, PAGE)
        await self.disconnect(cloud, hub)
        self.assertEqual(names(await client.get(ALL_PODS)), names(online))

    async def test_limit_works_for_every_kind(self) -> None:
        """Services in pages of two all arrive, each once."""
        cloud, hub = await self.start()
        for number in range(5):
            cloud.add("services", f"web-{number}", "default", spec={"clusterIP": "None"})
        client = self.client(hub, "kube-proxy")
        online = await client.get(SERVICES)
        await self.disconnect(cloud, hub)
        paged = await self.all_pages(client, SERVICES, 2)
        self.assertEqual(contents(paged), contents(online))


class TableTests(HubTestCase):
    """The Tables of ``kubectl get``."""

    async def test_a_table_that_was_seen_is_the_same_offline(self) -> None:
        """Columns and cells are those of the API."""
        cloud, hub = await self.start()
        for number in range(3):
            cloud.add("services", f"web-{number}", "default", spec={"clusterIP": "None"})
        client = self.client(hub, "flanneld", TABLE_FIRST)
        online = await client.get(SERVICES)
        self.assertEqual(online["kind"], "Table")
        await self.disconnect(cloud, hub)
        offline = await client.get(SERVICES)
        self.assertEqual(offline["kind"], "Table")
        self.assertEqual(offline["columnDefinitions"], online["columnDefinitions"])
        self.assertEqual(
            [row["cells"][0] for row in offline["rows"]],
            [row["cells"][0] for row in online["rows"]],
        )

    async def test_a_table_is_made_of_objects(self) -> None:
        """From cached objects a Table has at least the name and the age."""
        cloud, hub = await self.start()
        cloud.add("services", "web", "default", spec={"clusterIP": "None"})
        await self.client(hub, "flanneld").get(SERVICES)
        await self.disconnect(cloud, hub)
        table = await self.client(hub, "flanneld", TABLE_FIRST).get(SERVICES)
        self.assertEqual((table["kind"], table["apiVersion"]), ("Table", "meta.k8s.io/v1"))
        columns = [one["name"] for one in table["columnDefinitions"]]
        self.assertEqual(columns[:1], ["Name"])
        self.assertIn("Age", columns)
        [web] = [row for row in table["rows"] if row["cells"][0] == "web"]
        self.assertRegex(web["cells"][columns.index("Age")], r"\A\d+[smh]")
        self.assertEqual(web["object"]["kind"], "PartialObjectMetadata")
