"""A server's certificates in a cluster, from the first start through all rotations."""

from __future__ import annotations

from dataclasses import dataclass, replace
from ipaddress import ip_address
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

from OpenSSL import SSL
from twisted.internet.defer import CancelledError, Deferred
from twisted.logger import capturedLogs
from twisted.trial.unittest import SynchronousTestCase

from tests.pki.signing import SigningApi, issue
from tests.pki.support import (
    EDGE_1,
    Issuer,
    accept,
    client_context,
    clock_now,
    dial,
    exchange,
    handshake,
    peer_serial,
)
from tests.pki.test_authorities import bundle
from yurttunnel.ops.clocks import utc_now
from yurttunnel.pki.authorities import CHECK_INTERVAL, BadBundle
from yurttunnel.pki.caller_contexts import CallerContexts
from yurttunnel.pki.certificate_template import proxy_client_template, serving_template
from yurttunnel.pki.cluster_identity import agent_template, check_sibling
from yurttunnel.pki.contexts import ClientContexts, ServerNotTrusted
from yurttunnel.pki.credentials import BadCredentials
from yurttunnel.pki.directory import StateError
from yurttunnel.pki.issuer import CertificateTemplate
from yurttunnel.pki.kubelets import CLUSTER_AUTHORITY, KubeletVerification, Verdict
from yurttunnel.pki.names import BadIdentity
from yurttunnel.server.cluster_trust import ClusterServerTrust
from yurttunnel.server.trust import TrustSettings
from yurttunnel.tunnel.tls import ALPN as TUNNEL_PROTOCOL
from yurttunnel.tunnel.tls import SIBLING_ALPN as SIBLING_PROTOCOL

SERVICE = "x-tunnel-server-svc.kube-system.svc"
AGENT = agent_template("edge-1", EDGE_1)
CALLER = CertificateTemplate("kube-apiserver-kubelet-client", ("system:masters",), "client auth")
LIFE = 200.0
"""Seconds within the backdating, since OpenSSL uses the real time."""
COMMON = replace(AGENT, common_name="tunnel-agent-client")


@dataclass
class Names:
    """The current names of the server."""

    dns_names: frozenset[str] = frozenset({SERVICE})
    addresses: frozenset = frozenset({ip_address("192.0.2.1")})
    known: bool = True

    def current(self):
        """Return the names."""
        return self if self.known else None

    def problem(self):
        """Return why there are none."""
        return None if self.known else "the API has not been asked"


class World(SynchronousTestCase):
    """A cluster with one authority, and a server in it."""

    def setUp(self):
        """Create the cluster."""
        self.clock = clock_now()
        self.issuer = Issuer.make(self, self.clock)
        self.api = SigningApi(self.issuer, prompt=True)
        self.bundle = bundle(self.issuer)
        self.names = Names()
        self.cert_dir = Path(self.mktemp())

    def open(self, accept_common_certificates=False, **settings):
        """Open and start a server's trust."""
        settings = TrustSettings(callers=("kube-apiserver-kubelet-client",), **settings)
        trust = ClusterServerTrust(
            self.clock,
            self.api,
            self.cert_dir,
            lambda: self.bundle,
            self.names,
            settings,
            accept_common_certificates,
        )
        trust.startService()
        self.addCleanup(lambda: trust.running and trust.stopService())
        return trust

    def ready(self, **settings):
        """Open and start a server's trust, with its certificates issued."""
        trust = self.open(**settings)
        self.successResultOf(Deferred.fromCoroutine(trust.ready()))
        return trust

    def credentials(self, template, issuer=None, authorities=None):
        """Issue credentials that trust the authority."""
        issuer = issuer or self.issuer
        authorities = authorities or (issuer.authority.certificate,)
        return issue(issuer, template).credentials(authorities)

    def connect(self, contexts, credentials, protocol):
        """Run a handshake of a client that verifies nothing; return both sides."""
        client = SSL.Connection(client_context(credentials, [protocol]), None)
        client.set_connect_state()
        server = accept(contexts)
        handshake(client, server)
        return client, server

    def refuses(self, contexts, credentials, protocol, words):
        """Assert that a client is rejected."""
        with self.assertRaises(SSL.Error) as caught:
            self.connect(contexts, credentials, protocol)
        self.assertIn(words, str(caught.exception))

    def serving(self, trust):
        """Return the serial number of the serving certificate for agents."""
        client, _ = self.connect(trust.contexts, self.credentials(AGENT), TUNNEL_PROTOCOL)
        return peer_serial(client)

    def pass_time(self, seconds):
        """Advance the clock by seconds."""
        self.clock.pump([1.0] * int(seconds))


class ListenerTests(World):
    """Authentication at the ports."""

    def setUp(self):
        """Open a server."""
        super().setUp()
        self.trust = self.ready()

    def test_agents(self):
        """Agents dial the name or address of the server, and verify it by the authorities."""
        for name in (SERVICE, "192.0.2.1"):
            client = dial(ClientContexts(self.credentials(AGENT)), name, self.fail)
            server = accept(self.trust.contexts)
            handshake(client, server)
            self.assertEqual(server.get_alpn_proto_negotiated(), TUNNEL_PROTOCOL)
            certificate = server.get_peer_certificate(as_cryptography=True)
            self.assertEqual(self.trust.identify(certificate).node, "edge-1")

    def test_agents_need_certificates(self):
        """Agents and replicas without a certificate of the authority are rejected."""
        foreign = self.credentials(AGENT, Issuer.make(self))
        for protocol in (TUNNEL_PROTOCOL, SIBLING_PROTOCOL):
            self.refuses(self.trust.contexts, None, protocol, "did not return a certificate")
            self.refuses(self.trust.contexts, foreign, protocol, "not from this server's authority")

    def test_siblings(self):
        """A replica verifies the server by the Service's name, and is known by its common name."""
        refused = []
        client = dial(self.trust.siblings, SERVICE, refused.append)
        server = accept(self.trust.contexts)
        handshake(client, server)
        self.assertEqual(refused, [])
        self.assertEqual(server.get_alpn_proto_negotiated(), SIBLING_PROTOCOL)
        check_sibling(server.get_peer_certificate(as_cryptography=True))

    def test_impostor_of_a_sibling(self):
        """A node's certificate is not accepted as a replica's."""
        refused = []
        node = self.credentials(replace(AGENT, usage="server auth"))
        self.trust.contexts.prepare(node, utc_now(self.clock))()
        client = dial(self.trust.siblings, SERVICE, refused.append)
        self.assertRaises(SSL.Error, handshake, client, accept(self.trust.contexts))
        self.assertIsInstance(refused[0], ServerNotTrusted)

    def test_interception(self):
        """Callers need no certificate, since they may authenticate later; invalid ones fail."""
        self.connect(self.trust.interception, None, b"http/1.1")
        self.connect(self.trust.interception, self.credentials(CALLER), b"http/1.1")
        foreign = self.credentials(CALLER, Issuer.make(self))
        self.refuses(self.trust.interception, foreign, b"http/1.1", "not from an authority")

    def test_callers(self):
        """Where TLS alone authenticates, callers need a certificate and an allowed name."""
        self.connect(self.trust.callers, self.credentials(CALLER), b"http/1.1")
        self.refuses(self.trust.callers, None, b"http/1.1", "did not return a certificate")
        self.refuses(self.trust.callers, self.credentials(AGENT), b"http/1.1", "of a node")
        other = replace(CALLER, common_name="somebody")
        self.refuses(self.trust.callers, self.credentials(other), b"http/1.1", "allowed are")

    def test_kubelets(self):
        """Kubelets get tunnel-proxy-client, and are verified by the cluster's authority."""
        for issuer, verdict in (
            (self.issuer, Verdict.VERIFIED),
            (Issuer.make(self), Verdict.UNVERIFIED),
        ):
            creator = self.trust.kubelets.creator("edge-1", "192.0.2.1")
            client = creator.clientConnectionForTLS(SimpleNamespace(failVerification=self.fail))
            client.set_connect_state()
            kubelet = serving_template(["edge-1"], [ip_address("192.0.2.1")])
            credentials = replace(
                self.credentials(kubelet, issuer),
                authorities=(self.issuer.authority.certificate,),
            )
            server = accept(CallerContexts(credentials, ("tunnel-proxy-client",)))
            with capturedLogs() as events:
                handshake(client, server)
            self.assertIs(creator.verdict, verdict)
            authorities = [event["authority"] for event in events]
            self.assertEqual(
                authorities, [] if verdict is Verdict.VERIFIED else [CLUSTER_AUTHORITY]
            )
        self.assertIsNone(self.trust.kubelet_problem())


class FileTests(World):
    """Authorities other than the cluster's."""

    def setUp(self):
        """Write a file with another authority."""
        super().setUp()
        self.other = Issuer.make(self, self.clock)
        self.path = Path(self.mktemp())
        self.path.write_bytes(bundle(self.other))

    def test_client_ca(self):
        """--client-ca-file is accepted for callers, but not for agents and replicas."""
        trust = self.ready(client_ca=self.path)
        caller = self.credentials(CALLER, self.other)
        for contexts in (trust.interception, trust.callers):
            self.connect(contexts, caller, b"http/1.1")
            self.connect(contexts, self.credentials(CALLER), b"http/1.1")
        agent = self.credentials(AGENT, self.other)
        self.refuses(trust.contexts, agent, TUNNEL_PROTOCOL, "not from this server's authority")

    def test_client_ca_changes(self):
        """The file is reloaded, and a broken one is reported."""
        trust = self.ready(client_ca=self.path)
        third = Issuer.make(self, self.clock)
        self.path.write_bytes(bundle(third))
        self.clock.advance(CHECK_INTERVAL)
        self.connect(trust.callers, self.credentials(CALLER, third), b"http/1.1")
        caller = self.credentials(CALLER, self.other)
        self.refuses(trust.callers, caller, b"http/1.1", "not from an authority")
        self.path.write_bytes(b"x")
        self.clock.advance(CHECK_INTERVAL)
        self.assertIn(str(self.path), trust.warning())
        self.assertIsNone(trust.problem())
        self.connect(trust.callers, self.credentials(CALLER, third), b"http/1.1")

    def test_kubelet_ca(self):
        """Kubelets are verified by --kubelet-ca instead, also after changes and rotations."""
        trust = self.ready(kubelet_ca=self.path, kubelet_verify=KubeletVerification.CA)
        contexts = trust.kubelets
        self.assertEqual(contexts.credentials.authorities, (self.other.authority.certificate,))
        third = Issuer.make(self, self.clock)
        self.path.write_bytes(bundle(third))
        self.clock.advance(CHECK_INTERVAL)
        self.assertEqual(contexts.credentials.authorities, (third.authority.certificate,))
        self.bundle = bundle(self.issuer, self.other)
        self.clock.advance(CHECK_INTERVAL)
        self.assertEqual(contexts.credentials.authorities, (third.authority.certificate,))
        self.path.unlink()
        self.clock.advance(CHECK_INTERVAL)
        self.assertIn(str(self.path), trust.kubelet_problem())

    def test_kubelet_ca_changes_before_the_certificates_are_there(self):
        """The latest file is used, even if it changes while the first certificates are pending."""
        self.api.prompt = False
        trust = self.open(kubelet_ca=self.path)
        waiting = Deferred.fromCoroutine(trust.ready())
        third = Issuer.make(self, self.clock)
        self.path.write_bytes(bundle(third))
        self.clock.advance(CHECK_INTERVAL)
        for name in self.api.created:
            self.api.sign(name)
        self.pass_time(12)
        self.successResultOf(waiting)
        self.assertEqual(trust.kubelets.credentials.authorities, (third.authority.certificate,))

    def test_bad_files(self):
        """Files that are invalid at the start are rejected."""
        self.path.write_bytes(b"x")
        for flag in ("client_ca", "kubelet_ca"):
            error = self.assertRaises(BadBundle, self.open, **{flag: self.path})
            self.assertIn(str(self.path), str(error))
        self.bundle = b""
        self.assertRaises(BadBundle, self.open)
        self.bundle = bundle(self.issuer)
        self.cert_dir.mkdir(exist_ok=True)
        (self.cert_dir / "x").write_text("x")
        self.cert_dir.chmod(0o777)
        self.assertRaises(StateError, self.open)


class LifeTests(World):
    """Changes of certificates and authorities."""

    def test_requests(self):
        """Two certificates are requested: for serving, and for kubelets and replicas."""
        self.ready()
        self.assertEqual(
            sorted(self.api.spec(name)["signerName"] for name in self.api.created),
            ["kubernetes.io/kube-apiserver-client", "kubernetes.io/kubelet-serving"],
        )
        links = sorted(path.name for path in self.cert_dir.iterdir() if path.is_symlink())
        self.assertEqual(
            links,
            ["yurttunnel-server-current.pem", "yurttunnel-server-proxy-client-current.pem"],
        )

    def test_waiting(self):
        """Until both are issued the server is not ready, and the problem names both requests."""
        self.api.prompt = False
        trust = self.open()
        waiting = Deferred.fromCoroutine(trust.ready())
        for name in self.api.created:
            self.assertIn(f"kubectl certificate approve {name}", trust.problem())
        self.api.sign("csr-0")
        self.pass_time(3)
        self.assertNoResult(waiting)
        self.assertNotIn("csr-0", trust.problem())
        self.api.sign("csr-1")
        self.pass_time(6)
        self.successResultOf(waiting)
        self.assertIsNone(trust.problem())

    def test_stopped_while_waiting(self):
        """Stopping and cancelling leave nothing behind."""
        self.api.prompt = False
        trust = self.open()
        waiting = Deferred.fromCoroutine(trust.ready())
        waiting.cancel()
        self.failureResultOf(waiting, CancelledError)
        self.successResultOf(trust.stopService())
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_restart_without_the_api(self):
        """A server that restarts while the API is unreachable is ready at once."""
        self.ready()
        self.api.unreachable()
        self.names.known = False
        trust = self.ready()
        self.serving(trust)
        self.assertIsNone(trust.problem())
        self.assertIn("the API has not been asked", trust.warning())

    def test_names_unknown(self):
        """Without names no serving certificate is requested, and the problem gives the reason."""
        self.names.known = False
        trust = self.open()
        self.assertEqual(len(self.api.created), 1)
        self.assertIn("no serving certificate yet: the API has not been asked", trust.problem())

    def test_no_names(self):
        """The same holds for an empty set of names, which the signer would reject."""
        self.names = Names(frozenset(), frozenset())
        trust = self.open()
        self.assertIn("no name or address", trust.problem())
        self.assertEqual(len(self.api.created), 1)

    def test_new_name(self):
        """A new name is in the certificate of the next handshake."""
        trust = self.ready()
        before = self.serving(trust)
        generation = trust.kubelets.generation
        self.names.dns_names |= {"lb.example"}
        self.pass_time(10)
        self.assertNotEqual(self.serving(trust), before)
        client = dial(ClientContexts(self.credentials(AGENT)), "lb.example", self.fail)
        handshake(client, accept(trust.contexts))
        # Unchanged for kubelets, so their connections can still be reused.
        self.assertIs(trust.kubelets.generation, generation)

    def test_rotation(self):
        """Both certificates are renewed in time, and connections continue."""
        self.api.lifetime = LIFE
        trust = self.ready()
        before = self.serving(trust), trust.siblings.credentials, trust.kubelets.generation
        client, server = self.connect(trust.contexts, self.credentials(AGENT), TUNNEL_PROTOCOL)
        self.pass_time(LIFE * 0.9 + 5)
        self.assertEqual(len(self.api.created), 4)
        self.assertNotEqual(self.serving(trust), before[0])
        self.assertNotEqual(trust.siblings.credentials, before[1])
        self.assertIsNot(trust.kubelets.generation, before[2])
        for contexts in (trust.interception, trust.callers):
            self.assertEqual(
                contexts.credentials.certificate, trust.contexts.credentials.certificate
            )
        self.assertEqual(exchange(client, server, b"still there"), b"still there")

    def test_authorities_rotate(self):
        """During a rotation (old, both, new), agents of either authority are accepted with both."""
        trust = self.ready()
        new = Issuer.make(self, self.clock)
        old_agent, new_agent = self.credentials(AGENT), self.credentials(AGENT, new)
        self.refuses(trust.contexts, new_agent, TUNNEL_PROTOCOL, "not from this server's")
        connected = self.connect(trust.contexts, old_agent, TUNNEL_PROTOCOL)
        serving = trust.contexts.credentials.certificate
        self.bundle = bundle(self.issuer, new)
        self.clock.advance(CHECK_INTERVAL)
        self.connect(trust.contexts, old_agent, TUNNEL_PROTOCOL)
        self.connect(trust.contexts, new_agent, TUNNEL_PROTOCOL)
        self.assertEqual(trust.contexts.credentials.certificate, serving)
        for contexts in (trust.interception, trust.callers):
            self.connect(contexts, self.credentials(CALLER, new), b"http/1.1")
        self.api.issuer = new
        self.bundle = bundle(new)
        self.clock.advance(CHECK_INTERVAL)
        self.pass_time(5)
        self.connect(trust.contexts, new_agent, TUNNEL_PROTOCOL)
        self.refuses(trust.contexts, old_agent, TUNNEL_PROTOCOL, "not from this server's")
        self.assertEqual(exchange(*connected, b"still there"), b"still there")
        for credentials in (trust.contexts.credentials, trust.siblings.credentials):
            credentials.certificate.verify_directly_issued_by(new.authority.certificate)

    def test_broken_bundle(self):
        """A broken bundle changes nothing, is reported, and is counted."""
        trust = self.ready()
        self.bundle = b"nonsense"
        self.clock.advance(CHECK_INTERVAL)
        self.serving(trust)
        self.assertIn("bundle", trust.warning())
        self.assertIsNone(trust.problem())
        self.assertTrue(trust.stats().broken_bundle)

    def test_bundle_that_cannot_be_used(self):
        """If one listener cannot use a new bundle, none does, and it is retried."""
        trust = self.ready()
        other = Issuer.make(self, self.clock)
        self.bundle = bundle(self.issuer, other)
        before = trust.contexts.credentials
        with mock.patch.object(trust.callers, "_build", side_effect=BadCredentials("no")):
            self.clock.advance(CHECK_INTERVAL)
        self.assertEqual(trust.contexts.credentials, before)
        self.assertIn("cannot be used: no", trust.warning())
        self.names.dns_names |= {"lb.example"}
        self.pass_time(6)
        self.assertNotEqual(trust.contexts.credentials.certificate, before.certificate)
        self.assertEqual(trust.contexts.credentials.authorities, before.authorities)
        self.clock.advance(CHECK_INTERVAL)
        self.assertEqual(len(trust.contexts.credentials.authorities), 2)
        self.assertIsNone(trust.warning())

    def test_bundle_after_expiry(self):
        """A bundle that arrives after the certificate has expired is used with the next one."""
        trust = self.ready()
        self.api.unreachable()
        self.pass_time(3700)
        self.assertIn("has expired", trust.problem())
        new = Issuer.make(self, self.clock)
        self.bundle = bundle(new)
        self.clock.advance(CHECK_INTERVAL)
        self.api.issuer = new
        self.api.recover()
        self.pass_time(40)
        self.assertIsNone(trust.problem())
        self.assertEqual(trust.contexts.credentials.authorities, (new.authority.certificate,))

    def test_certificates(self):
        """The expiry of all certificates is available for metrics."""
        self.api.prompt = False
        trust = self.open()
        self.assertEqual(set(trust.certificates()), {"ca"})
        for name in self.api.created:
            self.api.sign(name)
        self.pass_time(3)
        ends = trust.certificates()
        self.assertEqual(set(ends), {"ca", "server", "kubelet-client"})
        self.assertEqual(ends["ca"], self.issuer.authority.certificate.not_valid_after_utc)
        self.assertLess(ends["server"], ends["ca"])

    def test_common_certificates(self):
        """Certificates of yurttunnel 1.2 identify a node only with the flag, and are counted."""
        certificate = self.credentials(COMMON).certificate
        trust = self.ready()
        self.assertRaises(BadIdentity, trust.identify, certificate)
        self.assertEqual(trust.stats().common_certificates.refused, 1)
        trust = self.ready(accept_common_certificates=True)
        self.assertEqual(trust.identify(certificate).node, "edge-1")
        self.assertEqual(trust.stats().common_certificates.accepted, 1)
        self.assertRaises(
            BadIdentity, trust.identify, self.credentials(proxy_client_template()).certificate
        )
