"""Ports of a node that refer to its loopback address."""

from __future__ import annotations

from zope.interface.verify import verifyObject

from tests.cluster.fakes import config_map
from tests.server.frontends.kubelet.fakes import head, request
from tests.server.frontends.kubelet.test_resolution import Cluster
from yurttunnel.cluster.proxy_ports import ProxyPorts
from yurttunnel.kube.resources import CONFIG_MAPS
from yurttunnel.server.frontends.kubelet.localhost_ports import LocalhostPorts
from yurttunnel.server.frontends.kubelet.middleware import IMiddleware, chain


class LocalhostPortsTests(Cluster):
    """After the resolution."""

    def setUp(self):
        """Use the default ports."""
        super().setUp()
        self.ports("10266, 10267")
        ports = ProxyPorts(self.informers, "kube-system", 10264, lambda config_map, text: None)
        self.middleware = LocalhostPorts(self.registry, self.nodes, ports)
        self.handled = []
        self.handler = chain([self.resolution, self.middleware], self.handled.append)

    def ports(self, text):
        """Configure the ports."""
        self.informers.put(CONFIG_MAPS, config_map(localhost_proxy_ports=text))

    def found(self, host, **fields):
        """Return node, host and port of a request after the middleware."""
        self.handler(request(head(host=host, **fields)))
        destination = self.handled.pop().destination
        return destination.node, destination.host, destination.port

    def test_interface(self):
        """``LocalhostPorts`` provides ``IMiddleware``."""
        verifyObject(IMiddleware, self.middleware)

    def test_redirected(self):
        """A node's own name or address becomes its loopback address on these ports only."""
        self.node("edge-1", "192.0.2.7", ("Hostname", "box"))
        self.connect("edge-1")
        for host in ("edge-1", "192.0.2.7", "box"):
            self.assertEqual(("edge-1", "127.0.0.1", 10266), self.found(f"{host}:10266"))
        self.assertEqual(("edge-1", "192.0.2.7", 9100), self.found("192.0.2.7:9100"))

    def test_live(self):
        """The ports are those currently in the ConfigMap, and none after its deletion."""
        self.node("edge-1", "192.0.2.7")
        self.connect("edge-1")
        self.ports("9100")
        self.assertEqual("192.0.2.7", self.found("192.0.2.7:10266")[1])
        self.assertEqual("127.0.0.1", self.found("192.0.2.7:9100")[1])
        self.informers.delete(CONFIG_MAPS, "yurt-tunnel-server-cfg", "kube-system")
        self.assertEqual("192.0.2.7", self.found("192.0.2.7:9100")[1])

    def test_family(self):
        """The loopback address is IPv6 if the node has no IPv4, whatever the server has."""
        self.node("six", "2001:db8::7")
        self.node("dual", "2001:db8::8", "192.0.2.8")
        for name in ("six", "dual"):
            self.connect(name)
        self.assertEqual(("six", "::1", 10266), self.found("[2001:db8::7]:10266"))
        self.assertEqual(("dual", "127.0.0.1", 10266), self.found("[2001:DB8:0::8]:10266"))

    def test_ambiguous(self):
        """An address of two nodes is rejected, unless a name selects one."""
        for name in ("edge-1", "edge-2"):
            self.node(name, "192.168.1.10")
            self.connect(name)
        intercepted = request(head(host="192.168.1.10:10266"))
        self.handler(intercepted)
        [(status, text)] = intercepted.exchange.failures
        self.assertEqual(400, status)
        self.assertIn("edge-1, edge-2", text)
        found = self.found("192.168.1.10:10266", X_Tunnel_Proxy_Host="edge-2")
        self.assertEqual(("edge-2", "127.0.0.1", 10266), found)

    def test_other_hosts(self):
        """A host behind a node has another loopback address, so nothing changes."""
        self.node("edge-1", "192.0.2.7")
        self.connect("edge-1", "cidr=10.0.0.0/8&host=camera")
        for host in ("10.1.2.3", "camera"):
            self.assertEqual((host, host, 10266), self.found(f"{host}:10266"))
        found = self.found("10.1.2.3:10266", X_Tunnel_Proxy_Host="edge-1")
        self.assertEqual(("edge-1", "10.1.2.3", 10266), found)

    def test_other_agent(self):
        """The host stays unchanged for a node that another node's agent serves."""
        self.node("edge-1", "192.0.2.7")
        self.node("gateway", "192.0.2.1")
        self.connect("gateway", "host=edge-1")
        self.assertEqual(("edge-1", "192.0.2.7", 10266), self.found("192.0.2.7:10266"))

    def test_not_connected(self):
        """For a node that is not connected the proxy reports the error."""
        self.node("edge-1", "192.0.2.7")
        self.assertEqual(("edge-1", "192.0.2.7", 10266), self.found("192.0.2.7:10266"))

    def test_unknown_to_api(self):
        """For a node unknown to the API, the identifiers in its certificate count."""
        self.connect("edge-1", "ipv6=2001:db8::7")
        for host in ("edge-1", "[2001:db8::7]"):
            self.assertEqual("::1", self.found(f"{host}:10266")[1])
