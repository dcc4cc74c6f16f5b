"""An agent's certificates in a cluster."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from twisted.internet.defer import CancelledError, Deferred
from twisted.trial.unittest import SynchronousTestCase

from tests.pki.signing import SigningApi, issue
from tests.pki.support import EDGE_1, Issuer, accept, clock_now, dial, handshake
from tests.pki.test_authorities import bundle
from yurttunnel.agent.cluster_trust import ClusterAgentTrust
from yurttunnel.pki.authorities import CHECK_INTERVAL, BadBundle
from yurttunnel.pki.certificate_store import DatedStore, open_certificate_directory
from yurttunnel.pki.certificate_template import serving_template
from yurttunnel.pki.cluster_identity import agent_template, cluster_identity
from yurttunnel.pki.contexts import ServerContexts
from yurttunnel.pki.names import BadIdentity
from yurttunnel.tunnel.tls import ALPN as TUNNEL_PROTOCOL

TEMPLATE = agent_template("edge-1", EDGE_1)
LIFE = 200.0
"""Seconds within the backdating, since OpenSSL uses the real time."""
COMMON = replace(TEMPLATE, common_name="tunnel-agent-client")


class AgentTests(SynchronousTestCase):
    """An agent of the node edge-1."""

    def setUp(self):
        """Create the cluster."""
        self.clock = clock_now()
        self.issuer = Issuer.make(self, self.clock)
        self.api = SigningApi(self.issuer, prompt=True)
        self.bundle = bundle(self.issuer)
        self.cert_dir = Path(self.mktemp())

    def open(self, node="edge-1", identifiers=EDGE_1):
        """Open and start an agent's trust."""
        trust = ClusterAgentTrust(
            self.clock, self.api, self.cert_dir, lambda: self.bundle, node, identifiers
        )
        trust.startService()
        self.addCleanup(lambda: trust.running and trust.stopService())
        return trust

    def ready(self, **arguments):
        """Open and start an agent's trust, and return it with its contexts."""
        trust = self.open(**arguments)
        return trust, self.successResultOf(Deferred.fromCoroutine(trust.ready()))

    def store(self, template):
        """Store a certificate as from an earlier run."""
        issued = issue(self.issuer, template)
        directory = open_certificate_directory(self.cert_dir)
        DatedStore(self.clock, directory, "yurttunnel-agent").save(issued)
        return issued.certificate

    def connect(self, contexts, issuer=None):
        """Connect to a server of the cluster; return the identity that it sees."""
        issuer = issuer or self.issuer
        authorities = (issuer.authority.certificate,)
        server = accept(
            ServerContexts(issue(issuer, serving_template(["lb.test"])).credentials(authorities))
        )
        client = dial(contexts, "lb.test", self.fail)
        handshake(client, server)
        self.assertEqual(server.get_alpn_proto_negotiated(), TUNNEL_PROTOCOL)
        return cluster_identity(server.get_peer_certificate(as_cryptography=True), True)

    def pass_time(self, seconds):
        """Advance the clock by seconds."""
        self.clock.pump([1.0] * int(seconds))

    def test_from_nothing(self):
        """It requests its node's certificate, stores it, and is identified by it."""
        trust, contexts = self.ready()
        self.assertEqual(self.api.names("csr-0"), ["edge-1", "192.0.2.7"])
        self.assertEqual(self.connect(contexts).node, "edge-1")
        self.assertTrue((self.cert_dir / "yurttunnel-agent-current.pem").is_symlink())
        self.assertEqual((trust.problem(), trust.warning()), (None, None))
        self.assertEqual(set(trust.certificates()), {"agent", "ca"})
        self.assertEqual(trust.current_identifiers(), EDGE_1)
        self.assertEqual(trust.stats().requests["agent"].issued, 1)

    def test_waiting(self):
        """Until it has a certificate, the problem names the request."""
        self.api.prompt = False
        trust = self.open()
        waiting = Deferred.fromCoroutine(trust.ready())
        self.assertNoResult(waiting)
        self.assertIn("certificate of node edge-1", trust.problem())
        self.assertIn("kubectl certificate approve csr-0", trust.problem())
        self.assertIsNone(trust.current_identifiers())
        self.assertEqual(set(trust.certificates()), {"ca"})
        waiting.cancel()
        self.failureResultOf(waiting, CancelledError)

    def test_restart_without_the_api(self):
        """A restart does not need the API."""
        self.ready()
        self.api.unreachable()
        trust, contexts = self.ready()
        self.assertEqual(self.connect(contexts).node, "edge-1")
        self.pass_time(60)
        self.assertEqual((trust.problem(), trust.warning()), (None, None))

    def test_upgrade(self):
        """A certificate of yurttunnel 1.2 is used until there is one that names the node."""
        common = self.store(COMMON)
        self.api.prompt = False
        trust, contexts = self.ready()
        self.assertEqual(contexts.credentials.certificate, common)
        self.assertEqual(self.connect(contexts).node, "edge-1")
        self.assertEqual(trust.current_identifiers(), EDGE_1)
        self.pass_time(10)
        self.api.sign("csr-0")
        self.pass_time(10)
        self.assertNotEqual(contexts.credentials.certificate, common)
        self.assertEqual(cluster_identity(contexts.credentials.certificate).node, "edge-1")

    def test_of_another_node(self):
        """A stored certificate of another node is not used, whichever version created it."""
        for template in (COMMON, TEMPLATE):
            self.store(template)
            before = len(self.api.created)
            trust, contexts = self.ready(node="edge-2")
            self.assertEqual(len(self.api.created), before + 1)
            self.assertEqual(self.connect(contexts).node, "edge-2")
            trust.stopService()

    def test_new_address(self):
        """A certificate without the node's new address is used until there is one with it."""
        self.store(agent_template("edge-1", replace(EDGE_1, addresses=frozenset())))
        self.api.prompt = False
        trust, contexts = self.ready()
        self.assertEqual(trust.current_identifiers().addresses, frozenset())
        self.pass_time(10)
        self.api.sign("csr-0")
        self.pass_time(10)
        self.assertEqual(trust.current_identifiers(), EDGE_1)
        self.assertEqual(self.connect(contexts).identifiers, EDGE_1)

    def test_rotation(self):
        """The certificate is renewed in time, in the same contexts."""
        self.api.lifetime = LIFE
        _, contexts = self.ready()
        before = contexts.credentials
        self.pass_time(LIFE * 0.9 + 5)
        self.assertNotEqual(contexts.credentials, before)
        self.connect(contexts)

    def test_authorities_rotate(self):
        """A server of the new authority is trusted as soon as the bundle contains it."""
        _, contexts = self.ready()
        new = Issuer.make(self, self.clock)
        self.bundle = bundle(self.issuer, new)
        self.clock.advance(CHECK_INTERVAL)
        certificate = contexts.credentials.certificate
        self.connect(contexts)
        self.api.issuer = new
        self.bundle = bundle(new)
        self.clock.advance(CHECK_INTERVAL)
        self.pass_time(5)
        self.assertNotEqual(contexts.credentials.certificate, certificate)
        self.assertEqual(self.connect(contexts, new).node, "edge-1")

    def test_broken_bundle(self):
        """A broken bundle changes nothing, and is reported."""
        trust, contexts = self.ready()
        self.bundle = b"nonsense"
        self.clock.advance(CHECK_INTERVAL)
        self.connect(contexts)
        self.assertIn("bundle", trust.warning())
        self.assertIsNone(trust.problem())
        self.assertTrue(trust.stats().broken_bundle)

    def test_bad_beginnings(self):
        """Invalid names and a bundle without certificates are rejected."""
        self.assertRaises(BadIdentity, self.open, node="Edge_1")
        self.bundle = b""
        self.assertRaises(BadBundle, self.open)
