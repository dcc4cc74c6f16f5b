"""Parsing of ``host:port``."""

from twisted.trial.unittest import SynchronousTestCase

from yurttunnel.http.authority import (
    BadAuthority,
    display_host,
    join_authority,
    parse_network,
    split_authority,
    strip_port,
)


class SplitAuthorityTests(SynchronousTestCase):
    """``split_authority`` parses the target of a CONNECT."""

    def test_names_and_addresses_are_split_from_their_port(self):
        """Names, IPv4 addresses and bracketed IPv6 addresses are separated from the port."""
        for text, expected in {
            "edge-1:10250": ("edge-1", 10250),
            "a_b.Example.:1": ("a_b.example", 1),
            "192.0.2.1:65535": ("192.0.2.1", 65535),
            "[2001:db8::1]:443": ("2001:db8::1", 443),
            "[::ffff:192.0.2.1]:443": ("192.0.2.1", 443),
        }.items():
            self.assertEqual(split_authority(text), expected)

    def test_whatever_else_is_refused_in_one_line(self):
        """Missing and invalid ports, user information, URLs and control characters fail."""
        for text in (
            "edge-1",
            "",
            ":80",
            "edge-1:",
            "edge-1:0",
            "edge-1:65536",
            "edge-1:+80",
            "edge-1:8 0",
            "edge-1:٨٠",
            "edge-1:000080",
            "2001:db8::1:443",
            "2001:db8:::443",
            "[2001:db8::1]",
            "[2001:db8::1:443",
            "[fe80::1%eth0]:443",
            "[edge-1]:443",
            "user@edge-1:80",
            "http://edge-1:80",
            "edge-1:80/path",
            "edge 1:80",
            "edge-1\r\n:80",
            "edge\0:80",
            "-edge:80",
            "edge..example:80",
            "é:80",
            "a" * 255 + ":80",
        ):
            error = self.assertRaises(BadAuthority, split_authority, text)
            self.assertNotIn("\n", str(error))

    def test_what_is_split_can_be_joined_again(self):
        """``join_authority`` is the inverse."""
        for text in ("edge-1:80", "192.0.2.1:1", "[2001:db8::1]:443"):
            self.assertEqual(join_authority(*split_authority(text)), text)


class StripPortTests(SynchronousTestCase):
    """``strip_port`` parses ``X-Tunnel-Proxy-Host``."""

    def test_the_port_is_optional(self):
        """A host may have a port or not, and an IPv6 address may lack brackets."""
        for text, expected in {
            "edge-1": "edge-1",
            "edge-1:10250": "edge-1",
            "192.0.2.1": "192.0.2.1",
            "192.0.2.1:80": "192.0.2.1",
            "2001:db8::1": "2001:db8::1",
            "[2001:db8::1]": "2001:db8::1",
            "[2001:db8::1]:80": "2001:db8::1",
        }.items():
            self.assertEqual(strip_port(text), expected)

    def test_bad_hosts_are_refused(self):
        """An invalid host raises ``BadAuthority``."""
        for text in ("", "a b", "a:b:c", "[::1", "edge-1:x", "a/b"):
            self.assertRaises(BadAuthority, strip_port, text)


class KnownHostTests(SynchronousTestCase):
    """``display_host`` returns the peer's address for display."""

    def test_addresses_have_one_form(self):
        """An IPv4 address has one form, also on a dual-stack listener."""
        for host, known in {
            "::ffff:192.0.2.7": "192.0.2.7",
            "192.0.2.7": "192.0.2.7",
            "2001:DB8:0::9": "2001:db8::9",
            "fe80::1%eth0": "fe80::1%eth0",
            "an unknown address": "an unknown address",
        }.items():
            self.assertEqual(known, display_host(host))


class NetworkTests(SynchronousTestCase):
    """Networks."""

    def test_masks(self):
        """The length must be a number: the direction of a mask would be ambiguous."""
        self.assertEqual("10.0.0.0/8", str(parse_network("10.0.0.0/8")))
        for text in ("10.0.0.0/255.0.0.0", "10.0.0.0/0.255.255.255", "10.0.0.0/\u0668"):
            self.assertRaises(BadAuthority, parse_network, text)
