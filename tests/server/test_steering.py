"""The parts for steering, created according to the command line."""

from __future__ import annotations

from ipaddress import ip_address

from twisted.internet.testing import MemoryReactorClock
from twisted.trial.unittest import SynchronousTestCase

from tests.cluster.fakes import EDGE, FakeInformers, internal_service, node
from tests.server.expectations import nothing_expected
from yurttunnel.cluster.nodes import Nodes
from yurttunnel.cluster.proxy_ports import ProxyPorts
from yurttunnel.cluster.services import ClusterAddresses
from yurttunnel.kube.resources import NODES, SERVICES
from yurttunnel.server.frontends.kubelet.destination import Destination
from yurttunnel.server.options import Options
from yurttunnel.server.process import ServerProcess
from yurttunnel.server.steering import ClusterSteering
from yurttunnel.steering.original_destination import SocketAddress

CLUSTER_ADDRESS = "10.96.0.7"


class PassthroughTests(SynchronousTestCase):
    """The addresses that count for ``--passthrough-port``."""

    def setUp(self):
        """Create a node that claims the address of a Service besides its own."""
        self.informers = FakeInformers()
        self.informers.put(NODES, node("edge-1", "192.0.2.1", CLUSTER_ADDRESS, labels=EDGE))
        self.informers.put(SERVICES, internal_service(CLUSTER_ADDRESS))

    def found(self, address, *arguments):
        """Return the destination of a connection to an address, with these arguments."""
        reactor = MemoryReactorClock()
        settings = Options().settings_of("--passthrough-port=10270", *arguments)
        steering = ClusterSteering(
            reactor,
            settings,
            settings.mode,
            ServerProcess(reactor, settings, dict, nothing_expected()),
            Nodes(self.informers),
            ProxyPorts(self.informers, "kube-system", 10264, lambda *_: None),
            ClusterAddresses(self.informers, "kube-system"),
        )
        _, factory = steering.passthrough
        return factory.nodes.by_address(SocketAddress(ip_address(address), 10250))

    def test_rules(self):
        """A node's address counts if rules redirect connections here; a Service's never does."""
        expected = Destination("edge-1", "192.0.2.1", 10250)
        self.assertEqual(expected, self.found("192.0.2.1"))
        self.assertIsNone(self.found(CLUSTER_ADDRESS))

    def test_services_unknown(self):
        """None does before the Services are known."""
        self.informers.synced = False
        self.assertIsNone(self.found("192.0.2.1"))

    def test_no_rules(self):
        """None does without rules: other redirections are not ours."""
        for address in ("192.0.2.1", CLUSTER_ADDRESS):
            self.assertIsNone(self.found(address, "--enable-iptables=false"))
