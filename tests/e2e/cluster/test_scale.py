"""The cost of filling a server's caches in a large cluster."""

from __future__ import annotations

import gc
import json
import time
import tracemalloc
from collections import deque
from urllib.parse import parse_qs, urlsplit

from twisted.internet.defer import succeed
from twisted.internet.interfaces import IStreamClientEndpoint
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import implementer

from tests.e2e.cluster import large_cluster
from yurttunnel.cluster.nodes import Nodes
from yurttunnel.cluster.pods import Pods
from yurttunnel.kube.client import KubeClient
from yurttunnel.kube.configuration import KubeConfiguration
from yurttunnel.kube.credentials import FileCredentials
from yurttunnel.kube.informer import Informers

MAX_SECONDS = 0.050
"""The maximum duration of a reactor turn during the first lists, in seconds."""
MAX_BYTES = 1024
"""The maximum memory for a pod in bytes."""
READ_BYTES = 65536
"""The maximum size of a read from a socket in bytes."""
TRIES = 3
"""CPU time, too, is longer when others use the caches of the CPU, but not each time."""

TRACED_PODS = 5_000
"""Enough pods to measure the memory of one; tracing slows down each allocation."""


@implementer(IStreamClientEndpoint)
class LargeCluster:
    """An API that lists the objects of a large cluster in pages, without later changes.

    It is in the process, so that all work of its client is done in :meth:`_turn`: ``longest`` is
    the CPU time in seconds of the longest turn. The objects are encoded at creation, which takes
    long if allocations are traced.
    """

    def __init__(self, clock, pods: int) -> None:
        self._objects = {
            "/api/v1/nodes": [
                _written(large_cluster.node(number)) for number in range(large_cluster.NODES)
            ],
            "/api/v1/pods": [_written(large_cluster.pod(number)) for number in range(pods)],
        }
        self._clock = clock
        self._asked: deque = deque()
        self.longest = 0.0

    def connect(self, factory):
        """Connect."""
        protocol = factory.buildProtocol(None)
        transport = _Transport(lambda target: self._asked.append((protocol, target)))
        protocol.makeConnection(transport)
        return succeed(protocol)

    def settle(self) -> None:
        """Respond until there are no requests any more."""
        self._turn(self._clock.advance, 0)
        while self._asked:
            protocol, target = self._asked.popleft()
            answer = self._answer(target)
            for start in range(0, len(answer), READ_BYTES):
                self._turn(protocol.dataReceived, answer[start : start + READ_BYTES])
            self._turn(self._clock.advance, 0)

    def _turn(self, work, argument) -> None:
        began = time.thread_time()
        work(argument)
        self.longest = max(self.longest, time.thread_time() - began)

    def _answer(self, target: str) -> bytes:
        """Respond to a list; to a watch with the head only."""
        parts = urlsplit(target)
        query = {key: value for key, [value] in parse_qs(parts.query).items()}
        if "watch" in query:
            return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
        objects = self._objects[parts.path]
        start = int(query.get("continue", "0"))
        end = min(start + int(query["limit"]), len(objects))
        going_on = str(end) if end < len(objects) else ""
        metadata = _written({"resourceVersion": "2000000", "continue": going_on})
        body = b'{"metadata":%s,"items":[%s]}' % (metadata, b",".join(objects[start:end]))
        return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)


def _written(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


class _Transport(StringTransport):
    """Calls ``on_request`` with the target of each request; requests have no body."""

    def __init__(self, on_request) -> None:
        super().__init__()
        self._on_request = on_request

    def write(self, data) -> None:
        """Receive the head of a request."""
        super().write(data)
        head, end, _ = self.value().partition(b"\r\n\r\n")
        if end:
            self.clear()
            self._on_request(head.split(b" ")[1].decode())


class ScaleTests(SynchronousTestCase):
    """1,000 nodes and 20,000 pods."""

    def fill(self, clock: Clock, api: LargeCluster) -> None:
        """Fill the caches of a server."""
        configuration = KubeConfiguration("http://api", "default", bytes, FileCredentials())
        client = KubeClient(clock, configuration, api)
        informers = Informers(clock, client)
        self.nodes, self.pods = Nodes(informers), Pods(informers)
        informers.startService()
        api.settle()
        self.assertIsNone(informers.problem())
        self.addCleanup(client.close)
        self.addCleanup(informers.stopService)

    def test_first_lists(self):
        """They are read in pages, so that no turn of the reactor takes more than 50 ms, and all
        objects are known afterwards."""
        clock = Clock()
        api = LargeCluster(clock, large_cluster.PODS)
        # What other tests have left is not for the garbage collector of this one.
        gc.collect()
        gc.freeze()
        self.addCleanup(gc.unfreeze)
        longest = []
        while not longest or (min(longest) > MAX_SECONDS and len(longest) < TRIES):
            api.longest = 0.0
            self.fill(clock, api)
            longest.append(api.longest)
        self.assertLess(min(longest), MAX_SECONDS)
        for number in range(0, large_cluster.PODS, 997):
            node = large_cluster.node_name(number)
            self.assertEqual(self.pods.node_of(*large_cluster.pod_name(number)), node)
            [found] = self.nodes.find(large_cluster.node_address(number))
            self.assertEqual(found.name, node)

    def test_memory(self):
        """Less than 1 KiB is stored for each pod, including all nodes."""
        clock = Clock()
        api = LargeCluster(clock, TRACED_PODS)
        gc.collect()
        tracemalloc.start()
        self.addCleanup(tracemalloc.stop)
        self.fill(clock, api)
        gc.collect()
        retained, _ = tracemalloc.get_traced_memory()
        self.assertLess(retained, TRACED_PODS * MAX_BYTES)
