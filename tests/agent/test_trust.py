"""The identifiers that an agent claims."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from yurttunnel.agent.cluster_trust import certified_identifiers
from yurttunnel.pki.identity import Identifiers, parse_identifiers


class CertifiedIdentifiersTests(SynchronousTestCase):
    """A server rejects an agent that claims more than its certificate covers."""

    def assert_identifiers(self, expected, desired, covered):
        """Check the claim in its text form."""
        claimed = certified_identifiers(parse_identifiers(desired), parse_identifiers(covered))
        self.assertEqual(parse_identifiers(expected), claimed)

    def test_all(self):
        """What is covered is claimed."""
        text = "host=a&ipv4=192.0.2.1&ipv6=fd00::1&cidr=10.0.0.0/8&default-route=true"
        self.assert_identifiers(text, text, text)

    def test_part(self):
        """What is not covered is omitted."""
        self.assert_identifiers(
            "host=a&ipv4=192.0.2.1",
            "host=a&host=b&ipv4=192.0.2.1&ipv4=192.0.2.2&cidr=10.0.0.0/8&default-route=true",
            "host=a&host=c&ipv4=192.0.2.1",
        )

    def test_network(self):
        """A network covers its addresses."""
        self.assert_identifiers(
            "ipv4=10.1.2.3&ipv6=fd00::1",
            "ipv4=10.1.2.3&ipv4=192.0.2.1&ipv6=fd00::1",
            "host=a&cidr=10.0.0.0/8&cidr=fd00::/8",
        )

    def test_without_certificate(self):
        """Without a certificate everything is claimed."""
        desired = Identifiers(frozenset({"a"}))
        self.assertIs(desired, certified_identifiers(desired, None))
