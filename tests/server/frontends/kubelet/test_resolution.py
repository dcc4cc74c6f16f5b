"""The node of a request, in a cluster."""

from __future__ import annotations

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import implementer
from zope.interface.verify import verifyObject

from tests.cluster.fakes import CLOUD, EDGE, FakeInformers, node, pod
from tests.server.frontends.kubelet.fakes import head, request
from tests.server.frontends.kubelet.world import World
from yurttunnel.cluster.nodes import Nodes
from yurttunnel.cluster.pods import Pods
from yurttunnel.http.head import HeadError
from yurttunnel.kube.resources import NODES, PODS
from yurttunnel.pki.identity import parse_identifiers
from yurttunnel.pki.kubelets import KubeletVerification
from yurttunnel.server.frontends.kubelet.destination import Destination
from yurttunnel.server.frontends.kubelet.middleware import IMiddleware
from yurttunnel.server.frontends.kubelet.resolution import Resolution, pod_in
from yurttunnel.server.registry import INodeSession, NodeNotConnected, SessionRegistry

LOGS = "/containerLogs/default/web/web?follow=true"


@implementer(INodeSession)
class Session:
    """A connected node, with the attributes that the lookup uses."""

    draining = False
    connected = True

    def __init__(self, name, identifiers=""):
        self.node = name
        self.identifiers = parse_identifiers(f"host={name}&{identifiers}")


class Cluster(SynchronousTestCase):
    """A cluster, whose caches are synced unless a test says otherwise, and its connected nodes."""

    synced = True

    def setUp(self):
        """Start with an empty one."""
        self.informers = FakeInformers(self.synced)
        self.nodes = Nodes(self.informers)
        self.pods = Pods(self.informers)
        self.registry = SessionRegistry(Clock())
        self.registry.belongs_to_other_node = self.nodes.belongs_to_other_node
        self.resolution = Resolution(self.registry, self.nodes, self.pods)

    def node(self, *args, **kwargs):
        """Create a node."""
        kwargs.setdefault("labels", EDGE)
        self.informers.put(NODES, node(*args, **kwargs))

    def pod(self, name, node_name):
        """Create a pod."""
        self.informers.put(PODS, pod("default", name, node_name))

    def connect(self, name, identifiers=""):
        """Connect the agent of a node."""
        self.registry.add(Session(name, identifiers))

    def found(self, target="/metrics", host="edge-1:10250", secure=True, **fields):
        """Return the destination of a request: the serving node, and what is dialed there."""
        destination = self.resolution.resolve(head(target=target, host=host, **fields), secure)
        session = self.registry.find(destination.node)
        return session.node, destination.host, destination.port

    def refused(self, *words, **fields):
        """Assert that a request is rejected with ``words``."""
        error = self.assertRaises(HeadError, self.resolution.resolve, head(**fields), True)
        self.assertEqual(400, error.status)
        for each in words:
            self.assertIn(each, error.text)
        self.assertNotIn("\n", error.text)


class PodPathTests(SynchronousTestCase):
    """The pods in paths."""

    def test_pods(self):
        """These paths of a kubelet are about a pod."""
        for first in ("exec", "attach", "portForward", "containerLogs", "run", "checkpoint"):
            for rest in ("", "/web", "/uid/web", "/web?follow=true", "?x=/a/b"):
                self.assertEqual(
                    ("default", "web"), pod_in(f"/{first}/default/web{rest}".encode())[1:]
                )

    def test_no_pods(self):
        """Other paths are not, nor are incomplete ones or those in another case."""
        for target in (
            "/",
            "*",
            "/metrics",
            "/pods/default/web",
            "/cri/exec/token",
            "/logs/default/web",
            "/exec",
            "/exec/default",
            "/Exec/default/web",
            "/portforward/default/web",
            "//exec/default/web",
            "/x/exec/default/web",
            "/metrics?/exec/default/web",
            "edge-1:10250",
        ):
            self.assertIsNone(pod_in(target.encode()), target)

    def test_decoded(self):
        """Percent-encoding hides nothing that the kubelet sees."""
        for target in (
            b"/%65xec/d%65fault/w%65b/web",
            b"/exec%2Fdefault/web/web",
            b"%2fexec/default/web",
        ):
            self.assertEqual(("default", "web"), pod_in(target)[1:])
        self.assertEqual(("default", "\ufffd"), pod_in(b"/exec/default/%ff")[1:])


class ByPodTests(Cluster):
    """The pod in the path determines the node."""

    def setUp(self):
        """Create two sites with the same addresses."""
        super().setUp()
        for name in ("edge-1", "edge-2"):
            self.node(name, "192.168.1.10", port=10350)
            self.connect(name, "ipv4=192.168.1.10")
        self.pod("web", "edge-2")

    def test_node(self):
        """The node of the pod is dialed at its address and its kubelet's port."""
        for host in ("192.168.1.10:10250", "edge-1:10250", "tunnel.example:10263", "tunnel"):
            self.assertEqual(("edge-2", "192.168.1.10", 10350), self.found(LOGS, host))

    def test_insecure(self):
        """Without TLS the requested port counts: that in the status is for TLS."""
        self.assertEqual(
            ("edge-2", "192.168.1.10", 10255), self.found(LOGS, "edge-1:10255", secure=False)
        )

    def test_unknown_pod(self):
        """A pod that is not known is ignored: Host counts."""
        self.assertEqual(
            ("edge-1", "edge-1", 10250), self.found("/exec/default/new/web", "edge-1:10250")
        )
        self.refused("edge-1, edge-2", target="/exec/default/new/web", host="192.168.1.10:10250")

    def test_recreated(self):
        """A pod that was recreated on another node is found there."""
        self.informers.delete(PODS, "web", "default")
        self.pod("web", "edge-1")
        self.assertEqual("edge-1", self.found(LOGS, "edge-2:10250")[0])

    def test_node_field(self):
        """A caller that names another node reaches that."""
        found = self.found(LOGS, "127.0.0.1:10250", X_Tunnel_Proxy_Host="edge-1")
        self.assertEqual(("edge-1", "127.0.0.1", 10250), found)

    def test_same_node_field(self):
        """A request that names the pod's node, also by a shared address, reaches that node."""
        for named in ("edge-2", "EDGE-2:10250", "192.168.1.10", "192.168.1.10:10250"):
            found = self.found(LOGS, "tunnel.example", X_Tunnel_Proxy_Host=named)
            self.assertEqual(("edge-2", "192.168.1.10", 10350), found)

    def test_destination_field(self):
        """A caller that names the destination reaches that."""
        found = self.found(LOGS, X_Tunnel_Proxy_Dest="edge-1:10250")
        self.assertEqual(("edge-1", "edge-1", 10250), found)

    def test_unknown_node(self):
        """A pod's node that is not cached yet is dialed by its name, which its agent knows."""
        self.connect("edge-9")
        self.pod("fresh", "edge-9")
        found = self.found("/exec/default/fresh/web", "192.168.1.10:10250")
        self.assertEqual(("edge-9", "edge-9", 10250), found)

    def test_no_address(self):
        """A pod's node without an address is dialed by its name, too."""
        self.node("edge-9", ("Hostname", "edge-9"))
        self.connect("edge-9")
        self.pod("fresh", "edge-9")
        self.assertEqual("edge-9", self.found("/exec/default/fresh/web")[1])

    def test_family(self):
        """The address that the agent also has is dialed, otherwise the first one."""
        self.node("dual", "192.0.2.9", "2001:db8::9")
        self.pod("six", "dual")
        self.connect("dual", "ipv6=2001:db8::9")
        self.assertEqual("2001:db8::9", self.found("/exec/default/six/web")[1])
        self.connect("dual")
        self.assertEqual("192.0.2.9", self.found("/exec/default/six/web")[1])


class ByNameTests(Cluster):
    """Host, or X-Tunnel-Proxy-Host, names the node."""

    def setUp(self):
        """Create a node."""
        super().setUp()
        self.node("edge-1", "192.0.2.7", ("Hostname", "box.site-7"))

    def test_own_name(self):
        """The node's own name is dialed as requested, with the port: the agent knows it."""
        self.connect("edge-1")
        self.assertEqual(("edge-1", "edge-1", 9100), self.found(host="Edge-1:9100"))

    def test_other_name(self):
        """For a name that only the API knows, the address is dialed."""
        self.connect("edge-1")
        self.assertEqual(("edge-1", "192.0.2.7", 10250), self.found(host="box.site-7:10250"))

    def test_other_agents(self):
        """A node is served by its own agent only, whatever the certificates of others contain."""
        self.node("edge-2", "192.0.2.1")
        for identifiers in (
            "host=edge-1",
            "host=box.site-7",
            "ipv4=192.0.2.7",
            "cidr=192.0.2.0/24",
            "default-route=true",
        ):
            self.connect("edge-2", identifiers)
            for host in ("edge-1", "box.site-7", "192.0.2.7"):
                with self.assertRaises(NodeNotConnected):
                    self.found(host=f"{host}:10250")
        self.connect("edge-1")
        self.assertEqual("edge-1", self.found(host="192.0.2.7:10250")[0])

    def test_not_connected(self):
        """The error for a node that is not connected names it, whatever the request named."""
        destination = self.resolution.resolve(head(host="192.0.2.7:10250"), True)
        self.assertEqual(Destination("edge-1", "192.0.2.7", 10250), destination)

    def test_not_the_same_address(self):
        """A node is never confused with another that has the same address."""
        self.node("edge-2", "192.0.2.7")
        self.connect("edge-2", "ipv4=192.0.2.7")
        self.assertEqual("edge-1", self.resolution.resolve(head(), True).node)
        # The same for a node that the API does not know.
        self.informers.delete(NODES, "edge-2")
        self.assertEqual("edge-1", self.resolution.resolve(head(), True).node)

    def test_unknown(self):
        """A name of no node goes unchanged to the agent that serves it."""
        self.connect("edge-1", "host=camera.site-7&cidr=10.0.0.0/8")
        for host in ("camera.site-7", "10.1.2.3"):
            self.assertEqual(("edge-1", host, 554), self.found(host=f"{host}:554"))

    def test_node_field(self):
        """The node is named separately from what is dialed there."""
        self.connect("edge-1")
        for named in ("edge-1", "box.site-7", "192.0.2.7:1"):
            for dialed in ("127.0.0.1", "other.site-7", "10.1.2.3"):
                found = self.found(host=f"{dialed}:80", X_Tunnel_Proxy_Host=named)
                self.assertEqual(("edge-1", dialed, 80), found)

    def test_node_field_of_other_agent(self):
        """What is dialed does not determine who serves the named node."""
        self.node("gateway", "192.0.2.1")
        self.connect("gateway", "ipv4=127.0.0.1")
        destination = self.resolution.resolve(
            head(host="127.0.0.1:80", X_Tunnel_Proxy_Host="edge-1"), True
        )
        self.assertEqual(Destination("edge-1", "127.0.0.1", 80), destination)

    def test_bad_fields(self):
        """Malformed destinations are rejected as without a cluster."""
        self.refused("no port", host="edge-1")
        self.refused("X-Tunnel-Proxy-Host is not a node", X_Tunnel_Proxy_Host="a b")
        self.refused("more than once", X_Tunnel_Proxy_Dest=["a:1", "a:1"])
        self.pod("web", "edge-1")
        self.refused("is not a node", target=LOGS, X_Tunnel_Proxy_Host="a b")


class ByAddressTests(Cluster):
    """Host is an address."""

    def test_address(self):
        """The node with the address is found, and the address dialed as requested."""
        self.node("edge-1", "192.0.2.7", ("ExternalIP", "198.51.100.1"))
        self.connect("edge-1")
        for host in ("192.0.2.7", "198.51.100.1"):
            self.assertEqual(("edge-1", host, 9100), self.found(host=f"{host}:9100"))

    def test_ambiguous(self):
        """An address of several edge nodes is rejected, with their names and the correct form."""
        for number in range(8):
            self.node(f"edge-{number}", "192.168.1.10")
        self.connect("edge-3", "ipv4=192.168.1.10")
        words = (
            "192.168.1.10 is the address of 8 nodes: edge-0, edge-1, edge-2, edge-3, edge-4 and 3",
            "X-Tunnel-Proxy-Host: edge-0",
        )
        self.refused(*words, host="192.168.1.10:10250")
        self.refused(*words, host="127.0.0.1:80", X_Tunnel_Proxy_Host="192.168.1.10")
        found = self.found(host="192.168.1.10:10250", X_Tunnel_Proxy_Host="edge-3")
        self.assertEqual(("edge-3", "192.168.1.10", 10250), found)

    def test_not_edge(self):
        """A node with neither the label nor an agent is excluded."""
        self.node("edge-1", "192.168.1.10")
        self.node("cloud-1", "192.168.1.10", labels=CLOUD)
        self.connect("edge-1")
        self.assertEqual("edge-1", self.found(host="192.168.1.10:10250")[0])
        self.connect("cloud-1")
        self.refused("cloud-1, edge-1", host="192.168.1.10:10250")

    def test_no_labels(self):
        """If no node has the label, the connected one is meant, otherwise none."""
        for name in ("a", "b"):
            self.node(name, "192.168.1.10", labels=())
        self.refused("a, b", host="192.168.1.10:10250")
        self.connect("b")
        self.assertEqual("b", self.found(host="192.168.1.10:10250")[0])

    def test_recreated(self):
        """A deleted node is excluded."""
        for name in ("edge-1", "edge-2"):
            self.node(name, "192.168.1.10")
        self.connect("edge-2", "ipv4=192.168.1.10")
        self.informers.delete(NODES, "edge-1")
        self.assertEqual("edge-2", self.found(host="192.168.1.10:10250")[0])


class NotSyncedTests(Cluster):
    """The caches have not synced."""

    synced = False

    def test_fields(self):
        """The fields determine the destination, without waiting for the caches."""
        self.connect("edge-1", "ipv4=192.0.2.7")
        self.assertEqual(("edge-1", "192.0.2.7", 10250), self.found(LOGS, "192.0.2.7:10250"))
        self.assertEqual(("edge-1", "edge-1", 10250), self.found(LOGS, "edge-1:10250"))

    def test_address(self):
        """An address of a known node may also be that of an unknown one, so it is not used."""
        self.node("edge-2", "192.0.2.7")
        self.connect("edge-1", "ipv4=192.0.2.7")
        self.assertEqual("edge-1", self.found(host="192.0.2.7:10250")[0])


class MiddlewareTests(Cluster):
    """Resolution as a middleware."""

    def setUp(self):
        """Wrap a handler that records requests."""
        super().setUp()
        self.handled = []
        self.handler = self.resolution.wrap(self.handled.append)

    def test_interface(self):
        """``Resolution`` provides ``IMiddleware``."""
        verifyObject(IMiddleware, self.resolution)

    def test_sets(self):
        """``Resolution`` sets the destination and calls the handler."""
        self.node("edge-1", "192.0.2.7")
        intercepted = request(head(host="192.0.2.7:10250"))
        self.handler(intercepted)
        self.assertEqual([intercepted], self.handled)
        self.assertEqual(Destination("edge-1", "192.0.2.7", 10250), intercepted.destination)

    def test_refuses(self):
        """``Resolution`` responds with an error if it cannot resolve a request."""
        intercepted = request(head(host="edge-1"))
        self.handler(intercepted)
        self.assertEqual([], self.handled)
        [(status, text)] = intercepted.exchange.failures
        self.assertEqual(400, status)
        self.assertIn("no port", text)

    def test_leaves(self):
        """``Resolution`` keeps a destination that is set already."""
        intercepted = request(head(host="edge-1"))
        intercepted.destination = Destination("edge-1", "camera", 554)
        self.handler(intercepted)
        self.assertEqual([intercepted], self.handled)
        self.assertEqual(Destination("edge-1", "camera", 554), intercepted.destination)


@implementer(IMiddleware)
class Late:
    """The resolution, created once the world has a registry."""

    def __init__(self, world):
        self.world = world

    def wrap(self, handler):
        """Create it."""
        informers = self.world.informers
        return Resolution(self.world.registry, Nodes(informers), Pods(informers)).wrap(handler)


class ThroughTests(World):
    """The whole way to a kubelet, whose certificate must match."""

    mode = KubeletVerification.CA

    def setUp(self):
        """Create a cluster of one node."""
        informers = FakeInformers()
        informers.put(NODES, node("edge-1", "192.0.2.7", port=10350, labels=EDGE))
        informers.put(PODS, pod("default", "web", "edge-1"))
        self.informers = informers
        self.middlewares = [Late(self)]
        super().setUp()

    def test_pod(self):
        """A pod's node is dialed by address, and verified by its name."""
        caller = self.dial()
        self.send_request(caller, LOGS, Host="tunnel.example")
        self.answered(caller, 200)
        self.assertEqual([("192.0.2.7", 10350)], self.connected)
        self.assertEqual([b"192.0.2.7:10350"], self.kubelet.head.values(b"host"))
        self.assertEqual({"verified": 1}, dict(self.counters.verdicts))

    def test_wrong_kubelet(self):
        """A kubelet with neither the node's name nor its address is not trusted."""
        self.serve_kubelet(self.issuer.server("edge-2"))
        caller = self.dial()
        self.send_request(caller, LOGS)
        self.answered(caller, 502, "for edge-2 and for neither 192.0.2.7 nor edge-1")

    def test_not_connected(self):
        """The error for a node that is not connected names it."""
        self.registry.remove(self.session)
        caller = self.dial()
        self.send_request(caller, LOGS, Host="192.0.2.7:10250")
        self.answered(caller, 503, "no agent is connected for edge-1")
