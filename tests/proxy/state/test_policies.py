"""Tests of the selection of endpoints: readiness, topology, and fallbacks."""

from __future__ import annotations

from ipaddress import ip_address

from twisted.trial.unittest import SynchronousTestCase

from yurttunnel.proxy.state.endpoint_slices import Condition, SliceEndpoint
from yurttunnel.proxy.state.policies import cluster_endpoints, local_endpoints
from yurttunnel.proxy.state.services import Distribution
from yurttunnel.proxy.state.virtual_services import Endpoint

READY, DRAINING, NOT_READY = Condition.READY, Condition.DRAINING, Condition.NOT_READY


def one(condition=READY, node="", zone="", zones="", nodes=""):
    """Return an endpoint; hints are separated by spaces."""
    address = ip_address("10.1.0.1")
    hints = frozenset(zones.split()), frozenset(nodes.split())
    return SliceEndpoint(address, condition, node, zone, *hints)


class PolicyCase(SynchronousTestCase):
    """Endpoints are identified by their ports: the first one has port 1."""

    def candidates(self, endpoints):
        """Return the candidates."""
        return {Endpoint(each.address, port): each for port, each in enumerate(endpoints, start=1)}

    def cluster(self, *endpoints, distribution=Distribution.ANY, zone="a"):
        """Return the ports of the endpoints that serve, wherever they are."""
        candidates = self.candidates(endpoints)
        return [each.port for each in cluster_endpoints(candidates, distribution, "here", zone)]

    def local(self, *endpoints):
        """Return the ports of the endpoints that serve on this node."""
        return [each.port for each in local_endpoints(self.candidates(endpoints), "here")]


class ReadinessTests(PolicyCase):
    """Terminating endpoints serve if none is ready (KEP-1669)."""

    def test_ready(self):
        """Only the ready ones serve."""
        self.assertEqual([2, 4], self.cluster(one(DRAINING), one(), one(NOT_READY), one()))

    def test_draining(self):
        """Without ready ones, terminating ones that serve do; others never do."""
        self.assertEqual([1], self.cluster(one(DRAINING), one(NOT_READY)))
        self.assertEqual([], self.cluster(one(NOT_READY)))

    def test_local(self):
        """The same holds among local endpoints, whatever others are."""
        here, there = {"node": "here"}, {"node": "there"}
        self.assertEqual([2], self.local(one(**there), one(**here), one(DRAINING, **here)))
        self.assertEqual([2], self.local(one(**there), one(DRAINING, **here)))
        self.assertEqual([], self.local(one(**there), one()))


class HintTests(PolicyCase):
    """Hints specify where an endpoint should be used (KEP-2433, KEP-3015)."""

    def test_zone(self):
        """Endpoints with a hint for the zone of this node serve it."""
        self.assertEqual([1, 3], self.cluster(one(zones="a"), one(zones="b"), one(zones="b a")))

    def test_one_without(self):
        """If one has no hint, none counts: the slices are being rewritten."""
        self.assertEqual([1, 2], self.cluster(one(zones="a"), one()))

    def test_one_without_that_is_not_ready(self):
        """Endpoints that are not ready need no hints."""
        self.assertEqual([1], self.cluster(one(zones="a"), one(zones="b"), one(NOT_READY)))

    def test_no_endpoint_for_the_zone(self):
        """A zone without endpoints is served by all."""
        self.assertEqual([1, 2], self.cluster(one(zones="b"), one(zones="c")))

    def test_node_without_zone(self):
        """So is a node without a zone."""
        self.assertEqual([1, 2], self.cluster(one(zones="a"), one(zones="b"), zone=""))

    def test_node(self):
        """Hints for nodes take precedence over those for zones, unless the node has none."""
        self.assertEqual(
            [2], self.cluster(one(zones="a", nodes="there"), one(zones="b", nodes="here"))
        )
        self.assertEqual(
            [1], self.cluster(one(zones="a", nodes="there"), one(zones="b", nodes="other"))
        )

    def test_draining(self):
        """Terminating endpoints serve wherever they are, as in kube-proxy."""
        self.assertEqual([1, 2], self.cluster(one(DRAINING, zones="a"), one(DRAINING, zones="b")))

    def test_local_policy(self):
        """The policy Local ignores hints."""
        self.assertEqual([1], self.local(one(node="here", zones="b"), one(node="there", zones="a")))


class DistributionTests(PolicyCase):
    """Without hints, nodes and zones of the endpoints are used instead."""

    def test_zone(self):
        """Endpoints in this zone are preferred; all serve if there are none."""
        same = Distribution.SAME_ZONE
        self.assertEqual([1], self.cluster(one(zone="a"), one(zone="b"), distribution=same))
        self.assertEqual([1, 2], self.cluster(one(zone="b"), one(zone="c"), distribution=same))
        self.assertEqual([1, 2], self.cluster(one(), one(zone="a"), distribution=same, zone=""))

    def test_node(self):
        """Endpoints on this node are preferred, then those in its zone, then all."""
        same = Distribution.SAME_NODE
        here, near, far = (
            one(node="here", zone="a"),
            one(node="n", zone="a"),
            one(node="f", zone="b"),
        )
        self.assertEqual([2], self.cluster(near, here, far, distribution=same))
        self.assertEqual([2], self.cluster(far, near, distribution=same))
        self.assertEqual([1], self.cluster(far, distribution=same))

    def test_hints_first(self):
        """Hints take precedence."""
        self.assertEqual(
            [2],
            self.cluster(
                one(zone="a", zones="b"),
                one(zone="b", zones="a"),
                distribution=Distribution.SAME_ZONE,
            ),
        )

    def test_any(self):
        """A Service without a preference is served by all, wherever they are."""
        self.assertEqual([1, 2], self.cluster(one(node="here", zone="a"), one(zone="b")))
