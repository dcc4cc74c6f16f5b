"""The names in the server's serving certificate."""

from __future__ import annotations

from ipaddress import ip_address

from twisted.trial.unittest import SynchronousTestCase

from tests.cluster.fakes import CLOUD, EDGE, FakeInformers, node
from tests.logged import Logged
from yurttunnel.cluster.serving_names import MAX_NODES_BYTES, MAX_PER_NODE, ServingNames
from yurttunnel.kube.resources import ENDPOINT_SLICES, NODES, SERVICES

SERVICE = "x-tunnel-server-svc"
INTERNAL = "x-tunnel-server-internal-svc"

CONSTANT = {
    "127.0.0.1",
    "::1",
    "x-tunnel-server-svc",
    "x-tunnel-server-svc.tunnel",
    "x-tunnel-server-svc.tunnel.svc",
    "x-tunnel-server-svc.tunnel.svc.cluster.local",
}
"""The names in every cluster."""


def service(kind, name=SERVICE, ingress=(), external=None, cluster_ips=("10.96.0.1",)):
    """Create a ``Service``."""
    metadata = {"namespace": "tunnel", "name": name, "annotations": {"other": "x"}}
    if external is not None:
        metadata["annotations"]["x-tunnel-server-external-addr"] = external
    return {
        "metadata": metadata,
        "spec": {"type": kind, "clusterIP": cluster_ips[0], "clusterIPs": list(cluster_ips)},
        "status": {"loadBalancer": {"ingress": list(ingress)}},
    }


def endpoint_slice(name, *addresses, service=SERVICE, hostname=None, ready=True):
    """Create an ``EndpointSlice`` with one endpoint for each address."""
    endpoints = [{"addresses": [each], "conditions": {"ready": ready}} for each in addresses]
    if hostname is not None:
        endpoints[0]["hostname"] = hostname
    labels = {"kubernetes.io/service-name": service}
    return {
        "metadata": {"namespace": "tunnel", "name": name, "labels": labels},
        "addressType": "IPv4",
        "endpoints": endpoints,
    }


class ServingNamesTests(SynchronousTestCase):
    """The sources."""

    def setUp(self):
        """Begin with an empty cluster."""
        self.informers = FakeInformers()
        self.changes = []
        self.lines = Logged(self, "serving_names")
        self.names = self.make()

    def make(self, **flags):
        """Create the object under test."""
        names = ServingNames(self.informers, "tunnel", **flags)
        names.on_change(lambda: self.changes.append(names.current()))
        return names

    def put(self, *args, **kwargs):
        """Create or change a Service."""
        self.informers.put(SERVICES, service(*args, **kwargs))

    def put_slice(self, *args, **kwargs):
        """Create or change an EndpointSlice."""
        self.informers.put(ENDPOINT_SLICES, endpoint_slice(*args, **kwargs))

    def put_node(self, *args, **kwargs):
        """Create or change a node."""
        self.informers.put(NODES, node(*args, **kwargs))

    def assert_names(self, *names, without=()):
        """Assert that there are these names, the constant ones, and no others."""
        current = self.names.current()
        found = {*current.dns_names, *map(str, current.addresses)}
        self.assertEqual({*CONSTANT, *names} - set(without), found)

    def test_nothing(self):
        """Without any Service there are the constant names, and a warning."""
        self.assert_names()
        self.assertIsNone(self.names.problem())
        warning = self.names.warning()
        self.assertIn("there is no Service tunnel/x-tunnel-server-svc", warning)
        self.assertIn("--cert-ips", warning)

    def test_own_names(self):
        """The server's own names are those of flags and both Services, even before these exist."""
        names = self.make(dns_names=["Tunnel.Example."], cluster_domain="example.org")
        internal = "x-tunnel-server-internal-svc.tunnel"
        for name in ("tunnel.example", f"{internal}.svc.example.org", f"{internal}.svc", internal):
            self.assertIn(name, names.own_names)
        self.assertEqual(9, len(names.own_names))

    def test_flags(self):
        """The names of the flags are always included."""
        self.names = self.make(
            addresses=[ip_address("203.0.113.9")],
            dns_names=["Tunnel.Example.", "Tunnel.example", "*.Edge.example", "a b"],
        )
        self.assert_names("203.0.113.9", "tunnel.example", "*.edge.example")
        self.assertIn("'a b' is not a host name", self.names.warning())

    def test_domain(self):
        """The cluster's domain may differ from the default."""
        self.names = self.make(cluster_domain="k8s.example")
        default = "x-tunnel-server-svc.tunnel.svc.cluster.local"
        self.assert_names("x-tunnel-server-svc.tunnel.svc.k8s.example", without=[default])

    def test_cluster_addresses(self):
        """All cluster addresses are included, and none of a headless Service."""
        self.put("ClusterIP", cluster_ips=("10.96.0.1", "fd00::1"))
        self.assert_names("10.96.0.1", "fd00::1")
        self.put("ClusterIP", cluster_ips=("None",))
        self.assert_names()
        self.assertIsNone(self.names.warning())

    def test_load_balancer(self):
        """All addresses and names of a load balancer are included."""
        ingress = [{"ip": "203.0.113.1"}, {"hostname": "LB-1.example.com"}, {"ip": "2001:db8::1"}]
        self.put("LoadBalancer", ingress=ingress)
        self.assert_names("10.96.0.1", "203.0.113.1", "lb-1.example.com", "2001:db8::1")
        self.assertIsNone(self.names.warning())

    def test_load_balancer_pending(self):
        """While the load balancer has no address, the rest is included, with a warning."""
        self.put("LoadBalancer")
        self.assert_names("10.96.0.1")
        self.assertIsNone(self.names.problem())
        warning = self.names.warning()
        self.assertIn("type LoadBalancer has no address from its load balancer yet", warning)
        self.assertIn(warning, self.lines)

    def test_load_balancer_lost(self):
        """A load balancer that has lost its addresses keeps them until it has others."""
        self.put("LoadBalancer", ingress=[{"ip": "203.0.113.1"}])
        self.put("LoadBalancer")
        self.assert_names("10.96.0.1", "203.0.113.1")
        self.assertIn("load balancer", self.names.warning())
        self.put("LoadBalancer", ingress=[{"ip": "203.0.113.2"}])
        self.assert_names("10.96.0.1", "203.0.113.2")
        self.assertIsNone(self.names.warning())

    def test_other_type(self):
        """When a Service changes its type, the names of the previous type are removed for good."""
        self.put("LoadBalancer", ingress=[{"ip": "203.0.113.1"}])
        self.put("ClusterIP")
        self.assert_names("10.96.0.1")
        self.put("LoadBalancer")
        self.assert_names("10.96.0.1")

    def test_annotation(self):
        """The annotation's hosts are included, with or without ports, except for LoadBalancer."""
        for external, name in (
            ("tunnel.example:443", "tunnel.example"),
            ("203.0.113.1:10262", "203.0.113.1"),
            ("[2001:db8::1]:10262", "2001:db8::1"),
            ("tunnel.example", "tunnel.example"),
        ):
            for kind in ("ClusterIP", "NodePort"):
                self.put(kind, external=external)
                self.assert_names("10.96.0.1", name)
        self.put("ClusterIP", external="tunnel.example:443, 203.0.113.1:10262,")
        self.assert_names("10.96.0.1", "tunnel.example", "203.0.113.1")
        self.put("LoadBalancer", external="tunnel.example:443")
        self.assert_names("10.96.0.1")

    def test_bad_annotation(self):
        """An invalid annotation keeps the last name, with a warning; a removed one removes it."""
        self.put("ClusterIP", external="tunnel.example:443")
        self.put("ClusterIP", external="https://tunnel.example")
        self.assert_names("10.96.0.1", "tunnel.example")
        warning = self.names.warning()
        self.assertIn("x-tunnel-server-external-addr that is not host:port", warning)
        self.put("ClusterIP")
        self.assert_names("10.96.0.1")
        self.assertIsNone(self.names.warning())
        self.put("ClusterIP", external="https://tunnel.example")
        self.assert_names("10.96.0.1")

    def test_node_port(self):
        """For NodePort, the addresses and names of cloud nodes are included, and of no others."""
        self.put_node(
            "cloud-1",
            "192.0.2.1",
            ("ExternalIP", "203.0.113.1"),
            ("Hostname", "Cloud-1"),
            ("InternalDNS", "cloud-1.internal"),
            labels=CLOUD,
        )
        self.put_node("cloud-2", "192.0.2.2", "2001:db8::2", labels=CLOUD, ready=False)
        self.put_node("edge-1", "192.0.2.3", labels=EDGE)
        self.put_node("unlabeled", "192.0.2.4")
        self.assert_names()
        self.put("NodePort")
        first = ("192.0.2.1", "203.0.113.1", "cloud-1", "cloud-1.internal")
        self.assert_names("10.96.0.1", *first, "192.0.2.2", "2001:db8::2")
        self.informers.delete(NODES, "cloud-2")
        self.assert_names("10.96.0.1", *first)

    def test_a_node_that_reports_too_many(self):
        """Only a few addresses of such a node are included, beginning with the dialed types."""
        names = [("Hostname", f"{number}.example") for number in range(1000)]
        self.put_node("cloud-1", "192.0.2.1", labels=CLOUD)
        self.put_node("cloud-0", "192.0.2.9", *names, labels=CLOUD)
        self.put_node("cloud", "x" * MAX_NODES_BYTES, labels=CLOUD)
        self.put("NodePort")
        some = [name for _, name in names[: MAX_PER_NODE - 1]]
        self.assert_names("10.96.0.1", "192.0.2.1", "192.0.2.9", *some)
        self.assertIsNone(self.names.warning())

    def test_nodes_that_report_too_many(self):
        """Up to the limit, first addresses of nodes precede further ones; an excess is logged."""
        for number in range(1000):
            host = ("Hostname", f"{number}-{'x' * 60}")
            address = f"10.0.{number // 250}.{number % 250}"
            self.put_node(f"cloud-{number}", address, host, labels=CLOUD)
        self.put("NodePort")
        current = self.names.current()
        self.assertEqual(1000 + 2, len({each for each in current.addresses if each.version == 4}))
        self.assertLess(len("".join(current.dns_names)), MAX_NODES_BYTES)
        self.assertIn("of more than 48 KiB", self.names.warning())

    def test_no_cloud_nodes(self):
        """Without cloud nodes the warning has the needed label; the last ones are kept."""
        self.put("NodePort")
        warning = self.names.warning()
        self.assertIn("openyurt.io/is-edge-worker=false", warning)
        self.put_node("cloud-1", "192.0.2.1", labels=CLOUD)
        self.assertIsNone(self.names.warning())
        self.put_node("cloud-1", "192.0.2.1")
        self.assert_names("10.96.0.1", "192.0.2.1")
        self.assertEqual(warning, self.names.warning())

    def test_node_changes(self):
        """Changes of other nodes, and other changes of cloud nodes, change nothing."""
        self.put("NodePort")
        self.put_node("cloud-1", "192.0.2.1", labels=CLOUD)
        self.changes.clear()
        self.put_node("cloud-1", "192.0.2.1", labels=CLOUD, ready=False)
        self.put_node("edge-1", "192.0.2.3", labels=EDGE)
        self.assertEqual([], self.changes)
        self.put_node("cloud-1", "192.0.2.9", labels=CLOUD)
        self.assertEqual(1, len(self.changes))
        self.assert_names("10.96.0.1", "192.0.2.9")

    def test_other_service_type(self):
        """A type that leads no agents to the server causes a warning, and the rest is included."""
        self.put("ExternalName", cluster_ips=("",))
        self.assert_names()
        warning = self.names.warning()
        self.assertIn("type ExternalName leads no agent to the server", warning)

    def test_endpoints(self):
        """All endpoints are included, from all slices of the Service, ready or not."""
        self.put("ClusterIP")
        self.put_slice("a", "10.0.0.1", "10.0.0.2", hostname="server-0")
        self.put_slice("b", "fd00::1", ready=False)
        self.put_slice("c", "10.0.0.9", service="other")
        self.assert_names("10.96.0.1", "10.0.0.1", "10.0.0.2", "fd00::1", "server-0")
        self.put_slice("a", "10.0.0.3")
        self.assert_names("10.96.0.1", "10.0.0.3", "fd00::1")

    def test_no_endpoints(self):
        """While there are no endpoints, the last ones are kept without a warning."""
        self.put("ClusterIP")
        self.put_slice("a", "10.0.0.1")
        self.put_slice("a")
        self.assert_names("10.96.0.1", "10.0.0.1")
        self.assertIsNone(self.names.warning())

    def test_service_deleted(self):
        """A deleted Service removes all names of it and its endpoints."""
        self.put("LoadBalancer", ingress=[{"ip": "203.0.113.1"}])
        self.put_slice("a", "10.0.0.1")
        self.informers.delete(SERVICES, SERVICE, "tunnel")
        self.assert_names()
        self.put_slice("a")
        self.put("LoadBalancer")
        self.assert_names("10.96.0.1")

    def test_internal(self):
        """The internal Service contributes its names and addresses while it exists."""
        self.put("ClusterIP")
        self.put("ClusterIP", name=INTERNAL, cluster_ips=("10.96.0.2",))
        qualified = f"{INTERNAL}.tunnel"
        self.assert_names(
            "10.96.0.1",
            "10.96.0.2",
            INTERNAL,
            qualified,
            f"{qualified}.svc",
            f"{qualified}.svc.cluster.local",
        )
        self.informers.delete(SERVICES, INTERNAL, "tunnel")
        self.assert_names("10.96.0.1")
        self.assertIsNone(self.names.warning())

    def test_bad_names(self):
        """A name that no certificate can have is left out with a warning, the others remain."""
        self.put("LoadBalancer", ingress=[{"hostname": "no host"}, {"ip": "203.0.113.1"}])
        self.assert_names("10.96.0.1", "203.0.113.1")
        warning = self.names.warning()
        self.assertIn("'no host' is not a host name", warning)
        self.assertIn("left out", warning)

    def test_malformed(self):
        """Malformed objects contribute their valid parts."""
        malformed = service("LoadBalancer")
        malformed["metadata"]["annotations"] = None
        malformed["spec"]["clusterIPs"] = [None, "x", "10.96.0.1"]
        malformed["status"] = {"loadBalancer": {"ingress": [None, {"ip": 1}, {"ip": "192.0.2.1"}]}}
        self.informers.put(SERVICES, malformed)
        for endpoints in (None, ["x"], [{"addresses": None, "hostname": 1}]):
            broken = endpoint_slice("a")
            broken["endpoints"] = endpoints
            self.informers.put(ENDPOINT_SLICES, broken)
        self.assert_names("10.96.0.1", "192.0.2.1")

    def test_told_once(self):
        """A missing source is logged once, and again after it has been present."""
        self.put("LoadBalancer")
        self.put_slice("a", "10.0.0.1")
        self.assertEqual(2, len(self.lines))
        self.put("LoadBalancer", ingress=[{"ip": "203.0.113.1"}])
        self.put("LoadBalancer")
        self.assertEqual(3, len(self.lines))

    def test_on_change(self):
        """Callbacks are called only for changes of the set of names, until they are removed."""
        self.put("LoadBalancer", ingress=[{"ip": "203.0.113.1"}, {"ip": "203.0.113.2"}])
        self.assertEqual([self.names.current()], self.changes)
        self.put("LoadBalancer", ingress=[{"ip": "203.0.113.2"}, {"ip": "203.0.113.1"}])
        self.assertEqual(1, len(self.changes))
        others = []
        end = self.names.on_change(lambda: others.append(1))
        end()
        self.put("ClusterIP")
        self.assertEqual(2, len(self.changes))
        self.assertEqual([], others)

    def test_not_synced(self):
        """There are no names, and no warnings, before all sources are loaded."""
        self.lines.clear()
        self.informers = FakeInformers(synced=False)
        self.names = self.make()
        self.put("ClusterIP")
        self.assertIsNone(self.names.current())
        for words in ("wait for the API", f"services {SERVICE}", "endpointslices", "nodes"):
            self.assertIn(words, self.names.problem())
        informers = list(self.informers.by_spec.values())
        for informer in informers[:-1]:
            informer.complete()
        self.assertIsNone(self.names.current())
        self.assertEqual(([], []), (self.changes, self.lines))
        informers[-1].complete()
        self.assert_names("10.96.0.1")
        self.assertEqual([self.names.current()], self.changes)
        self.assertIsNone(self.names.problem())

    def test_stopped(self):
        """Informers may stop before they are synced."""
        self.informers = FakeInformers(synced=False)
        self.names = self.make()
        for informer in self.informers.by_spec.values():
            informer.stop()
        self.assertIsNone(self.names.current())

    def test_one_by_one(self):
        """Only these objects are watched."""
        followed = {
            (spec.resource.plural, spec.namespace, spec.name, spec.label_selector)
            for spec in self.informers.by_spec
        }
        label = f"kubernetes.io/service-name={SERVICE}"
        self.assertEqual(
            {
                ("services", "tunnel", SERVICE, ""),
                ("services", "tunnel", INTERNAL, ""),
                ("endpointslices", "tunnel", None, label),
                ("nodes", None, None, ""),
            },
            followed,
        )
