"""``yurt-hub-cfg``: which clients are cached, and to which clients filters apply."""

from __future__ import annotations

from tests.e2e.hub.clients import PROTOBUF_FIRST, names
from tests.e2e.hub.cloud import Cloud
from tests.e2e.hub.node_requests import ALL_PODS, SERVICES
from tests.e2e.hub.support import HubTestCase

NOTICED_SECONDS = 30.0
"""Changes take effect within some seconds, and at most every ten seconds (docs/filters.md)."""

CLOUD_ONLY = {"svc.openyurt.io/discard": "true"}


class ConfigurationTests(HubTestCase):
    """Changes while the hub runs."""

    def configure(self, cloud: Cloud, **data: str) -> None:
        """Write the configuration."""
        if "yurt-hub-cfg" in cloud.names("configmaps", "kube-system"):
            cloud.change("configmaps", "yurt-hub-cfg", "kube-system", data=data)
        else:
            cloud.add("configmaps", "yurt-hub-cfg", "kube-system", data=data)

    async def test_changed_list_of_cached_clients(self) -> None:
        """A listed client gets its data while offline; one that is no longer listed gets none."""
        cloud, hub = await self.start()
        cloud.add_pod("web")
        client = self.client(hub, "my-agent")

        async def is_cached() -> bool:
            await client.get(ALL_PODS)
            # Existing objects are written again.
            return await hub.metric("yurthub_cache_objects_total", result="unchanged") > before

        before = await hub.metric("yurthub_cache_objects_total", result="unchanged")
        self.configure(cloud, cache_agents="other, my-agent")
        await self.eventually(is_cached, "what the client sees is kept", NOTICED_SECONDS, 1.0)
        await self.settled(hub)
        await self.disconnect(cloud, hub)
        self.assertEqual(names(await client.get(ALL_PODS)), ["web"])
        await self.reconnect(cloud, hub)
        self.configure(cloud, cache_agents="other")
        await self.eventually(
            lambda: "was deleted" in hub.log, "the client is evicted", NOTICED_SECONDS
        )
        await client.get(ALL_PODS)
        await self.settled(hub)
        await self.disconnect(cloud, hub)
        await client.refused((404, 503), ALL_PODS)

    async def test_a_client_listed_during_a_watch_is_cached(self) -> None:
        """The watch of a client that is listed meanwhile ends; it lists again, and is cached."""
        cloud, hub = await self.start()
        cloud.add_pod("web")
        client = self.client(hub, "my-agent", PROTOBUF_FIRST)
        since = (await client.get(ALL_PODS))["metadata"]["resourceVersion"]
        watch = await client.watch(ALL_PODS, resourceVersion=since)
        self.configure(cloud, cache_agents="my-agent")
        await self.eventually(lambda: watch.ended, "the watch ends", NOTICED_SECONDS)
        await client.refused((410,), f"{ALL_PODS}?watch=1&resourceVersion={since}")
        listed = await client.get(ALL_PODS)
        watch = await client.watch(ALL_PODS, resourceVersion=listed["metadata"]["resourceVersion"])
        cloud.add_pod("db")
        await watch.wait_for_events(("ADDED", "db"))
        await self.settled(hub)
        await self.disconnect(cloud, hub)
        self.assertEqual(sorted(names(await client.get(ALL_PODS))), ["db", "web"])

    async def test_changed_filters_apply(self) -> None:
        """A watch with another result ends, and lists have the new result, online and from the
        existing cache, with any kind of client.
        """
        cloud, hub = await self.start()
        spec = {"type": "LoadBalancer", "clusterIP": "10.96.0.9"}
        cloud.add("services", "cloud", "default", spec=spec, annotations=CLOUD_ONLY)
        cloud.add("services", "web", "default", spec={"clusterIP": "10.96.0.8"})
        client = self.client(hub, "flanneld", PROTOBUF_FIRST)
        listed = await client.get(SERVICES)
        self.assertEqual(names(listed), ["cloud", "web"])
        since = listed["metadata"]["resourceVersion"]
        watch = await client.watch(SERVICES, resourceVersion=since)
        self.configure(cloud, discardcloudservice="flanneld")
        await self.eventually(lambda: watch.ended, "the watch ends", NOTICED_SECONDS)
        # The hub does not write into this watch; a reflector resumes it at its last version.
        watch = await client.watch(SERVICES, resourceVersion=since)
        await watch.wait_for_end(NOTICED_SECONDS)
        [expired] = [one for one in watch.events if one["type"] == "ERROR"]
        self.assertEqual(expired["object"]["code"], 410)
        await self.settled(hub)
        # There was no list since: the cache has the API's unfiltered objects.
        await self.disconnect(cloud, hub)
        self.assertEqual(names(await client.get(SERVICES)), ["web"])
        await self.reconnect(cloud, hub)
        self.assertEqual(names(await client.get(SERVICES)), ["web"])
        self.configure(cloud)

        async def shown() -> bool:
            return names(await client.get(SERVICES)) == ["cloud", "web"]

        await self.eventually(shown, "the filter is gone", NOTICED_SECONDS, 1.0)

    async def test_hidden_objects_are_deleted_in_a_watch(self) -> None:
        """A Service that becomes one for the cloud only is deleted in kube-proxy's watch."""
        cloud, hub = await self.start()
        spec = {"type": "LoadBalancer", "clusterIP": "10.96.0.9"}
        cloud.add("services", "web", "default", spec=spec)
        proxy = self.client(hub, "kube-proxy", PROTOBUF_FIRST)
        listed = await proxy.get(SERVICES)
        self.assertEqual(names(listed), ["web"])
        watch = await proxy.watch(SERVICES, resourceVersion=listed["metadata"]["resourceVersion"])
        metadata = {"name": "web", "namespace": "default", "annotations": CLOUD_ONLY}
        cloud.change("services", "web", "default", metadata=metadata)
        await watch.wait_for_events(("DELETED", "web"))
        self.assertNotIn(("MODIFIED", "web"), watch.types_and_names)
        self.assertEqual((await proxy.get(SERVICES))["items"], [])
        await self.settled(hub)
        await self.disconnect(cloud, hub)
        self.assertEqual((await proxy.get(SERVICES))["items"], [])
