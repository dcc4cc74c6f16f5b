"""The pool that the node is in."""

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
    """Which pool, and which nodes."""

    def test_label(self):
        """The Node says its pool, the NodePool its nodes."""
        site = Site()
        site.label("east")
        site.put_pool("east", "edge-1", "edge-2")
        site.put_pool("west", "edge-3")
        self.assertEqual("east", site.pools.own())
        self.assertEqual({"edge-1", "edge-2"}, site.pools.mates())

    def test_status(self):
        """Without the label it is the NodePool that has the node."""
        site = Site()
        site.label("")
        site.put_pool("west", "edge-3")
        site.put_pool("east", "edge-1", "edge-2")
        self.assertEqual("east", site.pools.own())
        self.assertEqual({"edge-1", "edge-2"}, site.pools.mates())

    def test_flag(self):
        """What the flag says counts before the label."""
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
        """A node may be in no pool, and so alone."""
        site = Site()
        site.label("")
        site.put_pool("west", "edge-3")
        self.assertEqual(("", frozenset()), (site.pools.own(), site.pools.mates()))

    def test_missing_pool(self):
        """Of a pool that is not there nobody knows the nodes."""
        site = Site()
        site.label("east")
        self.assertEqual(("east", None), (site.pools.own(), site.pools.mates()))

    def test_not_synced(self):
        """Before the API has told all, nothing is known; that nothing is there is told then."""
        site = Site(synced=False)
        told = []
        site.pools.on_changed.append(lambda: told.append(site.pools.own()))
        self.assertEqual((None, None), (site.pools.own(), site.pools.mates()))
        site.put_pool("east", "edge-2")
        self.assertIsNone(site.pools.mates())
        site.informers.complete()
        self.assertEqual("", told[-1])

    def test_incomplete_pool(self):
        """Before all buckets are known, none of the nodes are, even of a pool that is known."""
        site = Site(pool="east", buckets=True, synced=False)
        site.put_bucket("b1", "east", "edge-1")
        self.assertIsNone(site.pools.mates())
        site.put_bucket("b2", "east", "edge-2")
        site.informers.complete()
        self.assertEqual({"edge-1", "edge-2"}, site.pools.mates())

    def test_lazy(self):
        """Nothing is followed unasked, and no pools for the name of one."""
        site = Site()
        self.assertEqual({}, site.informers.by_spec)
        site.label("east")
        self.assertEqual("east", site.pools.own())
        site.label("west")
        self.assertNotIn(NODE_POOLS, {spec.resource for spec in site.informers.by_spec})

    def test_changes(self):
        """Who is told is told of changes of the pool and its nodes, and of nothing else."""
        site = Site()
        site.label("east")
        site.put_pool("east", "edge-1")
        site.pools.mates()
        told = []
        site.pools.on_changed.append(lambda: told.append(site.pools.mates()))
        site.put_pool("west", "edge-3")
        site.informers.put(NODES, node("edge-1", labels={"apps.openyurt.io/nodepool": "east"}))
        self.assertEqual([], told)
        site.put_pool("east", "edge-1", "edge-2")
        site.label("west")
        self.assertEqual([{"edge-1", "edge-2"}, {"edge-3"}], told)

    def test_malformed(self):
        """Whatever the objects are, nothing is raised."""
        for obj in ({}, {"metadata": 1, "status": [], "nodes": {}}, {"nodes": [1, {"name": {}}]}):
            self.assertEqual("", pool_of_node(obj))
            self.assertEqual(("", frozenset()), members_of_pool(obj))
            self.assertEqual(("", frozenset()), members_of_bucket(obj))
        pool = {"metadata": {"name": "p", "labels": {"x": 1}}, "status": {"nodes": ["a", 1, None]}}
        self.assertEqual(("p", {"a"}), members_of_pool(pool))
