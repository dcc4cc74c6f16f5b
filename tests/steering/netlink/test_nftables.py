"""Tests of what the kernel tells about nftables, read without a program."""

from __future__ import annotations

import socket
import subprocess

from tests.e2e.network.namespaces import run
from tests.steering.netlink.support import KernelTestCase
from yurttunnel.steering.netlink.nftables import nft_generation, packet_counts

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


class GenerationTests(KernelTestCase):
    """The kernel's generation."""

    def run_nft(self, *arguments):
        """Change something by a program."""
        subprocess.run(["iptables-nft", "-t", "nat", *arguments], check=True, capture_output=True)

    def test_a_change_by_anybody(self):
        """It differs after each change, and stays the same without changes."""
        found = [nft_generation()]
        for arguments in (("-N", "OTHER"), ("-A", "OTHER", "-j", "RETURN"), ("-F",)):
            self.run_nft(*arguments)
            found.append(nft_generation())
            self.assertEqual(found[-1], nft_generation())
        self.assertNotIn(None, found)
        self.assertEqual(4, len(set(found)))

    def test_reading_is_no_change(self):
        """Reading rules does not change the number."""
        self.run_nft("-N", "OTHER")
        before = nft_generation()
        self.run_nft("-S")
        self.assertEqual(before, nft_generation())
