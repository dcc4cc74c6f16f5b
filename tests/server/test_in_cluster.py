"""A server in a cluster trusts the API more than the certificates of agents."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

from cryptography.hazmat.primitives.serialization import Encoding
from twisted.internet.address import IPv4Address
from twisted.internet.testing import MemoryReactorClock, StringTransport
from twisted.trial.unittest import SynchronousTestCase

from tests.cluster.fakes import EDGE, FakeInformers, node
from tests.fakes import FakeSession
from tests.server.frontends.kubelet.fakes import head, request
from tests.tunnel.certificates import ThrowAwayAuthority
from yurttunnel.cluster.nodes import NODES_SPEC, Node
from yurttunnel.kube.resources import NODES
from yurttunnel.server import in_cluster
from yurttunnel.server.frontends.kubelet.middleware import chain
from yurttunnel.server.options import Options
from yurttunnel.server.process import ServerProcess
from yurttunnel.server.registry import NodeNotConnected

OWN_NAME = "x-tunnel-server-internal-svc.kube-system.svc"


class PartsTestCase(SynchronousTestCase):
    """The parts of a server, composed as in the program."""

    def setUp(self):
        """Create the parts of a server, with a cluster in memory."""
        self.informers = FakeInformers()
        self.patch(in_cluster, "Informers", lambda *_: self.informers)
        processes = []

        def make_process(*args):
            processes.append(ServerProcess(*args))
            return processes[0]

        self.patch(in_cluster, "ServerProcess", make_process)
        directory = Path(self.mktemp())
        directory.mkdir()
        settings = Options().settings_of(
            f"--kube-config={self.configuration(directory)}", f"--cert-dir={directory / 'pki'}"
        )
        self.server = in_cluster.ClusterServer(MemoryReactorClock(), settings, settings.mode)
        (self.process,) = processes
        self.registry = self.process.registry

    def configuration(self, directory):
        """Return a configuration for the API, which is not used."""
        certificate = ThrowAwayAuthority("cluster").certificate.public_bytes(Encoding.PEM)
        cluster = {
            "server": "https://192.0.2.100:6443",
            "certificate-authority-data": base64.b64encode(certificate).decode(),
        }
        path = directory / "config"
        path.write_text(
            json.dumps(
                {
                    "current-context": "it",
                    "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
                    "clusters": [{"name": "it", "cluster": cluster}],
                    "users": [{"name": "it", "user": {}}],
                }
            )
        )
        return path


class FiguresTests(PartsTestCase):
    """The metrics at the start, before there are certificates."""

    def test_each_part_shows_its_own(self):
        """Metrics of the parts that exist only in a cluster."""
        self.informers.setServiceParent = lambda parent: None
        self.server.service()
        names = {family.name.removeprefix("yurttunnel_server_") for family in self.process.metrics}
        for name in (
            "certificate_requests_approved_total",
            "certificate_requests_total",
            "caller_decisions_total",
            "cloud_nodes_counter",
        ):
            self.assertIn(name, names)

    def test_readiness(self):
        """It requires what serves; what is in use stays in use, and the rest is only reported."""
        self.informers.setServiceParent = lambda parent: None
        self.informers.incomplete = lambda: None
        self.server.service()
        findings = self.process.readiness.findings()
        required = {each.name for each in findings if each.required}
        self.assertEqual({"listeners", "certificates", "caches"}, required)


class UnknownNodesTests(PartsTestCase):
    """Agents that connect before the API has listed the nodes."""

    def test_a_node_that_was_deleted_before_the_start(self):
        """An agent is accepted, and its session closed once its node is known to be missing."""
        agents = mock.Mock()
        for part in ("server_service", "Siblings", "StoppedInReverse"):
            self.patch(in_cluster, part, mock.Mock())
        self.patch(in_cluster, "agent_listener", lambda *_: agents)
        self.patch(self.server, "_trust", mock.Mock())
        nodes = self.informers.informer(NODES_SPEC)
        nodes.synced = False
        self.server._second_phase()
        gone = SimpleNamespace(node="edge-9")
        self.assertFalse(self.server._is_deleted(gone))
        agents.revoke_all.assert_not_called()
        nodes.complete()
        self.assertTrue(self.server._is_deleted(gone))
        agents.revoke_all.assert_called_once_with()


class ClaimsTests(PartsTestCase):
    """Lookups by address."""

    def test_an_address_that_has_become_another_nodes(self):
        """The certificate of its former owner still has it, and does not count."""
        self.informers.put(NODES, node("former", "192.0.2.1", "192.0.2.2", labels=EDGE))
        former = FakeSession("former", addresses=["192.0.2.1", "192.0.2.2"])
        self.registry.add(former)
        self.assertIs(former, self.registry.find("192.0.2.1"))
        self.informers.put(NODES, node("former", "192.0.2.2", labels=EDGE))
        self.informers.put(NODES, node("edge-1", "192.0.2.1", labels=EDGE))
        self.assertRaises(NodeNotConnected, self.registry.find, "192.0.2.1")
        owner = FakeSession("edge-1", addresses=["192.0.2.1"])
        self.registry.add(owner)
        self.assertIs(owner, self.registry.find("192.0.2.1"))
        self.assertIs(former, self.registry.find("192.0.2.2"))

    def test_a_name_of_the_server(self):
        """No node has it, whatever its status and its certificate contain."""
        self.informers.put(NODES, node("evil", "192.0.2.9", ("Hostname", OWN_NAME), labels=EDGE))
        self.registry.add(FakeSession("evil", hosts=[OWN_NAME], default_route=True))
        self.assertRaises(NodeNotConnected, self.registry.find, OWN_NAME)


class RequestsTests(PartsTestCase):
    """Requests before authorization, with all middlewares of a cluster."""

    def setUp(self):
        """Connect a node that serves unclaimed hosts."""
        super().setUp()
        self.informers.put(NODES, node("edge-1", "192.0.2.1", labels=EDGE))
        evil = node("edge-2", "192.0.2.2", "evil.node", OWN_NAME, labels=EDGE)
        self.informers.put(NODES, evil)
        for name in ("edge-1", "edge-2"):
            self.registry.add(FakeSession(name))
        self.passed = []
        self.handler = chain(self.server.middlewares, self.passed.append)

    def ask(self, peer, *status, **fields):
        """Send a request without TLS from an address; assert its status, if there is one."""
        asked = request(head(**fields))
        asked.exchange.secure = False
        asked.exchange.transport = StringTransport(peerAddress=IPv4Address("TCP", peer, 4242))
        self.handler(asked)
        self.assertEqual([each for each, _ in asked.exchange.failures], list(status), fields)

    def test_other_machines(self):
        """Requests of other machines reach nothing."""
        self.ask("192.0.2.99", 403, host="edge-1:8000")
        self.ask("192.0.2.99", 403, host="192.0.2.1", X_Tunnel_Proxy_Dest="edge-1:8000")
        self.ask("127.0.0.1", host="edge-1:8000")
        self.assertEqual(len(self.passed), 1)

    def test_pages(self):
        """A page reaches no node by its own name, nor by one that a node has chosen."""
        for host in ("evil.example:10264", "evil.node:10264"):
            self.ask("127.0.0.1", 421, host=host, X_Tunnel_Proxy_Dest="edge-1:8000")
        self.ask("127.0.0.1", 421, host=f"{OWN_NAME}:10264", X_Tunnel_Proxy_Dest="edge-2:8000")
        self.ask("127.0.0.1", 403, host="localhost:10264", Origin="http://evil.example")
        self.ask("127.0.0.1", host="localhost:10264", X_Tunnel_Proxy_Dest="edge-1:8000")
        self.assertEqual([each.destination.node for each in self.passed], ["edge-1"])


class DeletedNodeTests(SynchronousTestCase):
    """Nodes that were deleted from the API."""

    def test_sessions(self):
        """Only the session of a deleted node ends."""
        agents = FakeAgents()
        edge = Node("edge-1")
        for old, new in ((None, edge), (edge, edge), (edge, None)):
            in_cluster._revoke_deleted(agents, old, new)
        self.assertEqual(["edge-1"], agents.revoked)


class FakeAgents:
    """Records whose sessions are closed."""

    def __init__(self):
        self.revoked = []

    def revoke(self, node):
        """Record it."""
        self.revoked.append(node)
