"""Limits of concurrent requests."""

from __future__ import annotations

from twisted.internet.defer import Deferred, gatherResults

from tests.e2e.hub.clients import status_of
from tests.e2e.hub.node_requests import ALL_PODS, LEASE, NODE_PATH, SLICES
from tests.e2e.hub.support import HubTestCase

WATCHES = 300
LIMIT = 250
OWN_WATCHES = 3
"""The watches of yurt-hub-cfg, of the Service kubernetes and, for the topology, of all Services;
the hub may not have begun them yet."""


class LimitTests(HubTestCase):
    """Watches and short requests have separate limits."""

    async def test_watches_beyond_the_limit_are_refused_and_nothing_else(self) -> None:
        """Of 300 watches 50 get 429, and as many more as the hub has of its own; reads, health and
        Leases continue.
        """
        _, hub = await self.start("--max-watches", str(LIMIT))
        client = self.client(hub, "flanneld")
        requests = [
            Deferred.fromCoroutine(client.send(f"{ALL_PODS}?watch=true")) for _ in range(WATCHES)
        ]
        answers = await gatherResults(requests, consumeErrors=True)
        begun = await self.within(
            30, gatherResults([one.begun() for one in answers]), "all watches are answered"
        )
        refused = [one for one in begun if one.status == 429]
        in_flight = await hub.metric("node_yurthub_in_flight_requests_collector", verb="watch")
        self.assertEqual(in_flight, LIMIT)
        self.assertLessEqual(WATCHES - LIMIT, len(refused))
        self.assertLessEqual(len(refused), WATCHES - LIMIT + OWN_WATCHES)
        self.assertEqual({one.status for one in begun}, {200, 429})
        for one in refused:
            self.assertTrue(one.values(b"retry-after"))
        [first] = [one for one in answers if one.response is refused[0]]
        self.assertEqual(status_of(await first.whole())["reason"], "TooManyRequests")
        kubelet = self.client(hub)
        for path in (NODE_PATH, ALL_PODS):
            await kubelet.get(path)
        # A kubelet creates its Lease at startup, if there is none.
        self.assertIn((await kubelet.ask(LEASE)).status, (200, 404))
        self.assertEqual((await hub.get("/v1/healthz"))[0], 200)

    async def test_the_first_list_of_slices_is_answered(self) -> None:
        """A hub that has just started does not reject requests."""
        cloud = await self.start_cloud()
        hub = await self.start_hub(cloud)
        response = await self.client(hub, "kube-proxy").ask(SLICES)
        self.assertEqual(response.status, 200)
