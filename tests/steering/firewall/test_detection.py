"""Tests of the detection of a machine's firewall, and of the removal of our chains."""

from __future__ import annotations

import shutil
from ipaddress import IPv4Address
from pathlib import Path

from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.trial.unittest import SkipTest, SynchronousTestCase, TestCase

from tests.e2e.cluster.network import ClusterNetwork
from tests.e2e.network.namespaces import run
from tests.steering.fakes import FakeAddressSets
from tests.steering.firewall.fakes import FakePrograms, FakeTable, play_iptables
from tests.steering.firewall.machines import use_own_lock
from yurttunnel.ops.programs import CompletedProgram, Programs
from yurttunnel.steering.failures import SteeringFailed
from yurttunnel.steering.firewall import detection
from yurttunnel.steering.firewall.tunnel import (
    find_firewalls,
    remove_everything,
    remove_leftovers_elsewhere,
)
from yurttunnel.steering.interception import Interception, Match, Target

LEFTOVER = "*nat\n:TUNNEL-PORT - [0:0]\n-I OUTPUT 1 -p tcp -j TUNNEL-PORT\nCOMMIT\n"


class Machine(SynchronousTestCase):
    """A machine with both firewalls and both families, in memory."""

    def setUp(self):
        """Install everything; legacy has no tables yet."""
        self.programs = FakePrograms()
        self.tables = {}
        for base in ("iptables", "ip6tables"):
            for back_end, says in (("nft", "(nf_tables)"), ("legacy", "(legacy)")):
                table = self.tables[f"{base}-{back_end}"] = FakeTable()
                play_iptables(self.programs, f"{base}-{back_end}", table, says)
            play_iptables(self.programs, base, self.tables[f"{base}-nft"], "(nf_tables)")
        self.proc_net = Path(self.mktemp())
        self.proc_net.mkdir()
        (self.proc_net / "if_inet6").touch()
        self.patch(detection, "PROC_NET", self.proc_net)
        self.sets = FakeAddressSets()

    def legacy_is_loaded(self):
        """Add tables to legacy, as if a program had used it."""
        for name in ("ip_tables_names", "ip6_tables_names"):
            (self.proc_net / name).write_text("mangle\nnat\n")

    def answer(self, program, *finished):
        """Have a program always return this result."""
        self.programs.programs[program] = lambda *_: CompletedProgram(*finished)

    def report_version(self, program, text):
        """Have a generic program report another version, and otherwise work as before."""
        otherwise = self.programs.programs[program]
        self.programs.programs[program] = lambda arguments, stdin: (
            CompletedProgram(0, text, "")
            if arguments == ["--version"]
            else otherwise(arguments, stdin)
        )

    def result(self, coroutine):
        """Return the result of what is done at once."""
        return self.successResultOf(Deferred.fromCoroutine(coroutine))

    def failure(self, coroutine):
        """Return the one line of its error."""
        failed = Deferred.fromCoroutine(coroutine)
        text = str(self.failureResultOf(failed, SteeringFailed).value)
        self.assertNotIn("\n", text)
        return text


class DetectionTests(Machine):
    """Detecting the firewall."""

    def find(self):
        """Detect it."""
        return self.result(find_firewalls(self.programs))

    def assert_used(self, name):
        """Check which back end is used."""
        found = self.find()
        used = {version: each.backend for version, each in found.found.items()}
        self.assertEqual(({4: name, 6: name}, {}), (used, found.missing))

    def test_hint_nft(self):
        """Kubelet's hint decides, whatever else there is."""
        self.legacy_is_loaded()
        self.tables["iptables-legacy"].chains["OUTPUT"] += ["-j RETURN"] * 9
        self.give_hint("ip6tables-nft", "KUBE-IPTABLES-HINT")
        self.assert_used("nft")

    def test_hint_legacy(self):
        """Kubelet's hint may be an older one, and in legacy."""
        self.legacy_is_loaded()
        self.tables["iptables-nft"].chains["OUTPUT"] += ["-j RETURN"] * 9
        self.give_hint("iptables-legacy", "KUBE-KUBELET-CANARY")
        self.assert_used("legacy")

    def give_hint(self, prefix, hint):
        """Create kubelet's chain in the table ``mangle``."""
        for program, asking, shown in (
            (prefix, ["-t", "mangle", "-S", hint], f"-N {hint}\n"),
            (f"{prefix}-save", ["-t", "mangle"], f"*mangle\n:{hint} - [0:0]\nCOMMIT\n"),
        ):
            self.answer_to(program, asking, shown)

    def answer_to(self, program, asking, shown):
        """Have a program print this for these arguments."""
        otherwise = self.programs.programs[program]

        def answer(arguments, stdin):
            if arguments == asking:
                return CompletedProgram(0, shown.encode(), "")
            return otherwise(arguments, stdin)

        self.programs.programs[program] = answer

    def test_no_table_is_saved(self):
        """With a hint on nft no whole table is read: other programs may have 20,000 rules there."""
        self.give_hint("iptables-nft", "KUBE-KUBELET-CANARY")
        self.assert_used("nft")
        self.assertEqual([], [call for call in self.programs.calls if call[0].endswith("-save")])

    def test_kept(self):
        """A family with a back end keeps it, whatever this machine uses by now."""
        self.legacy_is_loaded()
        self.give_hint("iptables-nft", "KUBE-IPTABLES-HINT")
        found = self.result(find_firewalls(self.programs, {4: "legacy"})).found
        self.assertEqual({4: "legacy", 6: "nft"}, {each: found[each].backend for each in found})

    def test_more_rules(self):
        """Without a hint the back end with more rules is used, not counting ours."""
        self.legacy_is_loaded()
        self.tables["iptables-nft"].chains["OUTPUT"].append("-j RETURN")
        self.tables["ip6tables-legacy"].chains["OUTPUT"] += ["-j RETURN"] * 2
        self.assert_used("legacy")
        self.tables["ip6tables-nft"].chains["OUTPUT"] += ["-j RETURN"] * 2
        self.tables["ip6tables-legacy"].chains["TUNNEL-PORT"] = ["-j RETURN"] * 9
        self.assert_used("nft")

    def test_nothing_to_go_by(self):
        """Without any rules the back end of plain iptables is used."""
        self.assert_used("nft")
        self.report_version("iptables", b"iptables v1.8.9 (legacy)\n")
        self.assert_used("legacy")

    def test_legacy_is_left_alone(self):
        """Missing legacy tables are not listed, because that would create them."""
        self.assert_used("nft")
        self.result(remove_everything(self.programs, self.sets))
        asked = [call for call in self.programs.calls if call[0].endswith("legacy-save")]
        self.assertEqual([], asked)

    def test_plain_names(self):
        """If a back end has no program of its own, the generic one is used."""
        for name in list(self.programs.programs):
            if "-nft" in name or "-legacy" in name:
                del self.programs.programs[name]
        self.assert_used("nft")
        self.report_version("iptables", b"iptables v1.6.2\n")
        self.report_version("ip6tables", b"ip6tables v1.6.2\n")
        self.assert_used("legacy")

    def test_nothing_installed(self):
        """Without programs the error says what to install."""
        self.programs.programs.clear()
        found = self.find()
        self.assertEqual({}, found.found)
        self.assertIn("install the package iptables", found.missing[4])
        self.assertIn("ip6tables", found.missing[6])

    def test_not_allowed(self):
        """Without permission the error says which one is needed."""
        denied = "Permission denied (you must be root)\n"
        self.answer("iptables-nft-save", 4, b"", denied)
        otherwise = self.programs.programs["iptables-nft"]
        self.programs.programs["iptables-nft"] = lambda arguments, stdin: (
            otherwise(arguments, stdin)
            if arguments == ["--version"]
            else CompletedProgram(4, b"", denied)
        )
        found = self.find()
        self.assertEqual([6], list(found.found))
        self.assertIn("NET_ADMIN", found.missing[4])

    def test_no_ipv6(self):
        """A machine without IPv6 has a firewall for IPv4."""
        (self.proc_net / "if_inet6").unlink()
        found = self.find()
        self.assertEqual([4], list(found.found))
        self.assertIn("no IPv6", found.missing[6])


class CleanupTests(Machine):
    """Removing what is ours."""

    def remove(self):
        """Remove everything."""
        return remove_everything(self.programs, self.sets)

    def test_everything(self):
        """Both back ends and families are searched, and then sets are removed."""
        self.legacy_is_loaded()
        for table in self.tables.values():
            table.restore(LEFTOVER)
        for version in (4, 6):
            self.successResultOf(self.sets.put(f"YURTTUNNEL-EDGE{version}", version, ()))
        expected = [
            "removed the chains TUNNEL-PORT of IPv4 (nft)",
            "removed the chains TUNNEL-PORT of IPv4 (legacy)",
            "removed the chains TUNNEL-PORT of IPv6 (nft)",
            "removed the chains TUNNEL-PORT of IPv6 (legacy)",
            "removed the set YURTTUNNEL-EDGE4",
            "removed the set YURTTUNNEL-EDGE6",
        ]
        self.assertEqual(expected, self.result(self.remove()))
        for table in self.tables.values():
            self.assertEqual(FakeTable().chains, table.chains)
        self.assertEqual([], self.result(self.remove()))

    def test_failures(self):
        """What can be removed is, and the error says what could not be."""
        self.tables["iptables-nft"].restore(LEFTOVER)
        self.answer("ip6tables-nft-save", 4, b"", "Permission denied (you must be root)")
        self.sets.sets["YURTTUNNEL-EDGE4"] = frozenset()
        self.sets.busy.add("YURTTUNNEL-EDGE4")
        text = self.failure(self.remove())
        self.assertIn("IPv6 (nft): ip6tables-nft-save: Permission denied", text)
        self.assertIn("YURTTUNNEL-EDGE4", text)
        self.assertIn("(but removed the chains TUNNEL-PORT of IPv4 (nft))", text)

    def test_refused(self):
        """Existing chains that cannot be removed are reported, whatever the error is."""
        self.tables["iptables-nft"].restore(LEFTOVER)
        said = "line 3: RULE_DELETE failed (No such file or directory): rule in chain OUTPUT"
        self.answer("iptables-nft-restore", 4, b"", said)
        self.assertIn(said, self.failure(self.remove()))

    def test_other_kernel(self):
        """A back end that the kernel does not support has no chains of ours."""
        for said in (
            "iptables-nft-save v1.8.9: Failed to initialize nft: Protocol not supported",
            "iptables-nft-save v1.8.9: Could not fetch rule set generation id: Invalid argument",
        ):
            self.answer("iptables-nft-save", 1, b"", said)
            self.assertEqual([], self.result(self.remove()))

    def test_nothing_installed(self):
        """Without programs it is unknown whether there are rules."""
        self.programs.programs.clear()
        self.assertIn("not installed", self.failure(self.remove()))

    def test_elsewhere(self):
        """At the start only the back end that is not used is cleaned."""
        self.legacy_is_loaded()
        for table in self.tables.values():
            table.restore(LEFTOVER)
        firewalls = self.result(find_firewalls(self.programs))
        leftovers = remove_leftovers_elsewhere(self.programs, firewalls)
        expected = [
            "removed the chains TUNNEL-PORT of IPv4 (legacy)",
            "removed the chains TUNNEL-PORT of IPv6 (legacy)",
        ]
        self.assertEqual(expected, self.result(leftovers))
        self.assertIn("TUNNEL-PORT", self.tables["iptables-nft"].chains)
        self.assertNotIn("TUNNEL-PORT", self.tables["iptables-legacy"].chains)

    def test_elsewhere_of_one_family(self):
        """Only the given families are checked."""
        self.legacy_is_loaded()
        for table in self.tables.values():
            table.restore(LEFTOVER)
        firewalls = self.result(find_firewalls(self.programs))
        leftovers = remove_leftovers_elsewhere(self.programs, firewalls, {6})
        expected = ["removed the chains TUNNEL-PORT of IPv6 (legacy)"]
        self.assertEqual(expected, self.result(leftovers))
        self.assertIn("TUNNEL-PORT", self.tables["iptables-legacy"].chains)


class RealDetectionTests(TestCase):
    """A real machine: a new network namespace."""

    def setUp(self):
        """Make a namespace."""
        if shutil.which("iptables-nft") is None or shutil.which("iptables-legacy") is None:
            raise SkipTest("iptables is not installed with both back ends")
        use_own_lock(self)
        network = ClusterNetwork()
        self.addCleanup(network.close)
        self.programs = Programs(reactor)

    async def used(self):
        """Detect which back end is used, in both families."""
        firewalls = await find_firewalls(self.programs)
        self.assertEqual(({4, 6}, {}), (set(firewalls.found), firewalls.missing))
        (name,) = {each.backend for each in firewalls.found.values()}
        return name

    async def test_hints(self):
        """Kubelet's hint is found in both."""
        run("iptables-legacy", "-w", "20", "-t", "mangle", "-N", "KUBE-KUBELET-CANARY")
        self.assertEqual("legacy", await self.used())
        run("ip6tables-nft", "-t", "mangle", "-N", "KUBE-IPTABLES-HINT")
        self.assertEqual("nft", await self.used())

    async def test_rules(self):
        """Without a hint rules are counted."""
        run("ip6tables-legacy", "-w", "20", "-t", "filter", "-A", "OUTPUT", "-j", "RETURN")
        self.assertEqual("legacy", await self.used())
        run("iptables-nft", "-t", "filter", "-A", "OUTPUT", "-j", "RETURN")
        run("iptables-nft", "-t", "filter", "-A", "OUTPUT", "-j", "RETURN")
        self.assertEqual("nft", await self.used())

    async def test_legacy_is_left_alone(self):
        """No legacy table is created on a machine that uses nft."""
        run("iptables-nft", "-t", "filter", "-A", "OUTPUT", "-j", "RETURN")
        firewalls = await find_firewalls(self.programs)
        await remove_leftovers_elsewhere(self.programs, firewalls)
        await remove_everything(self.programs, FakeAddressSets())
        names = Path("/proc/thread-self/net/ip_tables_names")
        self.assertEqual("", names.read_text() if names.exists() else "")

    async def test_cleanup(self):
        """Rules are found wherever they are, and nothing of them remains."""
        run("iptables-nft", "-t", "filter", "-A", "OUTPUT", "-j", "RETURN")
        run("iptables-legacy-restore", "-w", "20", "--noflush", stdin=LEFTOVER)
        firewalls = await find_firewalls(self.programs)
        leads = {10250: Target(None, 10263)}
        edge = frozenset({IPv4Address("192.168.7.1")})
        desired = Interception(4, Match.CLOUD_RETURN, edge, ports=leads)
        await firewalls.found[4].apply(desired, None)
        removed = await remove_leftovers_elsewhere(self.programs, firewalls)
        self.assertEqual(["removed the chains TUNNEL-PORT of IPv4 (legacy)"], removed)
        removed = await remove_everything(self.programs, FakeAddressSets())
        self.assertEqual(["removed the chains TUNNEL-PORT of IPv4 (nft)"], removed)
        self.assertEqual([], await remove_everything(self.programs, FakeAddressSets()))
        for back_end in ("nft", "legacy"):
            self.assertNotIn("TUNNEL", run(f"iptables-{back_end}-save", "-t", "nat"))
