"""Watches that begin while offline."""

from __future__ import annotations

from twisted.internet import reactor
from twisted.internet.defer import Deferred, gatherResults

from tests.e2e.hub.clients import names
from tests.e2e.hub.node_requests import ALL_PODS, NODE_PODS
from tests.e2e.hub.programs import FAST_HEARTBEAT
from tests.e2e.hub.support import NOTICED_SECONDS, HubTestCase
from tests.e2e.stopwatch import Stopwatch

PARKED = 40

ENDED_SECONDS = 2.0
"""How long a watch may stay open after the recovery (issue 14, offline)."""


class WatchTests(HubTestCase):
    """The events of such watches, and their end."""

    async def test_a_watch_without_a_list_starts_with_all_objects(self) -> None:
        """Without a version, or from 0, all objects are ADDED."""
        cloud, hub = await self.start()
        for name in ("one", "two"):
            cloud.add_pod(name)
        kubelet = self.client(hub)
        await kubelet.get(NODE_PODS)
        await self.disconnect(cloud, hub)
        for query in ({}, {"resourceVersion": "0"}):
            watch = await kubelet.watch(NODE_PODS, **query)
            await watch.wait_for_events(("ADDED", "one"), ("ADDED", "two"))
            self.assertFalse(watch.ended)

    async def test_initial_events_end_with_their_bookmark(self) -> None:
        """A client that streams its list (KEP-3157) gets all objects, and then the bookmark."""
        cloud, hub = await self.start()
        for name in ("one", "two"):
            cloud.add_pod(name)
        client = self.client(hub, "flanneld")
        listed = await client.get(ALL_PODS)
        await self.disconnect(cloud, hub)
        watch = await client.watch(
            ALL_PODS,
            sendInitialEvents="true",
            allowWatchBookmarks="true",
            resourceVersionMatch="NotOlderThan",
        )
        await self.eventually(lambda: len(watch.events) == 3, "the mark comes")
        *added, mark = watch.events
        self.assertEqual(names({"items": [one["object"] for one in added]}), names(listed))
        self.assertEqual(mark["type"], "BOOKMARK")
        metadata = mark["object"]["metadata"]
        self.assertEqual(metadata["annotations"], {"k8s.io/initial-events-end": "true"})
        self.assertGreaterEqual(
            int(metadata["resourceVersion"]), int(listed["metadata"]["resourceVersion"])
        )

    async def test_a_watch_from_a_version_waits(self) -> None:
        """Nothing has changed since, so there is no event until its timeout."""
        cloud, hub = await self.start()
        cloud.add_pod("web")
        client = self.client(hub, "flanneld")
        listed = await client.get(ALL_PODS)
        await self.disconnect(cloud, hub)
        began = reactor.seconds()
        watch = await client.watch(
            ALL_PODS, resourceVersion=listed["metadata"]["resourceVersion"], timeoutSeconds="2"
        )
        await watch.wait_for_end(10)
        self.assertGreaterEqual(reactor.seconds() - began, 1.5)
        self.assertEqual(watch.types_and_names, [])

    async def test_parked_watches_end_soon_after_the_recovery_and_not_at_once(self) -> None:
        """All end within two seconds, spread over time, and later events come from the cloud."""
        cloud, hub = await self.start()
        cloud.add_pod("web")
        client = self.client(hub, "flanneld")
        listed = await client.get(ALL_PODS)
        since = listed["metadata"]["resourceVersion"]
        await self.disconnect(cloud, hub)
        begun = [
            Deferred.fromCoroutine(client.watch(ALL_PODS, resourceVersion=since))
            for _ in range(PARKED)
        ]
        watches = await gatherResults(begun, consumeErrors=True)
        # A client that resumes its watch gets it from the cloud.
        cloud.add_pod("new")

        async def end_of(watch) -> float:
            await watch.wait_for_end(NOTICED_SECONDS + ENDED_SECONDS + 5)
            return reactor.seconds()

        ending = [Deferred.fromCoroutine(end_of(one)) for one in watches]
        await self.reconnect(cloud, hub)
        back = Stopwatch(reactor)
        ends = await gatherResults(ending, consumeErrors=True)
        self.assertLess(back.seconds(), ENDED_SECONDS + 1, ends)
        self.assertGreater(max(ends) - min(ends), 0.1, ends)
        watch = await client.watch(ALL_PODS, resourceVersion=since)
        await watch.wait_for_events(("ADDED", "new"))

    async def test_watches_of_the_cloud_move_when_it_is_lost(self) -> None:
        """A watch that is open when the cloud stops responding ends, and does not hang."""
        cloud, hub = await self.start(*FAST_HEARTBEAT)
        cloud.add_pod("web")
        kubelet = self.client(hub)
        listed = await kubelet.get(NODE_PODS)
        since = listed["metadata"]["resourceVersion"]
        watch = await kubelet.watch(NODE_PODS, resourceVersion=since)
        cloud.drop_packets()
        await self.eventually(lambda: watch.ended, "the watch ends", 15)
        self.assertEqual(names(await kubelet.get(NODE_PODS)), ["web"])
