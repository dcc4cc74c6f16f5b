"""The official Python client through the hub, online and offline."""

from __future__ import annotations

from kubernetes import client, watch
from kubernetes.client.exceptions import ApiException
from twisted.internet.threads import deferToThread

from tests.apiserver.bootstrap_roles import rule
from tests.e2e.hub.support import HubTestCase

USER_AGENT = "coredns/1.11 (python)"


class PythonClientTests(HubTestCase):
    """It runs in a thread, because it blocks."""

    def api(self, hub) -> client.CoreV1Api:
        """Return the client as a program that is cached."""
        configuration = client.Configuration(host=f"http://127.0.0.1:{hub.port}")
        configuration.retries = False
        api_client = client.ApiClient(configuration)
        api_client.user_agent = USER_AGENT
        self.addCleanup(api_client.close)
        return client.CoreV1Api(api_client)

    async def test_objects_are_written_and_watched_online(self) -> None:
        """Create, patch, watch and delete work as without the hub."""
        cloud, hub = await self.start()
        cloud.grant("system:nodes", rule("*", "", "configmaps"))
        api = self.api(hub)

        def use() -> list[str]:
            body = client.V1ConfigMap(metadata=client.V1ObjectMeta(name="a"), data={"x": "1"})
            made = api.create_namespaced_config_map("default", body)
            api.patch_namespaced_config_map("a", "default", {"data": {"x": "2"}})
            api.delete_namespaced_config_map("a", "default")
            stream = watch.Watch()
            since = str(int(made.metadata.resource_version) - 1)
            seen = []
            for event in stream.stream(
                api.list_namespaced_config_map, "default", resource_version=since,
                timeout_seconds=20,
            ):  # fmt: skip
                seen.append(event["type"])
                if event["type"] == "DELETED":
                    stream.stop()
            return seen

        self.assertEqual(await deferToThread(use), ["ADDED", "MODIFIED", "DELETED"])

    async def test_objects_are_read_offline(self) -> None:
        """Lists, selectors, single objects and pages work; a write fails with the reason."""
        cloud, hub = await self.start()
        for number in range(7):
            cloud.add_pod(f"web-{number}", labels={"odd": str(number % 2)})
        api = self.api(hub)
        online = await deferToThread(api.list_pod_for_all_namespaces)
        await self.settled(hub)
        await self.disconnect(cloud, hub)

        def use() -> tuple:
            listed = api.list_pod_for_all_namespaces()
            odd = api.list_namespaced_pod("default", label_selector="odd=1")
            one = api.read_namespaced_pod("web-3", "default")
            first = api.list_namespaced_pod("default", limit=3)
            try:
                api.delete_namespaced_pod("web-3", "default")
            except ApiException as error:
                return listed, odd, one, first, error
            raise AssertionError("a pod is said to be deleted")

        listed, odd, one, first, error = await deferToThread(use)
        for found, known in zip(listed.items, online.items, strict=True):
            self.assertEqual((found.metadata, found.spec), (known.metadata, known.spec))
        self.assertEqual([one.metadata.name for one in odd.items], ["web-1", "web-3", "web-5"])
        self.assertEqual(one.metadata.name, "web-3")
        self.assertLessEqual(len(first.items), 7)
        self.assertEqual((error.status, error.headers.get("Retry-After") is not None), (503, True))
