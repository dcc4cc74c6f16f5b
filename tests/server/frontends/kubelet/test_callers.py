"""The identities of callers."""

from __future__ import annotations

import gc

from twisted.trial.unittest import SynchronousTestCase

from tests.pki.support import Issuer
from tests.server.frontends.kubelet.fakes import SecureTransport, head
from yurttunnel.pki.credentials import new_key
from yurttunnel.pki.identity import parse_identifiers
from yurttunnel.server.frontends.kubelet.callers import (
    CertificateUsers,
    client_of,
)
from yurttunnel.server.frontends.kubelet.reviews import User


class CertificateTests(SynchronousTestCase):
    """Identities from certificates."""

    def setUp(self):
        """Create an authority."""
        self.authority = Issuer.make(self).authority
        self.users = CertificateUsers()

    def of(self, name, organization=None):
        """Return the user of a certificate."""
        certificate = self.authority.sign_client(new_key().public_key(), name, organization)
        return self.users.of(SecureTransport(certificate))

    def test_user(self):
        """The user is the common name, and the group the organization."""
        user = self.of("jane", "developers")
        self.assertEqual(User("jane", ("developers", "system:authenticated")), user.user)
        self.assertFalse(user.is_node)

    def test_nodes(self):
        """Nodes, whether kubelets or agents, are recognized by name and by group."""
        for name, organization in (
            ("system:node:edge-1", None),
            ("kube-apiserver-kubelet-client", "system:nodes"),
            ("kube-apiserver-kubelet-client", "openyurt:yurttunnel"),
        ):
            self.assertTrue(self.of(name, organization).is_node)

    def test_agents(self):
        """A certificate of an agent is that of a node."""
        identifiers = parse_identifiers("host=edge-1")
        certificate = self.authority.sign_node("edge-1", identifiers, new_key().public_key(), "ab")
        self.assertTrue(self.users.of(SecureTransport(certificate)).is_node)

    def test_nobody(self):
        """Without a certificate, or without a name in it, there is no user."""
        self.assertIsNone(self.users.of(SecureTransport(None)))

    def test_once(self):
        """A certificate is read once per connection, and forgotten after the end of that."""
        transport = SecureTransport(self.authority.certificate)
        for _ in range(3):
            self.users.of(transport)
        self.assertEqual(1, transport.certificate_reads)
        del transport
        gc.collect()
        self.assertEqual(0, len(self.users._users))


class ClientTests(SynchronousTestCase):
    """The field ``X-Forwarded-For``."""

    def client(self, *values):
        """Return the client of a request with these fields."""
        return client_of(head(**{"X-Forwarded-For": list(values)}))

    def test_the_last_counts(self):
        """kube-apiserver appends it to whatever its client has sent, in one field or several."""
        for values in (
            ["192.0.2.1"],
            ["198.51.100.1, 192.0.2.1"],
            ["nonsense,,\t192.0.2.1 "],
            ["198.51.100.1", "203.0.113.1,192.0.2.1"],
            ["::ffff:192.0.2.1"],
            ["a" * 100_000 + ", 192.0.2.1"],
        ):
            self.assertEqual("192.0.2.1", self.client(*values))

    def test_networks(self):
        """All addresses of an IPv6 /64 are one client, in any spelling."""
        for value in ("2001:db8::1", "2001:DB8:0:0:ffff::2", "2001:db8:0000::0003"):
            self.assertEqual("2001:db8::/64", self.client(value))

    def test_no_address(self):
        """A malformed address means no client."""
        self.assertEqual("", client_of(head()))
        for value in (
            "",
            "192.0.2.1,",
            "unknown",
            "_hidden",
            "192.0.2.1:80",
            "[2001:db8::1]:80",
            "0177.0.0.1",
            "fe80::1%eth0",
            "é",
            "0" * 100_000 + "192.0.2.1",
        ):
            self.assertEqual("", self.client(value))
