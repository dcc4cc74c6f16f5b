"""Tests of detecting changes of rules without reading them."""

from __future__ import annotations

import subprocess

from tests.steering.netlink.support import KernelTestCase
from yurttunnel.steering.netlink.generation import nft_generation


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
