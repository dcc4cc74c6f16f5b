"""A server in a cluster, and callers that act for others or for themselves.

kube-apiserver is simulated accurately: ``UpgradeAwareHandler`` passes on its client's ``Host``,
path and fields and adds ``X-Forwarded-For`` (``ServeHTTP`` and ``tryUpgrade`` of
k8s.io/apimachinery pkg/util/proxy/upgradeaware.go, ``UseLocationHost`` unset). Its requests name
the node in TLS, as Go's ``http.Transport`` does with every name that it dials; its upgrades do not,
unless it verifies kubelets (``DialURL`` of pkg/util/proxy/dial.go sets ``ServerName`` only without
``InsecureSkipVerify``).
"""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_address

from twisted.internet.defer import fail

from tests.cluster.fakes import EDGE, FakeInformers, internal_service, node, pod
from tests.server.frontends.kubelet.test_authorization import ALLOWED, AuthorizedWorld
from tests.server.frontends.kubelet.test_resolution import Session
from yurttunnel.cluster.nodes import Nodes
from yurttunnel.cluster.pods import Pods
from yurttunnel.cluster.proxy_ports import ProxyPorts
from yurttunnel.cluster.services import ClusterAddresses
from yurttunnel.kube.resources import CONFIG_MAPS, NODES, PODS, SERVICES
from yurttunnel.pki.credentials import new_key
from yurttunnel.server.frontends.kubelet.authorization import Authorization
from yurttunnel.server.frontends.kubelet.callers import CertificateUsers
from yurttunnel.server.frontends.kubelet.connections import ConnectionTargets
from yurttunnel.server.frontends.kubelet.delegated_callers import ClusterState, DelegatedCallers
from yurttunnel.server.frontends.kubelet.host_names import HostNames
from yurttunnel.server.frontends.kubelet.resolution import Resolution
from yurttunnel.steering.original_destination import SocketAddress
from yurttunnel.tunnel.interfaces import StreamFailed
from yurttunnel.tunnel.shares import OTHER
from yurttunnel.wire.codes import Code

EDGE_1 = ("10.0.0.1", "2001:db8::1")
EDGE_2 = ("10.0.0.2", "2001:db8::2")
SERVICE = "10.96.0.7"
EXTERNAL = "192.0.2.200"
OWN_NAMES = ("x-tunnel-server-internal-svc.kube-system.svc", "tunnel.example")
API_HOSTS = ("10.0.0.100:6443", "kubernetes.default", "[2001:db8::100]:6443", "api.example:443")
"""The values of ``Host`` in requests to the API: the API's own names."""

UPGRADE = {"Connection": "Upgrade", "Upgrade": "SPDY/3.1", "X_Forwarded_For": "192.0.2.50"}


class OtherNode(Session):
    """Another node, which rejects and records all streams."""

    def __init__(self, name):
        super().__init__(name)
        self.dials = []

    def open_stream(self, host, port, timeout, request_id, holder=OTHER):
        """Reject."""
        self.dials.append((host, port))
        return fail(StreamFailed(Code.REFUSED, "nobody listens"))


class FakeConnectionTargets(ConnectionTargets):
    """Destinations of connections, whose redirection and source address the test sets."""

    redirected_from: SocketAddress | None = None
    is_local = True

    def _read(self, transport):
        return replace(
            super()._read(transport), redirected_from=self.redirected_from, is_local=self.is_local
        )


class DelegatedCallersWorld(AuthorizedWorld):
    """A server in a cluster with two edge nodes, of which the first has a kubelet."""

    iptables = True
    dns = False
    refuse_unnamed_upgrades = False
    synced = True

    @property
    def middlewares(self):
        """Return the middlewares in order."""
        authorization, passed = super().middlewares
        self.assertIsInstance(authorization, Authorization)
        self.informers = informers = FakeInformers(self.synced)
        nodes, pods = Nodes(informers, frozenset(OWN_NAMES)), Pods(informers)
        services = ClusterAddresses(informers, "kube-system")
        informers.put(SERVICES, internal_service(SERVICE))
        self.put_node("edge-1", *EDGE_1)
        self.put_node("edge-2", *EDGE_2)
        informers.put(PODS, pod("default", "here", "edge-1"))
        informers.put(PODS, pod("default", "there", "edge-2"))
        self.other = OtherNode("edge-2")
        self.registry.add(self.other)
        self.registry.belongs_to_other_node = nodes.belongs_to_other_node
        self.targets = FakeConnectionTargets()
        ports = ProxyPorts(informers, "kube-system", 10264, lambda *event: None)
        informers.put(
            CONFIG_MAPS,
            {
                "metadata": {"namespace": "kube-system", "name": "yurt-tunnel-server-cfg"},
                "data": {"http-proxy-ports": "9100"},
            },
        )
        self.cluster = ClusterState(
            nodes,
            pods,
            services,
            ports,
            self.iptables,
            self.dns,
            self.refuse_unnamed_upgrades,
        )
        self.middleware = DelegatedCallers(
            self.clock, self.registry, self.cluster, CertificateUsers([ALLOWED]), self.targets
        )
        return [
            self.middleware,
            Resolution(self.registry, nodes, pods),
            HostNames(self.registry, lambda host: {each.name for each in nodes.find(host)}),
            authorization,
            passed,
        ]

    def put_node(self, name, *addresses, labels=EDGE, **kwargs):
        """Create or change a node."""
        self.informers.put(NODES, node(name, *addresses, labels=labels, **kwargs))

    def redirect(self, address, port=10250):
        """Redirect further connections here from an address and port."""
        self.targets.redirected_from = SocketAddress(ip_address(address), port)

    def apiserver(self, server_name=None):
        """Connect as kube-apiserver."""
        return self.connect(self.issuer.caller(), server_name)

    def jane(self, server_name=None, name="jane"):
        """Connect as a caller that acts for itself, or appears to."""
        key = new_key()
        certificate = self.issuer.authority.sign_client(key.public_key(), name, None)
        return self.connect(self.issuer.authority.credentials(key, certificate), server_name)

    def reaches(self, caller, *connected, target="/metrics", **fields):
        """Assert the target of a request: what the agent of the first node connects to."""
        self.connected.clear()
        self.interception.sessions_draining(frozenset({self.session}))
        self.settle()
        self.send_request(caller, target, **fields)
        self.assertEqual((self.connected, self.other.dials), (list(connected), []))

    def refuses(self, caller, status, *words, **fields):
        """Assert that a request reaches no node, and is rejected with a one-line text."""
        self.connected.clear()
        self.send_request(caller, **fields)
        self.answered(caller, status, *words)
        self.assertEqual((self.connected, self.other.dials), ([], []))
        self.assertEqual(caller.received.rpartition(b"\r\n\r\n")[2].count(b"\n"), 1)
