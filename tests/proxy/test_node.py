"""The addresses of this machine, as the kernel has them."""

from __future__ import annotations

from ipaddress import ip_address

from tests.steering.netlink.support import KernelTestCase
from yurttunnel.proxy.node import machine_addresses


class AddressTests(KernelTestCase):
    """A network namespace with the loopback device, which has one address more."""

    addresses = ("192.0.2.7",)

    def test_addresses(self):
        """All are found, of both families."""
        expected = {ip_address(each) for each in ("192.0.2.7", "127.0.0.1", "::1")}
        self.assertEqual(expected, machine_addresses())
