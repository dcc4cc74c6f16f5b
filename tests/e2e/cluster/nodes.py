"""Edge nodes that run real processes, for an API in another process or store.

The quickstart's node has its pods in a store of the same process. Here each node has its own
store, whose content is synchronized with the API in both directions, as by a kubelet.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path

from twisted.application.service import Service
from twisted.internet.defer import Deferred
from twisted.logger import Logger

from yurtlab.api import resources as local
from yurtlab.api.store import DELETED, Store
from yurtlab.node.node import Node, NodeSettings
from yurttunnel.kube.errors import ApiError, ApiUnreachable, NotFound
from yurttunnel.kube.informer import Informers
from yurttunnel.kube.interfaces import InformerSpec
from yurttunnel.kube.resources import NODES, PODS
from yurttunnel.kube.work_queue import WorkQueue

EDGE_LABEL = "openyurt.io/is-edge-worker"


def unchanged(body):
    """Return an object unchanged."""
    return body


class MirroredNode(Service):
    """A node of the API of ``client``; ``handler`` responds to requests to its kubelet.

    ``others`` are its addresses after the first one, and ``edge`` is the value of its label.
    ``peers`` has the addresses of clients that have connected to its kubelet.
    """

    log = Logger()

    def __init__(
        self,
        reactor,
        client,
        name: str,
        address: str,
        port: int,
        directory: Path,
        others: Sequence[str] = (),
        edge: bool = True,
    ):
        self.name = name
        self.address = address
        self.port = port
        self.peers: list[str] = []
        self._others = [{"type": "InternalIP", "address": each} for each in others]
        self._edge = edge
        self._client = client
        self._store = Store(reactor)
        self._node = Node(reactor, self._store, NodeSettings(name, address, port, directory))
        self.handler = self._node.handler
        self._informers = Informers(reactor, client)
        self._pods = self._informers.informer(
            InformerSpec(PODS, unchanged, field_selector=f"spec.nodeName={name}")
        )
        self._queue = WorkQueue(reactor, self._schedule_sync)
        self._unfollow = []

    def startService(self):
        """Register the node, and run its pods."""
        super().startService()
        self._queue.startService()
        self._node.startService()
        self._unfollow = [
            self._store.watch(local.NODES, lambda change, body: self._queue.add("node")),
            self._store.watch(local.PODS, self._pod_changed_in_lab),
            self._pods.add_handler(self._pod_changed_in_cluster),
        ]
        self._informers.startService()

    def stopService(self):
        """Stop everything."""
        super().stopService()
        for unfollow in self._unfollow:
            unfollow()
        return Deferred.fromCoroutine(self._stop())

    async def _stop(self):
        for part in (self._informers, self._queue, self._node):
            await (part.stopService() or Deferred.fromCoroutine(_ignore()))

    # Changes in the API

    def _pod_changed_in_cluster(self, old, new):
        if new is None:
            self._forget(old)
        elif old is None:
            body = copy.deepcopy(new)
            body.pop("status", None)
            self._store.create(local.PODS, new["metadata"]["namespace"], body)

    def _forget(self, old):
        metadata = old["metadata"]
        self._store.mark_deleted(local.PODS, metadata["namespace"], metadata["name"], 0)

    # Changes in the node's store

    def _pod_changed_in_lab(self, change, body):
        if change != DELETED:
            self._queue.add(f"{body['metadata']['namespace']}/{body['metadata']['name']}")

    async def _schedule_sync(self, key: str) -> None:
        try:
            if key == "node":
                await self._sync_node()
            else:
                await self._sync_pod(*key.split("/"))
        except (ApiError, ApiUnreachable) as error:
            self.log.info("{name}: {key}: {error}", name=self.name, key=key, error=error)
            raise

    async def _sync_node(self) -> None:
        here = self._store.get(local.NODES, None, self.name)
        try:
            there = await self._client.get(NODES, self.name)
        except NotFound:
            labels = {**here["metadata"]["labels"], EDGE_LABEL: str(self._edge).lower()}
            body = {"metadata": {"name": self.name, "labels": labels}, "spec": {}}
            there = await self._client.create(NODES, body)
        status = here.get("status")
        if status:
            # In the kubelet's order: the addresses, then the name.
            first, *names = status["addresses"]
            status = {**status, "addresses": [first, *self._others, *names]}
        if status and there.get("status") != status:
            await self._client.update(NODES, {**there, "status": status}, "status")

    async def _sync_pod(self, namespace: str, name: str) -> None:
        here = self._store.get(local.PODS, namespace, name)
        there = await self._client.get(PODS, name, namespace)
        if here.get("status") and there.get("status") != here["status"]:
            await self._client.update(PODS, {**there, "status": here["status"]}, "status")


async def _ignore() -> None:
    """Return at once."""
