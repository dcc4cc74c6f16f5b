"""Clients that use protobuf, such as the kubelet and kube-proxy."""

from __future__ import annotations

import gzip
import hashlib

from tests.e2e.hub.canned import Canned, Streamed
from tests.e2e.hub.clients import JSON, PROTOBUF, PROTOBUF_FIRST, NodeClient
from tests.e2e.hub.cloud import Cloud
from tests.e2e.hub.node_requests import ALL_PODS
from tests.e2e.hub.programs import FAST_HEARTBEAT
from tests.e2e.hub.support import HubTestCase
from tests.hub.media.goldens import PODS as SOME_PODS
from tests.hub.media.goldens import golden
from tests.hub.media.protobuf_encoding import body, frame, message, varint

WATCH = f"{PROTOBUF};stream=watch"
PODS = [
    {**pod, "spec": {**pod["spec"], "nodeName": pod["spec"].get("nodeName", "edge-1")}}
    for pod in SOME_PODS
]
"""Pods that are all on a node: pending pods are not cached."""

POD_LIST = body("PodList", {"metadata": {"resourceVersion": "1010"}, "items": PODS})

LARGE = 64 * 1024

REPLACED = 1000
GENERATIONS = 3

ANSWERED_SECONDS = 8.0
"""The limit of issue 14 for a request in a black hole, with an allowance for a busy machine."""

FUTURE = b"a field that this version does not know"


def replaced(number: int, generation: int) -> dict:
    """Return a pod with another version for each generation."""
    metadata = {
        "name": f"pod-{number:04}",
        "namespace": "shop",
        "resourceVersion": str(10_000 * generation + number),
        "labels": {"generation": str(generation)},
        "annotations": {"text": f"{generation}" * 300},
    }
    return {"metadata": metadata, "spec": {"nodeName": "edge-1"}}


class ProtobufTests(HubTestCase):
    """An API that responds in protobuf, like a real one for such requests."""

    def create_objects(self, cloud: Cloud) -> None:
        """Create a list of pods, one of which has an unknown field."""
        cloud.answers[ALL_PODS] = Canned(POD_LIST, PROTOBUF)

    async def watch_in_pieces(self, sent: bytes, size: int) -> NodeClient:
        """List pods, and read a watch that is sent in pieces; return the client, now offline."""
        cloud, hub = await self.start()
        self.create_objects(cloud)
        stream = cloud.answers[f"{ALL_PODS}?watch"] = Streamed(WATCH)
        kubelet = self.client(hub, "kubelet", PROTOBUF_FIRST)
        await kubelet.ask(ALL_PODS)
        answer = await kubelet.send(f"{ALL_PODS}?watch=true&resourceVersion=1010")
        watch = await self.within(10, answer.begun(), "the watch")
        for begin in range(0, len(sent), size):
            stream.write(sent[begin : begin + size])
        await self.eventually(lambda: watch.size == len(sent), "all pieces arrive")
        self.assertEqual(watch.digest, hashlib.sha256(sent).hexdigest())
        await self.settled(hub)
        await self.disconnect(cloud, hub)
        return kubelet

    async def test_a_list_is_the_same_offline_to_the_byte(self) -> None:
        """Each object is unchanged, including fields that this version of the hub does not know."""
        cloud, hub = await self.start()
        self.create_objects(cloud)
        kubelet = self.client(hub, "kubelet", PROTOBUF_FIRST)
        online = await kubelet.ask(ALL_PODS)
        self.assertEqual(online.digest, hashlib.sha256(POD_LIST).hexdigest())
        await self.disconnect(cloud, hub)
        offline = await kubelet.ask(ALL_PODS)
        self.assertEqual(offline.status, 200)
        self.assertEqual(offline.values(b"content-type"), [PROTOBUF.encode()])
        self.assertTrue(offline.body.startswith(b"k8s\0"))
        for pod in PODS:
            self.assertIn(message("Pod", pod), offline.body)
        self.assertEqual(offline.size, len(POD_LIST))
        self.assertIn(FUTURE, offline.body)

    async def test_a_compressed_list_is_there_after_a_kill(self) -> None:
        """It is forwarded unchanged, and a hub that is restarted offline has all of it."""
        cloud, hub = await self.start()
        fields = [(b"Content-Encoding", b"gzip")]
        cloud.answers[ALL_PODS] = Canned(gzip.compress(POD_LIST), PROTOBUF, fields)
        kubelet = self.client(hub, "kubelet", PROTOBUF_FIRST)
        online = await kubelet.ask(ALL_PODS, fields=[(b"Accept-Encoding", b"gzip")])
        self.assertEqual(gzip.decompress(online.body), POD_LIST)
        await self.settled(hub)
        await self.disconnect(cloud, hub)
        await self.restart(hub)
        offline = await kubelet.ask(ALL_PODS)
        self.assertEqual((offline.status, offline.size), (200, len(POD_LIST)))
        for pod in PODS:
            self.assertIn(message("Pod", pod), offline.body)

    async def test_a_large_object_on_a_watch_is_read_offline(self) -> None:
        """A frame of more than 64 KiB arrives unchanged, in pieces, and is cached."""
        metadata = {**PODS[0]["metadata"], "name": "large", "resourceVersion": "1020"}
        large = {**PODS[0], "metadata": {**metadata, "annotations": {"text": "x" * LARGE}}}
        sent = frame("ADDED", "Pod", large)
        kubelet = await self.watch_in_pieces(sent, 1000)
        found = await kubelet.ask("/api/v1/namespaces/shop/pods/large")
        self.assertEqual((found.status, bytes(found.body)), (200, body("Pod", large)))

    async def test_an_object_of_a_list_can_be_read_alone(self) -> None:
        """It is in an envelope with its type."""
        cloud, hub = await self.start()
        self.create_objects(cloud)
        kubelet = self.client(hub, "kubelet", PROTOBUF_FIRST)
        await kubelet.ask(ALL_PODS)
        await self.disconnect(cloud, hub)
        found = await kubelet.ask("/api/v1/namespaces/shop/pods/web-1")
        self.assertEqual((found.status, bytes(found.body)), (200, body("Pod", PODS[0])))

    async def test_a_watch_changes_the_list(self) -> None:
        """Frames are forwarded unchanged, in any pieces, and their objects are served offline."""
        new = {
            **PODS[0],
            "metadata": {**PODS[0]["metadata"], "name": "new", "resourceVersion": "1020"},
        }
        changes = [("ADDED", new), ("DELETED", {**PODS[2], "metadata": {
            **PODS[2]["metadata"], "resourceVersion": "1021"}})]  # fmt: skip
        sent = b"".join(frame(type_, "Pod", pod) for type_, pod in changes)
        kubelet = await self.watch_in_pieces(sent, 7)
        offline = await kubelet.ask(ALL_PODS)
        self.assertIn(message("Pod", new), offline.body)
        self.assertNotIn(message("Pod", PODS[2]), offline.body)

    async def test_a_watch_offline_is_in_frames(self) -> None:
        """Existing objects are ADDED, each in a frame of its own."""
        cloud, hub = await self.start()
        self.create_objects(cloud)
        kubelet = self.client(hub, "kubelet", PROTOBUF_FIRST)
        await kubelet.ask(ALL_PODS)
        await self.disconnect(cloud, hub)
        answer = await kubelet.send(f"{ALL_PODS}?watch=true&resourceVersion=0")
        watch = await self.within(10, answer.begun(), "the watch")
        self.assertEqual(watch.values(b"content-type"), [WATCH.encode()])
        frames = [frame("ADDED", "Pod", pod) for pod in PODS]
        await self.eventually(
            lambda: watch.size == sum(map(len, frames)), "all objects have come", 5
        )
        for one in frames:
            self.assertIn(one, watch.body)

    async def test_each_encoding_is_cached_for_its_client(self) -> None:
        """A client that reads JSON does not get the protobuf of another client."""
        cloud, hub = await self.start()
        self.create_objects(cloud)
        await self.client(hub, "kubelet", PROTOBUF_FIRST).ask(ALL_PODS)
        cloud.answers[ALL_PODS] = Canned(golden("pods.json"), JSON)
        await self.client(hub, "kubelet", JSON).get(ALL_PODS)
        await self.disconnect(cloud, hub)
        found = await self.client(hub, "kubelet", JSON).ask(ALL_PODS)
        self.assertEqual(found.values(b"content-type"), [JSON.encode()])
        found = await self.client(hub, "kubelet", PROTOBUF_FIRST).ask(ALL_PODS)
        self.assertEqual(found.values(b"content-type"), [PROTOBUF.encode()])

    async def test_selections_are_made_offline(self) -> None:
        """Labels, names and nodes are found in objects without a schema."""
        cloud, hub = await self.start()
        self.create_objects(cloud)
        client = self.client(hub, "flanneld", PROTOBUF_FIRST)
        await client.ask(ALL_PODS)
        await self.disconnect(cloud, hub)
        for query, expected in (
            ("", PODS),
            ("labelSelector=app%3Dweb", PODS[:1]),
            ("labelSelector=!app", PODS[1:]),
            ("fieldSelector=metadata.namespace%3Dkube-system", PODS[2:]),
            ("fieldSelector=spec.nodeName%3Dedge-2", PODS[2:]),
        ):
            found = await client.ask(f"{ALL_PODS}?{query}")
            self.assertEqual(
                (found.status, found.values(b"content-type")), (200, [PROTOBUF.encode()])
            )
            for pod in PODS:
                (self.assertIn if pod in expected else self.assertNotIn)(
                    message("Pod", pod), found.body, query
                )

    async def test_invalid_bodies_are_forwarded_and_not_cached(self) -> None:
        """Invalid and huge bodies are forwarded; the cached data stays."""
        cloud, hub = await self.start()
        self.create_objects(cloud)
        client = self.client(hub, "flanneld", PROTOBUF_FIRST)
        await client.ask(ALL_PODS)
        await self.settled(hub)
        for sent in (
            POD_LIST[:-20],
            POD_LIST[4:],
            b"k8s\0" + b"\xff" * 100_000,
            b"k8s\0\x12" + varint(1 << 62) + b"\x12" * 100_000,
            b"\0" * 5_000_000,
            body("PodList", {"metadata": {}, "items": [{"metadata": {}}]}),
        ):
            cloud.answers[ALL_PODS] = Canned(sent, PROTOBUF)
            response = await client.ask(ALL_PODS)
            self.assertEqual((response.status, response.size), (200, len(sent)))
        await self.settled(hub)
        await self.disconnect(cloud, hub)
        offline = await client.ask(ALL_PODS)
        for pod in PODS:
            self.assertIn(message("Pod", pod), offline.body)
        self.assertEqual(offline.size, len(POD_LIST))

    async def test_a_list_is_the_old_or_the_new_one_after_a_kill(self) -> None:
        """If the hub is killed while it replaces a thousand objects, one complete list remains."""
        lists = []
        for generation in range(1, GENERATIONS + 1):
            pods = [replaced(number, generation) for number in range(REPLACED)]
            version = str(100_000 * generation)
            listed = {"metadata": {"resourceVersion": version}, "items": pods}
            lists.append((body("PodList", listed), [message("Pod", pod) for pod in pods]))
        cloud, hub = await self.start()
        client = self.client(hub, "flanneld", PROTOBUF_FIRST)
        cloud.answers[ALL_PODS] = Canned(lists[0][0], PROTOBUF)
        await client.ask(ALL_PODS)
        await self.settled(hub)
        for sent, _ in lists[1:]:
            cloud.answers[ALL_PODS] = Canned(sent, PROTOBUF)
            online = await client.ask(ALL_PODS)
            self.assertEqual(online.digest, hashlib.sha256(sent).hexdigest())
            # Its client has the complete list, most of which is not written yet.
            hub.kill()
            await cloud.refuse_connections()
            hub.start()
            await hub.ready()
            await self.wait_for_state(hub, online=False)
            offline = await client.ask(ALL_PODS)
            whole = [all(pod in offline.body for pod in pods) for _, pods in lists]
            self.assertEqual(whole.count(True), 1, whole)
            self.assertEqual(offline.size, len(lists[0][0]))
            await self.reconnect(cloud, hub)

    async def test_a_black_hole(self) -> None:
        """The first requests are served from the cache."""
        cloud, hub = await self.start(*FAST_HEARTBEAT)
        self.create_objects(cloud)
        kubelet = self.client(hub, "kubelet", PROTOBUF_FIRST)
        await kubelet.ask(ALL_PODS)
        cloud.drop_packets()
        found = await kubelet.ask(ALL_PODS, seconds=ANSWERED_SECONDS)
        self.assertEqual((found.status, found.size), (200, len(POD_LIST)))

    async def test_an_error_is_in_a_form_that_the_client_reads(self) -> None:
        """A kubelet that uses protobuf can read the error for a missing object."""
        cloud, hub = await self.start()
        await self.disconnect(cloud, hub)
        kubelet = self.client(hub, "kubelet", PROTOBUF)
        response = await kubelet.ask("/api/v1/namespaces/shop/pods/none")
        self.assertIn(response.status, (404, 503))
        self.assertIn(response.values(b"content-type")[0], (PROTOBUF.encode(), JSON.encode()))
