"""Events of an outage are sent when the cloud is reachable again."""

from __future__ import annotations

import signal

from tests.e2e.hub.canned import AcceptedBodies
from tests.e2e.hub.clients import PROTOBUF, PROTOBUF_FIRST
from tests.e2e.hub.cloud import KINDS, NODE, Cloud
from tests.e2e.hub.support import HubTestCase
from tests.hub.media.protobuf_encoding import MAGIC, field, message

EVENTS = "/api/v1/namespaces/default/events"
MANY = 30
FUTURE = "a field that this version does not know"
SENT_SECONDS = 30.0


def event(number: int) -> dict:
    """Return an Event like a kubelet's."""
    involved = {"kind": "Pod", "namespace": "default", "name": "web", "apiVersion": "v1"}
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"web.{number:016x}", "namespace": "default"},
        "involvedObject": involved,
        "reason": "BackOff",
        "message": f"restarted for the {number}th time",
        "source": {"component": "kubelet", "host": NODE},
        "firstTimestamp": "2026-01-01T00:00:00Z",
        "lastTimestamp": "2026-01-01T00:00:00Z",
        "count": 1,
        "type": "Warning",
    }


class EventTests(HubTestCase):
    """The Events of an outage."""

    def messages(self, cloud: Cloud) -> list[str]:
        """Return the messages of the Events in the cloud."""
        return sorted(one.get("message", "") for one in cloud.store.view(KINDS["events"]))

    async def arrive(self, cloud: Cloud, count: int) -> None:
        """Wait until all have arrived, each once."""
        expected = sorted(event(number)["message"] for number in range(count))
        await self.eventually(
            lambda: self.messages(cloud) == expected, "the events arrive", SENT_SECONDS
        )

    async def test_events_arrive_after_the_outage(self) -> None:
        """Each is accepted while offline, and arrives once the cloud is reachable."""
        cloud, hub = await self.start()
        kubelet = self.client(hub)
        await self.disconnect(cloud, hub)
        for number in range(MANY):
            response = await kubelet.ask(EVENTS, "POST", event(number))
            kubelet.expect(response, 201, EVENTS)
        self.assertEqual(self.messages(cloud), [])
        await self.reconnect(cloud, hub)
        await self.arrive(cloud, MANY)

    async def test_events_survive_a_restart(self) -> None:
        """The hub that has stored them is killed during the outage."""
        cloud, hub = await self.start()
        kubelet = self.client(hub)
        await self.disconnect(cloud, hub)
        for number in range(MANY):
            kubelet.expect(await kubelet.ask(EVENTS, "POST", event(number)), 201, EVENTS)
        await self.settled(hub)
        await self.restart(hub, signal.SIGKILL)
        await self.reconnect(cloud, hub)
        await self.arrive(cloud, MANY)

    async def test_repeated_events_are_counted(self) -> None:
        """A recorder creates it again for each count; the cloud has one with the last count."""
        cloud, hub = await self.start()
        kubelet = self.client(hub)
        await self.disconnect(cloud, hub)
        for count in (1, 2, 3):
            last = {"count": count, "lastTimestamp": f"2026-01-01T00:0{count}:00Z"}
            repeated = {**event(0), **last, "message": f"restarted {count} times"}
            kubelet.expect(await kubelet.ask(EVENTS, "POST", repeated), 201, EVENTS)
        await self.reconnect(cloud, hub)
        await self.eventually(
            lambda: self.messages(cloud) == ["restarted 3 times"], "it is counted", SENT_SECONDS
        )
        [there] = cloud.store.view(KINDS["events"])
        self.assertEqual((3, "2026-01-01T00:03:00Z"), (there["count"], there["lastTimestamp"]))
        self.assertEqual("2026-01-01T00:00:00Z", there["firstTimestamp"])

    async def test_events_in_protobuf_arrive_as_they_were(self) -> None:
        """A kubelet sends them in protobuf; they arrive byte for byte, even after a kill."""
        cloud, hub = await self.start()
        accepted = cloud.answers[f"POST {EVENTS}"] = AcceptedBodies()
        kubelet = self.client(hub, "kubelet", PROTOBUF_FIRST)
        await self.disconnect(cloud, hub)
        events = []
        for number in range(3):
            metadata = field(1, f"web.{number:016x}") + field(3, "default")
            raw = field(1, metadata) + field(3, "BackOff") + field(2000, FUTURE)
            meta = {"apiVersion": "v1", "kind": "Event"}
            events.append(MAGIC + message("Unknown", {"typeMeta": meta, "raw": raw}))
            content_type = [(b"Content-Type", PROTOBUF.encode())]
            response = await kubelet.ask(EVENTS, "POST", events[-1], content_type)
            self.assertEqual((response.status, bytes(response.body)), (201, events[-1]))
        await self.settled(hub)
        await self.restart(hub, signal.SIGKILL)
        self.assertEqual(accepted.bodies, [])
        await self.reconnect(cloud, hub)
        await self.eventually(lambda: len(accepted.bodies) == 3, "the events arrive", SENT_SECONDS)
        self.assertEqual(accepted.bodies, [(PROTOBUF.encode(), event) for event in events])

    async def test_a_rejected_event_does_not_delay_the_others(self) -> None:
        """An Event of a namespace that was deleted meanwhile is dropped."""
        cloud, hub = await self.start()
        kubelet = self.client(hub)
        await self.disconnect(cloud, hub)
        elsewhere = "/api/v1/namespaces/gone/events"
        lost = {**event(7), "metadata": {"name": "lost", "namespace": "gone"}}
        await kubelet.ask(elsewhere, "POST", lost)
        for number in range(3):
            kubelet.expect(await kubelet.ask(EVENTS, "POST", event(number)), 201, EVENTS)
        await self.reconnect(cloud, hub)
        await self.arrive(cloud, 3)
