"""Names of nodes, and their identifiers as text and in certificates."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import ip_address, ip_network

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from twisted.trial.unittest import SynchronousTestCase, TestCase

from tests.certificates import certificate_builder
from tests.pki.support import Issuer
from yurttunnel.pki.credentials import new_key
from yurttunnel.pki.identity import (
    BadIdentifiers,
    Identifiers,
    format_identifiers,
    identity_from_certificate,
    parse_identifiers,
    uncovered_identifiers,
)
from yurttunnel.pki.names import CALLER_NAME, BadIdentity, check_node_name

EVERYTHING = (
    "host=camera&host=edge-1&ipv4=192.0.2.7&ipv6=2001:db8::7&cidr=10.0.0.0/8&cidr=fd00::/8"
    "&default-route=true"
)


class IdentifierTextTests(SynchronousTestCase):
    """The ``--agent-identifiers`` syntax."""

    def test_every_kind(self) -> None:
        """Each kind of identifier is parsed, repeated keys included."""
        self.assertEqual(
            parse_identifiers(EVERYTHING),
            Identifiers(
                hosts=frozenset({"edge-1", "camera"}),
                addresses=frozenset({ip_address("192.0.2.7"), ip_address("2001:db8::7")}),
                networks=frozenset({ip_network("10.0.0.0/8"), ip_network("fd00::/8")}),
                default_route=True,
            ),
        )

    def test_format_is_the_inverse(self) -> None:
        """Formatting parsed identifiers returns the same text, in a fixed order."""
        self.assertEqual(format_identifiers(parse_identifiers(EVERYTHING)), EVERYTHING)

    def test_percent_encoding(self) -> None:
        """Values may be percent-encoded, as in URL queries."""
        parsed = parse_identifiers("cidr=10.0.0.0%2F8&ipv6=2001%3Adb8%3A%3A7")
        self.assertEqual(parsed, parse_identifiers("cidr=10.0.0.0/8&ipv6=2001:db8::7"))

    def test_commas(self) -> None:
        """The comma-separated form of version 0.3 is accepted."""
        self.assertEqual(
            parse_identifiers("host=edge-1,ipv4=192.0.2.7"),
            parse_identifiers("host=edge-1&ipv4=192.0.2.7"),
        )

    def test_uid_is_ignored_with_a_warning(self) -> None:
        """A uid is ignored with a warning."""
        warnings: list[str] = []
        parsed = parse_identifiers("host=edge-1&uid=42", warnings.append)
        self.assertEqual(parsed, Identifiers(frozenset({"edge-1"})))
        self.assertEqual(warnings, ["'uid=42' is ignored: nodes are not chosen by uid"])

    def test_no_default_route(self) -> None:
        """default-route=false is allowed and has no effect."""
        parsed = parse_identifiers("host=a&default-route=false")
        self.assertEqual(parsed, Identifiers(frozenset({"a"})))

    def test_bad_items(self) -> None:
        """An error is one line that quotes the invalid item."""
        for item in (
            "host",
            "host=",
            "host=UPPER",
            "host=a_b",
            "host=a/../b",
            "host=a%00b",
            "host=a%0d%0ab",
            "ipv4=192.0.2.256",
            "ipv4=2001:db8::7",
            "ipv6=192.0.2.7",
            "ipv6=fe80::1%25eth0",
            "cidr=fe80::%25eth0/128",
            "cidr=::%250%26host=edge-2/128",
            "cidr=10.0.0.1/8",
            "cidr=10.0.0.0/33",
            "cidr=everything",
            "default-route=yes",
            "color=blue",
        ):
            with self.subTest(item):
                error = self.assertRaises(BadIdentifiers, parse_identifiers, f"host=edge-1&{item}")
                key = item.partition("=")[0]
                self.assertIn(key, str(error))
                self.assertNotIn("\n", str(error))

    def test_nothing(self) -> None:
        """An empty list is an error."""
        for text in ("", " ", "&&"):
            self.assertRaises(BadIdentifiers, parse_identifiers, text)

    def test_too_many(self) -> None:
        """The number of identifiers is limited."""
        text = "&".join(f"host=h{n}" for n in range(256))
        self.assertEqual(len(parse_identifiers(text).hosts), 256)
        self.assertRaises(BadIdentifiers, parse_identifiers, text + "&host=one-more")


class NodeNameTests(SynchronousTestCase):
    """Valid names of nodes."""

    def test_good_names(self) -> None:
        """Lower-case RFC 1123 subdomains are valid, also those that look like addresses."""
        for name in (
            "a",
            "edge-1",
            "edge-1.site-7.example",
            "192.0.2.7",
            "x" * 63,
            "a." + "b" * 62,
        ):
            self.assertEqual(check_node_name(name), name)

    def test_bad_names(self) -> None:
        """All other names are rejected, with a sentence on one line."""
        for name in (
            "",
            ".",
            "..",
            "../edge-1",
            "edge/1",
            "Edge-1",
            "edge_1",
            "-edge",
            "edge-",
            "edge..1",
            "edge-1.",
            "edge-1\n",
            "edge-1\r\nX-Injected: 1",
            "edge-1\0",
            "edge 1",
            "*.example",
            "édge",
            "\N{FULLWIDTH LATIN SMALL LETTER A}",
            "x" * 64,
            "a." + "b" * 63,
            "a." * 5000 + "a",
        ):
            error = self.assertRaises(BadIdentity, check_node_name, name)
            self.assertEqual(len(str(error).splitlines()), 1)
            self.assertLess(len(str(error)), 300)


def certificate(
    common_names: Sequence[str] = ("edge-1",),
    organizations: Sequence[str] = ("openyurt:yurttunnel",),
    names: Sequence[x509.GeneralName] | None = (x509.DNSName("edge-1"),),
    usage: x509.ObjectIdentifier | None = ExtendedKeyUsageOID.CLIENT_AUTH,
) -> x509.Certificate:
    """Issue a certificate as another authority might."""
    key = new_key()
    subject = x509.Name(
        [x509.NameAttribute(NameOID.ORGANIZATION_NAME, value) for value in organizations]
        + [x509.NameAttribute(NameOID.COMMON_NAME, value) for value in common_names]
    )
    builder = certificate_builder(subject, key.public_key())
    if names is not None:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    if usage is not None:
        builder = builder.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
    return builder.sign(key, hashes.SHA256())


def addresses(count: int) -> list[x509.GeneralName]:
    """Return a number of addresses, in the form of certificates."""
    first = ip_address("10.0.0.1")
    return [x509.IPAddress(first + n) for n in range(count)]


class CertificateTests(TestCase):
    """Identities in certificates."""

    def test_everything_survives(self) -> None:
        """The identifiers and the node's name are read from a certificate as issued."""
        issuer = Issuer.make(self)
        node = issuer.node("edge-1", parse_identifiers(EVERYTHING), enrolment="c0ffee")
        identity = identity_from_certificate(node.certificate)
        self.assertEqual(identity.node, "edge-1")
        self.assertEqual(identity.identifiers, parse_identifiers(EVERYTHING))
        self.assertEqual(identity.enrolment, "c0ffee")
        self.assertEqual(identity.not_after, node.certificate.not_valid_after_utc)

    def test_own_name_is_always_covered(self) -> None:
        """The node's name is one of its identifiers even if it was not claimed."""
        node = Issuer.make(self).node("edge-1", parse_identifiers("cidr=10.0.0.0/8"))
        identity = identity_from_certificate(node.certificate)
        self.assertEqual(identity.identifiers.hosts, {"edge-1"})

    def test_foreign_uris_are_passed_over(self) -> None:
        """URIs of other schemes, as some authorities add, are ignored."""
        uri = x509.UniformResourceIdentifier("spiffe://cluster.local/ns/a")
        identity = identity_from_certificate(certificate(names=[x509.DNSName("edge-1"), uri]))
        self.assertEqual(identity.node, "edge-1")

    def test_not_a_nodes_certificate(self) -> None:
        """Certificates that do not name exactly one node in all required places are rejected."""
        edge = x509.DNSName("edge-1")
        for case, bad in {
            "callers": Issuer.make(self).authority.sign_client(new_key().public_key(), CALLER_NAME),
            "authority": Issuer.make(self).authority.certificate,
            "server usage": certificate(usage=ExtendedKeyUsageOID.SERVER_AUTH),
            "no usage": certificate(usage=None),
            "no names": certificate(names=None),
            "other organization": certificate(organizations=["system:nodes"]),
            "two organizations": certificate(
                organizations=["openyurt:yurttunnel", "system:masters"]
            ),
            "no common name": certificate(common_names=[]),
            "two common names": certificate(common_names=["edge-1", "edge-2"]),
            "common name not among the DNS names": certificate(common_names=["edge-2"]),
            "bad common name": certificate(common_names=["../x"], names=[x509.DNSName("../x")]),
            "line end": certificate(names=[edge, x509.DNSName("a\r\nb")]),
            "wildcard": certificate(names=[edge, x509.DNSName("*.example")]),
            "mail": certificate(names=[edge, x509.RFC822Name("a@example.org")]),
            "bad network": certificate(
                names=[edge, x509.UniformResourceIdentifier("yurttunnel:cidr=10.0.0.0/99")]
            ),
            "unknown item": certificate(
                names=[edge, x509.UniformResourceIdentifier("yurttunnel:admin=true")]
            ),
            "too many names": certificate(
                names=[edge, *(x509.DNSName(f"h{n}") for n in range(300))]
            ),
            "one name too many": certificate(names=[edge, *addresses(256)]),
            "names that are too long": certificate(
                names=[edge, *(x509.DNSName(f"h{n:0>62}.{'x' * 63}") for n in range(150))]
            ),
        }.items():
            with self.subTest(case):
                error = self.assertRaises(BadIdentity, identity_from_certificate, bad)
                self.assertEqual(len(str(error).splitlines()), 1)

    def test_as_many_as_may_be(self) -> None:
        """All accepted identifiers of a certificate can be formatted, and parsed again."""
        enrolment = x509.UniformResourceIdentifier("yurttunnel:enrolment=c0ffee")
        names = [x509.DNSName("edge-1"), *addresses(255), enrolment]
        found = identity_from_certificate(certificate(names=names)).identifiers
        self.assertEqual(len(found.addresses), 255)
        self.assertEqual(parse_identifiers(format_identifiers(found)), found)

    def test_uncovered(self) -> None:
        """Claims that the certificate does not cover are listed item by item."""
        node = Issuer.make(self).node(
            "edge-1", parse_identifiers("ipv4=192.0.2.7&cidr=10.0.0.0/8&cidr=fd00::/8")
        )
        identity = identity_from_certificate(node.certificate)
        covered = "host=edge-1&ipv4=192.0.2.7&ipv4=10.1.2.3&cidr=10.1.0.0/16&cidr=fd00::/8"
        self.assertEqual(uncovered_identifiers(identity, parse_identifiers(covered)), [])
        claimed = (
            "host=edge-2&ipv4=192.0.2.8&ipv6=2001:db8::1&cidr=0.0.0.0/0&cidr=10.0.0.0/7"
            "&cidr=fc00::/7&default-route=true"
        )
        self.assertEqual(
            sorted(uncovered_identifiers(identity, parse_identifiers(f"{covered}&{claimed}"))),
            sorted(claimed.split("&")),
        )

    def test_default_route_covers_networks(self) -> None:
        """The default route covers all networks, but neither addresses nor names."""
        identity = identity_from_certificate(
            Issuer.make(self).node("edge-1", parse_identifiers("default-route=true")).certificate
        )
        claimed = parse_identifiers("cidr=10.0.0.0/8&default-route=true&host=a&ipv4=192.0.2.1")
        self.assertEqual(uncovered_identifiers(identity, claimed), ["host=a", "ipv4=192.0.2.1"])
