"""Tests of the search for rules of a kube-proxy."""

from __future__ import annotations

from twisted.internet.task import Clock
from twisted.logger import capturedLogs, formatEvent

from tests.steering.firewall.test_detection import Machine
from yurttunnel.ops.programs import CompletedProgram, ProgramFailed
from yurttunnel.proxy.rules.kube_proxy import CHECK_SECONDS, KubeProxyCheck

OWN_TABLES = b"table ip yurtproxy\ntable ip nat\n"


class KubeProxyCheckTests(Machine):
    """A machine with all programs, on which kube-proxy may have run."""

    def setUp(self):
        """Start the check."""
        super().setUp()
        self.answer("nft", 0, OWN_TABLES, "")
        self.clock = Clock()
        self.check = KubeProxyCheck(self.clock, self.programs)
        self.addCleanup(self.check.stopService)

    def logs(self, action):
        """Return the messages logged during ``action``."""
        with capturedLogs() as events:
            action()
        return list(map(formatEvent, events))

    def next_check(self):
        """Wait for it."""
        self.clock.advance(CHECK_SECONDS)

    def test_none(self):
        """Without any nothing is said, and the tables of others are not taken for kube-proxy's."""
        self.legacy_is_loaded()
        self.assertEqual([], self.logs(self.check.startService))
        self.assertIsNone(self.check.problem())

    def test_modes(self):
        """Rules of each mode and family are found, in both firewalls; the commands show them."""
        self.legacy_is_loaded()
        for prefix in ("iptables-nft", "ip6tables-legacy"):
            self.tables[prefix].chains["KUBE-SERVICES"] = []
        self.answer("nft", 0, OWN_TABLES + b"table ip6 kube-proxy\n", "")
        (logged,) = self.logs(self.check.startService)
        self.assertEqual(f"Clients may not reach this proxy: {self.check.problem()}", logged)
        self.assertIn(
            "(iptables-nft -t nat -S KUBE-SERVICES, ip6tables-legacy -t nat -S KUBE-SERVICES,"
            " nft list table ip6 kube-proxy)",
            logged,
        )

    def test_changes_are_logged_once(self):
        """Rules that appear later are found; what stays is not logged again, and their end is."""
        self.check.startService()
        self.answer("nft", 0, b"table ip kube-proxy\n", "")
        self.assertEqual(1, len(self.logs(self.next_check)))
        self.assertEqual([], self.logs(self.next_check))
        self.answer("nft", 0, OWN_TABLES, "")
        self.assertEqual(["There are no rules of kube-proxy any more"], self.logs(self.next_check))
        self.assertIsNone(self.check.problem())

    def test_legacy_that_nobody_uses(self):
        """Its tables are not created by the search."""
        self.check.startService()
        self.assertNotIn(["iptables-legacy-save", "-t", "nat"], self.programs.calls)

    def test_programs_that_fail(self):
        """The others are asked, also without any program of nftables."""

        def fail(arguments, stdin):
            if arguments == ["--version"]:
                return CompletedProgram(0, b"iptables v1.8.9 (nf_tables)\n", "")
            raise ProgramFailed("it did not end")

        self.programs.programs["iptables-nft"] = fail
        del self.programs.programs["nft"]
        self.tables["ip6tables-nft"].chains["KUBE-SERVICES"] = []
        self.check.startService()
        self.assertIn("(ip6tables-nft -t nat -S KUBE-SERVICES)", self.check.problem())
