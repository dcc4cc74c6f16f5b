"""Tests of parsing packets that are made according to RFC 791, 8200, 9293, 792 and 4443."""

from __future__ import annotations

import struct
from ipaddress import ip_address

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from tests.proxy.kernel.lab import ip
from yurttunnel.proxy.kernel.packets import LoggedAttempt, LoggedRefusal, parse_packet
from yurttunnel.proxy.kernel.targets import Attempt, Target
from yurttunnel.proxy.state.virtual_services import Endpoint, Protocol

CLIENT = {4: ip_address("10.5.0.2"), 6: ip_address("fd05::2")}
POD = {4: ip_address("10.1.0.10"), 6: ip_address("fd01::10")}
TCP, UDP, ICMP, ICMPV6 = 6, 17, 1, 58
SYN, RST, ACK = 2, 4, 16


def tcp(source_port, port, flags):
    """Make a TCP header."""
    return struct.pack("!HHIIBBHHH", source_port, port, 7, 0, 5 << 4, flags, 0, 0, 0)


def target(version, protocol=Protocol.TCP):
    """Return the endpoint."""
    return Target(protocol, Endpoint(POD[version], 8080))


class ParsedPacketTests(SynchronousTestCase):
    """All kinds of packets."""

    def test_an_attempt(self):
        """A first packet has the endpoint, and the client's address as the endpoint sees it."""
        for version in (4, 6):
            packet = ip(CLIENT[version], POD[version], TCP, tcp(40000, 8080, SYN))
            attempt = Attempt(target(version), CLIENT[version], 40000)
            self.assertEqual(LoggedAttempt(attempt, False), parse_packet(b"", packet))

    def test_a_reset(self):
        """A reset contains the endpoint that sent it, and its client."""
        for version in (4, 6):
            packet = ip(POD[version], CLIENT[version], TCP, tcp(8080, 40000, RST | ACK))
            attempt = Attempt(target(version), CLIENT[version], 40000)
            self.assertEqual(LoggedRefusal(attempt, False), parse_packet(b"", packet))

    def test_options(self):
        """The payload is found after options of the IP header."""
        packet = ip(POD[4], CLIENT[4], TCP, tcp(8080, 40000, RST | ACK), options=bytes(8))
        self.assertEqual(target(4), parse_packet(b"", packet).attempt.target)

    def test_unreachable(self):
        """An error contains the destination of the original packet, whoever sends it."""
        router = {4: ip_address("10.1.0.1"), 6: ip_address("fd01::1")}
        for version, kind, code in ((4, ICMP, 3), (6, ICMPV6, 1)):
            for protocol, number in ((Protocol.TCP, TCP), (Protocol.UDP, UDP)):
                about = ip(CLIENT[version], POD[version], number, struct.pack("!HHI", 9, 8080, 0))
                error = struct.pack("!BBHI", code, 4 if version == 6 else 3, 0, 0) + about
                packet = ip(router[version], CLIENT[version], kind, error)
                attempt = Attempt(target(version, protocol), CLIENT[version], 9)
                self.assertEqual(LoggedRefusal(attempt), parse_packet(b"", packet))

    def test_no_route(self):
        """Codes that a firewall or router may send for a single client are distinguished."""
        about = {
            version: ip(CLIENT[version], POD[version], TCP, tcp(40000, 8080, SYN))
            for version in (4, 6)
        }
        ways = {(4, 3): {0: True, 1: True, 3: False}, (6, 1): {0: True, 1: False, 3: True}}
        for (version, kind), codes in ways.items():
            number = ICMP if version == 4 else ICMPV6
            for code, expected in codes.items():
                error = struct.pack("!BBHI", kind, code, 0, 0) + about[version]
                refused = parse_packet(b"", ip(POD[version], CLIENT[version], number, error))
                self.assertIs(expected, refused.has_no_route)

    def test_other_errors(self):
        """Errors about the size or the lifetime of a packet say nothing about the endpoint."""
        about = ip(CLIENT[4], POD[4], TCP, tcp(40000, 8080, SYN))
        for kind, code in ((0, 0), (3, 4), (8, 0), (11, 0)):
            packet = ip(POD[4], CLIENT[4], ICMP, struct.pack("!BBHI", kind, code, 0, 0) + about)
            self.assertIsNone(parse_packet(b"", packet))
        about = ip(CLIENT[6], POD[6], TCP, tcp(40000, 8080, SYN))
        packet = ip(POD[6], CLIENT[6], ICMPV6, struct.pack("!BBHI", 2, 0, 0, 1280) + about)
        self.assertIsNone(parse_packet(b"", packet))

    def test_other_packets(self):
        """Answers, data, and packets that are neither TCP nor errors are ignored."""
        for flags in (SYN | ACK, ACK):
            self.assertIsNone(
                parse_packet(b"", ip(POD[4], CLIENT[4], TCP, tcp(8080, 40000, flags)))
            )
        self.assertIsNone(parse_packet(b"", ip(CLIENT[4], POD[4], UDP, bytes(8))))

    def test_too_short(self):
        """A packet that is too short is ignored."""
        packet = ip(POD[4], CLIENT[4], TCP, tcp(8080, 40000, RST | ACK))
        for size in range(33):
            self.assertIsNone(parse_packet(b"", packet[:size]), size)

    def test_stale(self):
        """The log prefix marks packets of earlier connections, in both directions."""
        for version in (4, 6):
            attempt = Attempt(target(version), CLIENT[version], 40000)
            packet = ip(CLIENT[version], POD[version], TCP, tcp(40000, 8080, SYN))
            self.assertEqual(LoggedAttempt(attempt, True), parse_packet(b"stale", packet))
            packet = ip(POD[version], CLIENT[version], TCP, tcp(8080, 40000, RST | ACK))
            self.assertEqual(LoggedRefusal(attempt, True), parse_packet(b"stale", packet))

    @given(st.sampled_from((b"", b"stale")), st.binary(max_size=128))
    def test_anything(self, prefix, payload):
        """No packet causes an exception."""
        parse_packet(prefix, payload)
