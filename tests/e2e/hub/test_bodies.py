"""Bodies of any size and encoding, byte for byte."""

from __future__ import annotations

import gzip
import hashlib
import json

from tests.e2e.hub.canned import Canned, Streamed
from tests.e2e.hub.clients import contents
from tests.e2e.hub.cloud import NODE
from tests.e2e.hub.node_requests import ALL_PODS
from tests.e2e.hub.support import HubTestCase

PODS = 5000
POD_BYTES = 5700
BIG_OBJECT = 64 * 1024
MAX_LINE_LENGTH = 2000
"""Maximum length of a log line."""


def pod(number: int, size: int) -> dict:
    """Return a pod as an item of a list, of about ``size`` bytes."""
    metadata = {
        "name": f"web-{number:05}",
        "namespace": "default",
        "uid": f"00000000-0000-4000-8000-{number:012}",
        "resourceVersion": str(1000 + number),
    }
    spec = {"nodeName": NODE, "containers": [{"name": "main", "image": "none"}]}
    # gzip compresses it to a tenth, like real pods.
    filling = hashlib.shake_128(b"%d" % number).hexdigest(size // 20 + 1) * 10
    annotations = {"text": f"{number} \u00e4\u4e16 \\u0000 " + filling[:size]}
    return {"metadata": {**metadata, "annotations": annotations}, "spec": spec}


def list_of(pods: list) -> bytes:
    """Return the list as kube-apiserver writes it."""
    content = {
        "kind": "PodList",
        "apiVersion": "v1",
        "metadata": {"resourceVersion": "100000"},
        "items": pods,
    }
    return json.dumps(content, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"


class BodyTests(HubTestCase):
    """The responses of an API that are written by the test."""

    async def test_a_long_list_is_forwarded_unchanged_and_cached(self) -> None:
        """Thirty megabytes arrive unchanged, and the same objects are served offline."""
        body = list_of([pod(number, POD_BYTES) for number in range(PODS)])
        cloud, hub = await self.start()
        cloud.answers[ALL_PODS] = Canned(body)
        client = self.client(hub, "flanneld")
        online = await client.ask(ALL_PODS, seconds=60)
        self.assertEqual((online.status, online.digest), (200, hashlib.sha256(body).hexdigest()))
        await self.settled(hub)
        await self.disconnect(cloud, hub)
        offline = client.expect(await client.ask(ALL_PODS, seconds=60), 200, ALL_PODS)
        self.assertEqual(contents(offline), contents(json.loads(body)))

    async def test_a_compressed_list_is_forwarded_unchanged_and_cached(self) -> None:
        """A client that accepts gzip gets the API's bytes; offline it gets the objects."""
        body = list_of([pod(number, POD_BYTES) for number in range(900)])
        cloud, hub = await self.start()
        packed = gzip.compress(body, 1)
        cloud.answers[ALL_PODS] = Canned(packed, fields=[(b"Content-Encoding", b"gzip")])
        client = self.client(hub, "flanneld")
        wants_gzip = [(b"Accept-Encoding", b"gzip")]
        online = await client.ask(ALL_PODS, fields=wants_gzip, seconds=30)
        unpacked = bytes(online.body)
        if online.values(b"content-encoding") == [b"gzip"]:
            unpacked = gzip.decompress(unpacked)
        self.assertEqual(hashlib.sha256(unpacked).digest(), hashlib.sha256(body).digest())
        await self.settled(hub)
        await self.disconnect(cloud, hub)
        offline = await client.ask(ALL_PODS, fields=wants_gzip, seconds=30)
        unpacked = bytes(offline.body)
        if offline.values(b"content-encoding") == [b"gzip"]:
            unpacked = gzip.decompress(unpacked)
        self.assertEqual(contents(json.loads(unpacked)), contents(json.loads(body)))

    async def test_a_large_object_on_a_watch_is_forwarded_and_cached(self) -> None:
        """An event of 64 KiB arrives unchanged, in any pieces, and is served offline."""
        cloud, hub = await self.start()
        cloud.answers[ALL_PODS] = Canned(list_of([]))
        stream = cloud.answers[f"{ALL_PODS}?watch"] = Streamed()
        client = self.client(hub, "flanneld")
        await client.get(ALL_PODS)
        watch = await client.watch(ALL_PODS, resourceVersion="100000")
        large = {**pod(1, BIG_OBJECT), "kind": "Pod", "apiVersion": "v1"}
        large["metadata"]["resourceVersion"] = "100001"
        event = json.dumps({"type": "ADDED", "object": large}).encode() + b"\n"
        for begin in range(0, len(event), 1000):
            stream.write(event[begin : begin + 1000])
        await watch.wait_for_events(("ADDED", "web-00001"))
        self.assertEqual(hashlib.sha256(event).hexdigest(), watch.response.digest)
        await self.settled(hub)
        await self.disconnect(cloud, hub)
        self.assertEqual(await client.get("/api/v1/namespaces/default/pods/web-00001"), large)

    async def test_invalid_bodies_are_forwarded_and_not_cached(self) -> None:
        """Invalid bodies are forwarded, and logged in short lines."""
        cloud, hub = await self.start()
        client = self.client(hub, "flanneld")
        good = list_of([pod(1, 10)])
        cloud.answers[ALL_PODS] = Canned(good)
        await client.get(ALL_PODS)
        await self.settled(hub)
        for body in (good[:-20], b"[" * 100_000, b"\0" * 1000, b'{"items":[{}]}', b"x" * 5_000_000):
            cloud.answers[ALL_PODS] = Canned(body)
            response = await client.ask(ALL_PODS)
            self.assertEqual((response.status, response.size), (200, len(body)))
        await self.settled(hub)
        await self.disconnect(cloud, hub)
        offline = await client.get(ALL_PODS)
        self.assertEqual(contents(offline), contents(json.loads(good)))
        self.assertLess(max(map(len, hub.log.splitlines())), MAX_LINE_LENGTH)

    async def test_an_aborted_list_is_one_short_line(self) -> None:
        """A client that disconnects in a list affects neither the cache nor the log."""
        body = list_of([pod(number, POD_BYTES) for number in range(2000)])
        cloud, hub = await self.start()
        client = self.client(hub, "flanneld")
        cloud.answers[ALL_PODS] = Canned(body)
        await client.get(ALL_PODS)
        await self.settled(hub)
        stream = cloud.answers[ALL_PODS] = Streamed()
        answer = await client.send(ALL_PODS)
        await self.eventually(lambda: stream.exchanges, "the API is asked")
        stream.write(body[: len(body) // 2])
        await self.within(10, answer.begun(), "the list begins")
        answer.peer.drop()
        await self.eventually(lambda: not stream.exchanges, "the API is left, too")
        await self.disconnect(cloud, hub)
        self.assertEqual(len((await client.get(ALL_PODS))["items"]), 2000)
        self.assertLess(max(map(len, hub.log.splitlines())), MAX_LINE_LENGTH)
