"""Tests of settings and chains that prevent a machine from forwarding."""

from __future__ import annotations

from pathlib import Path

from twisted.internet import reactor
from twisted.internet.task import Clock
from twisted.logger import capturedLogs
from twisted.trial.unittest import SynchronousTestCase, TestCase

from tests.e2e.cluster.network import ClusterNetwork
from tests.e2e.network.namespaces import run
from tests.proxy.fakes import FakeSource
from tests.proxy.services import key, service
from tests.steering.firewall.fakes import FakePrograms
from yurttunnel.ops.programs import CompletedProgram, Programs
from yurttunnel.proxy.kernel import forwarding, sysctl
from yurttunnel.proxy.kernel.forwarding import PERIOD, Forwarding, dropping_versions, forwards

WEB4, WEB6 = service([1], key=key("web")), service([], key=key("web", version=6))


class ForwardingTests(SynchronousTestCase):
    """Settings in a directory, and a program that shows chains."""

    def setUp(self):
        """Make a machine without obstacles."""
        self.settings, self.links = Path(self.mktemp()), Path(self.mktemp())
        self.patch(sysctl, "ROOT", self.settings)
        self.patch(forwarding, "LINKS", self.links)
        self.patch(forwarding, "legacy_tables", lambda version: frozenset())
        self.set("ipv4/ip_forward", 1)
        self.set("ipv6/conf/all/forwarding", 1)
        self.chains = ""
        self.asked = 0
        programs = FakePrograms()
        programs.programs["nft"] = self.nft
        self.source = FakeSource()
        self.source.set(WEB4)
        self.clock = Clock()
        self.forwarding = Forwarding(self.clock, programs, self.source)
        self.addCleanup(self.stop)

    def stop(self):
        """Stop, if it was started."""
        if self.forwarding.running:
            self.forwarding.stopService()

    def set(self, name, value):
        """Change a setting."""
        path = self.settings / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{value}\n")

    def nft(self, arguments, given):
        """Show the chains."""
        self.asked += 1
        return CompletedProgram(0, self.chains.encode(), "")

    def drop(self, family="ip", policy="drop"):
        """Add a chain with a policy."""
        self.chains = (
            f"table {family} filter {{\n\tchain FORWARD {{\n"
            f"\t\ttype filter hook forward priority filter; policy {policy};\n\t}}\n}}\n"
        )

    def logged(self, seconds=0.0):
        """Start, or continue; return what is logged."""
        with capturedLogs() as events:
            if self.forwarding.running:
                self.clock.advance(seconds)
            else:
                self.forwarding.startService()
        return [event["problem"] for event in events if "problem" in event]

    def test_nothing_in_the_way(self):
        """Nothing is logged, and chains are read once."""
        self.drop(policy="accept")
        self.assertEqual([], self.logged())
        self.assertEqual([], self.logged(PERIOD))
        self.assertIsNone(self.forwarding.problem())
        self.assertEqual(1, self.asked)

    def test_nothing_is_forwarded(self):
        """Disabled forwarding is logged once, with the fix, and no more once it is enabled."""
        self.set("ipv4/ip_forward", 0)
        (problem,) = self.logged()
        self.assertIn("net.ipv4.ip_forward is 0", problem)
        self.assertIn("--mode user", problem)
        self.assertEqual([], self.logged(PERIOD))
        self.set("ipv4/ip_forward", 1)
        self.assertIsNone(self.forwarding.problem())

    def test_families_that_services_have(self):
        """Families without services are not reported; nothing is before Services are known."""
        self.set("ipv6/conf/all/forwarding", 0)
        self.assertEqual([], self.logged())
        self.source.set(WEB4, WEB6)
        self.assertIn("net.ipv6.conf.all.forwarding", self.forwarding.problem())
        empty = Forwarding(self.clock, FakePrograms(), FakeSource())
        self.assertIsNone(empty.problem())

    def test_a_bridge(self):
        """Bridged packets must pass the rules: the module may be missing, or disabled."""
        (self.links / "cni0" / "bridge").mkdir(parents=True)
        self.assertIn("br_netfilter", self.forwarding.problem())
        self.set("bridge/bridge-nf-call-iptables", 0)
        self.assertIn("net.bridge.bridge-nf-call-iptables", self.forwarding.problem())
        self.set("bridge/bridge-nf-call-iptables", 1)
        self.assertIsNone(self.forwarding.problem())

    def test_a_policy(self):
        """A policy that drops is reported; it is read again until it no longer drops."""
        for family in ("ip", "inet"):
            self.drop(family)
            self.logged(PERIOD)
            self.assertIn("FORWARD", self.forwarding.problem())
        self.drop(policy="accept")
        self.logged(PERIOD)
        self.assertIsNone(self.forwarding.problem())

    def test_whether_any_family_is_forwarded(self):
        """A machine without the setting counts as forwarding."""
        self.assertTrue(forwards([4, 6]))
        self.set("ipv4/ip_forward", 0)
        self.assertTrue(forwards([4, 6]))
        self.assertFalse(forwards([4]))
        self.set("ipv6/conf/all/forwarding", 0)
        self.assertFalse(forwards([4, 6]))
        (self.settings / "ipv4" / "ip_forward").unlink()
        self.assertTrue(forwards([4]))


class PolicyTests(TestCase):
    """The chains of a real machine."""

    def setUp(self):
        """Use a network namespace."""
        network = ClusterNetwork()
        self.addCleanup(network.close)

    async def test_both_firewalls(self):
        """A policy is found in either firewall, by its family; the check creates no table."""
        self.assertEqual(frozenset(), await dropping_versions(Programs(reactor)))
        self.assertEqual("", run("nft", "list", "ruleset"))
        run("ip6tables-nft", "-P", "FORWARD", "DROP")
        self.assertEqual({6}, await dropping_versions(Programs(reactor)))
        run("iptables-legacy", "-w", "20", "-P", "FORWARD", "DROP")
        self.assertEqual({4, 6}, await dropping_versions(Programs(reactor)))
