"""The hub's identity, with the API of a cluster over TLS."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path
from unittest import mock

from cryptography import x509
from cryptography.x509.oid import NameOID
from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.logger import LogLevel, capturedLogs
from twisted.trial.unittest import SynchronousTestCase, TestCase

from tests.apiserver.kinds import CERTIFICATE_SIGNING_REQUESTS
from tests.hub.cluster import SERVICE_ADDRESS, TOKEN, Cluster
from tests.pki.support import Issuer, clock_now, state_directory
from tests.waiting import until
from yurtlab.api.access import Certificates
from yurtlab.api.errors import unauthorized
from yurttunnel.hub.identity.authorities import ClusterAuthorities
from yurttunnel.hub.identity.identity import HubIdentity
from yurttunnel.hub.settings import BootstrapMode, BootstrapSettings, HealthSettings
from yurttunnel.hub.upstream.servers import servers_at
from yurttunnel.hub.upstream.service import Upstream
from yurttunnel.ops.reconciler import Reconciler
from yurttunnel.pki.certificate_store import CertificateStore
from yurttunnel.pki.contexts import peer_certificate
from yurttunnel.pki.credentials import certificates_to_pem, new_key
from yurttunnel.pki.directory import StateDirectory, StateError
from yurttunnel.pki.discovery import BootstrapToken
from yurttunnel.pki.issuer import IssuedCertificate

ADDRESSES = [ip_address("127.0.0.1"), ip_address("169.254.2.1"), ip_address(SERVICE_ADDRESS)]
NOBODY = "https://127.0.0.1:1"
"""An API server that does not exist."""
WRONG = BootstrapToken("nobody", "0123456789abcdef")
"""A token that the cluster does not know."""


class IdentityTestCase(TestCase):
    """A cluster that a node may join."""

    timeout = 60

    def setUp(self):
        """Start the cluster."""
        self.root = Path(self.mktemp())
        self.cluster = Cluster(reactor, self.mktemp())
        self.addCleanup(lambda: Deferred.fromCoroutine(self.cluster.close()))
        self.cluster.run_controllers()
        self.token = BootstrapToken.parse(TOKEN)
        self.settings = BootstrapSettings(token=self.token, pins=frozenset({self.cluster.pin}))

    def make(self, settings=None, servers=None):
        """Create the identity of a hub, as at startup."""
        return HubIdentity(
            reactor,
            "edge-1",
            servers or [self.cluster.url],
            self.root,
            settings or self.settings,
            lambda: ADDRESSES,
        )

    def start(self, *arguments, **options):
        """Create it, and run it until the end of the test."""
        identity = self.make(*arguments, **options)
        identity.startService()
        self.addCleanup(identity.stopService)
        return identity

    def with_kubelet(self):
        """Return the settings of a hub that joins with the kubelet's certificate, which exists."""
        self.cluster.identities.client("kubelet", "system:node:edge-1", "system:nodes")
        directory = self.cluster.identities.directory
        pem = directory / "kubelet-client-current.pem"
        pem.write_bytes((directory / "kubelet.crt").read_bytes())
        with pem.open("ab") as file:
            file.write((directory / "kubelet.key").read_bytes())
        return BootstrapSettings(
            mode=BootstrapMode.KUBELET_CERTIFICATE,
            kubelet_certificate=pem,
            kubelet_authorities=directory / "ca.crt",
        )

    def current(self, name="yurthub"):
        """Return the stored certificate."""
        path = self.root / "pki" / f"{name}-current.pem"
        return x509.load_pem_x509_certificate(path.read_bytes())


class JoiningTests(IdentityTestCase):
    """The first certificate."""

    async def test_token(self):
        """A token and a pin suffice for both certificates; the second waits for the first."""
        identity = self.start()
        self.assertIn("no certificate of node edge-1 yet", identity.problem())
        self.assertIsNone(identity.node)
        await identity.certificate.when_ready()
        self.assertIsNone(identity.problem())
        self.assertIsNotNone(identity.node)
        self.assertIsNotNone(identity.anonymous)
        subject = self.current().subject
        organizations = subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)
        self.assertEqual(
            {"openyurt:yurthub", "system:nodes"}, {each.value for each in organizations}
        )
        (name,) = subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        self.assertEqual("system:node:edge-1", name.value)
        await identity.serving_certificate.when_ready()
        self.assertIsNotNone(identity.serving)
        names = self.current("yurthub-server").extensions.get_extension_for_class(
            x509.SubjectAlternativeName
        )
        self.assertIn("kubernetes.default.svc", names.value.get_values_for_type(x509.DNSName))
        self.assertEqual(set(ADDRESSES), set(names.value.get_values_for_type(x509.IPAddress)))
        self.assertEqual({"client", "server", "ca"}, set(identity.certificates()))
        self.assertEqual({"hub": 1, "hub-serving": 1}, dict(self.cluster.counters.approved))
        self.assertEqual(0, identity.serving_certificate.counters.failed)

    async def test_file(self):
        """The file with the token is removed once the node has joined."""
        file = self.root.with_suffix(".conf")
        self.cluster.identities.kubeconfig(file, "https://unused:6443", token=TOKEN)
        identity = self.start(BootstrapSettings(file=file))
        await identity.certificate.when_ready()
        self.assertFalse(file.exists())
        self.assertEqual(
            certificates_to_pem([self.cluster.authority]),
            (self.root / "pki" / "ca.crt").read_bytes(),
        )

    async def test_file_stays_without_authorities(self):
        """The file with the token stays until the authorities are stored, too."""
        file = self.root.with_suffix(".conf")
        self.cluster.identities.kubeconfig(file, "https://unused:6443", token=TOKEN)
        settings = BootstrapSettings(file=file)
        write = StateDirectory.write

        def without_authorities(directory, name, content):
            if name == "ca.crt":
                raise StateError("no room")
            write(directory, name, content)

        with mock.patch.object(StateDirectory, "write", without_authorities):
            identity = self.make(settings)
            identity.startService()
            await identity.certificate.when_ready()
            self.assertIn("no room", identity.warning())
            await identity.stopService()
        self.flushLoggedErrors()
        self.assertTrue(file.exists())
        self.assertIsNotNone(self.current())

        with mock.patch.object(StateDirectory, "write", without_authorities):
            again = self.start(settings)
            await again.certificate.when_ready()
        self.assertTrue(file.exists())
        for each in again.services:
            if isinstance(each, Reconciler):
                each.trigger()
        await until(lambda: not file.exists())
        self.assertIsNone(again.warning())
        self.assertIsNone(self.make(BootstrapSettings(), servers=[NOBODY]).problem())

    async def test_file_without_authorities(self):
        """A file without an authority needs pins, and the error says so."""
        file = self.root.with_suffix(".conf")
        self.cluster.identities.kubeconfig(file, "https://unused:6443", token=TOKEN)
        content = json.loads(file.read_text())
        del content["clusters"][0]["cluster"]["certificate-authority"]
        file.write_text(json.dumps(content))
        identity = self.start(BootstrapSettings(file=file))
        await until(lambda: "--discovery-token-ca-cert-hash" in (identity.problem() or ""))
        self.assertTrue(file.exists())
        self.flushLoggedErrors()

    async def test_file_whose_plugin_fails(self):
        """A file may name a credential plugin; the error names the plugin if that fails."""
        file = self.root.with_suffix(".conf")
        self.cluster.identities.kubeconfig(file, "https://unused:6443", token=TOKEN)
        content = json.loads(file.read_text())
        plugin = {"apiVersion": "client.authentication.k8s.io/v1", "interactiveMode": "Never"}
        content["users"][0]["user"] = {"exec": {**plugin, "command": "/nonexistent/plugin"}}
        file.write_text(json.dumps(content))
        identity = self.start(BootstrapSettings(file=file))
        await until(lambda: "/nonexistent/plugin" in (identity.problem() or ""))
        self.assertIn("--bootstrap-file: ", identity.problem())

    async def test_file_out_of_reach(self):
        """A file in a directory without permission is reported as unreadable."""
        identity = self.start(BootstrapSettings(file=Path("x" * 300)))
        await until(lambda: "--bootstrap-file: " in (identity.problem() or ""))

    async def test_kubelet(self):
        """The kubelet's certificate can replace a token."""
        settings = self.with_kubelet()
        identity = self.start(settings)
        await identity.certificate.when_ready()
        self.assertTrue(settings.kubelet_certificate.exists())

    async def test_kubelet_with_a_token_without_the_cluster(self):
        """The kubelet's certificate is used after a token without success."""
        await self.join_after_a_failure(self.with_kubelet(), self.token)

    async def test_kubelet_with_a_rejected_token(self):
        """The same applies to a token that the cluster does not know."""
        settings = replace(self.with_kubelet(), pins=self.settings.pins)
        await self.join_after_a_failure(settings, WRONG)

    async def test_kubelet_with_a_token_that_several_servers_reject(self):
        """Each is used at the only server that responds, however many servers there are."""
        settings = replace(self.with_kubelet(), pins=self.settings.pins)
        await self.join_after_a_failure(settings, WRONG, [self.cluster.url, NOBODY], failures=2)

    async def join_after_a_failure(self, settings, token, servers=None, failures=1):
        """Fail with a token, and then join."""
        identity = self.make(settings, servers)
        self.assertTrue(identity.set_token(token))
        identity.startService()
        self.addCleanup(identity.stopService)
        counters = identity.certificate.counters
        while counters.failed < failures:
            failed = counters.failed
            await until(lambda failed=failed: counters.failed > failed)
            identity.certificate.retry_now()
        await identity.certificate.when_ready()
        self.assertEqual(failures, counters.failed)

    async def test_several_servers(self):
        """A server that does not respond is skipped."""
        identity = self.start(servers=[NOBODY, self.cluster.url])
        await identity.certificate.when_ready()

    async def test_nothing(self):
        """Without any credentials the hub says which it needs."""
        identity = self.start(BootstrapSettings())
        await until(lambda: "/v1/token" in (identity.problem() or ""))


class AuthoritiesTests(SynchronousTestCase):
    """``ca.crt``."""

    def test_written_again(self):
        """A failed write is retried, logged once, and the file is followed afterwards."""
        used = []
        clock = clock_now()
        authorities = ClusterAuthorities(clock, state_directory(self), (), used.append)
        authorities.startService()
        self.addCleanup(authorities.stopService)
        found = (Issuer.make(self).authority.certificate,)
        full = OSError(errno.ENOSPC, "full")
        with mock.patch("os.fsync", side_effect=full), capturedLogs() as events:
            authorities.trust(found)
            authorities.retry_storing()
        self.assertEqual(1, len([e for e in events if e["log_level"] is LogLevel.error]))
        self.assertIn("not stored for a restart", authorities.warning())
        self.assertFalse(authorities.is_stored)
        authorities.retry_storing()
        self.assertIsNone(authorities.warning())
        self.assertTrue(authorities.is_stored)
        self.assertEqual(certificates_to_pem(found), authorities.path.read_bytes())
        other = (Issuer.make(self).authority.certificate,)
        authorities.path.write_bytes(certificates_to_pem(other))
        clock.advance(60)
        self.assertEqual([found, other], used)


class RestartTests(IdentityTestCase):
    """The files of an earlier run."""

    async def join(self):
        """Join, and stop."""
        identity = self.make()
        identity.startService()
        await identity.certificate.when_ready()
        await identity.serving_certificate.when_ready()
        await identity.stopService()

    async def test_offline(self):
        """The files are available before anything runs, and no request is sent."""
        await self.join()
        identity = self.make(BootstrapSettings(), servers=[NOBODY])
        self.assertIsNone(identity.problem())
        for contexts in (identity.node, identity.anonymous, identity.serving):
            self.assertIsNotNone(contexts)

    async def test_damaged(self):
        """Damaged files count as missing: the node joins again."""
        await self.join()
        for name in ("yurthub-current.pem", "ca.crt"):
            path = self.root / "pki" / name
            path.resolve().write_bytes(b"-----BEGIN CERTIFICATE-----\n")
        identity = self.start()
        self.assertIsNone(identity.node)
        await identity.certificate.when_ready()
        self.assertIsNotNone(identity.node)

    async def test_another_cluster(self):
        """Authorities without a pin are from another cluster, and are not used."""
        await self.join()
        foreign = Issuer.make(self).authority.certificate
        (self.root / "pki" / "ca.crt").write_bytes(certificates_to_pem([foreign]))
        identity = self.start()
        self.assertIsNone(identity.node)
        await until(lambda: identity.node is not None)
        self.assertEqual((self.cluster.authority,), identity.node.credentials.authorities)

    async def test_another_node(self):
        """The certificate of another node is not used."""
        await self.join()
        identity = HubIdentity(reactor, "edge-2", [NOBODY], self.root, self.settings, list)
        self.assertIsNone(identity.node)

    async def test_new_token(self):
        """If certificate and token have expired, a new token makes the node join at once."""
        await self.join()
        self.expire()
        identity = self.start(BootstrapSettings(token=BootstrapToken("ghijkl", "0" * 16)))
        self.assertIn("has expired", identity.problem())
        # The cache is served nevertheless.
        self.assertIsNotNone(identity.node)
        self.assertTrue(identity.set_token(self.token))
        await identity.certificate.when_ready()
        await until(lambda: identity.problem() is None)
        self.assertGreater(self.current().not_valid_after_utc, self.current().not_valid_before_utc)
        self.assertFalse(identity.set_token(self.token))

    def expire(self):
        """Replace the certificate with an expired one."""
        key = new_key()
        subject = self.current().subject
        authority = self.cluster.identities.authority
        usage = x509.oid.ExtendedKeyUsageOID.CLIENT_AUTH
        certificate = authority.sign(subject, key.public_key(), [], usage, -1)
        path = (self.root / "pki" / "yurthub-current.pem").resolve()
        store = CertificateStore(StateDirectory.open(self.root / "pki"), path.name)
        store.save(IssuedCertificate(key, certificate))


class RejectedTests(IdentityTestCase):
    """The API rejects the node's certificate, as if its authority had been lost."""

    async def setUp(self):
        """Join; the resulting certificate is rejected from now on."""
        super().setUp()
        identity = self.make()
        identity.startService()
        await identity.certificate.when_ready()
        await identity.stopService()
        self.refused = self.current()
        authenticate = Certificates.authenticate

        def authenticate_others(certificates, exchange):
            if peer_certificate(exchange.transport) == self.refused:
                raise unauthorized()
            return authenticate(certificates, exchange)

        self.patch(Certificates, "authenticate", authenticate_others)

    def start_checked(self, settings):
        """Run it, with health checks of its API."""
        identity = self.start(settings)
        self.upstream = Upstream(
            reactor,
            "edge-1",
            servers_at([self.cluster.url]),
            False,
            HealthSettings(1.0, 1.0, 1, 1, 40.0),
            identity,
        )
        self.upstream.startService()
        self.addCleanup(self.upstream.stopService)
        return identity

    async def test_posted(self):
        """The problem says that a token is needed; a posted token makes the node join."""
        identity = self.start_checked(BootstrapSettings(pins=self.settings.pins))
        await until(lambda: "/v1/token" in self.problem())
        self.assertIsNone(identity.warning())
        self.assertTrue(identity.set_token(self.token))
        await until(lambda: self.upstream.health.online)
        self.assertNotEqual(self.refused, self.current())
        self.assertFalse(identity.set_token(self.token))

    async def test_posted_before(self):
        """The same applies to a token that was posted before the API's rejection."""
        identity = self.start(BootstrapSettings(pins=self.settings.pins))
        self.assertFalse(identity.set_token(self.token))
        identity.note_acceptance(False)
        await until(lambda: self.current() != self.refused)

    async def test_restart(self):
        """A token given at startup is used for that, too."""
        self.start_checked(self.settings)
        await until(lambda: self.upstream.health.online)
        self.assertNotEqual(self.refused, self.current())

    async def test_kubelet(self):
        """The kubelet's certificate, which always exists, needs no operator."""
        self.start_checked(self.with_kubelet())
        await until(lambda: self.upstream.health.online)
        self.assertNotEqual(self.refused, self.current())

    async def test_posted_without_kubelet(self):
        """If the kubelet has no certificate, either, a posted token is used."""
        settings = BootstrapSettings(
            mode=BootstrapMode.KUBELET_CERTIFICATE,
            kubelet_certificate=Path(self.mktemp()),
            pins=self.settings.pins,
        )
        identity = self.start_checked(settings)
        await until(lambda: "/v1/token" in self.problem())
        self.assertTrue(identity.set_token(self.token))
        await until(lambda: self.upstream.health.online)
        self.assertNotEqual(self.refused, self.current())

    async def test_kubelet_with_a_rejected_token(self):
        """A token that the API rejects does not prevent the use of the kubelet's certificate."""
        identity = self.start_checked(self.with_kubelet())
        identity.set_token(WRONG)
        identity.note_acceptance(False)
        await until(lambda: identity.certificate.counters.failed)
        self.assertEqual(self.refused, self.current())
        identity.certificate.retry_now()
        await until(lambda: self.upstream.health.online)
        self.assertNotEqual(self.refused, self.current())

    async def test_accepted_again(self):
        """A certificate that is accepted again, as after a clock change, is not replaced."""
        identity = self.start_checked(BootstrapSettings(pins=self.settings.pins))
        await until(lambda: "/v1/token" in self.problem())
        refused, self.refused = self.refused, None
        await until(lambda: self.upstream.health.online)
        self.assertFalse(identity.set_token(self.token))
        self.assertEqual(refused, self.current())

    def problem(self):
        """Return the problem of the single server."""
        (health,) = self.upstream.health.servers.values()
        return health.problem or ""


class RenewalTests(IdentityTestCase):
    """Changes while it runs."""

    async def test_authorities(self):
        """Contexts follow the file of authorities when an operator replaces it."""
        identity = self.start()
        await identity.certificate.when_ready()
        both = [self.cluster.authority, Issuer.make(self).authority.certificate]
        path = self.root / "pki" / "ca.crt"
        new = path.with_suffix(".new")
        new.write_bytes(certificates_to_pem(both))
        os.replace(new, path)
        for each in identity.services:
            bundle = getattr(each, "_bundle", None)
            if bundle is not None:
                bundle.trigger()
        await until(lambda: len(identity.anonymous.credentials.authorities) == 2)

    async def test_as_the_node(self):
        """A renewal is requested with the current certificate, not with a token."""
        identity = self.start()
        await identity.certificate.when_ready()
        await identity.stopService()
        self.start(replace(self.settings, organizations=("openyurt:tenant:a",)))

        def requesters():
            requests = self.cluster.store.list(CERTIFICATE_SIGNING_REQUESTS)
            return [
                each["spec"]["username"]
                for each in requests
                if each["spec"]["signerName"] == "kubernetes.io/kube-apiserver-client"
            ]

        await until(lambda: len(requesters()) == 2)
        self.assertEqual({"system:bootstrap:abcdef", "system:node:edge-1"}, set(requesters()))
