"""A cloud that drops all packets: nothing is refused, and nothing responds."""

from __future__ import annotations

from twisted.internet import reactor
from twisted.internet.defer import Deferred, gatherResults

from tests.e2e.hub.clients import JSON, contents
from tests.e2e.hub.cloud import KINDS, NODE
from tests.e2e.hub.node_requests import NODE_PATH, NODE_PODS, SERVICES
from tests.e2e.hub.programs import FAST_HEARTBEAT
from tests.e2e.hub.support import HubTestCase
from tests.e2e.stopwatch import Stopwatch

UNHEALTHY_SECONDS = 12.0
ANSWERED_SECONDS = 5.0
"""The limits of issue 14, each with an allowance for a busy machine."""

BUSY_SECONDS = 3.0

HEARTBEAT = ("--heartbeat-interval-seconds", "10", "--heartbeat-timeout-seconds", "2")
"""The defaults."""


class BlackHoleTests(HubTestCase):
    """Requests during and after such an outage."""

    async def test_requests_are_answered_from_the_cache(self) -> None:
        """The first requests get responses within five seconds, and the server is known to be
        unhealthy within twelve.
        """
        cloud, hub = await self.start(*HEARTBEAT)
        for number in range(20):
            cloud.add_pod(f"web-{number}")
        kubelet = self.client(hub)
        expected = {path: await kubelet.get(path) for path in (NODE_PODS, NODE_PATH, SERVICES)}
        watch = Stopwatch(reactor)
        cloud.drop_packets()
        requests = [
            Deferred.fromCoroutine(kubelet.ask(path, seconds=ANSWERED_SECONDS + BUSY_SECONDS))
            for path in expected
        ]
        for path, response in zip(expected, await gatherResults(requests), strict=True):
            found = kubelet.expect(response, 200, path)
            if "items" in found:
                self.assertEqual(contents(found), contents(expected[path]))
            else:
                self.assertEqual(found, expected[path])
        await self.wait_for_state(hub, online=False)
        self.assertLess(watch.seconds(), UNHEALTHY_SECONDS + BUSY_SECONDS)

    async def test_a_write_is_not_sent_twice(self) -> None:
        """A write that may have been executed is not repeated: the client gets an error."""
        cloud, hub = await self.start(*FAST_HEARTBEAT)
        await self.client(hub).get(NODE_PATH)
        cloud.drop_packets()
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "new"}}
        path = "/api/v1/namespaces/default/pods"
        response = await self.client(hub).ask(path, "POST", body, seconds=30)
        self.assertIn(response.status, (502, 503, 504))

    async def test_the_cloud_is_back_after_two_good_renewals(self) -> None:
        """One renewal is not enough; then the kubelet's status of its node arrives."""
        cloud, hub = await self.start(*FAST_HEARTBEAT)
        kubelet = self.client(hub)
        await kubelet.get(NODE_PATH)
        cloud.drop_packets()
        await self.wait_for_state(hub, online=False)
        renewals = []
        unfollow = cloud.store.follow(KINDS["leases"], renewals.append)
        self.addCleanup(unfollow)
        await self.reconnect(cloud, hub)
        self.assertGreaterEqual(len(renewals), 2)
        status = b'{"status":{"conditions":[{"type":"Ready","status":"True","reason":"Back"}]}}'
        fields = [(b"Content-Type", b"application/strategic-merge-patch+json")]
        response = await kubelet.ask(f"{NODE_PATH}/status", "PATCH", status, fields)
        kubelet.expect(response, 200, JSON)
        [ready] = cloud.store.get(KINDS["nodes"], None, NODE)["status"]["conditions"]
        self.assertEqual(ready["reason"], "Back")
