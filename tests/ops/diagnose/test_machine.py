"""Data about the machine."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from yurttunnel.ops.diagnose import machine
from yurttunnel.ops.diagnose.machine import firewall_part, machine_part, versions_part


class MachineTests(SynchronousTestCase):
    """Versions, kernel and rules."""

    def test_versions(self):
        """Python and the libraries are named."""
        text = versions_part().text
        self.assertIn(f"python: {sys.version}", text)
        self.assertRegex(text, r"\nTwisted: \d+\.\d+")

    def test_settings(self):
        """The kernel's settings are listed, including missing ones."""
        text = machine_part().text
        self.assertRegex(text, r"net/ipv4/ip_local_port_range: \d+ \d+\n")
        self.assertRegex(text, r"clock synchronised: (yes|no|unknown)\n")
        self.assertIn("unknown (No such file", machine_part(Path(self.mktemp())).text)

    def test_clock(self):
        """A clock without synchronization is a finding."""
        self.patch(machine, "_clock_synchronised", lambda: "no")
        self.assertIn("Nothing sets the clock", machine_part().findings[0])
        self.patch(machine, "_clock_synchronised", lambda: "unknown")
        self.assertEqual((), machine_part().findings)

    def test_rules(self):
        """Only the program's own firewall rules are listed."""
        programs = Path(self.mktemp())
        programs.mkdir()
        save = programs / "iptables-nft-save"
        save.write_text(
            "#!/bin/sh\necho ':TUNNEL-PORT - [0:0]'; echo ':OTHER'; echo $* >&2; exit 3\n"
        )
        save.chmod(0o755)
        self.patch(os, "environ", {"PATH": f"{programs}:/bin:/usr/bin"})
        text = firewall_part(lambda text: [x for x in text.splitlines() if b"TUNNEL" in x]).text
        self.assertIn(
            "iptables-nft-save -t nat:\n    exit status 3: -t nat\n    :TUNNEL-PORT", text
        )
        self.assertIn("iptables-nft-save -t filter:\n    exit status 3: -t filter\n", text)
        self.assertNotIn("OTHER", text)

    def test_tables(self):
        """A program's own tables of nftables are listed, of both families."""
        programs = Path(self.mktemp())
        programs.mkdir()
        nft = programs / "nft"
        nft.write_text(
            '#!/bin/sh\n[ "$1" = -n ] && exec echo "table $4 $5 {"\n'
            "for each in 'ip own' 'ip6 own' 'inet own-1b2c' 'ip other' 'ip owner' 'ip not own'; do"
            ' echo "table $each"; done\n'
        )
        nft.chmod(0o755)
        self.patch(os, "environ", {"PATH": f"{programs}:/bin:/usr/bin"})
        text = firewall_part(lambda text: [], "own").text
        for table in ("ip own", "ip6 own", "inet own-1b2c"):
            self.assertIn(f"nft -n list table {table}:\n    table {table} {{\n", text)
        self.assertEqual(3, text.count("nft -n"))
        self.assertNotIn("other", text)
        self.assertNotIn("nft", firewall_part(lambda text: []).text.replace("-nft", ""))

    def test_missing_program(self):
        """A program that is not installed is reported."""
        self.patch(machine, "SYSTEM_PATH", "")
        self.patch(os, "environ", {"PATH": ""})
        self.assertIn("it is not installed", firewall_part(lambda text: []).text)
