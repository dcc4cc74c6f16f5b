"""The node pool of the node, and the other nodes of that pool.

The pool is the value of ``--nodepool-name``, else the label of the Node, else the NodePool whose
status lists the node. The nodes of a pool are in the status of the NodePool, or in NodeBuckets: if
a node is added, only one bucket changes, and not the whole pool.

Informers start at the first use: clusters without pools do not have these kinds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from yurttunnel.cluster.fields import mapping, objects, text, texts
from yurttunnel.kube.informer import once_synced
from yurttunnel.kube.interfaces import IInformer, IInformers, InformerSpec
from yurttunnel.kube.resources import NODES, Object, Resource

NODE_POOLS = Resource("apps.openyurt.io", "v1beta1", "nodepools", "NodePool", namespaced=False)
"""The version of openyurt 1.3 to 1.6."""
NODE_BUCKETS = Resource(
    "apps.openyurt.io", "v1alpha1", "nodebuckets", "NodeBucket", namespaced=False
)

NODE_LABEL = "apps.openyurt.io/nodepool"
BUCKET_LABEL = "openyurt.io/pool-name"


class Members(NamedTuple):
    """Nodes of one pool."""

    pool: str
    nodes: frozenset[str]


def pool_of_node(node: Object) -> str:
    """Return the name of a Node's pool."""
    return text(mapping(mapping(node.get("metadata")).get("labels")).get(NODE_LABEL))


def members_of_pool(pool: Object) -> Members:
    """Return the nodes of a NodePool."""
    name = text(mapping(pool.get("metadata")).get("name"))
    return Members(name, frozenset(texts(mapping(pool.get("status")).get("nodes"))))


def members_of_bucket(bucket: Object) -> Members:
    """Return the pool and the nodes of a NodeBucket."""
    labels = mapping(mapping(bucket.get("metadata")).get("labels"))
    nodes = frozenset(text(each.get("name")) for each in objects(bucket.get("nodes")))
    return Members(text(labels.get(BUCKET_LABEL)), nodes - {""})


class Pools:
    """Follows the pool of ``node`` with ``informers``; ``name`` is the flag's value, or empty."""

    def __init__(self, informers: IInformers, node: str, name: str, buckets: bool) -> None:
        self.on_changed: list[Callable[[], object]] = []
        """Callbacks for a change of the pool or its nodes."""
        self._informers = informers
        self._node = node
        self._name = name
        self._buckets = buckets
        self._following: dict[Resource, IInformer] = {}
        self._last: tuple[str | None, frozenset[str] | None] = (None, None)

    def own(self) -> str | None:
        """Return the pool of the node, empty if it is in none; ``None`` while it is not known."""
        if self._name:
            return self._name
        node = self._follow(InformerSpec(NODES, pool_of_node, name=self._node))
        if label := node.get(self._node):
            return text(label)
        pools = self._pools()
        if not (node.synced and pools.synced):
            return None
        return next((each.pool for each in pools.values() if self._node in each.nodes), "")

    def mates(self) -> frozenset[str] | None:
        """Return the nodes of the pool, an empty set without a pool.

        The result is ``None`` while they are not known, and if the pool does not exist.
        """
        own = self.own()
        if not own:
            return None if own is None else frozenset()
        pools = self._pools()
        found = [each.nodes for each in pools.values() if each.pool == own]
        return frozenset().union(*found) if found and pools.synced else None

    def _pools(self) -> IInformer:
        return self._follow(
            InformerSpec(NODE_BUCKETS, members_of_bucket)
            if self._buckets
            else InformerSpec(NODE_POOLS, members_of_pool)
        )

    def _follow(self, spec: InformerSpec[Any]) -> IInformer:
        informer = self._following.get(spec.resource)
        if informer is None:
            self._following[spec.resource] = informer = self._informers.informer(spec)
            informer.add_handler(lambda old, new: self._review())
            # Until then it is not known that there are no objects.
            once_synced(informer, self._review)
        return informer

    def _review(self) -> None:
        """Report a change; only objects that a filter has already used are checked."""
        pools_asked_for = len(self._following) > (NODES in self._following)
        found = (self.own(), self.mates() if pools_asked_for else None)
        before, self._last = self._last, found
        if found != before:
            for callback in self.on_changed:
                callback()
