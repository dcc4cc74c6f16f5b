"""The node pool of the node."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from tests.cluster.fakes import node
from tests.hub.filters.site import Site
from yurttunnel.hub.filters.pools import (
    NODE_BUCKETS,
    NODE_POOLS,
    members_of_bucket,
    members_of_pool,
    pool_of_node,
)
from yurttunnel.kube.resources import NODES


class PoolsTests(SynchronousTestCase):
    """The pool and its nodes."""

    def test_label(self):
        """The label of the Node names the pool, the NodePool lists its nodes."""
        site = Site()
        site.label("east")
        site.put_pool("east", "edge-1", "edge-2")
        site.put_pool("west", "edge-3")
        self.assertEqual("east", site.pools.own())
        self.assertEqual({"edge-1", "edge-2"}, site.pools.mates())

    def test_status(self):
        """Without the label it is the NodePool that lists the node."""
        site = Site()
        site.label("")
        site.put_pool("west", "edge-3")
        site.put_pool("east", "edge-1", "edge-2")
        self.assertEqual("east", site.pools.own())
        self.assertEqual({"edge-1", "edge-2"}, site.pools.mates())

    def test_flag(self):
        """The flag takes precedence over the label."""
        site = Site(pool="west")
        site.label("east")
        site.put_pool("west", "edge-1", "edge-3")
        self.assertEqual(("west", {"edge-1", "edge-3"}), (site.pools.own(), site.pools.mates()))

    def test_buckets(self):
        """The nodes of a pool may be in several buckets; NodePools are not followed then."""
        site = Site(buckets=True)
        site.label("east")
        site.put_bucket("b1", "east", "edge-1", "edge-2")
        site.put_bucket("b2", "east", "edge-4")
        site.put_bucket("b3", "west", "edge-3")
        self.assertEqual({"edge-1", "edge-2", "edge-4"}, site.pools.mates())
        followed = {spec.resource for spec in site.informers.by_spec}
        self.assertEqual({NODES, NODE_BUCKETS}, followed)

    def test_none(self):
        """A node may be in no pool."""
        site = Site()
        site.label("")
        site.put_pool("west", "edge-3")
        self.assertEqual(("", frozenset()), (site.pools.own(), site.pools.mates()))

    def test_missing_pool(self):
        """The nodes of a pool that does not exist are unknown."""
        site = Site()
        site.label("east")
        self.assertEqual(("east", None), (site.pools.own(), site.pools.mates()))

    def test_not_synced(self):
        """Nothing is known before the informers sync; a missing pool is reported then."""
        site = Site(synced=False)
        changes = []
        site.pools.on_changed.append(lambda: changes.append(site.pools.own()))
        self.assertEqual((None, None), (site.pools.own(), site.pools.mates()))
        site.put_pool("east", "edge-2")
        self.assertIsNone(site.pools.mates())
        site.informers.complete()
        self.assertEqual("", changes[-1])

    def test_incomplete_pool(self):
        """Before all buckets are known, no nodes are, even of a known pool."""
        site = Site(pool="east", buckets=True, synced=False)
        site.put_bucket("b1", "east", "edge-1")
        self.assertIsNone(site.pools.mates())
        site.put_bucket("b2", "east", "edge-2")
        site.informers.complete()
        self.assertEqual({"edge-1", "edge-2"}, site.pools.mates())

    def test_lazy(self):
        """Nothing is followed before its first use, and no pools if only the name is used."""
        site = Site()
        self.assertEqual({}, site.informers.by_spec)
        site.label("east")
        self.assertEqual("east", site.pools.own())
        site.label("west")
        self.assertNotIn(NODE_POOLS, {spec.resource for spec in site.informers.by_spec})

    def test_changes(self):
        """Callbacks are called for changes of the pool and its nodes, and for nothing else."""
        site = Site()
        site.label("east")
        site.put_pool("east", "edge-1")
        site.pools.mates()
        changes = []
        site.pools.on_changed.append(lambda: changes.append(site.pools.mates()))
        site.put_pool("west", "edge-3")
        site.informers.put(NODES, node("edge-1", labels={"apps.openyurt.io/nodepool": "east"}))
        self.assertEqual([], changes)
        site.put_pool("east", "edge-1", "edge-2")
        site.label("west")
        self.assertEqual([{"edge-1", "edge-2"}, {"edge-3"}], changes)

    def test_malformed(self):
        """Malformed objects raise no exception."""
        for obj in ({}, {"metadata": 1, "status": [], "nodes": {}}, {"nodes": [1, {"name": {}}]}):
            self.assertEqual("", pool_of_node(obj))
            self.assertEqual(("", frozenset()), members_of_pool(obj))
            self.assertEqual(("", frozenset()), members_of_bucket(obj))
        pool = {"metadata": {"name": "p", "labels": {"x": 1}}, "status": {"nodes": ["a", 1, None]}}
        self.assertEqual(("p", {"a"}), members_of_pool(pool))
