"""Kills of the hub, and offline starts of a node."""

from __future__ import annotations

import signal

from twisted.internet.defer import Deferred, gatherResults
from twisted.internet.error import ConnectionRefusedError

from tests.e2e.hub.clients import JSON, NodeClient, contents, names
from tests.e2e.hub.node_requests import (
    ALL_PODS,
    LEASE,
    NODE_PODS,
    PROGRAMS,
    Program,
    create_objects,
)
from tests.e2e.hub.programs import FAST_HEARTBEAT, Hub
from tests.e2e.hub.support import HubTestCase
from tests.e2e.programs import READY_SECONDS

REPLACED = 1000
GENERATIONS = 6


class NodeStartTests(HubTestCase):
    """The requests of a node's programs at startup."""

    def of(self, hub: Hub, program: Program) -> NodeClient:
        """Return a client that acts as a program; the API of the tests has only JSON."""
        return self.client(hub, program.component, program.accept)

    async def request_all(self, hub: Hub) -> dict:
        """Send all requests of all programs; return the responses."""
        found = {}
        for program in PROGRAMS:
            client = self.of(hub, program)
            for target in (*program.lists, *program.others):
                answer = await client.get(target)
                if "items" in answer:
                    answer = [answer["kind"], contents(answer)]
                found[program.component, target] = answer
        return found

    async def watch_all(self, hub: Hub) -> list:
        """Begin the watches of reflectors, from the version of a list."""
        watches = []
        for program in PROGRAMS:
            client = self.of(hub, program)
            for target in program.lists:
                listed = await client.get(target)
                path, _, query = target.partition("?")
                selectors = [one for one in query.split("&") if "Selector" in one]
                since = listed["metadata"]["resourceVersion"]
                target = "&".join([f"{path}?watch=true&resourceVersion={since}", *selectors])
                answer = await client.send(target)
                response = await self.within(10, answer.begun(), target)
                self.assertEqual(response.status, 200, target)
                watches.append(answer)
        return watches

    async def test_a_node_starts_without_the_cloud(self) -> None:
        """The hub is killed and restarted offline: each request gets the same response."""
        cloud, hub = await self.start()
        create_objects(cloud)
        online = await self.request_all(hub)
        await self.watch_all(hub)
        await self.settled(hub)
        await self.disconnect(cloud, hub)
        self.assertEqual(await self.request_all(hub), online)
        await self.restart(hub)
        self.assertEqual(await self.request_all(hub), online)
        for answer in await self.watch_all(hub):
            self.assertFalse(answer.complete)
        # A kubelet creates its Lease at startup, if there is none.
        self.assertIn((await self.client(hub).ask(LEASE)).status, (200, 404))

    async def test_a_black_hole_does_not_keep_a_node_from_starting(self) -> None:
        """The first responses do not wait until the hub knows that no server responds."""
        cloud, hub = await self.start(*FAST_HEARTBEAT)
        create_objects(cloud)
        online = await self.request_all(hub)
        await self.settled(hub)
        cloud.drop_packets()
        hub.kill()
        hub.start()
        await self.eventually(lambda: self.listens(hub), "the hub listens", READY_SECONDS)
        self.assertEqual(await self.request_all(hub), online)

    async def test_nothing_is_sent_twice_after_a_restart(self) -> None:
        """Once the cloud is reachable, its changes are served here."""
        cloud, hub = await self.start()
        create_objects(cloud)
        await self.request_all(hub)
        await self.settled(hub)
        await self.disconnect(cloud, hub)
        await self.restart(hub, signal.SIGTERM)
        cloud.add_pod("new")
        cloud.remove("pods", "web", "default")
        await self.reconnect(cloud, hub)
        found = await self.client(hub).get(NODE_PODS)
        self.assertEqual(names(found), ["logs", "new"])


class StopTests(HubTestCase):
    """The graceful shutdown of the hub."""

    async def test_responses_end_before_the_upstream_connections(self) -> None:
        """New requests are refused, a write in progress is completed, and a watch ends."""
        cloud, hub = await self.start()
        client = self.client(hub)
        watch = await client.watch(ALL_PODS)
        writes: list = []
        cloud.answers["POST /api/v1/namespaces/default/events"] = writes.append
        write = await client.send("/api/v1/namespaces/default/events", "POST", {"kind": "Event"})
        await self.eventually(lambda: writes, "the cloud has the write")
        hub.signal(signal.SIGTERM)
        # It ends as soon as the ports are closed, and the write has two seconds from then on.
        await watch.wait_for_end(10)
        await self.assertFailure(self.dial_late(hub), ConnectionRefusedError)
        writes[0].respond(201, [(b"Content-Type", b"application/json")], b"{}")
        response = await self.within(5, write.whole(), "the answer to the write")
        self.assertEqual((response.status, response.body), (201, b"{}"))
        await hub.ended(20)

    async def test_answers_without_the_cloud_have_their_time_too(self) -> None:
        """A list in progress is completed; a watch ends once the ports are closed."""
        cloud, hub = await self.start()
        for number in range(40):
            cloud.add("configmaps", f"n-{number}", "default", data={"text": "x" * 400_000})
        client = self.client(hub)
        path = "/api/v1/configmaps"
        await client.ask(path)
        await self.settled(hub)
        await self.disconnect(cloud, hub)
        watch = await client.watch(path)
        answer = await client.send(path)
        answer.peer.transport.pauseProducing()
        await self.eventually(lambda: len(watch.events) == 40, "the watch begins")
        hub.signal(signal.SIGTERM)
        await watch.wait_for_end(10)
        await self.assertFailure(self.dial_late(hub), ConnectionRefusedError)
        answer.peer.transport.resumeProducing()
        response = await self.within(10, answer.whole(), "the list")
        self.assertEqual(40, len(client.expect(response, 200, path)["items"]))
        await hub.ended(20)

    def dial_late(self, hub: Hub) -> Deferred:
        """Connect to the port of a hub that is stopping."""
        return Deferred.fromCoroutine(self.client(hub).send("/version"))


class KillTests(HubTestCase):
    """Kills of the hub while it writes."""

    async def test_a_list_is_the_old_or_the_new_one(self) -> None:
        """If the hub is killed while it replaces a thousand objects, one complete list remains."""
        cloud, hub = await self.start()
        for number in range(REPLACED):
            cloud.add("configmaps", f"n-{number:04}", "default", data={"generation": "0"})
        client = self.client(hub, "flanneld")
        path = "/api/v1/configmaps"
        await client.get(path)
        await self.settled(hub)
        for generation in range(1, GENERATIONS):
            for number in range(REPLACED):
                data = {"generation": str(generation)}
                cloud.change("configmaps", f"n-{number:04}", "default", data=data)
            before = await hub.metric("yurthub_cache_objects_total")
            request = Deferred.fromCoroutine(client.ask(path, seconds=30))
            request.addErrback(lambda failure: None)
            # Later kills are further into the write.
            await self.eventually(self.wrote(hub, before, generation), "the hub takes the list", 20)
            hub.kill()
            await request
            await self.lose_and_start(cloud, hub)
            listed = await client.get(path)
            generations = {one["data"]["generation"] for one in listed["items"]}
            self.assertEqual(len(listed["items"]), REPLACED)
            self.assertEqual(len(generations), 1, generations)
            self.assertLessEqual(int(generations.pop()), generation)
            await self.reconnect(cloud, hub)

    def wrote(self, hub: Hub, before: float, generation: int):
        """Return a condition: the hub has begun to receive a list after the earlier data."""

        async def begun() -> bool:
            replaced = await hub.metric("yurthub_cache_objects_total") - before
            waiting = await hub.metric("yurthub_cache_waiting_bytes")
            return waiting > 0 or replaced >= REPLACED * (generation / GENERATIONS)

        return begun

    async def lose_and_start(self, cloud, hub: Hub) -> None:
        """Start the hub again while offline."""
        await cloud.refuse_connections()
        hub.start()
        await hub.ready()
        await self.wait_for_state(hub, online=False)

    async def test_an_update_is_old_or_new(self) -> None:
        """The hub is killed while a watch reports changes: each object is complete."""
        cloud, hub = await self.start()
        for number in range(200):
            cloud.add("configmaps", f"n-{number:04}", "default", data={"text": "0" * 2000})
        client = self.client(hub, "flanneld")
        path = "/api/v1/configmaps"
        listed = await client.get(path)
        await self.settled(hub)
        watch = await client.watch(path, resourceVersion=listed["metadata"]["resourceVersion"])
        for number in range(200):
            cloud.change("configmaps", f"n-{number:04}", "default", data={"text": "1" * 2000})
        await self.eventually(lambda: len(watch.types_and_names) > 100, "changes arrive")
        hub.kill()
        await self.lose_and_start(cloud, hub)
        texts = {one["data"]["text"] for one in (await client.get(path))["items"]}
        self.assertLessEqual(texts, {"0" * 2000, "1" * 2000})
        self.assertEqual(len((await client.get(path))["items"]), 200)


class ManyClientsTests(HubTestCase):
    """Clients that all return at the same time."""

    async def test_all_clients_are_served_after_a_kill(self) -> None:
        """Fifty clients that send requests while the hub starts get responses."""
        cloud, hub = await self.start()
        create_objects(cloud)
        client = self.client(hub, "flanneld", JSON)
        online = await client.get(ALL_PODS)
        await self.settled(hub)
        await self.disconnect(cloud, hub)
        await self.restart(hub)
        requests = [Deferred.fromCoroutine(client.get(ALL_PODS)) for _ in range(50)]
        for listed in await gatherResults(requests, consumeErrors=True):
            self.assertEqual(contents(listed), contents(online))
