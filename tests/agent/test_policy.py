"""The destinations that an agent may connect to."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from yurttunnel.agent.policy import (
    DestinationPolicy,
    dialed_host,
    names_this_machine,
    parse_pattern,
)


def policy(*patterns: str, keep_default: bool = True) -> DestinationPolicy:
    """Return the policy of a node with two addresses."""
    return DestinationPolicy(
        "edge-1",
        [ip_address("10.0.0.5"), ip_address("fd00::5")],
        [parse_pattern(pattern) for pattern in patterns],
        keep_default,
    )


def reaches(decides: DestinationPolicy, host: str, port: int) -> bool:
    """Return whether an address in the spelling ``host`` is allowed."""
    canonical = dialed_host(host)
    assert not isinstance(canonical, str), host
    return decides.may_connect(canonical, port)


class CanonicalHostTests(SynchronousTestCase):
    """The canonical form of destinations."""

    def test_every_spelling_of_an_address_is_the_address_that_is_connected_to(self) -> None:
        """Mapped, unspecified and zoned addresses become what the kernel connects to."""
        for text, address in {
            "127.0.0.1": "127.0.0.1",
            "0.0.0.0": "127.0.0.1",
            "::": "::1",
            "[::1]": "::1",
            "::ffff:127.0.0.1": "127.0.0.1",
            "::ffff:0.0.0.0": "127.0.0.1",
            "::FFFF:0A00:0005": "10.0.0.5",
            "::1%lo": "::1",
            "::ffff:10.0.0.5%eth0": "10.0.0.5",
            "fe80::1%eth0": "fe80::1%eth0",
        }.items():
            self.assertEqual(dialed_host(text), ip_address(address), text)

    def test_old_spellings_of_ipv4_are_refused(self) -> None:
        """Legacy spellings of IPv4 are rejected: inet_aton never sees one."""
        for text in ("2130706433", "0177.1", "0x7f.1", "127.1", "127.0.0.01", "0x7f000001", "1."):
            with self.assertRaisesRegex(ValueError, "four decimal numbers"):
                dialed_host(text)

    def test_a_name_is_in_lower_case_and_without_final_dot(self) -> None:
        """Names are in lower case and without a final dot, as name servers compare them."""
        self.assertEqual(dialed_host("DB.Example.ORG."), "db.example.org")

    def test_what_is_neither_is_refused(self) -> None:
        """Control characters, spaces and overlong names never reach a resolver."""
        for text in (
            "",
            "a b",
            "a\r\nb",
            "a\0b",
            "-a",
            "a..b",
            "a" * 64,
            "b\u00fccher",
            "1:2",
            "/x",
        ):
            with self.assertRaises(ValueError, msg=repr(text)):
                dialed_host(text)


class PatternTests(SynchronousTestCase):
    """The syntax of --allow-destination."""

    def test_patterns_allow_exactly_their_targets(self) -> None:
        """Addresses, networks and ports are matched exactly."""
        for pattern, allowed, denied in [
            ("192.0.2.1", [("192.0.2.1", 1), ("192.0.2.1", 65535)], [("192.0.2.2", 1)]),
            ("192.0.2.1:80", [("192.0.2.1", 80)], [("192.0.2.1", 81)]),
            (
                "192.0.2.1:8000-8100",
                [("192.0.2.1", 8000), ("192.0.2.1", 8100)],
                [("192.0.2.1", 7999), ("192.0.2.1", 8101)],
            ),
            ("10.1.0.0/16", [("10.1.255.255", 1)], [("10.2.0.0", 1), ("::1", 1)]),
            ("10.1.0.0/16:443", [("10.1.0.1", 443)], [("10.1.0.1", 80)]),
            ("fd01::1", [("fd01::1", 9)], [("fd01::2", 9)]),
            ("[fd01::1]:443", [("fd01::1", 443)], [("fd01::1", 444)]),
            ("[fd01::/16]:443", [("fd01:2::1", 443)], [("fd01:2::1", 1), ("fd02::1", 443)]),
            ("fd01::/16:443", [("fd01:2::1", 443)], [("fd01:2::1", 1)]),
            ("fd01::/16", [("fd01:2::1", 1)], [("fd02::1", 1)]),
            ("fe80::/10", [("fe80::1%eth0", 1)], [("fd00::1", 1)]),
            ("::ffff:10.9.0.0/112", [("10.9.1.1", 1), ("::ffff:10.9.1.1", 1)], [("10.8.0.1", 1)]),
            ("0.0.0.0/0", [("127.0.0.1", 22), ("8.8.8.8", 53)], [("::1", 22)]),
        ]:
            decides = policy(pattern, keep_default=False)
            for host, port in allowed:
                self.assertTrue(reaches(decides, host, port), f"{pattern} allows {host} {port}")
            for host, port in denied:
                self.assertFalse(reaches(decides, host, port), f"{pattern} denies {host} {port}")

    def test_bad_patterns_are_refused_in_one_line(self) -> None:
        """The reason quotes the text, so that the operator finds it."""
        for text in (
            "",
            ":80",
            "a:",
            "a:0",
            "a:65536",
            "a:90-80",
            "a:80-",
            "10.0.0.5/24",
            "10.0.0.0/33",
            "10.0.0.0/255.0.0.0",
            "10.0.0.0/",
            "*",
            "*:443",
            "a*.example.org",
            "*.*.org",
            "*.10.0.0.1",
            "0.0.0.0",
            "[::]:80",
            "::0",
            "[0:0:0:0:0:0:0:0]:80",
            "::ffff:0.0.0.0",
            "::%lo",
            "fe80::1%eth0",
            "fe80::%eth0/64",
            "[fd00::1",
            "[fd00::1]80",
            "[10.0.0.1]:80",
            "2130706433",
            "a b",
        ):
            with self.assertRaises(ValueError, msg=repr(text)) as caught:
                parse_pattern(text)
            self.assertNotIn("\n", str(caught.exception))
            self.assertTrue(str(caught.exception), text)


class DefaultTests(SynchronousTestCase):
    """What is allowed without patterns, and how patterns change that."""

    def test_the_nodes_own_addresses_are_allowed_on_every_port(self) -> None:
        """In any spelling."""
        for host in ("10.0.0.5", "::ffff:10.0.0.5", "fd00::5", "FD00:0::5"):
            self.assertTrue(reaches(policy(), host, 31337), host)

    def test_loopback_is_allowed_on_the_kubelet_and_localhost_proxy_ports_only(self) -> None:
        """Other services of the node listen on loopback because they trust it."""
        for host in ("127.0.0.1", "127.1.2.3", "::1", "0.0.0.0", "::", "::ffff:127.0.0.1"):
            for port in (10250, 10255, 10266, 10267):
                self.assertTrue(reaches(policy(), host, port), (host, port))
            for port in (22, 6443, 10251, 10265, 10268):
                self.assertFalse(reaches(policy(), host, port), (host, port))

    def test_the_edge_network_and_names_are_denied(self) -> None:
        """Nothing beyond the node is reachable without a pattern."""
        for host in ("10.0.0.6", "8.8.8.8", "169.254.169.254", "fd00::6", "fe80::1"):
            self.assertFalse(reaches(policy(), host, 10250), host)
        self.assertFalse(policy().may_look_up("db.internal", 10250))

    def test_a_node_whose_ip_is_loopback_has_every_port_of_it(self) -> None:
        """A loopback node IP counts as an own address, too."""
        decides = DestinationPolicy("edge-1", [ip_address("127.0.0.1")])
        self.assertTrue(reaches(decides, "127.0.0.1", 8000))
        self.assertFalse(reaches(decides, "127.0.0.2", 8000))

    def test_patterns_add_to_the_default(self) -> None:
        """Allowing a target does not cut off the kubelet."""
        decides = policy("192.0.2.1:22")
        self.assertTrue(reaches(decides, "192.0.2.1", 22))
        self.assertTrue(reaches(decides, "10.0.0.5", 10250))

    def test_patterns_are_replaced_while_the_agent_runs(self) -> None:
        """Replaced patterns no longer count, nor does the default if it is removed."""
        decides = policy("192.0.2.1:22")
        decides.use([parse_pattern("192.0.2.2:22")], True)
        self.assertFalse(reaches(decides, "192.0.2.1", 22))
        self.assertTrue(reaches(decides, "192.0.2.2", 22))
        self.assertTrue(reaches(decides, "10.0.0.5", 10250))
        decides.use([], False)
        self.assertFalse(reaches(decides, "10.0.0.5", 10250))
        self.assertEqual([], decides.describe())
        decides.use([], True)
        self.assertTrue(reaches(decides, "127.0.0.1", 10250))

    def test_without_the_default_the_patterns_are_all_there_is(self) -> None:
        """Own addresses and loopback then need a pattern, too."""
        decides = policy("192.0.2.1:22", keep_default=False)
        self.assertFalse(reaches(decides, "10.0.0.5", 10250))
        self.assertFalse(reaches(decides, "127.0.0.1", 10250))


class MetaPortTests(SynchronousTestCase):
    """The agent's own meta port, which the node's kubelet probes."""

    here = (ip_address("172.17.0.1"), ip_address("fe80::1"))

    def decide(self, *patterns: str, keep_default: bool = True) -> DestinationPolicy:
        """Return the policy of an agent with port 10266, on a machine with more addresses."""
        return DestinationPolicy(
            "edge-1",
            [ip_address("10.0.0.5"), ip_address("fd00::5")],
            [parse_pattern(pattern) for pattern in patterns],
            keep_default,
            meta_port=10266,
            is_here=lambda address: address in self.here,
        )

    def test_no_spelling_of_the_node_reaches_it(self) -> None:
        """Neither loopback nor an own address reaches it, unless a pattern has ports."""
        hosts = (
            "127.0.0.1", "127.9.9.9", "0.0.0.0", "::", "::1", "::ffff:127.0.0.1", "10.0.0.5",
            "::ffff:10.0.0.5", "fd00::5", "172.17.0.1", "::ffff:172.17.0.1",
        )  # fmt: skip
        broad = ("0.0.0.0/0", "::/0", "127.0.0.1", "172.17.0.0/16", "10.0.0.5")
        for decides in (
            self.decide(),
            self.decide(*broad),
            self.decide(*broad, keep_default=False),
        ):
            for host in hosts:
                self.assertFalse(reaches(decides, host, 10266), host)

    def test_a_name_does_not_reach_it(self) -> None:
        """Whoever controls the DNS of an allowed name cannot reach it either."""
        decides = self.decide("*.example.org")
        for address in ("10.0.0.5", "fd00::5", "172.17.0.1"):
            self.assertFalse(decides.may_connect(ip_address(address), 10266, looked_up=True))
        self.assertTrue(decides.may_connect(ip_address("10.0.0.6"), 10266, looked_up=True))

    def test_a_pattern_that_names_the_port_opens_it(self) -> None:
        """A pattern with the port allows it, at no other address."""
        decides = self.decide("127.0.0.1:10266", "172.17.0.0/16:10000-11000")
        self.assertTrue(reaches(decides, "127.0.0.1", 10266))
        self.assertTrue(reaches(decides, "172.17.0.1", 10266))
        self.assertFalse(reaches(decides, "10.0.0.5", 10266))

    def test_the_denial_has_the_flag_that_opens_it(self) -> None:
        """The flag in the message works."""
        denial = self.decide().denial(ip_address("127.0.0.1"), 10266)
        self.assertIn("--allow-destination 127.0.0.1:10266 would allow it", denial)

    def test_the_same_port_elsewhere_and_other_ports_are_as_ever(self) -> None:
        """Another machine's 10266, and the node's other localhost proxy port, are not affected."""
        decides = self.decide("10.1.0.0/16")
        self.assertTrue(reaches(decides, "10.1.2.3", 10266))
        for host in ("127.0.0.1", "10.0.0.5"):
            self.assertTrue(reaches(decides, host, 10267))

    def test_only_addresses_of_this_machine_are(self) -> None:
        """The kernel decides; documentation addresses (RFC 5737, RFC 3849) belong to no machine."""
        self.assertTrue(names_this_machine(ip_address("127.0.0.1")))
        for text in ("192.0.2.1", "2001:db8::1"):
            self.assertFalse(names_this_machine(ip_address(text)))


class NameTests(SynchronousTestCase):
    """Destinations that are resolved."""

    def test_names_are_looked_up_only_when_a_pattern_names_them(self) -> None:
        """An address pattern allows no queries to name servers, which could exfiltrate data."""
        decides = policy("db.internal:5432", "*.example.org", "10.0.0.0/8")
        self.assertTrue(decides.may_look_up("db.internal", 5432))
        self.assertTrue(decides.may_look_up("a.example.org", 1))
        self.assertTrue(decides.may_look_up("a.b.example.org", 1))
        for name, port in [
            ("db.internal", 5433),
            ("x.db.internal", 5432),
            ("example.org", 1),
            ("badexample.org", 1),
            ("other", 1),
        ]:
            self.assertFalse(decides.may_look_up(name, port), (name, port))

    def test_an_allowed_name_leads_anywhere_but_to_addresses_that_every_host_has(self) -> None:
        """A name's DNS cannot choose what is reached on the node (DNS rebinding)."""
        decides = policy("*.example.org")
        for host in ("192.168.1.1", "8.8.8.8", "fd77::1"):
            self.assertTrue(decides.may_connect(ip_address(host), 80, looked_up=True), host)
        for host in (
            "127.0.0.1",
            "127.9.9.9",
            "::1",
            "::ffff:127.0.0.1",
            "0.0.0.0",
            "::",
            "169.254.169.254",
            "::ffff:169.254.169.254",
            "fe80::1",
            "224.0.0.1",
            "ff02::1",
        ):
            self.assertFalse(decides.may_connect(ip_address(host), 80, looked_up=True), host)

    def test_such_addresses_are_reached_by_name_when_allowed_as_addresses(self) -> None:
        """Loopback and the like are reached by name if the operator allows them as addresses."""
        decides = policy("*.example.org", "127.0.0.1:80")
        self.assertTrue(decides.may_connect(ip_address("127.0.0.1"), 80, looked_up=True))

    def test_a_denial_names_destination_node_and_flag(self) -> None:
        """The message has a flag that parses and allows the destination."""
        sentence = policy().denial(ip_address("fd00::9"), 443)
        self.assertIn("node edge-1", sentence)
        self.assertIn("--allow-destination [fd00::9]:443 ", sentence)
        self.assertTrue(reaches(policy("[fd00::9]:443"), "fd00::9", 443))


ipv4 = st.ip_addresses(v=4)
ipv6 = st.ip_addresses(v=6)
ports = st.integers(1, 65535)


def spellings(address: IPv4Address | IPv6Address) -> list[str]:
    """Return every spelling of ``address`` that some program accepts."""
    if isinstance(address, IPv6Address):
        return [
            str(address),
            address.exploded,
            str(address).upper(),
            f"[{address}]",
            f"{address}%1",
        ]
    number = int(address)
    a, b, c, d = address.packed
    return [
        str(address),
        f"::ffff:{address}",
        f"[::ffff:{address}]",
        f"0:0:0:0:0:ffff:{number >> 16:x}:{number & 0xFFFF:x}",
        f"::ffff:{address}%1",
        str(number),
        hex(number),
        f"0{number:o}",
        f"{a}.{number & 0xFFFFFF}",
        f"{a}.{b}.{number & 0xFFFF}",
        f"0{a:o}.0{b:o}.0{c:o}.0{d:o}",
        f"0x{a:x}.0x{b:x}.0x{c:x}.0x{d:x}",
        f"{address}.",
    ]


class PropertyTests(SynchronousTestCase):
    """Properties of all addresses and all texts."""

    @given(ipv4 | ipv6, ports)
    def test_an_address_in_no_pattern_is_never_allowed_whatever_its_spelling(
        self, address: IPv4Address | IPv6Address, port: int
    ) -> None:
        """A spelling is rejected, or decided like the address."""
        decides = policy("203.0.113.0/24", "2001:db8::/32", "*.example.org")
        dialed_host(str(address))  # The plain spelling is not rejected.
        for text in spellings(address):
            try:
                host = dialed_host(text)
            except ValueError:
                continue
            assert not isinstance(host, str), text
            reached = address
            if isinstance(address, IPv6Address) and address.ipv4_mapped:
                reached = address.ipv4_mapped
            inside = (
                reached in parse_pattern("203.0.113.0/24").network
                or reached in parse_pattern("2001:db8::/32").network
                or str(reached) in ("10.0.0.5", "fd00::5")
                or (
                    (reached.is_loopback or reached.is_unspecified)
                    and port in (10250, 10255, 10266, 10267)
                )
            )
            self.assertEqual(decides.may_connect(host, port), inside, text)

    @given(st.text(max_size=40), ports)
    def test_no_text_breaks_the_parsers(self, text: str, port: int) -> None:
        """Any text is parsed, or rejected with ``ValueError``."""
        for parse in (dialed_host, parse_pattern):
            try:
                parse(text)
            except ValueError as reason:
                self.assertTrue(str(reason))
