"""Mirrors an API over the network in the node's store, as a kubelet does.

The node's object, its pods and what they refer to are copied from the API into the store; what the
node writes there is sent to the API. The node uses only its store, so it goes on when the API is
unavailable, and its writes are sent later.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial

from twisted.application.service import MultiService
from twisted.internet.interfaces import IReactorTime

from yurtlab.api import resources as local
from yurtlab.api.resources import Resource
from yurtlab.api.store import Object, Store
from yurttunnel.kube import resources as remote
from yurttunnel.kube.errors import AlreadyExists, NotFound
from yurttunnel.kube.informer import Informers
from yurttunnel.kube.interfaces import IInformer, IKubeClient, InformerSpec
from yurttunnel.kube.work_queue import WorkQueue

_REMOTE = {
    local.NODES: remote.NODES,
    local.PODS: remote.PODS,
    local.CONFIG_MAPS: remote.CONFIG_MAPS,
    local.SECRETS: remote.SECRETS,
    local.EVENTS: remote.EVENTS,
    local.LEASES: remote.LEASES,
}

_REPORTED = {kind.plural: kind for kind in (local.NODES, local.PODS, local.EVENTS, local.LEASES)}
"""The kinds that the node writes, by the name in a key of the queue."""

_OF_THE_NODE = (local.NODES, local.PODS)
"""The kinds whose status the node writes."""


class Mirror(MultiService):
    """Mirrors in ``store`` what a node sees in the API of ``client``, and sends changes to it."""

    def __init__(self, clock: IReactorTime, client: IKubeClient, store: Store, node: str) -> None:
        super().__init__()
        self._client = client
        self._store = store
        self._queue = WorkQueue(clock, self._sync, workers=1)
        informers = Informers(clock, client)
        own_pods = f"spec.nodeName={node}"
        self._seen: dict[Resource, IInformer] = {
            local.NODES: informers.informer(InformerSpec(remote.NODES, _unchanged, name=node)),
            local.PODS: informers.informer(
                InformerSpec(remote.PODS, _unchanged, field_selector=own_pods)
            ),
            local.CONFIG_MAPS: informers.informer(InformerSpec(remote.CONFIG_MAPS, _unchanged)),
            local.SECRETS: informers.informer(InformerSpec(remote.SECRETS, _unchanged)),
        }
        self._unfollow: list[Callable[[], None]] = []
        for part in (informers, self._queue):
            part.setServiceParent(self)

    def startService(self) -> None:
        for kind, informer in self._seen.items():
            self._unfollow.append(informer.add_handler(partial(self._seen_changed, kind)))
        for kind in _REPORTED.values():
            self._unfollow.append(self._store.watch(kind, partial(self._own_changed, kind)))
        super().startService()

    def stopService(self) -> object:
        for unfollow in self._unfollow:
            unfollow()
        self._unfollow.clear()
        return super().stopService()

    # -- from the API --------------------------------------------------------------------------

    def _seen_changed(self, kind: Resource, old: Object | None, new: Object | None) -> None:
        if new is None:
            assert old is not None
            self._remove(kind, old)
            return
        metadata = new["metadata"]
        own = self._store.find(kind, metadata.get("namespace"), metadata["name"])
        if own is not None and kind is local.PODS and own["metadata"]["uid"] != metadata["uid"]:
            # A new pod of the same name: the old one has ended.
            self._remove(kind, own)
            own = None
        if own is not None and kind in _OF_THE_NODE and own.get("status"):
            new = {**new, "status": own["status"]}
        self._store.adopt(kind, new)

    def _remove(self, kind: Resource, obj: Object) -> None:
        metadata = obj["metadata"]
        if self._store.find(kind, metadata.get("namespace"), metadata["name"]) is not None:
            self._store.remove(kind, metadata.get("namespace"), metadata["name"])

    # -- to the API ----------------------------------------------------------------------------

    def _own_changed(self, kind: Resource, change: str, obj: Object) -> None:
        metadata = obj["metadata"]
        self._queue.add(f"{kind.plural}/{metadata.get('namespace', '')}/{metadata['name']}")

    async def _sync(self, key: str) -> None:
        plural, namespace, name = key.split("/")
        kind = _REPORTED[plural]
        own = self._store.find(kind, namespace, name)
        if kind not in _OF_THE_NODE:
            if own is not None:
                await self._put(kind, own)
            return
        seen = self._seen[kind].get(name, namespace)
        if own is None:
            if kind is local.PODS and seen is not None:
                await self._end_pod(namespace, name)
        elif seen is not None:
            if own.get("status") != seen.get("status"):
                changed = {**seen, "status": own["status"]}
                await self._client.update(_REMOTE[kind], changed, "status")
        elif kind is local.NODES:
            await self._register(own)

    async def _put(self, kind: Resource, own: Object) -> None:
        """Create an object of the node's own, or replace it, whatever its version is."""
        resource = _REMOTE[kind]
        metadata = {k: v for k, v in own["metadata"].items() if k not in ("uid", "resourceVersion")}
        own = {**own, "metadata": metadata}
        try:
            await self._client.create(resource, own, metadata.get("namespace"))
        except AlreadyExists:
            await self._client.update(resource, own)

    async def _register(self, own: Object) -> None:
        metadata = {"name": own["metadata"]["name"], "labels": own["metadata"].get("labels") or {}}
        # An existing object has not been seen yet; once it is, its status follows.
        with suppress(AlreadyExists):
            await self._client.create(remote.NODES, {**own, "metadata": metadata})

    async def _end_pod(self, namespace: str, name: str) -> None:
        with suppress(NotFound):
            await self._client.delete(remote.PODS, name, namespace, grace=0)


def _unchanged(obj: Object) -> Object:
    return obj
