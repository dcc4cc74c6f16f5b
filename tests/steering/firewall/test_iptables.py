"""Tests of the firewall, with the kernel's (both back ends and families) and a table in memory."""

from __future__ import annotations

import fcntl
from dataclasses import replace
from functools import partial
from ipaddress import ip_address

from twisted.internet.defer import Deferred, fail
from twisted.trial.unittest import SynchronousTestCase, TestCase

from tests.e2e.network.namespaces import run
from tests.ops.test_slices import SteppedReactor
from tests.steering.firewall.fakes import FakePrograms
from tests.steering.firewall.machines import MemoryMachine, RealMachine, use_own_lock
from yurttunnel.ops import slices
from yurttunnel.ops.programs import CompletedProgram, ProgramFailed
from yurttunnel.steering.failures import SetsRefused, SteeringFailed
from yurttunnel.steering.firewall import rules as rules_module
from yurttunnel.steering.firewall import tables as tables_module
from yurttunnel.steering.firewall import transaction
from yurttunnel.steering.firewall.own_chains import Rules
from yurttunnel.steering.firewall.rules import TUNNEL
from yurttunnel.steering.firewall.saved import normalized
from yurttunnel.steering.firewall.tables import BackEnd, Tables
from yurttunnel.steering.firewall.tunnel import Iptables
from yurttunnel.steering.interception import Interception, Match, Target
from yurttunnel.steering.interfaces import Applied

ADDRESSES = {
    4: ("172.16.1.199", "172.16.1.20", "172.16.1.21", "192.168.7.1"),
    6: ("fd00::199", "fd00::20", "::ffff:192.0.2.21", "fd07::1"),
}
FOREIGN = (
    ":KUBE-SERVICES - [0:0]",
    '-A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES',
    '-A OUTPUT -m comment --comment "kubernetes service portals" -j KUBE-SERVICES',
    '-A OUTPUT -m comment --comment "not a jump: -j TUNNEL-PORT" -j RETURN',
    "-A POSTROUTING -p tcp -m tcp --dport 10250 -j MASQUERADE --random-fully",
    "-A KUBE-SERVICES -p tcp -m tcp --dport 443 -j REDIRECT --to-ports 6443",
)


class FirewallContract:
    """The behavior of a firewall on any machine.

    Subclasses have ``version``, ``back_end`` and ``machine_type``.
    """

    def setUp(self):
        """Make a machine on which others have rules, too."""
        self.lock = use_own_lock(self)
        self.machine = self.machine_type(self.version, self.back_end)
        self.addCleanup(self.machine.close)
        self.machine.restore(*FOREIGN)
        self.foreign = self.machine.save()
        self.firewall = self.new_firewall()
        own, *cloud, edge = map(ip_address, ADDRESSES[self.version])
        self.own = own
        self.secure, self.insecure = Target(own, 10263), Target(None, 10264)
        self.desired = Interception(
            self.version,
            Match.CLOUD_RETURN,
            frozenset({edge}),
            frozenset({own, *cloud}),
            {10250: self.secure, 10255: self.insecure},
        )

    def new_firewall(self):
        """Make the firewall of a server that has just started."""
        back_end = BackEnd(self.version, self.back_end, self.machine.prefix)
        return Iptables(self.machine.programs, back_end)

    async def apply(self, desired, set_name=None):
        """Apply, and check that a second call runs one process, which finds no differences."""
        applied = await self.firewall.apply(desired, set_name)
        self.assertTrue(applied.differences)
        await self.check_unchanged(desired, set_name)
        return applied

    async def check_unchanged(self, desired, set_name=None):
        """Check that one process finds nothing to do, however often."""
        for firewall in (self.new_firewall(), self.firewall, self.firewall):
            del self.machine.programs.calls[:]
            ports = frozenset(desired.all_ports())
            self.assertEqual(Applied((), ports), await firewall.apply(desired, set_name))
            (call,) = self.machine.programs.calls
            self.assertEqual([f"{self.machine.prefix}-save", "-t", "nat"], call)

    def ours(self):
        """Return the lines that are not those of others."""
        return [line for line in self.machine.save() if line not in self.foreign]

    def assert_foreign_untouched(self):
        """Check that the lines of others are unchanged, and in order."""
        self.assertEqual(
            self.foreign, [line for line in self.machine.save() if line in self.foreign]
        )

    async def test_apply(self):
        """Two processes create rules if there were none."""
        applied = await self.firewall.apply(self.desired, None)
        self.assertEqual(2, len(self.machine.programs.calls))
        self.assertEqual(frozenset(), applied.former_ports)
        self.assertIn("the chain TUNNEL-PORT-10250 is missing", applied.differences)
        self.assert_foreign_untouched()
        lines = self.ours()
        host = f"[{self.own}]" if self.version == 6 else self.own
        lead = [line for line in lines if line.endswith(f"--to-destination {host}:10263")]
        self.assertEqual([lines[lines.index(lead[0])]], lead)
        jumps = [line for line in self.machine.save() if line.startswith("-A OUTPUT")]
        self.assertTrue(jumps[0].endswith("-j TUNNEL-PORT"), jumps)
        await self.check_unchanged(self.desired)

    async def test_everything(self):
        """All possible rules are read back as they were created."""
        self.machine.make_set("YURTTUNNEL-EDGES")
        pods = replace(self.desired, pod_ports={10250: self.secure, 9100: self.insecure})
        await self.apply(pods)
        await self.apply(replace(pods, match=Match.EDGE_SET), "YURTTUNNEL-EDGES")
        self.patch(rules_module, "MAX_RETURNS_BY_PORT", 3)
        await self.apply(pods)
        self.assert_foreign_untouched()
        applied = await self.apply(self.desired)
        self.assertEqual({10250, 10255, 9100}, applied.former_ports)

    async def test_remove(self):
        """When rules are removed, those of others are unchanged byte by byte."""
        await self.apply(replace(self.desired, pod_ports={9100: self.secure}))
        self.assertTrue(await self.firewall.remove())
        self.assertEqual(self.foreign, self.machine.save())
        self.assertFalse(await self.firewall.remove())
        await self.apply(self.desired)

    async def test_remove_at_once(self):
        """Known rules are removed by one process, which reads nothing."""
        pods = replace(self.desired, pod_ports={9100: self.secure})
        for again in range(3):
            await self.firewall.apply(pods, None)
            if again:
                await self.firewall.apply(pods, None)
            if again > 1:
                await self.check_unchanged(pods)
            del self.machine.programs.calls[:]
            self.assertTrue(await self.firewall.remove())
            (call,) = self.machine.programs.calls
            self.assertEqual([f"{self.machine.prefix}-restore", "-w", "10", "--noflush"], call)
            self.assertEqual(self.foreign, self.machine.save())

    async def test_remove_what_others_have_changed(self):
        """If the rules differ from the known ones, they are read and removed all the same."""
        comment = '-m comment --comment "yurttunnel server port"'
        for lines in (
            ["-I OUTPUT 1 -p tcp -j TUNNEL-PORT"],
            [":TUNNEL-PORT-7 - [0:0]", "-A PREROUTING -p tcp -j TUNNEL-PORT"],
            [f"-D OUTPUT -p tcp {comment} -j TUNNEL-PORT"],
            ["-I TUNNEL-PORT 1 -p udp -j RETURN"],
        ):
            await self.firewall.apply(self.desired, None)
            self.machine.restore(*lines)
            self.assertTrue(await self.firewall.remove())
            self.assertEqual(self.foreign, self.machine.save())

    async def test_nothing_wanted(self):
        """When nothing is desired there are no rules; nor are any created."""
        nothing = replace(self.desired, edge=frozenset())
        self.assertEqual(Applied(), await self.firewall.apply(nothing, None))
        await self.apply(self.desired)
        await self.firewall.apply(nothing, None)
        self.assertEqual(self.foreign, self.machine.save())

    async def test_port_comes_and_goes(self):
        """A new port has a chain, and a removed one leaves none."""
        more = {**self.desired.ports, 9100: self.insecure}
        applied = await self.apply(self.desired)
        applied = await self.apply(replace(self.desired, ports=more))
        self.assertEqual({10250, 10255}, applied.former_ports)
        applied = await self.apply(self.desired)
        self.assertEqual({10250, 10255, 9100}, applied.former_ports)
        self.assertFalse([line for line in self.machine.save() if "9100" in line])

    async def test_nodes_come_and_go(self):
        """A new or removed node is a rule in each port's chain, and nothing else."""
        await self.apply(self.desired)
        before = self.machine.save()
        more = self.desired.cloud | {self.own + 1, self.own - 190, self.own + 50}
        applied = await self.apply(replace(self.desired, cloud=more))
        expected = "in the chain TUNNEL-PORT-10250 3 rules are missing, 0 not wanted"
        self.assertEqual(expected, applied.differences[0])
        await self.apply(self.desired)
        self.assertEqual(before, self.machine.save())

    async def test_target_changes(self):
        """When a target changes, the old one is removed, so that it cannot match first (F1)."""
        await self.apply(self.desired)
        moved = {10250: Target(self.own + 1, 10263), 10255: self.secure}
        await self.apply(replace(self.desired, ports=moved))
        leads = [line for line in self.ours() if "dnat to tunnel" in line]
        self.assertEqual(2, len(leads))
        self.assertTrue(any(f"{self.own + 1}" in lead for lead in leads))

    async def test_disturbed(self):
        """What others have removed is created again (F7)."""
        await self.apply(self.desired)
        good = self.machine.save()
        for lines in (
            [":TUNNEL-PORT - [0:0]"],
            [":TUNNEL-PORT-10250 - [0:0]"],
            ["-I TUNNEL-PORT-10250 1 -p tcp -j RETURN"],
            ["-I OUTPUT 1 -p tcp -j TUNNEL-PORT", "-I KUBE-SERVICES 1 -p udp -j TUNNEL-PORT-10255"],
            [":TUNNEL-PORT-1 - [0:0]", "-A TUNNEL-PORT -j TUNNEL-PORT-1"],
            [
                next(line for line in good if "OUTPUT" in line and "server port" in line).replace(
                    "-A", "-D"
                )
            ],
        ):
            self.machine.restore(*lines)
            self.assertNotEqual(good, self.machine.save())
            await self.apply(self.desired)
            self.assertEqual(good, self.machine.save())

    async def test_leftovers_of_others_names(self):
        """Chains below ours are removed, whatever the rest of their name is (F2)."""
        self.machine.restore(
            ":TUNNEL-PORT - [0:0]",
            ":TUNNEL-PORT-x9 - [0:0]",
            ":TUNNEL-PORT-9999 - [0:0]",
            "-A TUNNEL-PORT -p tcp -j TUNNEL-PORT-x9",
            "-A TUNNEL-PORT-x9 -j TUNNEL-PORT-9999",
        )
        nothing = replace(self.desired, edge=frozenset())
        applied = await self.firewall.apply(nothing, None)
        self.assertEqual(frozenset({9999}), applied.former_ports)
        self.assertEqual(self.foreign, self.machine.save())


class MemoryTests(FirewallContract, TestCase):
    """A table in memory."""

    version, back_end, machine_type = 4, "nft", MemoryMachine


class KernelContract(FirewallContract):
    """Behavior of a real kernel only."""

    machine_type = RealMachine

    def former_version(self, own, loopback):
        """Run the commands of yurttunnel 1.2 (reference, section 4.2)."""
        bits = 32 if self.version == 4 else 128
        host = own if self.version == 4 else f"[{own}]"
        comment = "-m comment --comment"
        direct = "return request to access node directly"
        for command in (
            "-N TUNNEL-PORT -t nat",
            f'-I OUTPUT -t nat -p tcp {comment} "yurttunnel server port" -j TUNNEL-PORT',
            "-N TUNNEL-PORT-10250 -t nat",
            f'-I TUNNEL-PORT -t nat -p tcp --dport 10250 {comment} "jump to port 10250"'
            " -j TUNNEL-PORT-10250",
            f'-I TUNNEL-PORT-10250 -t nat -p tcp {comment} "{direct}" --dport 10250'
            f" -d {own}/{bits} -j RETURN",
            f'-I TUNNEL-PORT-10250 -t nat -p tcp {comment} "{direct}" --dport 10250'
            f" -d {loopback}/{bits} -j RETURN",
            f'-A TUNNEL-PORT-10250 -t nat -p tcp {comment} "dnat to tunnel for access node"'
            f" --dport 10250 -j DNAT --to-destination {host}:10263",
        ):
            self.machine.iptables(command)

    async def test_former_version(self):
        """Correct rules of yurttunnel 1.2 are recognized and stay, stale ones are removed (F2)."""
        edge = min(self.desired.edge)
        # The edge node was a cloud node then.
        self.former_version(edge, "127.0.0.1" if self.version == 4 else "::1")
        applied = await self.apply(self.desired)
        self.assertIn("the chain TUNNEL-PORT-10255 is missing", applied.differences)
        self.assertNotIn("the jump from OUTPUT is missing", applied.differences)
        self.assertEqual({10250}, applied.former_ports)
        self.assertFalse([line for line in self.ours() if f"{edge}" in line])
        self.assertEqual(1, sum(line[-14:] == "-j TUNNEL-PORT" for line in self.ours()))
        self.assert_foreign_untouched()

    async def test_former_version_removed(self):
        """Nothing of yurttunnel 1.2's rules remains when they are removed."""
        self.former_version(self.own, self.own + 1)
        self.assertTrue(await self.firewall.remove())
        self.assertEqual(self.foreign, self.machine.save())

    async def test_shapes_of_the_former_version(self):
        """The commands of yurttunnel 1.2 would recognize the rules as theirs."""
        await self.apply(self.desired)
        direct = '-m comment --comment "return request to access node directly"'
        for rule in (
            'OUTPUT -p tcp -m comment --comment "yurttunnel server port" -j TUNNEL-PORT',
            'TUNNEL-PORT -p tcp --dport 10250 -m comment --comment "jump to port 10250"'
            " -j TUNNEL-PORT-10250",
            f"TUNNEL-PORT-10250 -p tcp {direct} --dport 10250 -d {self.own} -j RETURN",
            'TUNNEL-PORT-10255 -p tcp -m comment --comment "dnat to tunnel for access node"'
            " --dport 10255 -j REDIRECT --to-ports 10264",
        ):
            self.machine.iptables(f"-t nat -C {rule}")

    async def test_flushed(self):
        """Everything is created again after another program has flushed the table (F7)."""
        await self.apply(self.desired)
        good = self.ours()
        self.machine.iptables("-t nat -F")
        self.machine.iptables("-t nat -X")
        await self.apply(self.desired)
        self.assertEqual(good, self.ours())

    async def test_no_set(self):
        """A change that the kernel rejects changes nothing, and is reported in one line."""
        await self.apply(self.desired)
        before = self.machine.save()
        ports = {**self.desired.ports, 9100: self.secure}
        desired = replace(self.desired, match=Match.EDGE_SET, ports=ports)
        with self.assertRaises(SteeringFailed) as raised:
            await self.firewall.apply(desired, "YURTTUNNEL-NONE")
        error = raised.exception
        self.assertNotIsInstance(error, SetsRefused)
        text = str(error)
        self.assertIn(f"changing the nat table of IPv{self.version} ({self.back_end})", text)
        self.assertIn("Set YURTTUNNEL-NONE doesn't exist", text)
        self.assertNotIn("\n", text)
        self.assertEqual(before, self.machine.save())
        await self.check_unchanged(self.desired)

    async def test_changed_meanwhile(self):
        """If others change what is being changed, it is all or nothing; then all."""
        await self.apply(self.desired)
        programs = self.machine.programs
        run = programs.run

        def disturbed(arguments, *more):
            if "--noflush" in arguments:
                # The one to be removed follows loopback and two other nodes.
                self.machine.iptables("-t nat -D TUNNEL-PORT-10250 4")
                self.before = self.machine.save()
            return run(arguments, *more)

        self.patch(programs, "run", disturbed)
        fewer = self.desired.cloud - {self.own}
        desired = replace(self.desired, cloud=fewer, ports={10250: self.secure})
        with self.assertRaises(SteeringFailed):
            await self.firewall.apply(desired, None)
        self.assertEqual(self.before, self.machine.save())
        self.patch(programs, "run", run)
        await self.apply(desired)
        self.assert_foreign_untouched()


class NftContract(KernelContract):
    """Behavior of the newer back end only: rules that the iptables programs cannot show."""

    async def test_remove_what_cannot_be_read(self):
        """Known rules are removed, even if a rule of others prevents reading."""
        await self.apply(self.desired)
        family = "ip" if self.version == 4 else "ip6"
        run("nft", "add", "rule", family, "nat", "OUTPUT", "meta", "cpu", "0", "accept")
        with self.assertRaises(SteeringFailed):
            await self.firewall.apply(self.desired, None)
        self.assertTrue(await self.firewall.remove())
        run("nft", "delete", "chain", family, "nat", "OUTPUT")
        self.assertFalse(self.ours())


class NftIPv4Tests(NftContract, TestCase):
    """The newer back end."""

    version, back_end = 4, "nft"


class NftIPv6Tests(NftContract, TestCase):
    """The newer back end."""

    version, back_end = 6, "nft"


class LegacyContract(KernelContract):
    """Behavior of the older back end only: a lock."""

    async def test_lock(self):
        """A lock that another program holds is named; nothing is changed."""
        self.patch(tables_module, "LOCK_SECONDS", 1)
        with open(self.lock, "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            with self.assertRaises(SteeringFailed) as raised:
                await self.firewall.apply(self.desired, None)
            error = raised.exception
        text = str(error)
        self.assertIn("the lock /run/xtables.lock was held by another program", text)
        self.assertNotIsInstance(error, SetsRefused)
        self.assertEqual(self.foreign, self.machine.save())
        await self.apply(self.desired)


class LegacyIPv4Tests(LegacyContract, TestCase):
    """The older back end."""

    version, back_end = 4, "legacy"


class LegacyIPv6Tests(LegacyContract, TestCase):
    """The older back end."""

    version, back_end = 6, "legacy"


class FailureTests(SynchronousTestCase):
    """Errors of the programs."""

    def setUp(self):
        """Make a firewall whose program the test simulates."""
        self.programs = FakePrograms()
        self.firewall = Iptables(self.programs, BackEnd(4, "nft", "iptables-nft"))

    def check(self):
        """Check whether the table can be read."""
        tables = Tables(self.programs, BackEnd(4, "nft", "iptables-nft"), TUNNEL)
        return Deferred.fromCoroutine(tables.check())

    def play(self, *finished):
        """Have the program that reads return this."""
        self.programs.programs["iptables-nft"] = lambda *_: CompletedProgram(*finished)

    def failure(self):
        """Return the one line of an error."""
        text = str(self.failureResultOf(self.check(), SteeringFailed).value)
        self.assertNotIn("\n", text)
        return text.removeprefix("reading the nat table of IPv4 (nft): ")

    def test_missing(self):
        """The program is not installed."""
        self.assertEqual("iptables-nft is not installed", self.failure())

    def test_too_long(self):
        """The program does not end."""
        self.patch(self.programs, "run", lambda *_: fail(ProgramFailed("it took too long")))
        self.assertEqual("it took too long", self.failure())

    def test_not_allowed(self):
        """The server lacks permission."""
        self.play(4, b"", "Could not fetch rule set generation id: Permission denied (you must\n")
        self.assertTrue(
            self.failure().endswith("needs the capability NET_ADMIN (deploy/overlays/iptables)")
        )

    def test_any(self):
        """Any other error is passed on, truncated."""
        self.play(3, b"", "a\nb\n" + "c" * 1000)
        text = self.failure()
        self.assertTrue(text.startswith("iptables-nft: exit status 3: a b ccc"))
        self.assertLess(len(text), 400)
        self.play(3, b"", "")
        self.assertEqual("iptables-nft: exit status 3: it says nothing", self.failure())

    def test_not_shown(self):
        """Another program has changed the table so that these programs cannot show it."""
        self.play(0, b"# Table `nat' is incompatible, use 'nft' tool.\n", "")
        self.assertIn("Table `nat' is incompatible", self.failure())

    def test_not_shown_later(self):
        """The same when rules are created and removed: it is not treated as an empty table."""
        shown = CompletedProgram(0, b"# Table `nat' is incompatible, use 'nft' tool.\n", "")
        self.programs.programs["iptables-nft-save"] = lambda *_: shown
        desired = Interception(4, Match.CLOUD_RETURN)
        for call in (partial(self.firewall.apply, desired, None), self.firewall.remove):
            failure = self.failureResultOf(call(), SteeringFailed)
            self.assertIn("iptables cannot read it", str(failure.value))

    def test_readable(self):
        """An empty table can be read."""
        self.play(0, b"-P OUTPUT ACCEPT\n", "")
        self.assertIsNone(self.successResultOf(self.check()))
        self.assertEqual((4, "nft"), (self.firewall.version, self.firewall.backend))


class RefusalTests(SynchronousTestCase):
    """Which errors mean that rules with sets are not supported."""

    def setUp(self):
        """Make a firewall with an empty table."""
        self.programs = FakePrograms()
        self.programs.programs["iptables-nft-save"] = lambda *_: CompletedProgram(
            0, b"*nat\nCOMMIT\n", ""
        )
        self.firewall = Iptables(self.programs, BackEnd(4, "nft", "iptables-nft"))

    def refused(self, said, set_name="S"):
        """Have a change fail; return the error."""
        self.programs.programs["iptables-nft-restore"] = lambda *_: CompletedProgram(2, b"", said)
        match = Match.CLOUD_RETURN if set_name is None else Match.EDGE_SET
        ports = {10250: Target(None, 10263)}
        desired = Interception(4, match, frozenset({ip_address("192.168.7.1")}), ports=ports)
        return self.failureResultOf(self.firewall.apply(desired, set_name), SteeringFailed).value

    def test_no_sets(self):
        """The program, its extension, or the kernel does not support them."""
        for said in (
            "iptables-restore v1.8.9 (nf_tables): Couldn't load match `set':No such file",
            "Warning: Extension set revision 0 not supported, missing kernel module?\nline 5 fails",
            "iptables-restore v1.8.9 (legacy): Can't open socket to ipset.",
        ):
            self.assertIsInstance(self.refused(said), SetsRefused)
            self.assertNotIsInstance(self.refused(said, None), SetsRefused)

    def test_anything_else(self):
        """Temporary errors do not mean that; neither does a failure to read."""
        for said in (
            "iptables-restore v1.8.9 (legacy): Set S doesn't exist.",
            "Another app is currently holding the xtables lock; still 1s 0us time ahead",
            "iptables-nft-restore: line 4 failed: No chain/target/match by that name.",
            "line 4: RULE_APPEND failed (No such file or directory): rule in chain TUNNEL-PORT",
            "",
        ):
            self.assertNotIsInstance(self.refused(said), SetsRefused)
        said = "Couldn't load match `set'"
        self.programs.programs["iptables-nft-save"] = lambda *_: CompletedProgram(1, b"", said)
        self.assertNotIsInstance(self.refused(said), SetsRefused)

    def test_lock_at_removal(self):
        """A lock during a removal is reported at once; the next time all is removed."""
        self.programs.programs["iptables-nft-restore"] = lambda *_: CompletedProgram(0, b"", "")
        ports = {10250: Target(None, 10263)}
        edge = frozenset({ip_address("192.168.7.1")})
        desired = Interception(4, Match.CLOUD_RETURN, edge, ports=ports)
        self.successResultOf(self.firewall.apply(desired, None))
        del self.programs.calls[:]
        said = "Another app is currently holding the xtables lock"
        self.programs.programs["iptables-nft-restore"] = lambda *_: CompletedProgram(4, b"", said)
        self.failureResultOf(self.firewall.remove(), SteeringFailed)
        self.programs.programs["iptables-nft-restore"] = lambda *_: CompletedProgram(0, b"", "")
        self.assertTrue(self.successResultOf(self.firewall.remove()))
        self.assertEqual(["iptables-nft-restore"] * 2, [call[0] for call in self.programs.calls])


class LongTablesTests(SynchronousTestCase):
    """Tables with thousands of our rules."""

    def test_slices(self):
        """The reactor runs between slices of the work that a change of all rules causes."""
        machine = MemoryMachine(4, "nft")
        machine.programs.clock = clock = SteppedReactor()
        turns = []

        def counted(rule):
            turns[-1] += 1
            return normalized(rule)

        self.patch(slices, "WORK_SECONDS", 0)
        self.patch(transaction, "normalized", counted)
        tables = Tables(machine.programs, BackEnd(4, "nft", "iptables-nft"), TUNNEL)
        for mark in (1, 2):
            rules = tuple(f"-m mark --mark {mark} -p tcp --dport {port}" for port in range(1000))
            turns.append(0)
            applied = Deferred.fromCoroutine(tables.apply({"nat": Rules({"TUNNEL-PORT": rules})}))
            while not applied.called:
                turns.append(0)
                clock.turn()
            self.successResultOf(applied)
            self.assertEqual(list(rules), machine.table.chains["TUNNEL-PORT"])
        self.assertEqual(2000, sum(turns))
        self.assertLessEqual(max(turns), slices.ITEMS_PER_PIECE)
