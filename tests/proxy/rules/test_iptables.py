"""Tests of the chains in the kernel: both back ends of iptables, with both families at once."""

from __future__ import annotations

import shlex
import shutil
from dataclasses import replace
from ipaddress import ip_address, ip_network
from pathlib import Path

from twisted.internet import reactor
from twisted.logger import LogLevel, capturedLogs, formatEvent
from twisted.trial.unittest import SkipTest, TestCase

from tests.e2e.cluster.network import ClusterNetwork
from tests.e2e.network.namespaces import run
from tests.steering.firewall.machines import BASES, CountedPrograms, use_own_lock
from yurttunnel.ops.programs import Programs
from yurttunnel.ops.slices import at_once
from yurttunnel.proxy.host_address import no_address
from yurttunnel.proxy.interfaces import PartlyApplied, ProxiedService
from yurttunnel.proxy.rules.iptables.portals import PortalRules
from yurttunnel.proxy.rules.iptables.rules import IptablesRules
from yurttunnel.proxy.state.virtual_services import (
    Key,
    NoEndpointsAction,
    Portal,
    PortalKind,
    Protocol,
    Scope,
    ServicePortName,
    VirtualService,
)
from yurttunnel.steering.firewall import detection
from yurttunnel.steering.interfaces import Applied

HOSTS = {4: ip_address("172.16.1.9"), 6: ip_address("fd00::9")}
PREFIXES = {4: "10.96.0.", 6: "fd96::"}
SOURCES = {4: ip_network("192.0.2.0/24"), 6: ip_network("2001:db8::/32")}

FOREIGN = """*nat
:OTHERS - [0:0]
:KUBE-NODEPORTS - [0:0]
-A PREROUTING -j OTHERS
-A OUTPUT -m comment --comment "not a jump: -j KUBE-PORTALS-HOST" -j OTHERS
-A OTHERS -p tcp -m tcp --dport 443 -j REDIRECT --to-ports 6443
COMMIT
*filter
:OTHERS - [0:0]
-A INPUT -p tcp -m tcp --dport 22 -j ACCEPT
-A INPUT -j OTHERS
COMMIT
"""

_NOTE = "NOTE: this must be"
KUBE_PROXY = (
    *(
        f"-t {table} -N {chain}"
        for table, chain in (
            ("nat", "KUBE-PORTALS-CONTAINER"),
            ("nat", "KUBE-PORTALS-HOST"),
            ("nat", "KUBE-NODEPORT-CONTAINER"),
            ("nat", "KUBE-NODEPORT-HOST"),
            ("filter", "KUBE-NODEPORT-NON-LOCAL"),
        )
    ),
    f'-t nat -A PREROUTING -m addrtype --dst-type LOCAL -m comment --comment "handle service'
    f' NodePorts; {_NOTE} the last rule in the chain" -j KUBE-NODEPORT-CONTAINER',
    f'-t nat -A OUTPUT -m addrtype --dst-type LOCAL -m comment --comment "handle service NodePorts;'
    f' {_NOTE} the last rule in the chain" -j KUBE-NODEPORT-HOST',
    f'-t nat -I PREROUTING -m comment --comment "handle ClusterIPs; {_NOTE} before the NodePort'
    ' rules" -j KUBE-PORTALS-CONTAINER',
    f'-t nat -I OUTPUT -m comment --comment "handle ClusterIPs; {_NOTE} before the NodePort rules"'
    " -j KUBE-PORTALS-HOST",
    '-t filter -I INPUT -m comment --comment "Ensure that non-local NodePort traffic can flow"'
    " -j KUBE-NODEPORT-NON-LOCAL",
    "-t nat -A KUBE-PORTALS-CONTAINER -m comment --comment gone/service:http -p tcp -m tcp"
    " --dport 80 -d {gone} -j REDIRECT --to-ports 41000",
    "-t filter -A KUBE-NODEPORT-NON-LOCAL -m comment --comment gone/service:http -m comment"
    " --comment gone/service:http -p tcp -m tcp --dport 41000 -m state --state NEW -j ACCEPT",
)
"""Leftovers of the userspace mode, as it created them (k#28465)."""


def services(version, port=4000):
    """Return services with every kind of portal and every outcome."""
    prefix = PREFIXES[version]

    def one(name, *portals, port, protocol=Protocol.TCP, scope=Scope.ALL, **more):
        key = Key(ServicePortName("shop", name, "http"), version, protocol, scope)
        return ProxiedService(VirtualService(key, portals, (), **more), port)

    def at(kind, last, number=80, **more):
        return Portal(kind, ip_address(f"{prefix}{last}"), number, **more)

    cluster, external = PortalKind.CLUSTER_IP, PortalKind.EXTERNAL_IP
    balancer, node_port = PortalKind.LOAD_BALANCER_IP, Portal(PortalKind.NODE_PORT, None, 30080)
    return [
        one("web", at(cluster, 1), at(external, 2), at(balancer, 3), node_port, port=port),
        one("dns", at(cluster, 4, 53), port=port + 1, protocol=Protocol.UDP),
        one("none", at(cluster, 5), at(external, 6), replace(node_port, port=30081), port=None),
        one("udp", at(cluster, 5, 53), port=None, protocol=Protocol.UDP),
        one("local", at(cluster, 7), port=port + 2, scope=Scope.INTERNAL),
        one(
            "local",
            at(balancer, 8, sources=(SOURCES[version],)),
            port=None,
            scope=Scope.EXTERNAL,
            no_endpoints_action=NoEndpointsAction.DROPPED,
        ),
    ]


class IptablesContract:
    """Changes of the kernel's tables from any previous state."""

    back_end: str

    def setUp(self):
        """Make a machine on which others have rules, too."""
        for base in BASES.values():
            if shutil.which(f"{base}-{self.back_end}-restore") is None:
                raise SkipTest(f"{base}-{self.back_end} is not installed")
        use_own_lock(self)
        network = ClusterNetwork()
        self.addCleanup(network.close)
        for base in BASES.values():
            run(f"{base}-{self.back_end}-restore", "--noflush", stdin=FOREIGN)
        self.foreign = self.save()
        self.programs = CountedPrograms(Programs(reactor))
        self.rules = self.new_rules()
        self.proxied = [*services(4), *services(6)]

    def new_rules(self, host_for_all=no_address):
        """Make the rules of a proxy that has just started."""
        return IptablesRules(reactor, self.programs, HOSTS.get, host_for_all=host_for_all)

    def save(self):
        """Return all lines of both tables and families."""
        return {
            (base, table): [
                line
                for line in run(f"{base}-{self.back_end}-save", "-t", table).splitlines()
                if not line.startswith("#")
            ]
            for base in BASES.values()
            for table in ("filter", "nat")
        }

    def assert_foreign_untouched(self):
        """Check that the lines of others are unchanged, and in order."""
        found = {
            key: [line for line in lines if line in self.foreign[key]]
            for key, lines in self.save().items()
        }
        self.assertEqual(self.foreign, found)

    def everywhere(self, *commands):
        """Run a command as an administrator, in both families."""
        for version, base in BASES.items():
            for command in commands:
                words = shlex.split(command.format(gone=f"{PREFIXES[version]}99"))
                run(f"{base}-{self.back_end}", "-w", "20", *words)

    async def calls(self, proxied):
        """Apply; return which programs ran, and what was changed."""
        del self.programs.calls[:]
        applied = await self.rules.apply(proxied)
        return [call[0].rpartition("-")[2] for call in self.programs.calls], applied

    async def test_apply(self):
        """The first call reads the tables, and changes everything by one run for each family."""
        await self.rules.find((4, 6))
        calls, applied = await self.calls(self.proxied)
        self.assertEqual(["save", "restore"] * 2, calls)
        self.assertTrue(applied.differences)
        self.assertEqual(f"iptables ({self.back_end})", self.rules.backend)
        self.assert_foreign_untouched()

    async def test_shown_as_created(self):
        """New rules are read back word for word."""
        await self.shown_as_made(no_address)

    async def test_shown_as_created_for_all(self):
        """So are the rules for links without an address."""
        await self.shown_as_made(HOSTS.get)

    async def shown_as_made(self, host_for_all):
        """Create the rules, and read them."""
        await self.new_rules(host_for_all).apply(self.proxied)
        shown = self.save()
        for version, base in BASES.items():
            wanted = at_once(
                PortalRules(version).rules(self.proxied, HOSTS[version], host_for_all(version))
            )
            for table, rules in wanted.items():
                for chain, some in rules.chains.items():
                    found = [
                        line.removeprefix(f"-A {chain} ")
                        for line in shown[base, table]
                        if line.startswith(f"-A {chain} ")
                    ]
                    self.assertEqual(list(some), found)
                for jumps in (rules.jumps, rules.last_jumps):
                    for chain, some in jumps.items():
                        for rule in some:
                            self.assertIn(f"-A {chain} {rule}", shown[base, table])
        self.assertEqual(Applied(), await self.new_rules(host_for_all).apply(self.proxied))
        self.assertEqual(shown, self.save())

    async def test_places_of_jumps(self):
        """Portals precede the rules of others, and node ports follow them."""
        await self.rules.apply(self.proxied)
        for base in BASES.values():
            nat = self.save()[base, "nat"]
            for chain, others in (("PREROUTING", "OTHERS"), ("OUTPUT", "OTHERS")):
                targets = [line.split()[-1] for line in nat if line.startswith(f"-A {chain} ")]
                suffix = "CONTAINER" if chain == "PREROUTING" else "HOST"
                self.assertEqual(
                    [f"KUBE-PORTALS-{suffix}", others, f"KUBE-NODEPORT-{suffix}"], targets
                )

    async def test_one_more(self):
        """A new service adds its rules, and changes nothing else in the chain."""
        await self.rules.apply(self.proxied)
        key = Key(ServicePortName("shop", "x", ""), 4, Protocol.TCP, Scope.ALL)
        portal = Portal(PortalKind.CLUSTER_IP, ip_address("10.96.0.77"), 80)
        more = [*self.proxied, ProxiedService(VirtualService(key, (portal,), ()), 4010)]
        applied = await self.rules.apply(more)
        self.assertEqual(
            (
                "IPv4: in the chain KUBE-PORTALS-CONTAINER 1 rules are missing, 0 not wanted",
                "IPv4: in the chain KUBE-PORTALS-HOST 1 rules are missing, 0 not wanted",
            ),
            applied.differences,
        )
        self.assertTrue((await self.rules.apply(self.proxied)).differences)

    async def test_disturbed(self):
        """Changes of others in our chains are repaired; nothing else is touched."""
        await self.rules.apply(self.proxied)
        good = self.save()
        for commands in (
            ["-t nat -D KUBE-PORTALS-CONTAINER 1"],
            ["-t nat -F KUBE-NODEPORT-HOST"],
            ["-t nat -A KUBE-PORTALS-HOST -p tcp -j RETURN"],
            ["-t filter -I YURTPROXY-SOURCES -j ACCEPT"],
            ["-t nat -D PREROUTING 1"],
            ["-t nat -D OUTPUT 3"],
            ["-t filter -D INPUT 3"],
            ["-t filter -D FORWARD 1", "-t filter -A FORWARD -j YURTPROXY-REFUSED-HOST"],
            ["-t nat -N KUBE-PORTALS-HOST-X", "-t nat -A OTHERS -j KUBE-PORTALS-HOST-X"],
        ):
            self.everywhere(*commands)
            self.assertNotEqual(good, self.save())
            self.assertTrue((await self.rules.apply(self.proxied)).differences, commands)
            self.assertEqual(good, self.save(), commands)

    async def test_flushed(self):
        """Everything is created again after another program has flushed everything."""
        await self.rules.apply(self.proxied)
        self.everywhere("-t nat -F", "-t nat -X", "-t filter -F", "-t filter -X")
        self.assertTrue((await self.rules.apply(self.proxied)).differences)
        self.assertEqual(Applied(), await self.rules.apply(self.proxied))
        self.assertIn("KUBE-PORTALS-HOST", str(self.save()["ip6tables", "nat"]))

    async def test_wrong_order(self):
        """The order of our own jumps is restored; their place among others is not contested."""
        await self.rules.apply(self.proxied)
        good = self.save()
        jump = next(line for line in good["iptables", "nat"] if "-A OUTPUT -m addrtype" in line)
        rule = jump.removeprefix("-A OUTPUT ")
        self.everywhere(f"-t nat -D OUTPUT {rule}", f"-t nat -I OUTPUT 1 {rule}")
        applied = await self.rules.apply(self.proxied)
        self.assertIn(
            "IPv4: the jumps from OUTPUT to our chains are in a wrong order", applied.differences
        )
        self.assertEqual(good, self.save())
        self.everywhere("-t nat -I OUTPUT 1 -p udp -j OTHERS", "-t nat -A OUTPUT -j OTHERS")
        self.assertEqual(Applied(), await self.rules.apply(self.proxied))

    async def test_leftovers_of_kube_proxy(self):
        """Chains and jumps of its userspace mode are taken over, and its rules are removed."""
        self.everywhere(*KUBE_PROXY)
        applied = await self.rules.apply(self.proxied)
        self.assertNotIn("IPv4: the jump from PREROUTING is missing", applied.differences)
        self.assertNotIn("IPv4: the chain KUBE-PORTALS-HOST is missing", applied.differences)
        taken_over = self.save()
        self.assertFalse(
            [line for lines in taken_over.values() for line in lines if "gone" in line]
        )
        self.assert_foreign_untouched()
        await self.rules.remove()
        await self.rules.apply(self.proxied)
        self.assertEqual(taken_over, self.save())

    async def test_leftovers_removed(self):
        """Whoever created them, nothing remains when rules are removed."""
        self.everywhere(*KUBE_PROXY)
        self.assertTrue(await self.rules.remove())
        self.assertEqual(self.foreign, self.save())

    async def test_remove_of_one_family(self):
        """The other family keeps its rules, of whichever process they are."""
        await self.rules.apply(self.proxied)
        made = self.save()
        for rules in (self.rules, self.new_rules()):
            self.assertTrue(await rules.remove([4]))
            found = self.save()
            for each, lines in found.items():
                expected = made if "ip6" in str(each) else self.foreign
                self.assertEqual(expected[each], lines, each)
            await self.rules.apply(self.proxied)

    async def test_remove(self):
        """Nothing remains, even if this process has created none; removing nothing is no error."""
        await self.rules.apply(self.proxied)
        self.assertTrue(await self.rules.remove())
        self.assertEqual(self.foreign, self.save())
        self.assertFalse(await self.rules.remove())
        await self.rules.apply(self.proxied)
        self.assertTrue(await self.new_rules().remove())
        self.assertEqual(self.foreign, self.save())
        self.assertTrue((await self.rules.apply(self.proxied)).differences)

    def refuse_ipv6(self):
        """Have the kernel reject changes of IPv6; return a function that ends this."""
        restore = f"ip6tables-{self.back_end}-restore"
        run_program = self.programs.run

        def failing(arguments, *more):
            if arguments[0] == restore:
                arguments = ["false"]
            return run_program(arguments, *more)

        return self.patch(self.programs, "run", failing)

    async def test_refused(self):
        """The failure of one family is reported, and the other one is changed."""
        refusal = self.refuse_ipv6()
        with self.assertRaises(PartlyApplied) as raised:
            await self.rules.apply(self.proxied)
        error = raised.exception
        self.assertEqual({4}, error.made)
        self.assertIn("changing the filter and nat tables of IPv6", str(error))
        self.assertNotIn("IPv4", str(error))
        self.assertIn("KUBE-PORTALS-HOST", str(self.save()["iptables", "nat"]))
        refusal.restore()
        await self.rules.apply(self.proxied)
        self.assertEqual(Applied(), await self.new_rules().apply(self.proxied))

    async def test_refused_and_not_needed(self):
        """The failure of a family without services is no failure, but logged once, and retried."""
        refusal = self.refuse_ipv6()
        with capturedLogs() as events:
            for number in (4000, 4100):
                self.assertTrue((await self.rules.apply(services(4, number))).differences)
        (warning,) = [formatEvent(each) for each in events if each["log_level"] is LogLevel.warn]
        self.assertIn(
            "Rules of IPv6, which no Service here uses, cannot be created: changing", warning
        )
        refusal.restore()
        applied = await self.rules.apply(services(4, 4100))
        self.assertIn("IPv6: the chain KUBE-PORTALS-HOST is missing", applied.differences)

    async def test_refused_and_no_longer_needed(self):
        """While rules of its last Services still lead to sockets, it is a failure."""
        await self.rules.apply(self.proxied)
        refusal = self.refuse_ipv6()
        with self.assertRaises(PartlyApplied) as raised:
            await self.rules.apply(services(4))
        error = raised.exception
        self.assertEqual({4}, error.made)
        refusal.restore()
        self.assertTrue((await self.rules.apply(services(4))).differences)
        self.refuse_ipv6()
        self.everywhere("-t nat -F KUBE-NODEPORT-HOST", "-t nat -D OUTPUT 3")
        await self.rules.apply(services(4))

    async def test_no_physdev(self):
        """If the kernel cannot match bridges, the rules omit it, and the rest is served."""
        run_program = self.programs.run

        def lacking(arguments, given=b"", *more):
            if b"physdev" in given:
                given = given.replace(b"-m physdev ! --physdev-is-in", b"-m physdevnone")
            return run_program(arguments, given, *more)

        self.patch(self.programs, "run", lacking)
        self.assertTrue((await self.rules.apply(self.proxied)).differences)
        self.assertEqual(Applied(), await self.rules.apply(self.proxied))
        shown = self.save()
        for version, base in BASES.items():
            bits = 32 if version == 4 else 128
            found = [line for line in shown[base, "nat"] if f"{PREFIXES[version]}2/{bits}" in line]
            self.assertEqual(2, len(found), found)
            self.assertTrue(found[0].endswith("--dport 80 -j REDIRECT --to-ports 4000"))


class NftTests(IptablesContract, TestCase):
    """The newer back end, whose changes the kernel counts."""

    back_end = "nft"

    async def test_unchanged(self):
        """An unchanged state runs nothing, until another program changes something."""
        await self.calls(self.proxied)
        self.assertEqual(([], Applied()), await self.calls(list(self.proxied)))
        self.everywhere("-t filter -A OTHERS -j RETURN")
        self.assertEqual((["save"] * 2, Applied()), await self.calls(self.proxied))
        self.assertEqual(([], Applied()), await self.calls(self.proxied))

    async def test_changed_meanwhile(self):
        """Changes by others while rules are created are detected by the next call."""
        run_program = self.programs.run

        def disturbed(arguments, *more):
            if arguments[0] == "ip6tables-nft-restore":
                run("iptables-nft", "-t", "nat", "-F", "KUBE-PORTALS-HOST")
            return run_program(arguments, *more)

        self.patch(self.programs, "run", disturbed)
        await self.rules.apply(self.proxied)
        self.patch(self.programs, "run", run_program)
        applied = await self.rules.apply(self.proxied)
        self.assertEqual(1, len(applied.differences), applied.differences)
        self.assertEqual(([], Applied()), await self.calls(self.proxied))

    async def test_host_address(self):
        """Another address of this machine requires other rules."""
        hosts = dict(HOSTS)
        self.rules = IptablesRules(reactor, self.programs, hosts.get)
        await self.rules.apply(self.proxied)
        hosts[4] += 1
        calls, applied = await self.calls(self.proxied)
        self.assertEqual(["save", "restore", "save"], calls)
        self.assertEqual(2, len(applied.differences))


class LegacyTests(IptablesContract, TestCase):
    """The older back end."""

    back_end = "legacy"

    async def test_unchanged(self):
        """An unchanged state is checked, and nothing is changed."""
        await self.calls(self.proxied)
        for _ in range(2):
            self.assertEqual((["save"] * 2, Applied()), await self.calls(self.proxied))

    async def test_generation(self):
        """The kernel does not count its changes."""
        self.assertIsNone(self.rules.generation())
        await self.rules.apply(self.proxied)
        self.assertIsNone(self.rules.generation())


class OtherBackEndTests(TestCase):
    """Both back ends at once."""

    async def test_elsewhere(self):
        """Leftovers in the back end that is not used are removed."""
        use_own_lock(self)
        network = ClusterNetwork()
        self.addCleanup(network.close)
        run("iptables-nft-restore", "--noflush", stdin=FOREIGN)
        for command in KUBE_PROXY:
            run("iptables-legacy", *shlex.split(command.format(gone="10.96.0.99")))
        programs = CountedPrograms(Programs(reactor))
        rules = IptablesRules(reactor, programs, HOSTS.get)
        await rules.apply(services(4))
        self.assertEqual("iptables (nft)", rules.backend)
        removed = ["removed the chains KUBE-PORTALS-CONTAINER of IPv4 (legacy)"]
        self.assertEqual(removed, await rules.remove_elsewhere())
        self.assertNotIn("KUBE", run("iptables-legacy-save"))
        self.assertEqual([], await rules.remove_elsewhere())
        self.assertIn("KUBE-PORTALS", run("iptables-nft-save", "-t", "nat"))

    async def test_no_ipv6(self):
        """A machine without IPv6 has no IPv6 rules, and this is no error."""
        use_own_lock(self)
        network = ClusterNetwork()
        self.addCleanup(network.close)
        proc_net = Path(self.mktemp())
        proc_net.mkdir()
        self.patch(detection, "PROC_NET", proc_net)
        rules = IptablesRules(reactor, Programs(reactor), HOSTS.get)
        self.assertTrue((await rules.apply([*services(4), *services(6)])).differences)
        self.assertNotIn("KUBE", run("ip6tables-nft-save", "-t", "nat"))
