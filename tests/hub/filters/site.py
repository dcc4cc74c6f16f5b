"""The node and the cluster of filters under test."""

from __future__ import annotations

from tests.cluster.fakes import FakeInformers, node
from yurttunnel.hub.filters.interfaces import FilterSite
from yurttunnel.hub.filters.pools import BUCKET_LABEL, NODE_BUCKETS, NODE_LABEL, NODE_POOLS, Pools
from yurttunnel.hub.filters.redirect import Reach
from yurttunnel.kube.resources import NODES, SERVICES


class Site:
    """The node ``edge-1``, whose pods reach the hub at 169.254.2.1, and which counts changes."""

    def __init__(self, pool="", buckets=False, host="169.254.2.1", synced=True):
        self.informers = FakeInformers(synced)
        self.pools = Pools(self.informers, "edge-1", pool, buckets)
        self.reach = Reach(bool(host))
        self.site = FilterSite("edge-1", host, 10268, self.reach, self.pools, self.informers)
        self.changes = 0

    def make(self, maker):
        """Create a filter."""
        return maker.make(self.site, self.changed)

    def changed(self):
        """Count a change."""
        self.changes += 1

    def label(self, pool, name="edge-1"):
        """Label a Node with its pool."""
        self.informers.put(NODES, node(name, labels={NODE_LABEL: pool} if pool else {}))

    def put_pool(self, name, *nodes):
        """Create or change a NodePool."""
        obj = {"metadata": {"name": name}, "status": {"nodes": list(nodes)}}
        self.informers.put(NODE_POOLS, obj)

    def put_bucket(self, name, pool, *nodes):
        """Create or change a NodeBucket."""
        metadata = {"name": name, "labels": {BUCKET_LABEL: pool}}
        obj = {"metadata": metadata, "nodes": [{"name": each} for each in nodes]}
        self.informers.put(NODE_BUCKETS, obj)

    def put_service(self, name, namespace="default", **annotations):
        """Create or change a Service with annotations."""
        metadata = {"namespace": namespace, "name": name, "annotations": annotations}
        self.informers.put(SERVICES, {"metadata": metadata})
