"""Malicious names and requests."""

from __future__ import annotations

import os

from tests.e2e.hub.clients import JSON
from tests.e2e.hub.node_requests import ALL_PODS
from tests.e2e.hub.support import HubTestCase

PODS = "/api/v1/namespaces/default/pods"

NAMES = (
    "..",
    "../../../../etc/passwd",
    "%2e%2e",
    "..%2f..%2f..%2fetc%2fpasswd",
    "%2f",
    "a%2fb",
    "a%00b",
    "%00",
    "%ff%fe",
    "a%0d%0aX-Evil:%201",
    "~",
    "CON",
    "'; DROP TABLE objects; --".replace(" ", "%20"),
    "%" * 3,
    "x" * 253,
    "x" * 70_000,
)

LONGEST_NAME = "x" * 253
"""The longest name of a pod (a subdomain of RFC 1123)."""


class NameTests(HubTestCase):
    """Names in paths."""

    def files(self) -> set[str]:
        """Return all files below the directory of the test."""
        found = set()
        for directory, _, names in os.walk(self.directory):
            found.update(os.path.join(directory, name) for name in names)
        return found

    async def test_no_name_escapes_the_cache(self) -> None:
        """Each gets an error, online and offline, and creates no file."""
        cloud, hub = await self.start()
        cloud.add_pod("web")
        clients = [self.client(hub), self.client(hub, "..", JSON), self.client(hub, "a%2fb", JSON)]
        await clients[0].get(f"{PODS}/web")
        await self.settled(hub)
        before = self.files()
        for online in (True, False):
            for client in clients:
                for name in NAMES:
                    for path in (f"{PODS}/{name}", f"/api/v1/namespaces/{name}/pods"):
                        await self.request(client, path, online)
            if online:
                await self.settled(hub)
                await self.disconnect(cloud, hub)
        new = {path for path in self.files() - before if not path.startswith(hub.cache)}
        self.assertEqual(new, set())
        self.assertTrue(hub.running)
        self.assertEqual((await clients[0].get(f"{PODS}/web"))["metadata"]["name"], "web")

    async def request(self, client, path: str, online: bool) -> None:
        """Request a path; the response is valid HTTP, and not the content of a file."""
        response = await client.ask(path)
        self.assertNotIn(b"root:", response.body, path)
        self.assertEqual(response.values(b"x-evil"), [], path)
        if "namespaces/default" in path:
            self.assertIn(response.status, (*range(400, 500), 503), (path, online))

    async def test_the_longest_name_is_cached(self) -> None:
        """It can be listed, and read offline."""
        cloud, hub = await self.start()
        cloud.add_pod(LONGEST_NAME)
        client = self.client(hub, "flanneld")
        await client.get(ALL_PODS)
        found = await client.get(f"{PODS}/{LONGEST_NAME}")
        await self.disconnect(cloud, hub)
        self.assertEqual(await client.get(f"{PODS}/{LONGEST_NAME}"), found)

    async def test_a_client_without_a_name_is_served_and_not_cached(self) -> None:
        """A client without a User-Agent gets an error offline, because nothing is cached for it."""
        cloud, hub = await self.start()
        cloud.add_pod("web")
        nobody = self.client(hub, "")
        await nobody.get(ALL_PODS)
        await self.disconnect(cloud, hub)
        response = await nobody.ask(ALL_PODS)
        self.assertGreaterEqual(response.status, 400)
