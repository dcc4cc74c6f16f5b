"""Reads of a node while the cloud is not reachable: the last data that it has seen."""

from __future__ import annotations

import json

from twisted.internet.defer import Deferred, gatherResults

from tests.e2e.hub.clients import contents, names
from tests.e2e.hub.node_requests import ALL_PODS, CONFIG_MAPS, NODE_PATH, NODE_PODS
from tests.e2e.hub.programs import Hub
from tests.e2e.hub.support import HubTestCase

DEFAULT_PODS = "/api/v1/namespaces/default/pods"

NOT_THERE = (404, 503)
"""The statuses for an object that does not exist, or is not known."""


class ListTests(HubTestCase):
    """Lists, online and then offline."""

    async def test_a_list_has_the_same_objects_offline(self) -> None:
        """All fields of the objects are equal, and the version is not older than theirs."""
        cloud, hub = await self.start()
        for number in range(30):
            cloud.add_pod(f"web-{number}", labels={"number": str(number)})
        kubelet = self.client(hub)
        online = await kubelet.get(NODE_PODS)
        await self.disconnect(cloud, hub)
        offline = await kubelet.get(NODE_PODS)
        self.assertEqual(contents(offline), contents(online))
        self.assertEqual(
            (offline["kind"], offline["apiVersion"]), (online["kind"], online["apiVersion"])
        )
        self.assertGreaterEqual(version(offline), max(map(version, offline["items"])))

    async def test_watch_events_are_in_the_list(self) -> None:
        """Objects that were added, changed and deleted after the list are so offline."""
        cloud, hub = await self.start()
        for name in ("changes", "goes", "stays"):
            cloud.add_pod(name)
        kubelet = self.client(hub)
        listed = await kubelet.get(NODE_PODS)
        since = listed["metadata"]["resourceVersion"]
        watch = await kubelet.watch(NODE_PODS, resourceVersion=since)
        cloud.add_pod("comes")
        cloud.change("pods", "changes", "default", labels={"changed": "yes"})
        cloud.remove("pods", "goes", "default")
        await watch.wait_for_events(
            ("ADDED", "comes"), ("MODIFIED", "changes"), ("DELETED", "goes")
        )
        await self.disconnect(cloud, hub)
        offline = await kubelet.get(NODE_PODS)
        self.assertEqual(names(offline), ["changes", "comes", "stays"])
        self.assertEqual(contents(offline)[0]["metadata"]["labels"], {"changed": "yes"})
        await kubelet.refused(NOT_THERE, f"{DEFAULT_PODS}/goes")

    async def test_the_version_never_goes_back(self) -> None:
        """An offline list is not older than its client's state, even after a deletion."""
        cloud, hub = await self.start()
        cloud.add_pod("old")
        cloud.add_pod("new")
        kubelet = self.client(hub)
        listed = await kubelet.get(NODE_PODS)
        watch = await kubelet.watch(
            NODE_PODS, resourceVersion=listed["metadata"]["resourceVersion"]
        )
        deleted = cloud.remove("pods", "new", "default")
        await watch.wait_for_events(("DELETED", "new"))
        await self.disconnect(cloud, hub)
        offline = await kubelet.get(NODE_PODS)
        self.assertEqual(names(offline), ["old"])
        self.assertGreaterEqual(version(offline), version(deleted))

    async def test_a_resource_that_was_never_listed_is_an_error(self) -> None:
        """A kubelet that has never listed its pods gets an error, not an empty list."""
        cloud, hub = await self.start()
        cloud.add_pod("web")
        await self.disconnect(cloud, hub)
        await self.client(hub).refused(404, NODE_PODS)

    async def test_a_namespace_without_objects_has_an_empty_list(self) -> None:
        """Also for a namespace that was not requested alone; it is a list, not ``null``."""
        cloud, hub = await self.start()
        cloud.add("namespaces", "empty")
        cloud.add("configmaps", "settings", "default", data={})
        flannel = self.client(hub, "flanneld")
        await flannel.get("/api/v1/configmaps")
        self.assertEqual(
            (await flannel.get("/api/v1/namespaces/kube-system/services"))["items"], []
        )
        await self.disconnect(cloud, hub)
        for path in (
            "/api/v1/namespaces/empty/configmaps",
            "/api/v1/namespaces/kube-system/services",
            "/api/v1/configmaps?labelSelector=no%3Dsuch",
        ):
            self.assertEqual((await flannel.get(path))["items"], [], path)


class ObjectTests(HubTestCase):
    """Single objects, online and then offline."""

    async def test_an_object_of_a_list_can_be_read(self) -> None:
        """After a list each object can be read, and after a get it can be listed by name."""
        cloud, hub = await self.start()
        cloud.add_pod("web")
        cloud.using("reader", config_maps=["settings"])
        cloud.add("configmaps", "settings", "default", data={"color": "red"})
        kubelet = self.client(hub)
        listed = await kubelet.get(NODE_PODS)
        settings = await kubelet.get(f"{CONFIG_MAPS}/settings")
        await self.disconnect(cloud, hub)
        found = await kubelet.get(f"{DEFAULT_PODS}/web")
        kind = {"kind": "Pod", "apiVersion": "v1"}
        self.assertEqual(found, {**contents(listed)[1], **kind})
        self.assertEqual(await kubelet.get(f"{CONFIG_MAPS}/settings"), settings)

    async def test_a_missing_object_is_missing_offline(self) -> None:
        """The hub remembers a 404 that it has forwarded."""
        cloud, hub = await self.start()
        cloud.add_pod("web")
        kubelet, flannel = self.client(hub), self.client(hub, "flanneld")
        await kubelet.get(NODE_PODS)
        await flannel.get(ALL_PODS)
        cloud.remove("pods", "web", "default")
        for client in (kubelet, flannel):
            await client.refused(404, f"{DEFAULT_PODS}/web")
        await self.disconnect(cloud, hub)
        # A kubelet that has listed only its own pods does not know the others.
        await kubelet.refused(NOT_THERE, f"{DEFAULT_PODS}/web")
        failure = await flannel.refused(404, f"{DEFAULT_PODS}/web")
        self.assertEqual((failure["reason"], failure["details"]["name"]), ("NotFound", "web"))
        for client, path in ((kubelet, NODE_PODS), (flannel, ALL_PODS)):
            self.assertEqual((await client.ask(path)).body.find(b'"web"'), -1)

    async def test_many_reads_of_one_object_at_a_time_all_succeed(self) -> None:
        """Two hundred clients at the same time get the same object."""
        cloud, hub = await self.start()
        kubelet = self.client(hub)
        node = await kubelet.get(NODE_PATH)
        await self.disconnect(cloud, hub)
        responses = [Deferred.fromCoroutine(kubelet.get(NODE_PATH)) for _ in range(200)]
        for found in await gatherResults(responses, consumeErrors=True):
            self.assertEqual(found, node)


class ClientTests(HubTestCase):
    """Several clients, or several views of one."""

    async def test_each_client_gets_its_own_data(self) -> None:
        """Data of one program is not served to another."""
        cloud, hub = await self.start()
        cloud.add_pod("red", labels={"color": "red"})
        cloud.add_pod("blue", labels={"color": "blue"})
        red, blue = self.client(hub, "flanneld"), self.client(hub, "coredns")
        await red.get(DEFAULT_PODS, labelSelector="color=red")
        await blue.get(DEFAULT_PODS, labelSelector="color=blue")
        await self.disconnect(cloud, hub)
        self.assertEqual(names(await red.get(DEFAULT_PODS, labelSelector="color=red")), ["red"])
        self.assertEqual(names(await blue.get(DEFAULT_PODS, labelSelector="color=blue")), ["blue"])
        await red.refused(NOT_THERE, f"{DEFAULT_PODS}/blue")
        await blue.refused(NOT_THERE, f"{DEFAULT_PODS}/red")

    async def test_selections_of_one_client_do_not_disturb_each_other(self) -> None:
        """Lists with two selectors are both available."""
        cloud, hub = await self.start()
        for color in ("red", "blue"):
            for size in ("small", "large"):
                labels = {"color": color, "size": size}
                cloud.add_pod(f"{color}-{size}", labels=labels)
        client = self.client(hub, "flanneld")
        for color in ("red", "blue"):
            await client.get(ALL_PODS, labelSelector=f"color={color}")
        await self.disconnect(cloud, hub)
        for selector, expected in (
            ("color=red", ["red-large", "red-small"]),
            ("color=blue", ["blue-large", "blue-small"]),
        ):
            listed = await client.get(ALL_PODS, labelSelector=selector)
            self.assertEqual(names(listed), expected, selector)

    async def test_any_selector_applies_to_a_complete_list(self) -> None:
        """Labels, names, namespaces and nodes are evaluated locally."""
        cloud, hub = await self.start()
        cloud.add_pod("red", labels={"color": "red"})
        cloud.add_pod("blue", labels={"color": "blue"}, node="edge-2")
        cloud.add_pod("system", namespace="kube-system")
        client = self.client(hub, "flanneld")
        await client.get(ALL_PODS)
        await self.disconnect(cloud, hub)
        for query, expected in (
            ({}, ["blue", "red", "system"]),
            ({"labelSelector": "color"}, ["blue", "red"]),
            ({"labelSelector": "color!=red"}, ["blue", "system"]),
            ({"labelSelector": "color in (red,green)"}, ["red"]),
            ({"fieldSelector": "metadata.name=blue"}, ["blue"]),
            ({"fieldSelector": "metadata.namespace!=default"}, ["system"]),
            ({"fieldSelector": "spec.nodeName=edge-2"}, ["blue"]),
        ):
            self.assertEqual(names(await client.get(ALL_PODS, **query)), expected, query)
        self.assertEqual(names(await client.get(DEFAULT_PODS)), ["blue", "red"])


class PodsPageTests(HubTestCase):
    """The page ``/pods`` of the hub."""

    async def test_the_page_has_the_pods_that_kubelet_knows_offline(self) -> None:
        """It was read before, with another pod, and has the current state."""
        cloud, hub = await self.start()
        cloud.add_pod("goes")
        self.assertEqual(await self.pods(hub), ["goes"])
        cloud.remove("pods", "goes", "default")
        cloud.add_pod("comes")
        await self.client(hub).get(NODE_PODS)
        await self.disconnect(cloud, hub)
        self.assertEqual(await self.pods(hub), ["comes"])

    async def pods(self, hub: Hub) -> list[str]:
        """Return the names of the pods on the page."""
        status, body = await hub.get("/pods")
        self.assertEqual(status, 200, body)
        return names(json.loads(body))


def version(one) -> int:
    """Return the version of an object or a list."""
    return int(one["metadata"]["resourceVersion"])
