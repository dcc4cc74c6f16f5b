"""The node for an address or a name, and what is dialed there."""

from __future__ import annotations

from ipaddress import ip_address

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from tests.cluster.fakes import CLOUD, EDGE, FakeInformers, internal_service, node
from tests.fakes import FakeSession
from yurttunnel.cluster.nodes import Nodes
from yurttunnel.cluster.services import INTERNAL_SERVICE, ClusterAddresses, service_spec
from yurttunnel.kube.resources import NODES, SERVICES
from yurttunnel.server.frontends.kubelet.destination import Destination
from yurttunnel.server.frontends.passthrough.nodes import PassthroughNodes
from yurttunnel.server.registry import SessionRegistry
from yurttunnel.steering.original_destination import SocketAddress

OWN_NAMES = ("x-tunnel-server-internal-svc.kube-system.svc", "tunnel.example")


class NodesTestCase(SynchronousTestCase):
    """A cluster and its connected nodes."""

    synced = True

    def setUp(self):
        """Start without nodes."""
        self.informers = FakeInformers(self.synced)
        self.registry = SessionRegistry(Clock())
        self.informers.put(SERVICES, internal_service())
        self.found = PassthroughNodes(
            self.registry,
            Nodes(self.informers, frozenset(OWN_NAMES)),
            ClusterAddresses(self.informers, "kube-system"),
            iptables=True,
        )

    def node(self, *args, **kwargs):
        """Create a node, an edge node by default."""
        kwargs.setdefault("labels", EDGE)
        self.informers.put(NODES, node(*args, **kwargs))

    def connect(self, *args, **kwargs):
        """Connect the agent of a node."""
        self.registry.add(FakeSession(*args, **kwargs))

    def assert_address(self, address, *expected, port=10250):
        """Check the destination of a connection to an address: serving node and host, or none."""
        found = self.found.by_address(SocketAddress(ip_address(address), port))
        self.assertEqual(found, Destination(*expected, port) if expected else None, address)

    def assert_name(self, name, *expected):
        """Check the destination of a name: serving node, host and port; none if not given."""
        found = self.found.by_name(name)
        self.assertEqual(found, Destination(*expected) if expected else None, name)


class ByAddressTests(NodesTestCase):
    """``by_address``."""

    def test_a_node_of_the_cluster(self):
        """A node is served by its own agent, connected or not, and its address is dialed."""
        self.node("edge-1", "10.0.0.1", "2001:db8::1")
        for _ in range(2):
            self.assert_address("10.0.0.1", "edge-1", "10.0.0.1")
            self.assert_address("2001:db8::1", "edge-1", "2001:db8::1")
            self.connect("edge-1")

    def test_requested_port(self):
        """The port is the requested one, whatever port the kubelet has."""
        self.node("edge-1", "10.0.0.1", port=12345)
        self.assert_address("10.0.0.1", "edge-1", "10.0.0.1", port=10255)

    def test_an_address_that_another_claims(self):
        """A node cannot take another's address by claiming it, whatever the address's type."""
        external = node("edge-1", "10.0.0.1", labels=EDGE)
        external["status"]["addresses"].append({"type": "ExternalIP", "address": "203.0.113.9"})
        self.informers.put(NODES, external)
        self.assert_address("203.0.113.9", "edge-1", "203.0.113.9")
        self.node("edge-2", "203.0.113.9")
        self.assert_address("203.0.113.9")

    def test_several_nodes(self):
        """An address of several nodes determines none, wherever they are."""
        self.node("edge-1", "10.0.0.1")
        self.node("edge-2", "10.0.0.2")
        self.node("cloud-1", "10.0.0.1", labels=CLOUD)
        self.node("edge-3", "10.0.0.2")
        self.connect("edge-3", addresses=["10.0.0.2"])
        self.assert_address("10.0.0.1")
        self.assert_address("10.0.0.2")

    def test_nodes_that_are_not_behind_the_tunnel(self):
        """A node that is not behind the tunnel is not reached, with or without an agent."""
        self.node("cloud-1", "10.0.0.1", labels=CLOUD)
        self.node("plain", "10.0.0.2", labels=())
        self.connect("cloud-1", addresses=["10.0.0.1"])
        self.connect("plain", addresses=["10.0.0.2"])
        self.assert_address("10.0.0.1")
        self.assert_address("10.0.0.2")

    def test_addresses_that_are_not_redirected(self):
        """An address that is not redirected, such as a Service's, belongs to no node."""
        self.node("evil", "10.0.0.9", "10.96.0.7", "192.0.2.200")
        self.connect("evil", addresses=["10.96.0.7"], networks=["10.96.0.0/12"])
        self.assert_address("10.96.0.7")
        self.assert_address("192.0.2.200")
        self.assert_address("10.0.0.9", port=31250)
        self.assert_address("10.0.0.9", "evil", "10.0.0.9")

    def test_unsynced_services(self):
        """Any address may be a Service's."""
        self.node("edge-1", "10.0.0.1")
        self.informers.informer(service_spec("kube-system", INTERNAL_SERVICE)).synced = False
        self.assert_address("10.0.0.1")

    def test_address_in_another_certificate(self):
        """The node with the address is meant, not the agent whose certificate names it."""
        self.node("edge-1", "10.0.0.1")
        self.node("evil", "10.0.0.9")
        self.connect("evil", addresses=["10.0.0.1"], networks=["10.0.0.0/24"])
        self.assert_address("10.0.0.1", "edge-1", "10.0.0.1")

    def test_addresses_that_only_agents_know(self):
        """An address that only an agent claims belongs to no node."""
        self.connect("edge-1", addresses=["192.0.2.1"], networks=["192.0.2.64/26"])
        self.connect("edge-2", default_route=True)
        for address in ("192.0.2.1", "192.0.2.70", "192.0.2.2"):
            self.assert_address(address)


class ByNameTests(NodesTestCase):
    """``by_name``."""

    def test_a_node_of_the_cluster(self):
        """A node's first internal address is dialed, at the port of its kubelet."""
        self.node("edge-1", ("ExternalIP", "192.0.2.1"), "10.0.0.1", "10.0.0.2", port=12345)
        self.assert_name("edge-1", "edge-1", "10.0.0.1", 12345)
        self.connect("edge-1", addresses=["10.0.0.2"])
        self.assert_name("edge-1", "edge-1", "10.0.0.2", 12345)

    def test_a_node_without_addresses(self):
        """A node without an address is dialed by its name, which its agent knows."""
        self.node("edge-1")
        self.assert_name("edge-1", "edge-1", "edge-1", 10250)

    def test_other_names(self):
        """A name that the API lists as an address is accepted, if only one node has it."""
        self.node("edge-1", "10.0.0.1", ("Hostname", "box"), ("InternalDNS", "box.example"))
        self.assert_name("box", "edge-1", "10.0.0.1", 10250)
        self.assert_name("box.example", "edge-1", "10.0.0.1", 10250)
        self.node("edge-2", "10.0.0.2", ("Hostname", "box"))
        self.assert_name("box")

    def test_nodes_that_are_not_behind_the_tunnel(self):
        """A node that is not behind the tunnel is not reached, with or without an agent."""
        self.node("cloud-1", "10.0.0.1", labels=CLOUD)
        self.connect("cloud-1")
        self.assert_name("cloud-1")

    def test_names_that_only_agents_know(self):
        """A name that only an agent claims belongs to no node."""
        self.connect("edge-1", hosts=["camera"])
        self.connect("edge-2", default_route=True)
        for name in ("edge-1", "camera", "edge-3"):
            self.assert_name(name)

    def test_names_of_the_server(self):
        """The server's names belong to no node, whatever names a node claims or has."""
        self.node("evil", "10.0.0.9", *(("Hostname", name) for name in OWN_NAMES))
        self.node(OWN_NAMES[1], "10.0.0.10")
        self.connect("evil", hosts=OWN_NAMES)
        for name in OWN_NAMES:
            self.assert_name(name)
        self.assert_name("evil", "evil", "10.0.0.9", 10250)

    def test_a_twin(self):
        """The agent of another node with the same address does not serve this one."""
        self.node("edge-1", "10.0.0.1")
        self.node("edge-2", "10.0.0.1")
        self.connect("edge-2", addresses=["10.0.0.1"])
        self.assert_name("edge-1", "edge-1", "10.0.0.1", 10250)


class PortTests(NodesTestCase):
    """``port``."""

    def test_ports(self):
        """A node port means the port of the Service; other ports are themselves."""
        for address, port, expected in (
            ("192.0.2.77", 31250, 10250),
            ("192.0.2.77", 31251, 31251),
            ("10.96.0.7", 10250, 10250),
            ("192.0.2.200", 10250, 10250),
            ("10.0.0.1", 10255, 10255),
        ):
            original = SocketAddress(ip_address(address), port)
            self.assertEqual(expected, self.found.port(original), str(original))


class IncompleteTests(NodesTestCase):
    """Until the cache has synced, addresses are not used: other nodes may have them, too."""

    synced = False

    def test_address(self):
        """Claims of an agent do not replace it."""
        self.node("edge-1", "10.0.0.1")
        self.connect("edge-1", addresses=["10.0.0.1"])
        self.assert_address("10.0.0.1")

    def test_name(self):
        """Names of nodes are used nevertheless."""
        self.node("edge-1", "10.0.0.1")
        self.assert_name("edge-1", "edge-1", "10.0.0.1", 10250)
