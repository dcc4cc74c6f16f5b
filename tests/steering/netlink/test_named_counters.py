"""Tests of reading named nftables counters without a program."""

from __future__ import annotations

import socket

from tests.e2e.network.namespaces import run
from tests.steering.netlink.support import KernelTestCase
from yurttunnel.steering.netlink.named_counters import packet_counts

_RULES = """
table {family} {table} {{
    counter here-ns/a.b/port {{ }}
    counter nowhere {{ }}
    chain output {{
        type filter hook output priority 0;
        udp dport 9 counter name here-ns/a.b/port
    }}
}}
"""


class NamedCountersTests(KernelTestCase):
    """Tables in a network namespace."""

    def load(self, family, table):
        """Create a table with two counters; packets to port 9 are counted by one of them."""
        rules = _RULES.format(family=family, table=table)
        run("nft", "-f", "-", stdin=rules)

    def send(self, family, address, packets):
        """Send datagrams to port 9."""
        with socket.socket(family, socket.SOCK_DGRAM) as client:
            for _ in range(packets):
                client.sendto(b"", (address, 9))

    def test_both_families(self):
        """The counters of the given family and table, and of no other."""
        for family, table in (("ip", "ours"), ("ip6", "ours"), ("ip", "others")):
            self.load(family, table)
        self.send(socket.AF_INET, "127.0.0.1", 3)
        self.send(socket.AF_INET6, "::1", 5)
        self.assertEqual({"here-ns/a.b/port": 3, "nowhere": 0}, packet_counts(4, "ours"))
        self.assertEqual({"here-ns/a.b/port": 5, "nowhere": 0}, packet_counts(6, "ours"))

    def test_many(self):
        """As many as need several replies of the kernel."""
        counters = "".join(f"add counter ip many c{each}\n" for each in range(2000))
        given = f"add table ip many\n{counters}"
        run("nft", "-f", "-", stdin=given)
        self.assertEqual({f"c{each}": 0 for each in range(2000)}, packet_counts(4, "many"))

    def test_no_table(self):
        """The result is empty, and that is no failure."""
        self.assertEqual({}, packet_counts(4, "ours"))
        self.load("ip", "others")
        self.assertEqual({}, packet_counts(4, "ours"))
