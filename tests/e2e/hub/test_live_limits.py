"""A file of ``--config`` whose limits change while the hub runs."""

from __future__ import annotations

import base64
import random
from pathlib import Path

from tests.e2e.configuration_file import ConfigurationFile
from tests.e2e.hub.canned import Streamed
from tests.e2e.hub.node_requests import ALL_PODS, NODE_PATH, NODE_PODS
from tests.e2e.hub.support import HubTestCase
from yurttunnel.hub.process import DATABASE

MEBIBYTE = 1024 * 1024
MIN_CACHE = 16 * MEBIBYTE
MAPS, MAP_BYTES = 24, 900_000
"""Together more than the minimum size of a cache."""

LIMITS = ("max-watches", "max-requests-in-flight")

FULL = "The responses of the API are not cached for an outage"

ALL_CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"


class LiveLimitsTests(HubTestCase):
    """Changes take effect for new requests without a restart."""

    async def test_request_limits(self) -> None:
        """Requests and watches over a new limit get 429; existing watches stay open."""
        file = ConfigurationFile(self.directory)
        file.write("max-watches = 1000\nmax-requests-in-flight = 250\n")
        cloud, hub = await self.start(*file.flags)
        client = self.client(hub, "flanneld")
        standing = await client.watch(ALL_PODS)
        await file.use(self, hub, "max-watches = 1\nmax-requests-in-flight = 1\n", *LIMITS)
        refused = await client.ask(f"{ALL_PODS}?watch=true")
        self.assertEqual(refused.status, 429, refused.text)
        stream = cloud.answers[NODE_PATH] = Streamed()
        await client.send(NODE_PATH)
        await self.eventually(lambda: stream.exchanges, "the cloud is asked")
        refused = await client.ask(NODE_PATH)
        self.assertEqual(refused.status, 429, refused.text)
        await file.use(self, hub, "max-watches = 999\nmax-requests-in-flight = 99\n", *LIMITS)
        del cloud.answers[NODE_PATH]
        self.assertEqual((await client.ask(NODE_PATH)).status, 200)
        await client.watch(ALL_PODS)
        self.assertFalse(standing.ended)

    async def test_timeout_of_offline_watches(self) -> None:
        """A watch without a timeout ends within twice the new minimum."""
        file = ConfigurationFile(self.directory)
        file.write('min-request-timeout = "30m"\n')
        cloud, hub = await self.start(*file.flags)
        cloud.add_pod("web")
        kubelet = self.client(hub)
        await kubelet.get(NODE_PODS)
        await self.settled(hub)
        await self.disconnect(cloud, hub)
        long = await kubelet.watch(NODE_PODS)
        await file.use(self, hub, 'min-request-timeout = "1s"\n', "min-request-timeout")
        short = await kubelet.watch(NODE_PODS)
        self.assertEqual((long.response.status, short.response.status), (200, 200))
        await short.wait_for_end(10)
        self.assertFalse(long.ended)

    async def test_cache_size(self) -> None:
        """The kubelet's data is not cached over the new limit, and completely once it is raised."""
        names = [f"large-{number}" for number in range(MAPS)]
        file = ConfigurationFile(self.directory)
        file.write('cache-max-bytes = "2Gi"\n')
        cloud, hub = await self.start(*file.flags)
        cloud.using("uses", config_maps=names)
        for name in names:
            text = base64.b64encode(random.randbytes(3 * MAP_BYTES // 4)).decode("ascii")
            cloud.add("configmaps", name, "default", data={"text": text})
        await file.use(self, hub, 'cache-max-bytes = "16Mi"\n', "cache-max-bytes")
        kubelet = self.client(hub)
        for name in names:
            await kubelet.get(f"{ALL_CONFIG_MAPS}/{name}")
        await self.eventually(lambda: FULL in hub.log, "the hub says that the cache is full")
        self.assertLessEqual(Path(hub.cache, DATABASE).stat().st_size, MIN_CACHE)
        await file.use(self, hub, 'cache-max-bytes = "1Gi"\n', "cache-max-bytes")
        # The pauses between retries have grown to 30 s at most.
        await self.settled(hub, 45)
        await self.disconnect(cloud, hub)
        for name in names:
            await kubelet.get(f"{ALL_CONFIG_MAPS}/{name}")
