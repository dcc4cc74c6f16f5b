"""The caches with informers that list and watch an API, limited to what they need."""

from __future__ import annotations

from ipaddress import ip_address

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from tests.cluster.fakes import CLOUD, config_map, node, pod
from tests.cluster.test_serving_names import endpoint_slice, service
from tests.kube.fakes import FakeKubeClient
from yurttunnel.cluster.nodes import Nodes
from yurttunnel.cluster.pods import PODS_SPEC, Pods
from yurttunnel.cluster.proxy_ports import ProxyPorts
from yurttunnel.cluster.serving_names import ServingNames
from yurttunnel.kube.errors import ApiUnreachable
from yurttunnel.kube.informer import Informers
from yurttunnel.kube.resources import CONFIG_MAPS, ENDPOINT_SLICES, NODES, PODS, SERVICES


class OverInformersTests(SynchronousTestCase):
    """Existing objects, and later changes."""

    def setUp(self):
        """Create an API, and caches that are not started."""
        self.clock = Clock()
        self.client = FakeKubeClient(self.clock)
        self.informers = Informers(self.clock, self.client)
        self.nodes = Nodes(self.informers)
        self.pods = Pods(self.informers)
        self.ports = ProxyPorts(self.informers, "tunnel", 10264, lambda *_: None)
        self.names = ServingNames(self.informers, "tunnel")
        self.client.put(NODES, node("edge-1", "192.0.2.7", labels=CLOUD))
        self.client.put(PODS, pod("default", "web", "edge-1"))
        self.client.put(PODS, pod("default", "pending"))
        self.client.put(CONFIG_MAPS, config_map("tunnel", localhost_proxy_ports="10266"))
        self.client.put(SERVICES, service("NodePort"))
        self.client.put(ENDPOINT_SLICES, endpoint_slice("a", "10.0.0.1"))

    def start(self):
        """Start the informers."""
        self.informers.startService()
        self.addCleanup(self.informers.stopService)
        self.settle()

    def settle(self):
        """Let the caches process all changes."""
        self.clock.pump([0.1] * 20)

    def found(self):
        """Return the names of the nodes that have the address."""
        return [each.name for each in self.nodes.find("192.0.2.7")]

    def test_start(self):
        """Objects that exist at the start are known."""
        self.start()
        self.assertEqual(["edge-1"], self.found())
        self.assertEqual("edge-1", self.pods.node_of("default", "web"))
        self.assertEqual({10266}, self.ports.ports.localhost)
        addresses = self.names.current().addresses
        for address in ("10.96.0.1", "192.0.2.7", "10.0.0.1"):
            self.assertIn(ip_address(address), addresses)

    def test_changes(self):
        """Later changes are followed."""
        self.start()
        self.client.put(NODES, node("edge-2", "192.0.2.7"))
        self.client.put(PODS, pod("default", "pending", "edge-2"))
        self.client.remove(PODS, "web", "default")
        self.client.remove(CONFIG_MAPS, "yurt-tunnel-server-cfg", "tunnel")
        self.client.remove(SERVICES, "x-tunnel-server-svc", "tunnel")
        self.settle()
        self.assertEqual(["edge-1", "edge-2"], sorted(self.found()))
        self.assertEqual("edge-2", self.pods.node_of("default", "pending"))
        self.assertIsNone(self.pods.node_of("default", "web"))
        self.assertEqual(set(), self.ports.ports.localhost)
        self.assertEqual(
            {ip_address("127.0.0.1"), ip_address("::1")}, self.names.current().addresses
        )

    def test_pending_pods(self):
        """Pods without a node are not cached."""
        self.start()
        self.assertEqual(["edge-1"], list(self.informers.informer(PODS_SPEC).values()))

    def test_unreachable(self):
        """While the API is unreachable, nothing is known, or all that was known."""
        self.client.fail(ApiUnreachable("GET: refused"))
        self.start()
        self.assertEqual([], self.found())
        self.assertIsNone(self.names.current())
        self.assertIn("wait for the API", self.names.problem())
        self.client.recover()
        self.clock.pump([1] * 120)
        self.assertEqual(["edge-1"], self.found())
        current = self.names.current()
        self.client.fail(ApiUnreachable("GET: refused"))
        self.clock.pump([1] * 120)
        self.assertEqual(["edge-1"], self.found())
        self.assertEqual(current, self.names.current())

    def test_stopped(self):
        """Caches that are stopped before they are synced leave nothing behind."""
        self.client.fail(ApiUnreachable("GET: refused"))
        self.informers.startService()
        self.settle()
        self.successResultOf(self.informers.stopService())
        self.assertEqual([], self.flushLoggedErrors())
