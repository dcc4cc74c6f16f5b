"""Several API servers, some of which fail."""

from __future__ import annotations

from twisted.internet import reactor
from twisted.internet.defer import Deferred, gatherResults

from tests.e2e.hub.node_requests import ALL_PODS, NODE_PATH
from tests.e2e.hub.programs import Hub
from tests.e2e.hub.support import NOTICED_SECONDS, HubTestCase
from tests.e2e.stopwatch import Stopwatch

READ_SECONDS = 8.0

REQUESTS = 100
MIN_BYTES = 150
"""The size of one request as sent to a server."""


class ServerTests(HubTestCase):
    """Two servers."""

    async def both_are_healthy(self, hub: Hub) -> None:
        """Wait until both are healthy: one suffices for being online."""

        async def seen() -> bool:
            return await hub.metric("node_yurthub_server_healthy_status") == 2

        await self.eventually(seen, "both servers are healthy", NOTICED_SECONDS)

    async def test_requests_continue_when_one_server_is_silent(self) -> None:
        """Requests in progress are sent to the other one; the hub stays online."""
        cloud = await self.start_cloud(servers=2)
        # The other one may be slow for a second or two; this one is detected within READ_SECONDS.
        times = ("--heartbeat-interval-seconds", "3", "--heartbeat-timeout-seconds", "3")
        hub = await self.start_hub(cloud, *times)
        await self.both_are_healthy(hub)
        kubelet = self.client(hub)
        await kubelet.get(NODE_PATH)
        cloud.drop_packets(cloud.servers[0])
        changed = cloud.change("nodes", "edge-1", labels={"seen": "yes"})
        requests = [
            Deferred.fromCoroutine(kubelet.ask(NODE_PATH, seconds=READ_SECONDS)) for _ in range(10)
        ]
        for response in await gatherResults(requests, consumeErrors=True):
            found = kubelet.expect(response, 200, NODE_PATH)
            # Not from the cache: the remaining server responds.
            self.assertEqual(found["metadata"]["labels"], changed["metadata"]["labels"])
        self.assertTrue(await hub.online())

    async def test_both_servers_get_requests(self) -> None:
        """Neither gets all requests."""
        cloud = await self.start_cloud(servers=2)
        hub = await self.start_hub(cloud)
        await self.both_are_healthy(hub)
        kubelet = self.client(hub)

        def passed() -> list[int]:
            return [sum(link.up.passed for link in server.links) for server in cloud.servers]

        async def neither_has_all() -> bool:
            before = passed()
            requests = [Deferred.fromCoroutine(kubelet.get(NODE_PATH)) for _ in range(REQUESTS)]
            await gatherResults(requests, consumeErrors=True)
            # Of these requests alone: both have handshakes and renewals in any case.
            grown = [now - then for now, then in zip(passed(), before, strict=True)]
            return min(grown) > REQUESTS / 4 * MIN_BYTES

        # On a busy machine one of them may be skipped for a moment.
        await self.eventually(neither_has_all, "both are asked")

    async def test_the_first_server_is_preferred_if_configured(self) -> None:
        """The second one gets only its share of renewals until the first one fails."""
        cloud = await self.start_cloud(servers=2)
        hub = await self.start_hub(cloud, "--lb-mode", "priority")
        await self.both_are_healthy(hub)
        client = self.client(hub, "flanneld")
        watch = await client.watch(ALL_PODS)
        first, second = cloud.servers
        await first.refuse()
        first.for_all("reset")
        await self.eventually(lambda: watch.ended, "the watch has ended with its server")
        watch = Stopwatch(reactor)
        await client.get(ALL_PODS)
        self.assertLess(watch.seconds(), READ_SECONDS)
        self.assertGreater(second.accepted, 0)
        first.start()

    async def test_a_silent_address_of_several_is_left(self) -> None:
        """An address that accepts connections and never responds is not dialed first for ever."""
        cloud = await self.start_cloud()
        url, prefix = self.name_with_a_silent_address(cloud)
        hub = await self.start_hub(cloud, "--server-addr", url, prefix=prefix)
        self.client(hub).expect(await self.client(hub).ask(NODE_PATH), 200, NODE_PATH)
