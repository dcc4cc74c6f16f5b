"""Tests of reading the addresses of this machine from the kernel."""

from __future__ import annotations

import socket
from ipaddress import ip_address
from pathlib import Path

from tests.e2e.network.namespaces import run
from tests.steering.netlink.support import KernelTestCase
from yurttunnel.proxy.node import machine_addresses


class AddressTests(KernelTestCase):
    """A network namespace with a loopback device that has an additional address."""

    addresses = ("192.0.2.7",)

    def test_addresses(self):
        """All are found, of both families."""
        expected = {ip_address(each) for each in ("192.0.2.7", "127.0.0.1", "::1")}
        self.assertEqual(expected, machine_addresses())

    def test_addresses_that_another_machine_may_have(self):
        """They are found once duplicates are excluded: until then sockets cannot listen on them."""
        Path("/proc/sys/net/ipv6/conf/default/accept_dad").write_text("1")
        before = machine_addresses()
        run("ip", "link", "add", "eth0", "type", "veth", "peer", "name", "eth1")
        # Without its peer the link is not ready, so duplicates cannot be detected.
        run("ip", "link", "set", "eth0", "up")
        run("ip", "address", "add", "fd00::1/64", "dev", "eth0")
        with socket.socket(socket.AF_INET6) as listener:
            self.assertRaises(OSError, listener.bind, ("fd00::1", 0))
        self.assertEqual(before, machine_addresses())
        run("ip", "address", "add", "fd00::2/64", "dev", "eth0", "nodad")
        with socket.socket(socket.AF_INET6) as listener:
            listener.bind(("fd00::2", 0))
        self.assertEqual(before | {ip_address("fd00::2")}, machine_addresses())
