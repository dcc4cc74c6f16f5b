"""The servers' addresses from services, nodes and EndpointSlices."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from twisted.logger import capturedLogs
from twisted.trial.unittest import SynchronousTestCase

from tests.agent.kubernetes_objects import node, service, slice_of
from yurttunnel.agent.service_addresses import (
    MAX_LOCATIONS,
    MAX_PER_FAMILY,
    NoAddresses,
    locations,
    needs_nodes,
    needs_slices,
    node_facts,
    service_facts,
    slice_facts,
)
from yurttunnel.cluster.services import EXTERNAL_ADDRESS


def found(service_object, nodes=(), slices=()):
    """Return the locations."""
    return locations(
        service_facts(service_object), [*map(node_facts, nodes)], [*map(slice_facts, slices)]
    )


class LocationTests(SynchronousTestCase):
    """Each type of service."""

    def assert_missing(self, words, *objects, **more):
        """Check that there is no address, and that the message says what to do."""
        error = self.assertRaises(NoAddresses, found, *objects, **more)
        self.assertIn(words, str(error))
        self.assertIn("kube-system/x-tunnel-server-svc", str(error))
        self.assertNotIn("\n", str(error))

    def test_balancer(self):
        """All addresses and host names of a load balancer are dialed on the port ``tcp``."""
        ingress = [{"ip": "192.0.2.1"}, {"hostname": "lb.example"}, {"ip": "fd00::1"}]
        balancer = service("LoadBalancer", ingress=ingress)
        self.assertEqual(
            (("192.0.2.1", 10262), ("fd00::1", 10262), ("lb.example", 10262)), found(balancer)
        )

    def test_balancer_with_hostname_only(self):
        """A host name alone suffices."""
        balancer = service("LoadBalancer", ingress=[{"hostname": "lb.example"}])
        self.assertEqual((("lb.example", 10262),), found(balancer))

    def test_bad_addresses(self):
        """An invalid address does not affect the others."""
        ingress = [{"ip": "a b"}, {"ip": "192.0.2.1"}, {"hostname": ""}]
        self.assertEqual((("192.0.2.1", 10262),), found(service("LoadBalancer", ingress=ingress)))
        self.assert_missing("the log says why", service("LoadBalancer", ingress=ingress[:1]))

    def test_balancer_is_not_ready(self):
        """Without an ingress the message says so."""
        self.assert_missing("load balancer", service("LoadBalancer"))

    def test_annotation(self):
        """The annotation overrides nodes and endpoints; its port is used, a list is accepted."""
        for kind in ("NodePort", "ClusterIP"):
            annotated = service(kind, annotation="tunnel.example:31000, 192.0.2.9,[fd00::2]:5")
            self.assertEqual(
                (("192.0.2.9", 10262), ("fd00::2", 5), ("tunnel.example", 31000)),
                found(annotated, nodes=[node("192.0.2.1")], slices=[slice_of("192.0.2.2")]),
            )
            facts = service_facts(annotated)
            self.assertFalse(needs_nodes(facts) or needs_slices(facts))

    def test_bad_annotation(self):
        """An invalid entry does not affect others; if none is left, the message has the reason."""
        annotated = service("ClusterIP", annotation="http://x/,a:1,b:99999")
        self.assertEqual((("a", 1),), found(annotated))
        self.assert_missing(EXTERNAL_ADDRESS, service("ClusterIP", annotation="http://x/"))
        self.assert_missing("names no host", service("NodePort", annotation=" , "))

    def test_node_ports(self):
        """Nodes are dialed by their ExternalIPs, or else by their InternalIPs."""
        nodes = [node("10.0.0.1", "203.0.113.1"), node("10.0.0.2")]
        self.assertEqual(
            (("10.0.0.2", 31008), ("203.0.113.1", 31008)), found(service("NodePort"), nodes)
        )

    def test_no_cloud_nodes(self):
        """Without a cloud node the message names the label."""
        self.assert_missing("openyurt.io/is-edge-worker=false", service("NodePort"))
        self.assert_missing("openyurt.io/is-edge-worker=false", service("NodePort"), [node("")])

    def test_endpoints(self):
        """Ready endpoints of a service without annotation are dialed on their own port."""
        slices = [slice_of("192.0.2.1", "192.0.2.2", port=7), slice_of("fd00::1", port=8)]
        self.assertEqual(
            (("192.0.2.1", 7), ("192.0.2.2", 7), ("fd00::1", 8)),
            found(service("ClusterIP"), slices=slices),
        )

    def test_endpoints_that_are_not_ready(self):
        """Endpoints that are not ready are not dialed; an unknown state counts as ready."""
        slices = [slice_of("192.0.2.1", ready=False), slice_of("192.0.2.2", ready=None)]
        self.assertEqual((("192.0.2.2", 10262),), found(service("ClusterIP"), slices=slices))
        self.assert_missing("no ready endpoint", service("ClusterIP"), slices=slices[:1])
        self.assert_missing("no ready endpoint", service("ClusterIP"))

    def test_port(self):
        """A service without the port ``tcp`` is reported."""
        without = service("LoadBalancer", ingress=[{"ip": "192.0.2.1"}])
        without["spec"]["ports"][0]["name"] = "https"
        self.assert_missing("no port named tcp with a port", without)
        without = service("NodePort")
        del without["spec"]["ports"][0]["nodePort"]
        self.assert_missing("no port named tcp with a nodePort", without, [node("192.0.2.1")])
        for port, usable in ((0, False), (1, True), (65535, True), (65536, False)):
            without["spec"]["ports"][0]["nodePort"] = port
            if usable:
                self.assertEqual((("192.0.2.1", port),), found(without, [node("192.0.2.1")]))
            else:
                self.assert_missing("with a nodePort", without, [node("192.0.2.1")])

    def test_type(self):
        """Services of other types are reported as unsuitable."""
        self.assert_missing("of type ExternalName", service("ExternalName"))

    def test_bound(self):
        """The number of dialed nodes is limited."""
        nodes = [node(f"10.0.{number // 250}.{number % 250}") for number in range(500)]
        self.assertEqual(MAX_LOCATIONS, len(found(service("NodePort"), nodes)))

    def test_node_with_many_addresses(self):
        """A node with many addresses gets few places, and displaces no others."""
        greedy = node("10.0.0.1")
        greedy["status"]["addresses"] = [
            {"type": "ExternalIP", "address": address}
            for number in range(1, 100)
            for address in (f"10.1.0.{number}", f"fd00::{number}")
        ]
        others = [node(f"192.0.2.{number}") for number in range(1, MAX_LOCATIONS)]
        hosts = [host for host, _ in found(service("NodePort"), [greedy, *others])]
        self.assertEqual(MAX_LOCATIONS, len(hosts))
        self.assertLess({each["status"]["addresses"][1]["address"] for each in others}, {*hosts})
        alone = found(service("NodePort"), [greedy])
        self.assertEqual(2 * MAX_PER_FAMILY, len(alone))
        self.assertEqual(MAX_PER_FAMILY, sum(":" in host for host, _ in alone))

    def test_node_with_many_bad_addresses(self):
        """Only some addresses of a node are read, so it cannot flood the log."""
        bad = node("192.0.2.1")
        bad["status"]["addresses"] = [{"type": "ExternalIP", "address": "a b"}] * 1000
        with capturedLogs() as events:
            self.assertEqual(
                (("192.0.2.2", 31008),), found(service("NodePort"), [bad, node("192.0.2.2")])
            )
        self.assertLess(0, len(events))
        self.assertLess(len(events), 20)

    def test_order_of_nodes(self):
        """The choice of addresses does not depend on the order of the nodes."""
        nodes = [node(f"10.0.{number // 250}.{number % 250}") for number in range(100)]
        self.assertEqual(
            found(service("NodePort"), nodes), found(service("NodePort"), [*reversed(nodes)])
        )


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
)


class MalformedTests(SynchronousTestCase):
    """Malformed objects."""

    @given(VALUES, VALUES, VALUES, VALUES)
    def test_any_object(self, one, two, three, four):
        """No object of the API causes any exception other than :class:`NoAddresses`."""
        for kind in ("LoadBalancer", "NodePort", "ClusterIP", one):
            broken = {
                "metadata": {"annotations": {EXTERNAL_ADDRESS: two}},
                "spec": {"type": kind, "ports": [{"name": "tcp", "port": 1, "nodePort": 2}, one]},
                "status": {"loadBalancer": {"ingress": [{"ip": three, "hostname": four}, two]}},
            }
            nodes = [{"status": {"addresses": [{"type": "ExternalIP", "address": one}, two]}}]
            slices = [{"endpoints": [{"addresses": [one]}, two], "ports": [{"name": "tcp"}, three]}]
            for broken_service in (broken, {"spec": one, "metadata": two, "status": three}):
                try:
                    found(broken_service, nodes, slices)
                except NoAddresses as error:
                    self.assertTrue(str(error))
