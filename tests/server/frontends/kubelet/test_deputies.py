"""Who speaks for others chooses no node by what a request says.

kube-apiserver is imitated as it is: ``UpgradeAwareHandler`` passes on its client's ``Host``, path
and fields and adds ``X-Forwarded-For`` (``ServeHTTP`` and ``tryUpgrade`` of k8s.io/apimachinery
pkg/util/proxy/upgradeaware.go, ``UseLocationHost`` unset). Its requests name the node in TLS, as
Go's ``http.Transport`` does with every name that it dials; its upgrades do not, unless it verifies
kubelets (``DialURL`` of pkg/util/proxy/dial.go gives ``ServerName`` only without
``InsecureSkipVerify``).
"""

from __future__ import annotations

import json
from dataclasses import replace
from ipaddress import ip_address

from OpenSSL import SSL
from twisted.internet.defer import fail
from twisted.internet.interfaces import IOpenSSLClientConnectionCreator
from twisted.internet.protocol import Factory
from twisted.internet.testing import StringTransport
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import implementer
from zope.interface.verify import verifyObject

from tests.cluster.fakes import CLOUD, EDGE, FakeInformers, internal_service, node, pod
from tests.fakes import Recorder
from tests.pki.support import client_context
from tests.server.frontends.kubelet.test_authorization import ALLOWED, AuthorizedWorld
from tests.server.frontends.kubelet.test_resolution import Session
from tests.tunnel.memory import User
from yurttunnel.cluster.nodes import Nodes
from yurttunnel.cluster.pods import Pods
from yurttunnel.cluster.proxy_ports import ProxyPorts
from yurttunnel.cluster.services import ClusterAddresses
from yurttunnel.http.request_body import read_body
from yurttunnel.kube.resources import CONFIG_MAPS, NODES, PODS, SERVICES
from yurttunnel.pki.callers import HTTP_PROTOCOL
from yurttunnel.pki.credentials import new_key
from yurttunnel.server.frontends.kubelet.authorization import Authorization
from yurttunnel.server.frontends.kubelet.callers import CertificateUsers
from yurttunnel.server.frontends.kubelet.connections import Aim, Aims
from yurttunnel.server.frontends.kubelet.deputies import Deputies, KnownCluster
from yurttunnel.server.frontends.kubelet.host_names import HostNames
from yurttunnel.server.frontends.kubelet.middleware import IMiddleware
from yurttunnel.server.frontends.kubelet.resolution import Resolution
from yurttunnel.server.frontends.passthrough.original_destination import SocketAddress
from yurttunnel.tunnel import tls
from yurttunnel.tunnel.errors import StreamFailed
from yurttunnel.tunnel.shares import OTHER
from yurttunnel.wire.codes import Code

EDGE_1 = ("10.0.0.1", "2001:db8::1")
EDGE_2 = ("10.0.0.2", "2001:db8::2")
SERVICE = "10.96.0.7"
EXTERNAL = "192.0.2.200"
OWN_NAMES = ("x-tunnel-server-internal-svc.kube-system.svc", "tunnel.example")
API_HOSTS = ("10.0.0.100:6443", "kubernetes.default", "[2001:db8::100]:6443", "api.example:443")
"""What ``Host`` has when the API is asked: the API's own name."""

UPGRADE = {"Connection": "Upgrade", "Upgrade": "SPDY/3.1", "X_Forwarded_For": "192.0.2.50"}


@implementer(IOpenSSLClientConnectionCreator)
class Dialer:
    """The TLS of a caller that verifies nobody, with or without a name in its ClientHello."""

    def __init__(self, credentials, server_name):
        self._credentials = credentials
        self._server_name = server_name

    def clientConnectionForTLS(self, tlsProtocol):
        """Make the TLS state of a connection."""
        connection = SSL.Connection(client_context(self._credentials, [HTTP_PROTOCOL]), None)
        if self._server_name is not None:
            connection.set_tlsext_host_name(self._server_name.encode())
        return connection


class OtherNode(Session):
    """Another node, which refuses what it is asked for, and remembers it."""

    def __init__(self, name):
        super().__init__(name)
        self.dials = []

    def open_stream(self, host, port, timeout, request_id, holder=OTHER):
        """Refuse."""
        self.dials.append((host, port))
        return fail(StreamFailed(Code.REFUSED, "nobody listens"))


class ToldAims(Aims):
    """What connections were for; the test says where the kernel has led them from, and who asks."""

    led_from: SocketAddress | None = None
    from_here = True

    def _read(self, transport):
        return replace(super()._read(transport), led_from=self.led_from, from_here=self.from_here)


class DeputiesWorld(AuthorizedWorld):
    """A server in a cluster with two edge nodes, of which the first has a kubelet."""

    iptables = True
    dns = False
    named_upgrades = False
    synced = True

    @property
    def middlewares(self):
        """Make them in their order."""
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
        self.registry.is_anothers = nodes.is_anothers
        self.aims = ToldAims()
        ports = ProxyPorts(informers, "kube-system", 10264, lambda *event: None)
        informers.put(
            CONFIG_MAPS,
            {
                "metadata": {"namespace": "kube-system", "name": "yurt-tunnel-server-cfg"},
                "data": {"http-proxy-ports": "9100"},
            },
        )
        self.cluster = KnownCluster(
            nodes,
            pods,
            services,
            ports,
            self.iptables,
            self.dns,
            self.named_upgrades,
        )
        self.deputies = Deputies(
            self.clock, self.registry, self.cluster, CertificateUsers([ALLOWED]), self.aims
        )
        return [
            self.deputies,
            Resolution(self.registry, nodes, pods),
            HostNames(self.registry, lambda host: {each.name for each in nodes.find(host)}),
            authorization,
            passed,
        ]

    def put_node(self, name, *addresses, labels=EDGE, **kwargs):
        """Create a node, or change it."""
        self.informers.put(NODES, node(name, *addresses, labels=labels, **kwargs))

    def lead(self, address, port=10250):
        """Have connections from now on be led here from an address and port."""
        self.aims.led_from = SocketAddress(ip_address(address), port)

    def apiserver(self, server_name=None):
        """Connect as kube-apiserver."""
        return self.connect(self.issuer.caller(), server_name)

    def jane(self, server_name=None, name="jane"):
        """Connect as somebody who speaks for herself, or so it looks."""
        key = new_key()
        certificate = self.issuer.authority.sign_client(key.public_key(), name, None)
        return self.connect(self.issuer.authority.credentials(key, certificate), server_name)

    def connect(self, credentials, server_name):
        """Connect over TLS that verifies nobody."""
        caller = Recorder()
        creator = Dialer(credentials, server_name)
        near = tls.client_side(self.reactor, creator, Factory.forProtocol(lambda: caller))
        self.link(near.buildProtocol(None), self.secured())
        return caller

    def reaches(self, caller, *connected, target="/metrics", **fields):
        """Assert where a request goes: what the agent of the first node connects to."""
        self.connected.clear()
        self.interception.sessions_drain(frozenset({self.session}))
        self.settle()
        self.ask(caller, target, **fields)
        self.assertEqual((self.connected, self.other.dials), (list(connected), []))

    def refuses(self, caller, status, *words, **fields):
        """Assert that a request reaches nobody, and is refused in one line."""
        self.connected.clear()
        self.ask(caller, **fields)
        self.answered(caller, status, *words)
        self.assertEqual((self.connected, self.other.dials), ([], []))
        self.assertEqual(caller.received.rpartition(b"\r\n\r\n")[2].count(b"\n"), 1)


class ShareTests(DeputiesWorld):
    """No client of kube-apiserver shuts a node for its other clients, or for those who ask
    themselves.
    """

    run_target = "/run/default/here/web?cmd=sleep+3600"
    mallory, joan = "192.0.2.66", "192.0.2.50"

    def setUp(self):
        """Have kube-apiserver's connections led here, and a kubelet that answers what it can."""
        super().setUp()
        self.lead(EDGE_1[0])
        self.kubelet.answer = self.answer

    def answer(self, exchange):
        """Answer neither what runs for ever nor what is not complete."""
        target = exchange.head.target
        if exchange.has_body:
            read_body(exchange, 1 << 20).addCallbacks(
                lambda body: exchange.respond(200, [], b"%d bytes\n" % len(body)), lambda _: None
            )
        elif target.startswith(b"/exec"):
            exchange.switch(101, b"", [(b"Connection", b"Upgrade"), (b"Upgrade", b"x")], User())
        elif not target.startswith(b"/run"):
            exchange.respond(200, [], b"metric 1\n")

    def by(self, address, *given):
        """Return the fields by which kube-apiserver tells for whom it asks."""
        return {"X_Forwarded_For": ", ".join([*given, address])}

    def flood(self, *spelled, count=20, **fields):
        """Have requests without an answer made for one client, which may say it is others."""
        for number in range(count):
            given = [each.format(number) for each in spelled]
            client = self.by(self.mallory, *given)
            self.ask(self.apiserver(), self.run_target, "POST", **client, **fields)

    def test_answers_that_never_begin(self):
        """Who waits for them, whatever it says, has half; others are answered at once."""
        self.flood()
        self.flood("198.51.100.{}")
        self.assertEqual(16, self.pooled()["in_use"])
        others = self.by(self.joan)
        for _ in range(3):
            caller = self.apiserver()
            self.ask(caller, **others)
            self.answered(caller, 200, "metric 1\n")
            execing = self.apiserver()
            self.ask(execing, "/exec/default/here/web?command=sh", "POST", **UPGRADE)
            self.answered(execing, 101)
            self.pass_time(60, 5)
            self.flood(count=16)
        self.api.rules.add(("jane", "get", "metrics", "edge-1"))
        own = self.jane()
        self.ask(own)
        self.answered(own, 200, "metric 1\n")

    def test_upgrades_come_first_whoever_asks(self):
        """An exec begins while others, and requests of unknown clients, wait for answers."""
        for number in range(5):
            self.mallory = f"192.0.2.{100 + number}"
            self.flood()
        for _ in range(20):
            self.ask(self.apiserver(), self.run_target, "POST")
        self.assertEqual(32, self.pooled()["in_use"])
        for fields in (UPGRADE, {"Connection": "Upgrade", "Upgrade": "SPDY/3.1"}):
            caller = self.apiserver()
            self.ask(caller, "/exec/default/here/web?command=sh", "POST", **fields)
            self.answered(caller, 101)

    def test_dripping_bodies(self):
        """600 bytes a second, or one in 10 s, refuse nobody else's upload."""
        begun = []
        for seconds, size in ((10, 6000), (10, 1)):
            for _ in range(20):
                caller = self.apiserver()
                fields = self.by(self.mallory)
                self.ask(caller, "/x", "POST", b"a", Content_Length="100000000", **fields)
                begun.append((caller, size))
            self.pass_time(2)
            for _ in range(12):
                for caller, size in begun:
                    if not caller.ended_with:
                        caller.transport.write(b"a" * size)
                self.pass_time(seconds, 5)
                uploading = self.apiserver()
                fields = self.by(self.joan)
                body = b"a" * 50_000
                self.ask(uploading, "/x", "POST", body, Content_Length="50000", **fields)
                self.answered(uploading, 200, "50000 bytes\n")

    def test_only_kube_apiserver_is_believed(self):
        """Who speaks for himself, or is led to the port that asks nobody, counts as what he is."""
        for verb in ("proxy", "metrics"):
            self.api.rules.add(("jane", "create", verb, "edge-1"))
        for number in range(20):
            client = self.by(f"198.51.100.{number}")
            self.ask(self.jane(), self.run_target, "POST", **client)
        self.assertEqual(16, self.pooled()["in_use"])
        self.serve_kubelet(None)
        self.lead(EDGE_1[0], 10255)
        for number in range(20):
            client = self.by(f"198.51.100.{number}")
            self.ask(self.dial_insecurely(), self.run_target, "POST", **client)
        self.assertEqual(32, self.pooled()["in_use"])


class LedTests(DeputiesWorld):
    """kube-apiserver, whose connections our firewall rules have led here."""

    def test_ordinary(self):
        """``kubectl get --raw /api/v1/nodes/edge-1/proxy/metrics`` reaches the node, in both
        families, though ``Host`` is the API's own name.
        """
        for address in EDGE_1:
            self.lead(address)
            for host in API_HOSTS:
                caller = self.apiserver()
                self.reaches(caller, (address, 10250), Host=host, X_Forwarded_For="192.0.2.50")
                self.answered(caller, 200, "metric 1\n")

    def test_host_of_another_node(self):
        """``Host: edge-2:10250`` through edge-1 reaches edge-1."""
        for address in EDGE_1:
            self.lead(address)
            for host in ("edge-2:10250", "10.0.0.2:10250", "[2001:db8::2]:10266", "EDGE-2.:1"):
                self.reaches(self.apiserver(), (address, 10250), Host=host)

    def test_fields_for_the_server(self):
        """``X-Tunnel-Proxy-Dest`` and ``X-Tunnel-Proxy-Host`` are refused, whatever they say."""
        self.lead(EDGE_1[0])
        for fields in (
            {"X_Tunnel_Proxy_Dest": "edge-2:10250"},
            {"X_Tunnel_Proxy_Dest": "127.0.0.1:10266"},
            {"X_Tunnel_Proxy_Host": "edge-2"},
            {"x_tunnel_proxy_host": "edge-1"},
            {"X_Tunnel_Proxy_Host": ""},
        ):
            self.refuses(
                self.apiserver(), 403, "does not count from who speaks for others", **fields
            )

    def test_pods_of_another_node(self):
        """Paths of a pod on edge-2 through edge-1 are refused, also when they are encoded."""
        self.lead(EDGE_1[0])
        for first in (
            "run",
            "exec",
            "attach",
            "portForward",
            "containerLogs",
            "checkpoint",
            "%65xec",
        ):
            for fields in ({}, UPGRADE):
                self.refuses(
                    self.apiserver("edge-2"),
                    403,
                    "the pod in the path is on the node edge-2, and the connection was for edge-1",
                    target=f"/{first}/default/there/web",
                    method="POST",
                    Host="edge-2:10250",
                    **fields,
                )
        self.assertTrue(any("is on the node edge-2" in line for line in self.lines), self.lines)

    def test_pods(self):
        """A pod of the node is reached, and so is one that no cache knows yet."""
        self.lead(EDGE_1[0])
        for name in ("here", "new"):
            target = f"/containerLogs/default/{name}/web"
            self.reaches(self.apiserver(), (EDGE_1[0], 10250), target=target, Host=API_HOSTS[0])

    def test_other_ports(self):
        """The port counts as well, and paths of what is no kubelet are about no pods."""
        self.lead(EDGE_1[0], 9443)
        self.reaches(
            self.apiserver(), (EDGE_1[0], 9443), target="/run/default/there", Host="edge-2:10250"
        )

    def test_two_nodes_with_one_address(self):
        """The name in TLS tells which, or the pod; else nothing does."""
        self.put_node("edge-2", EDGE_1[0])
        self.lead(EDGE_1[0])
        self.refuses(
            self.apiserver(), 400, "2 nodes: edge-1, edge-2", "=Hostname", Host="edge-1:10250"
        )
        self.reaches(self.apiserver("edge-1"), (EDGE_1[0], 10250), Host="edge-2:10250")
        self.reaches(self.apiserver(), (EDGE_1[0], 10250), target="/exec/default/here/web")
        self.refuses(self.apiserver("edge-1"), 403, target="/exec/default/there/web")

    def test_unknown_addresses(self):
        """What is no node's is not reached, nor a cloud node without an agent."""
        self.put_node("cloud-1", "10.0.0.3", labels=CLOUD)
        for address in ("192.0.2.77", "10.0.0.3"):
            self.lead(address)
            self.refuses(self.apiserver("edge-1"), 503, f"{address}:10250", Host="edge-1:10250")

    def test_node_that_claims_what_another_has(self):
        """An address is of all who say that they have it, whatever types they say it is of."""
        external = node("edge-1", *EDGE_1, labels=EDGE)
        external["status"]["addresses"].append({"type": "ExternalIP", "address": "203.0.113.9"})
        self.informers.put(NODES, external)
        self.lead("203.0.113.9")
        self.reaches(self.apiserver(), ("203.0.113.9", 10250))
        self.put_node("edge-2", *EDGE_2, "203.0.113.9")
        self.refuses(self.apiserver(), 400, "2 nodes: edge-1, edge-2")

    def test_many_nodes_with_one_address(self):
        """Some of them are named; a client that reads 1,024 bytes of a refusal reads it all."""
        for number in range(40):
            self.put_node(f"edge-with-a-rather-long-name-{number:02}", EDGE_1[0])
        self.lead(EDGE_1[0])
        caller = self.apiserver()
        fields = {"Connection": "Upgrade", "Upgrade": "websocket"}
        self.ask(caller, "/exec/default/new/web", **fields)
        self.answered(caller, 400, "41 nodes: edge-1, ", " and 36 more; ")
        body = caller.received.rpartition(b"\r\n\r\n")[2]
        self.assertEqual(400, json.loads(body[:1024])["code"])

    def test_upgrades_that_were_not_led(self):
        """Where rules alone lead here no upgrade is for a node that no rule has led."""
        self.refuses(
            self.apiserver(), 403, "nothing tells", target="/exec/default/here/web", **UPGRADE
        )

    def test_unlisted_kube_apiserver_at_unknown_addresses(self):
        """One that --allowed-callers does not have chooses nothing by its clients' fields."""
        self.put_node("cloud-1", "10.0.0.3", labels=CLOUD)
        for verb in ("get", "create"):
            for what in ("proxy", "metrics"):
                self.api.rules.add(("jane", verb, what, "edge-1"))
        self.api.tokens["secret"] = "jane"
        for address in ("192.0.2.77", "10.244.7.7", "10.0.0.3"):
            self.lead(address)
            for caller, proof in (
                (self.jane(), {}),
                (self.jane("edge-1"), {}),
                (self.connect(None, None), {"Authorization": "Bearer secret"}),
            ):
                for fields in (
                    {"Host": "edge-1:10250"},
                    {"X_Tunnel_Proxy_Dest": "127.0.0.1:10266", "X_Tunnel_Proxy_Host": "edge-1"},
                ):
                    self.refuses(caller, 503, f"{address}:10250", **fields, **proof)

    def test_ways_of_the_service(self):
        """Who speaks for himself may come by a node port or an external address of the Service."""
        self.api.rules.add(("jane", "get", "metrics", "edge-1"))
        for address, port in ((SERVICE, 10250), (EXTERNAL, 10250), ("192.0.2.77", 31250)):
            self.lead(address, port)
            self.reaches(self.jane(), ("edge-1", 10250), Host="edge-1:10250")
        for address, port in ((EXTERNAL, 9443), ("192.0.2.77", 31251)):
            self.lead(address, port)
            self.refuses(self.jane(), 503, f"{address}:{port}", Host="edge-1:10250")

    def test_lying_node(self):
        """A node that claims the Service's address gets nothing of who comes by that."""
        self.put_node("edge-2", *EDGE_2, SERVICE)
        self.lead(SERVICE)
        self.reaches(self.apiserver("edge-1"), (EDGE_1[0], 10250), Host=f"{SERVICE}:10250")
        self.refuses(self.apiserver(), 403, "nothing tells", Host=f"{SERVICE}:10250")

    def test_kubelets_of_other_ports(self):
        """The pod in a path counts on a kubelet's own port, wherever that is, and on the usual."""
        self.put_node("edge-1", *EDGE_1, port=10350)
        for port in (10250, 10255, 10350):
            self.lead(EDGE_1[0], port)
            self.refuses(self.apiserver(), 403, "edge-2", target="/run/default/there/web")

    def test_node_of_which_the_api_has_not_told(self):
        """Its agent has proven its name, but no address that counts here."""
        self.informers.delete(NODES, "edge-1")
        self.lead(EDGE_1[0])
        self.refuses(self.apiserver("edge-1"), 503, "the address of no node")

    def test_unlabelled_node(self):
        """A node with an agent is behind the tunnel, whatever its labels, and so is one with the
        label that is cut off.
        """
        self.put_node("edge-1", *EDGE_1, labels={})
        self.lead(EDGE_1[0])
        self.reaches(self.apiserver(), (EDGE_1[0], 10250))
        self.put_node("edge-1", *EDGE_1)
        self.registry.remove(self.registry.direct("edge-1"))
        self.refuses(self.apiserver(), 503, "no agent is connected for edge-1")

    def test_kept_connection(self):
        """Each request of a connection goes where that was for, and the kernel is asked once."""
        self.lead(EDGE_1[0])
        caller = self.apiserver()
        self.ask(caller, Host=API_HOSTS[0])
        self.aims.led_from = SocketAddress(ip_address(EDGE_2[0]), 10250)
        self.ask(caller, Host="edge-2:10250")
        self.answered(caller, 200)
        self.assertEqual(len(self.kubelet.exchanges), 2)
        self.assertEqual(self.other.dials, [])
        self.assertEqual([b"10.0.0.1:10250"], self.kubelet.head.values(b"host"))


class NamedTests(DeputiesWorld):
    """kube-apiserver, which has dialed a node's name that leads to the Service."""

    iptables = False
    dns = True

    def test_rules_of_others(self):
        """What was led here by rules that are not ours reaches nothing, whoever asks."""
        self.lead(EDGE_2[0])
        self.api.rules.add(("jane", "get", "metrics", "edge-1"))
        for caller in (self.apiserver("edge-1"), self.jane(), self.jane("edge-1")):
            self.refuses(caller, 503, "not by rules that this server knows", Host="edge-1:10250")

    def test_upgrades_that_name_no_node(self):
        """The pod tells the node only where TLS names nothing at all."""
        for name in ("edge-9", *OWN_NAMES, "api.example", "10.0.0.3"):
            self.refuses(
                self.apiserver(name),
                403,
                "nothing tells",
                target="/exec/default/here/web",
                method="POST",
                **UPGRADE,
            )

    def test_node_that_claims_a_name_of_the_server(self):
        """It gets nothing that comes by that name, and keeps nobody from the server."""
        self.api.rules.add(("jane", "get", "metrics", "edge-1"))
        self.put_node("edge-2", *EDGE_2, *OWN_NAMES)
        for name in OWN_NAMES:
            self.reaches(self.jane(name), ("edge-1", 10250), Host="edge-1:10250")
            self.refuses(self.apiserver(name), 403, "nothing tells", Host="edge-2:10250")

    def test_node_that_is_called_as_the_server(self):
        """Neither the API's word nor the certificate of its agent gives it what comes so."""
        self.api.rules.add(("jane", "get", "metrics", "edge-1"))
        called = OtherNode(OWN_NAMES[1])
        self.registry.add(called)
        for _ in range(2):
            self.reaches(self.jane(OWN_NAMES[1]), ("edge-1", 10250), Host="edge-1:10250")
            self.refuses(self.apiserver(OWN_NAMES[1]), 403, "nothing tells", Host="edge-1:10250")
            self.put_node(OWN_NAMES[1], "10.0.0.3")
        self.assertEqual([], called.dials)

    def test_ordinary(self):
        """The name in TLS tells the node, though ``Host`` is the API's own."""
        for host in (*API_HOSTS, "edge-2:10250", "127.0.0.1:10266"):
            caller = self.apiserver("edge-1")
            self.reaches(caller, (EDGE_1[0], 10250), Host=host)
            self.answered(caller, 200)

    def test_port_of_the_service(self):
        """Where kube-proxy is on the same machine, the port is known, too."""
        self.lead(SERVICE, 9443)
        self.reaches(self.apiserver("edge-1"), (EDGE_1[0], 9443), Host="edge-1:10250")

    def test_node_port(self):
        """It stands for the port of the Service, which is the node's."""
        self.put_node("edge-1", *EDGE_1, port=10350)
        self.lead("192.0.2.77", 31250)
        self.reaches(self.apiserver("edge-1"), (EDGE_1[0], 10250), Host="edge-1:31250")

    def test_pods_of_another_node(self):
        """The pod has to be on the node that TLS names."""
        self.refuses(
            self.apiserver("edge-1"), 403, "is on the node edge-2", target="/run/default/there/web"
        )

    def test_upgrades_without_a_name(self):
        """``kubectl exec`` works where kube-apiserver does not verify kubelets: by the pod."""
        for first in ("exec", "attach", "portForward", "%65xec"):
            for host in API_HOSTS:
                target = f"/{first}/default/here/web?command=sh"
                caller = self.apiserver()
                self.reaches(caller, (EDGE_1[0], 10250), target=target, Host=host, **UPGRADE)

    def test_nothing_tells(self):
        """All else without a name is refused, and told what to set where."""
        for target, fields in (
            ("/metrics", {}),
            ("/metrics", UPGRADE),
            ("/containerLogs/default/here/web", UPGRADE),
            ("/run/default/here/web", UPGRADE),
            ("/exec/default/here/web", {}),
            ("//exec/default/here/web", UPGRADE),
        ):
            for name in (None, "x-tunnel-server-internal-svc.kube-system.svc", "10.0.0.1"):
                self.refuses(
                    self.apiserver(name),
                    403,
                    "--kubelet-certificate-authority",
                    "--passthrough-port",
                    "--enable-iptables",
                    target=target,
                    Host="edge-1:10250",
                    **fields,
                )

    def test_node_of_which_the_api_has_not_told(self):
        """An agent that has proven the name is enough."""
        self.informers.delete(NODES, "edge-1")
        self.reaches(self.apiserver("edge-1"), ("edge-1", 10250), Host="edge-2:10250")

    def test_dials_are_seen(self):
        """What reaches the other node is noticed by these tests."""
        self.ask(self.apiserver("edge-2"))
        self.assertEqual(self.other.dials, [(EDGE_2[0], 10250)])

    def test_unknown_pod(self):
        """An upgrade for a pod that no cache knows yet may be tried again."""
        self.refuses(self.apiserver(), 503, "(yet)", target="/exec/default/new/web", **UPGRADE)


class NamedUpgradesTests(DeputiesWorld):
    """The same with ``--unnamed-upgrades=refuse``."""

    named_upgrades = True

    upgrades = (
        UPGRADE,
        {"Connection": "Upgrade", "Upgrade": "websocket"},
        # What kube-apiserver takes for an upgrade, and this server does not.
        {"Connection": "Upgrade"},
        {"Connection": "keep-alive, not-an-UPGRADE"},
        {"Connection": "Upgrade", "Upgrade": "h2c"},
    )

    def test_kube_apiserver(self):
        """Neither the pod nor anything else makes up for a name."""
        self.lead(SERVICE)
        for name in (None, "10.0.0.1", "elsewhere"):
            for first in ("exec", "attach", "portForward", "run"):
                for fields in self.upgrades:
                    self.refuses(
                        self.apiserver(name),
                        403,
                        "--unnamed-upgrades=refuse",
                        "--kubelet-certificate-authority",
                        "--enable-iptables",
                        target=f"/{first}/default/here/web",
                        Host="edge-1:10250",
                        **fields,
                    )

    def test_unlisted_kube_apiserver(self):
        """One that --allowed-callers does not have chooses no node by its clients' fields."""
        for verb in ("get", "proxy", "metrics", "exec"):
            self.api.rules.add(("system:apiserver", "get", verb, "edge-1"))
        self.api.tokens["secret"] = "system:apiserver"
        for led_from in (None, SERVICE):
            self.aims.led_from = None
            if led_from is not None:
                self.lead(led_from)
            for caller, proof in (
                (self.jane(name="system:apiserver"), {}),
                (self.connect(None, None), {"Authorization": "Bearer secret"}),
            ):
                for chosen in ({"Host": "edge-1:10250"}, {"X_Tunnel_Proxy_Dest": "edge-1:22"}):
                    for fields in self.upgrades:
                        self.refuses(
                            caller,
                            403,
                            "--unnamed-upgrades=refuse",
                            **chosen,
                            **fields,
                            **proof,
                        )

    def test_named(self):
        """Names count as ever: a node's, and for who speaks for himself the server's own."""
        for target in ("/exec/default/here/web", "/metrics"):
            self.reaches(self.apiserver("edge-1"), (EDGE_1[0], 10250), target=target, **UPGRADE)
        self.api.rules.add(("jane", "get", "metrics", "edge-1"))
        self.reaches(
            self.jane("x-tunnel-server-internal-svc"),
            ("edge-1", 10250),
            Host="edge-1:10250",
            **UPGRADE,
        )

    def test_led(self):
        """Where our rules have led a connection here its address tells the node."""
        self.lead(EDGE_1[0])
        self.reaches(
            self.apiserver(), (EDGE_1[0], 10250), target="/exec/default/here/web", **UPGRADE
        )
        self.api.rules.add(("jane", "get", "metrics", "edge-1"))
        self.reaches(self.jane(), (EDGE_1[0], 10250), **UPGRADE)

    def test_ordinary(self):
        """What is no upgrade is as without the flag."""
        self.refuses(self.apiserver(), 403, "nothing tells", Host="edge-1:10250")
        self.api.rules.add(("jane", "get", "metrics", "edge-1"))
        self.reaches(self.jane(), ("edge-1", 10250), Host="edge-1:10250")


class OwnTests(DeputiesWorld):
    """Callers that speak for themselves, or whom --allowed-callers has forgotten."""

    def test_authorized_for_what_is_named(self):
        """At the server's own address what they name decides, and they are asked whether they may
        do that there.
        """
        for name in (None, "x-tunnel-server-internal-svc", "cloud-1"):
            self.put_node("cloud-1", "10.0.0.3", labels=CLOUD)
            self.lead(SERVICE, 10263)
            caller = self.jane(name)
            for fields in ({"Host": "edge-2:10250"}, {"X_Tunnel_Proxy_Dest": "edge-2:10250"}):
                self.refuses(
                    caller, 403, "'jane' may not get nodes/metrics of node edge-2", **fields
                )
            self.assertNotIn(b"--allowed-callers", caller.received)
            self.api.rules.add(("jane", "get", "metrics", "edge-1"))
            self.reaches(self.jane(name), ("edge-1", 10250), Host="edge-1:10250")

    def test_connections_for_nodes(self):
        """What was for a node goes there or nowhere: ``Host``, fields and pods name no other."""
        for verb in ("get", "create"):
            for what in ("proxy", "metrics"):
                for each in ("edge-1", "edge-2"):
                    self.api.rules.add(("system:apiserver", verb, what, each))
        self.api.tokens["secret"] = "system:apiserver"
        for address, name in ((EDGE_1[0], None), (EDGE_1[1], "edge-2"), (None, "edge-1")):
            self.aims.led_from = None
            if address is not None:
                self.lead(address)
            for caller, fields in (
                (self.jane(name, "system:apiserver"), {}),
                (self.connect(None, name), {"Authorization": "Bearer secret"}),
            ):
                for host in ("edge-2:10250", "10.0.0.2:10250", "[2001:db8::2]:10266", "EDGE-2.:1"):
                    self.refuses(
                        caller,
                        403,
                        "Host is the node edge-2, and the connection was for edge-1",
                        Host=host,
                        **fields,
                    )
                for field in ("X_Tunnel_Proxy_Dest", "X_Tunnel_Proxy_Host"):
                    self.refuses(
                        caller,
                        403,
                        "nor on connections that are for a node",
                        **{field: "edge-2:10250"},
                        **fields,
                    )
                for host in ("edge-1:10250", API_HOSTS[0]):
                    self.refuses(
                        caller,
                        403,
                        "the pod in the path is on the node edge-2",
                        target="/run/default/there/web",
                        method="POST",
                        Host=host,
                        **fields,
                    )

    def test_ordinary(self):
        """A kube-apiserver that is not on the list reaches the node by its packets, if it may do
        that itself, and the log says where its name is to go.
        """
        self.lead(EDGE_1[0])
        for number, host in enumerate((*API_HOSTS, "127.0.0.1:10266", "edge-1:10266")):
            name = f"apiserver-{number}"
            self.refuses(
                self.jane(name=name),
                403,
                f"'{name}' may not get nodes/metrics of node edge-1",
                "put its name into --allowed-callers",
                Host=host,
            )
            self.api.rules.add((f"{name}-of-k3s", "get", "metrics", "edge-1"))
            self.pass_time(60, step=60)
            caller = self.jane(name=f"{name}-of-k3s")
            self.reaches(caller, (EDGE_1[0], 10250), Host=host)
            self.answered(caller, 200, "metric 1\n")
        warned = [line for line in self.lines if "--allowed-callers does not have it" in line]
        self.assertIn("'apiserver-0' asks", warned[0])
        # One at once, and one a minute.
        self.assertEqual(len(warned), 1 + len(API_HOSTS) + 2)

    def test_named(self):
        """Where the name in TLS tells the node, ``Host`` tells the port if it is of that node."""
        self.api.rules.add(("prometheus", "get", "proxy", "edge-1"))
        self.api.rules.add(("prometheus", "get", "metrics", "edge-1"))
        for host, dialed in (
            ("edge-1:9443", ("edge-1", 9443)),
            (API_HOSTS[0], (EDGE_1[0], 10250)),
        ):
            self.reaches(self.jane("edge-1", "prometheus"), dialed, Host=host)


class EarlyOwnTests(DeputiesWorld):
    """The same, at a server that does not know the cluster yet."""

    synced = False

    def test_led(self):
        """What rules lead here that a server before has left waits until more is known."""
        self.lead(EDGE_1[0])
        self.refuses(self.jane(), 503, "(yet)", Host="edge-2:10250")


class PlainTests(DeputiesWorld):
    """Callers without TLS, whom nobody asks who they are."""

    def test_led(self):
        """What is led here goes to the port of the node that it was for, and nowhere else."""
        self.serve_kubelet(None)
        for address in EDGE_1:
            for port in (10255, 9100):
                self.lead(address, port)
                for host in ("edge-2:10266", "127.0.0.1:10266", "edge-1:10266", *API_HOSTS):
                    caller = self.dial_insecurely()
                    self.reaches(caller, (address, port), Host=host)
                    self.answered(caller, 200, "metric 1\n")

    def test_fields_for_the_server(self):
        """They choose neither another node nor another port."""
        self.serve_kubelet(None)
        self.lead(EDGE_1[0], 10255)
        for fields in (
            {"X_Tunnel_Proxy_Dest": "edge-2:10266"},
            {"X_Tunnel_Proxy_Dest": "127.0.0.1:10266", "X_Tunnel_Proxy_Host": "edge-1"},
            {"X_Tunnel_Proxy_Host": "edge-2"},
        ):
            self.refuses(self.dial_insecurely(), 403, "does not count", **fields)

    def test_pods_of_another_node(self):
        """The path chooses no other node."""
        self.lead(EDGE_1[0], 10255)
        for first in ("run", "exec", "containerLogs"):
            target = f"/{first}/default/there/web"
            self.refuses(self.dial_insecurely(), 403, "edge-2", target=target)

    def test_unknown_addresses(self):
        """What is no node's goes nowhere."""
        self.lead("192.0.2.77", 9100)
        self.refuses(self.dial_insecurely(), 503, "192.0.2.77:9100", Host="edge-1:9100")

    def test_programs_of_this_machine(self):
        """They say where to."""
        self.serve_kubelet(None)
        self.reaches(
            self.dial_insecurely(),
            ("10.0.0.1", 8000),
            Host="127.0.0.1:10264",
            X_Tunnel_Proxy_Dest="10.0.0.1:8000",
        )

    def test_other_machines(self):
        """Without records of names nobody else has anything to say."""
        self.aims.from_here = False
        for fields in (
            {"Host": "edge-1:9100"},
            {"Host": "10.0.0.1:10255"},
            {"Host": "localhost:10255", "target": "/run/default/here/web"},
        ):
            self.refuses(self.dial_insecurely(), 403, "--enable-dns-controller", **fields)
        self.refuses(
            self.dial_insecurely(), 403, "does not count", X_Tunnel_Proxy_Dest="10.0.0.1:9100"
        )


class PlainNamedTests(DeputiesWorld):
    """Callers without TLS from other machines, whom records of names lead here."""

    iptables = False
    dns = True

    def led(self):
        """Lead connections here by the Service, seen or unseen, and directly from afar."""
        node_port = ("192.0.2.77", 31910)
        for led_from in (None, (SERVICE, 9100), node_port):
            for from_here in (False,) if led_from is None else (False, True):
                self.aims.from_here = from_here
                self.aims.led_from = None
                if led_from is not None:
                    self.lead(*led_from)
                yield led_from

    def test_names(self):
        """A node's name leads to the ports of it that lead here."""
        self.serve_kubelet(None)
        for _ in self.led():
            self.reaches(self.dial_insecurely(), (EDGE_1[0], 9100), Host="edge-1:9100")
        self.aims.led_from, self.aims.from_here = None, False
        self.reaches(self.dial_insecurely(), (EDGE_1[0], 10255), Host="Edge-1.:10255")
        self.refuses(
            self.dial_insecurely(),
            403,
            "the pod in the path is on the node edge-2",
            target="/run/default/there/web",
            Host="edge-1:10255",
        )

    def test_all_else(self):
        """Nothing else is reached: no other port, no address, nothing by fields or paths."""
        self.put_node("cloud-1", "10.0.0.3", labels=CLOUD)
        self.put_node("tunnel.example", "10.0.0.4")
        elsewhere = ("10.0.0.2:9100", "localhost:9100", "cloud-1:9100", "edge-2")
        for led_from in self.led():
            for host in (*elsewhere, "tunnel.example:9100"):
                self.refuses(
                    self.dial_insecurely(),
                    403,
                    "http-proxy-ports",
                    Host=host,
                    target="/run/default/there/web",
                )
            for fields in (
                {"X_Tunnel_Proxy_Dest": "127.0.0.1:10266", "X_Tunnel_Proxy_Host": "edge-2"},
                {"X_Tunnel_Proxy_Host": "edge-2"},
                {"X_Tunnel_Proxy_Dest": "edge-2:9100"},
            ):
                self.refuses(
                    self.dial_insecurely(), 403, "does not count", Host="edge-1:9100", **fields
                )
            if led_from is None:
                for port in (10250, 10264, 10266, 10267, 22):
                    host = f"edge-1:{port}"
                    self.refuses(self.dial_insecurely(), 403, "http-proxy-ports", Host=host)


class OthersRulesTests(DeputiesWorld):
    """A server without firewall rules of its own."""

    iptables = False

    def test_led_by_others(self):
        """Rules that are not ours, as those that another server has left, choose nothing."""
        self.lead(EDGE_1[0], 10255)
        self.refuses(
            self.dial_insecurely(), 503, "10.0.0.1:10255", "/steering", Host="edge-2:10266"
        )


class EarlyTests(DeputiesWorld):
    """A server that does not know the cluster yet."""

    synced = False

    def test_led(self):
        """What rules lead here that a server before has left waits until more is known."""
        self.lead(EDGE_1[0], 10255)
        self.refuses(self.dial_insecurely(), 503, "(yet)", Host="edge-2:10266")
        for caller in (self.apiserver("edge-1"), self.jane()):
            self.refuses(caller, 503, "(yet)", Host="edge-2:10250")


class MiddlewareTests(SynchronousTestCase):
    """What it is to the others."""

    def test_interface(self):
        """It is a middleware."""
        informers = FakeInformers()
        cluster = KnownCluster(
            Nodes(informers),
            Pods(informers),
            ClusterAddresses(informers, "kube-system"),
            ProxyPorts(informers, "kube-system", 10264, lambda *event: None),
            iptables=True,
            dns=False,
            named_upgrades=False,
        )
        verifyObject(IMiddleware, Deputies(None, None, cluster, CertificateUsers(), Aims()))

    def test_aim_without_a_socket(self):
        """A transport that has no socket says nothing, and who is at its end comes from afar."""
        self.assertEqual(Aim(None, None), Aims().of(StringTransport()))
