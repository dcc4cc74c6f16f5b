"""Tests of the PROXY protocol, with a parser according to the specification."""

from __future__ import annotations

import ipaddress
import socket
import struct

from twisted.trial.unittest import SynchronousTestCase

from tests.proxy.sockets.lab import LOOPBACK, TcpLab
from yurttunnel.proxy.sockets.proxy_protocol import header


def parse(data: bytes) -> tuple[str, tuple[str, int], tuple[str, int], bytes]:
    """Parse a header according to the specification (sections 2.1 and 2.2).

    Return the family, the source, the destination, and the rest.
    """
    if data.startswith(b"PROXY "):
        line, end, rest = data.partition(b"\r\n")
        if not end or len(line) > 105:
            raise ValueError("the line is too long")
        _, name, source, destination, source_port, destination_port = line.decode().split(" ")
        family = {"TCP4": "IPv4", "TCP6": "IPv6"}[name]
        return family, (source, int(source_port)), (destination, int(destination_port)), rest
    if data[:12] != bytes.fromhex("0d0a0d0a000d0a515549540a"):
        raise ValueError("there is no signature")
    version_command, family_transport, length = struct.unpack_from("!BBH", data, 12)
    if version_command != 0x21:
        raise ValueError("it is not version 2 with the command PROXY")
    body, rest = data[16 : 16 + length], data[16 + length :]
    family, form = {0x11: ("IPv4", "!4s4sHH"), 0x21: ("IPv6", "!16s16sHH")}[family_transport]
    source, destination, source_port, destination_port = struct.unpack(form, body)
    text = [str(ipaddress.ip_address(one)) for one in (source, destination)]
    return family, (text[0], source_port), (text[1], destination_port), rest


class HeaderTests(SynchronousTestCase):
    """The encoding."""

    def test_version_1_is_a_line(self) -> None:
        """As in the examples of section 2.1."""
        self.assertEqual(
            header(1, socket.AF_INET, ("192.0.2.1", 56324), ("192.0.2.2", 443)),
            b"PROXY TCP4 192.0.2.1 192.0.2.2 56324 443\r\n",
        )

    def test_both_versions_are_read_by_a_parser(self) -> None:
        """In both families."""
        ends = {
            socket.AF_INET: ("IPv4", ("192.0.2.1", 1), ("10.96.0.1", 65535)),
            socket.AF_INET6: ("IPv6", ("2001:db8::1", 1), ("fd00::1", 65535)),
        }
        for family, (name, source, destination) in ends.items():
            for version in (1, 2):
                parsed = header(version, family, source, destination)
                self.assertEqual(parse(parsed + b"GET /"), (name, source, destination, b"GET /"))


class ProxyHeaderTests(SynchronousTestCase):
    """What an endpoint receives."""

    def test_the_header_comes_first_and_once(self) -> None:
        """With the client's own address, and without a rule with that of the proxy socket."""
        lab = TcpLab(self)
        for version in (4, 6):
            for asked in (1, 2):
                backend = lab.backend(version)
                opened, _ = lab.open(backend.endpoint, version=version, proxy_protocol=asked)
                client, server = lab.join(opened, backend, version)
                client.socket.send(b"hello")
                lab.until(lambda server=server: server.read().received.endswith(b"hello"))
                parsed = parse(server.received)
                own = client.socket.getsockname()[:2]
                portal = (LOOPBACK[version], opened.port)
                self.assertEqual(parsed, (f"IPv{version}", own, portal, b"hello"))
                # It does not count as a byte of the client.
                self.assertEqual(opened.stats().received, 5)

    def test_header_is_sent_before_client_data(self) -> None:
        """So the endpoint may send first."""
        lab = TcpLab(self)
        backend = lab.backend()
        opened, _ = lab.open(backend.endpoint, proxy_protocol=2)
        client, server = lab.join(opened, backend)
        lab.until(lambda: server.read().size)
        server.socket.send(b"220 hello")
        lab.until(lambda: client.read().received == b"220 hello")
