"""Tests that portals of each kind lead to endpoints, for each family, mode and back end."""

from __future__ import annotations

import shlex
import sys
from ipaddress import ip_address
from pathlib import Path

from tests.e2e.network.namespaces import run
from tests.e2e.proxy.network import CLIENT, NODE, address
from tests.e2e.proxy.objects import BOTH, port
from tests.e2e.proxy.programs import SYNC_SECONDS
from tests.e2e.proxy.support import LOCAL, OF_A_PROCESS, REMOTE, Legacy, ProxyTestCase, spread
from tests.e2e.proxy.traffic import REFUSED, UNREACHED
from tests.proxy.rules.test_iptables import KUBE_PROXY

SPARE_ADDRESS = {4: "198.51.100.7", 6: "2001:db8:51::7"}
"""An external address that no machine has."""

OWN = {4: "192.0.2.9", 6: "2001:db8:9::9"}
"""An external address that is the node's."""

BALANCER = {4: "203.0.113.8", 6: "2001:db8:113::8"}

ITSELF = {4: "203.0.113.9", 6: "2001:db8:113::9"}
"""The address of a load balancer that forwards connections itself (KEP-1860)."""

FAR = {4: "198.18.0.7", 6: "2001:db8:18::7"}
"""The address of a client behind another one's machine."""

NEW_NODE = 77
"""The number of the node's later address."""

NODE_PORT, NODE_PORT_UDP = 30080, 30053

_ANY_FIREWALL = """
table inet any {
    chain postrouting {
        type nat hook postrouting priority 100;
        meta l4proto sctp masquerade
    }
}
"""
"""Rules for which the kernel keeps conntrack entries."""

FOREIGN = "foreign"
"""The comment of rules of other programs."""


class Portals:
    """The tests; subclasses choose the mode and the back end."""

    async def setUp(self) -> None:
        """Make endpoints, and an external address that is the node's."""
        await super().setUp()
        for external in OWN.values():
            run("ip", "address", "add", external, "dev", "lo")
        self.serve(*REMOTE)

    def everything(self, name: str = "web", **more) -> None:
        """Write a Service with a portal of each kind."""
        ingress = [{"ip": text, "ipMode": "VIP"} for text in BALANCER.values()]
        ingress += [{"ip": text, "ipMode": "Proxy"} for text in ITSELF.values()]
        self.objects.service(
            name,
            port(80, name="http", node=NODE_PORT),
            port(53, "UDP", name="dns", node=NODE_PORT_UDP),
            type="LoadBalancer",
            externalIPs=[*SPARE_ADDRESS.values(), *OWN.values()],
            status={"loadBalancer": {"ingress": ingress}},
            **more,
        )

    async def test_clients_before_the_proxy_starts(self) -> None:
        """Their retransmissions follow the rules that exist by then: to endpoints, or to a refusal.
        Otherwise they would retry in vain for two minutes.
        """
        await self.start_cloud()
        for name, pods in (("web", REMOTE), ("empty", ())):
            self.objects.service(name)
            self.objects.endpoints(name, *pods)
        run("nft", "-f", "-", stdin=_ANY_FIREWALL)
        expected = {
            self.dial(self.objects.address(name, version), answer_timeout=60.0): problem
            for name, problem in (("web", ""), ("empty", REFUSED))
            for version in BOTH
        }

        def are_tried() -> bool:
            found = [run("conntrack", "-L", "-f", f"ipv{each}", "-p", "tcp") for each in BOTH]
            return "".join(found).count("SYN_SENT") == len(expected)

        await self.eventually(are_tried, "the kernel has entries of all")
        await self.start_proxy()
        for client, problem in expected.items():
            self.assertEqual(problem, (await client.answered).problem)

    async def test_each_portal(self) -> None:
        """Pods, the node itself and clients outside reach what they should, by TCP and UDP;
        endpoints share the load; and when all is deleted, no rule remains.
        """
        before = self.all_rules()
        await self.start_cloud()
        self.objects.service("other")
        proxy = await self.start_proxy()
        without = self.all_rules()
        self.everything()
        self.objects.endpoints("web", *REMOTE)
        await self.eventually_by(REMOTE, self.objects.address("web", 4))
        for version in BOTH:
            await self.eventually_by(REMOTE, self.objects.address("web", version))
            await self.reached(version)
            await self.not_reached(version)
        await self.assert_equal_shares()
        self.objects.endpoints("web", *REMOTE[:2])
        for version in BOTH:
            await self.eventually_by(REMOTE[:2], self.objects.address("web", version))
            got = await self.calls(100, self.objects.address("web", version))
            self.assertEqual(set(spread(got)), {pod.address(version) for pod in REMOTE[:2]})
        self.objects.remove("web")
        await self.eventually_rules(without)
        answer = await self.call("127.0.0.1", NODE_PORT, machine="node")
        self.assertEqual(answer.problem, REFUSED)
        await proxy.stop()
        await self.clean_up()
        self.assertEqual(self.all_rules(), before)

    async def reached(self, version: int) -> None:
        """Require that every portal leads to endpoints, for all clients that may use it."""
        cluster = self.objects.address("web", version)
        node = address("clients", NODE, version), address("outside", NODE, version)
        portals = [
            *((machine, cluster, 80, 53) for machine in ("clients", "node")),
            *((machine, BALANCER[version], 80, 53) for machine in ("clients", "node", "outside")),
            *((machine, OWN[version], 80, 53) for machine in ("clients", "node", "outside")),
            *((machine, SPARE_ADDRESS[version], 80, 53) for machine in ("clients", "outside")),
            *(
                (machine, text, NODE_PORT, NODE_PORT_UDP)
                for machine in ("clients", "node", "outside")
                for text in node
            ),
        ]
        expected = {pod.address(version) for pod in REMOTE}
        for machine, host, stream, datagram in portals:
            answer = await self.call(host, stream, machine=machine)
            self.assertEqual((answer.problem, answer.endpoint in expected), ("", True),
                             (machine, host, stream, answer))  # fmt: skip
            answer = await self.ask(host, datagram, machine=machine)
            self.assertEqual((answer.problem, answer.endpoint in expected), ("", True),
                             (machine, host, datagram, answer))  # fmt: skip

    async def not_reached(self, version: int) -> None:
        """Require that other ports of these addresses behave as without the proxy, and so does a
        load balancer that forwards itself.
        """
        for host in (OWN[version], address("clients", NODE, version)):
            answer = await self.call(host, 81)
            self.assertEqual(answer.problem, REFUSED, host)
        answer = await self.call(ITSELF[version], answer_timeout=0.5)
        self.assertIn(answer.problem, UNREACHED)

    async def assert_equal_shares(self) -> None:
        """Require that endpoints get equal numbers of connections."""
        for version in BOTH:
            got = spread(await self.calls(300, self.objects.address("web", version)))
            self.assertEqual(set(got), {pod.address(version) for pod in REMOTE})
            if self.mode == "user":
                self.assertEqual(set(got.values()), {100})
            else:
                # The choice is random: of 300, a deviation of more than 60 from the mean occurs
                # once in 10^12.
                self.assertGreater(min(got.values()), 40)

    async def clean_up(self) -> None:
        """Run ``--cleanup`` to its end."""
        cleaner = self.end_with_test(self.make_proxy("--cleanup", name="cleanup"))
        cleaner.start()
        self.assertEqual(await cleaner.ended(20), 0, cleaner.log)

    async def test_addresses_that_change(self) -> None:
        """Rules redirect the node's own programs to its current address, and an external one that
        has become the node's is claimed, long before the next periodic sync.
        """
        await self.start_cloud()
        self.everything()
        self.objects.endpoints("web", *REMOTE)
        await self.start_proxy("--iptables-sync-period", "10m")
        hosts = {version: self.objects.address("web", version) for version in BOTH}
        for host in hosts.values():
            await self.eventually_by(REMOTE, host, machine="node")
        Path("/proc/sys/net/ipv4/conf/outside/promote_secondaries").write_text("1")
        for version, length, options in ((4, 24, ()), (6, 64, ("nodad",))):
            old, new = (f"{address('outside', n, version)}/{length}" for n in (NODE, NEW_NODE))
            run("ip", "address", "add", new, "dev", "outside", *options)
            run("ip", "address", "delete", old, "dev", "outside")
            await self.eventually_by(REMOTE, hosts[version], machine="node")
            run("ip", "address", "add", SPARE_ADDRESS[version], "dev", "lo")
            await self.eventually(
                lambda v=version: self.is_external_port_bound(v),
                "the port is held at the node's new address",
            )

    async def test_links_without_an_address(self) -> None:
        """Pods behind such links, as with Calico, reach Services by TCP and UDP, also while the
        node has no connectivity and no default route.
        """
        pod = self.network.add_unnumbered_pod()
        await self.start_cloud()
        self.everything()
        self.objects.endpoints("web", *LOCAL)
        self.serve(*LOCAL)
        await self.start_proxy()
        hosts = [self.objects.address("web", version) for version in BOTH]
        for state in ("up", "down"):
            # Its routes are removed with the link.
            run("ip", "link", "set", "outside", state)
            for host in hosts:
                await self.eventually_by(LOCAL, host, machine=pod)
                self.assertEqual((await self.ask(host, machine=pod)).problem, "")

    def is_external_port_bound(self, version: int) -> bool:
        """Return whether a socket has UDP port 53 of the external address."""
        packed = ip_address(SPARE_ADDRESS[version]).packed
        # Each four bytes of it are a number in this machine's byte order.
        words = [packed[at : at + 4] for at in range(0, len(packed), 4)]
        text = "".join(f"{int.from_bytes(word, sys.byteorder):08X}" for word in words)
        table = Path("/proc/thread-self/net", "udp" if version == 4 else "udp6")
        return f"{text}:{53:04X}" in table.read_text()

    async def test_rules_are_kept(self) -> None:
        """Without a change nothing is run; deleted rules are restored, and others' stay."""
        await self.start_cloud()
        self.everything()
        self.objects.endpoints("web", *REMOTE)
        self.add_foreign_rules()
        proxy = self.make_proxy()
        log = self.count_programs(proxy)
        proxy.start()
        await proxy.ready()
        for version in BOTH:
            await self.eventually_by(REMOTE, self.objects.address("web", version))
        rules = self.all_rules()
        await self.assert_no_program_runs(log)
        began = log.read_text()
        self.delete_rules()
        await self.next_sync(proxy)
        self.assertEqual(self.all_rules(), rules)
        for version in BOTH:
            await self.eventually_by(
                REMOTE, self.objects.address("web", version), answer_timeout=0.5
            )
        # A check of the rules in between may be too late to see that they were missing.
        self.assertNotEqual(self.changing_since(began, log), [])
        await proxy.stop()
        await self.clean_up()
        remaining = [line for line in self.all_rules() if FOREIGN in line]
        self.assertEqual(remaining, [line for line in rules if FOREIGN in line])
        self.assertEqual(len(remaining), 5)

    async def test_leftovers_of_kube_proxy(self) -> None:
        """Leftovers of its userspace mode redirect clients to a closed port: clients are served,
        and none of the leftovers stays.
        """
        before = self.all_rules()
        await self.start_cloud()
        self.everything()
        self.objects.endpoints("web", *REMOTE)
        hosts = {version: self.objects.address("web", version) for version in BOTH}
        kind = "legacy" if self.legacy else "nft"
        for family, version in (("iptables", 4), ("ip6tables", 6)):
            for command in KUBE_PROXY:
                words = shlex.split(command.format(gone=hosts[version]))
                run(f"{family}-{kind}", "-w", "20", *words)
            self.assertEqual((await self.call(hosts[version])).problem, REFUSED)
        proxy = await self.start_proxy()
        for host in hosts.values():
            await self.eventually_by(REMOTE, host)
        self.assertNotIn("gone/service", "\n".join(self.all_rules()))
        await proxy.stop()
        await self.clean_up()
        self.assertEqual(self.all_rules(), before)

    def add_foreign_rules(self) -> None:
        """Have another program use the firewalls, with the chains that the proxy jumps from."""
        rule = ("-p", "tcp", "--dport", "9", "-m", "comment", "--comment", FOREIGN, "-j", "RETURN")
        kind = "legacy" if self.legacy else "nft"
        for family in ("iptables", "ip6tables"):
            for table, chain in (("nat", "PREROUTING"), ("filter", "INPUT")):
                run(f"{family}-{kind}", "-w", "20", "-t", table, "-A", chain, *rule)
        run("nft", "add", "table", "inet", FOREIGN)

    def delete_rules(self) -> None:
        """Delete rules by hand: all of one family, and a jump of the other."""
        raise NotImplementedError

    async def assert_no_program_runs(self, log: Path) -> None:
        """Require that updates without a change of the rules, and time, start no program."""
        began = log.read_text()
        for number in range(5):
            self.everything(annotations={"note": str(number)})
            self.objects.endpoints("web", *REMOTE)
        await self.pause(2.5 * SYNC_SECONDS)
        self.assertEqual(self.changing_since(began, log), [])


class UserModePortals(Portals):
    """The same with sockets of the proxy."""

    async def test_routes_by_source_address(self) -> None:
        """A node with several routes that depend on the source address replies by the one on which
        clients of node ports arrive, also if a link to a pod has no address.
        """
        self.network.add_unnumbered_pod()
        await self.start_cloud()
        self.everything()
        self.objects.endpoints("web", *REMOTE)
        await self.start_proxy()
        for version in BOTH:
            family, node = f"-{version}", address("clients", NODE, version)
            far, way = FAR[version], address("clients", CLIENT, version)
            self.network.run("clients", "ip", family, "address", "add", far, "dev", "lo")
            run("ip", family, "rule", "add", "from", node, "lookup", "100")
            run("ip", family, "route", "add", far, "via", way, "table", "100")
            await self.eventually_by(REMOTE, node, NODE_PORT, source=far)
            self.assertEqual((await self.ask(node, NODE_PORT_UDP, source=far)).problem, "")


class IptablesPortals(UserModePortals):
    """The same for both kinds of iptables."""

    backend = "iptables"

    def delete_rules(self) -> None:
        """Flush a chain, and delete a jump."""
        kind = "legacy" if self.legacy else "nft"
        run(f"iptables-{kind}", "-w", "20", "-t", "nat", "-F", "KUBE-PORTALS-CONTAINER")
        jump = [line for line in self.saved(6) if line.startswith("-A PREROUTING")
                and "KUBE-PORTALS-CONTAINER" in line]  # fmt: skip
        self.assertEqual(len(jump), 1, self.saved(6))
        run(f"ip6tables-{kind}", "-w", "20", "-t", "nat", "-D", "PREROUTING", "1")


class IptablesNftTests(IptablesPortals, ProxyTestCase):
    """User mode, with iptables on nf_tables."""


class IptablesLegacyTests(Legacy, IptablesPortals, ProxyTestCase):
    """User mode, with legacy iptables, whose changes the kernel does not count."""


class NftablesPortals(Portals):
    """The same in both modes."""

    backend = "nftables"

    def delete_rules(self) -> None:
        """Delete a whole table, as ``nft flush ruleset`` at the restart of a firewall does."""
        ours = [
            line.split()[1:] for line in run("nft", "list", "tables").splitlines()
            if FOREIGN not in line and line.split()[2] not in ("nat", "filter", "mangle")
            and not line.split()[2].startswith(OF_A_PROCESS)
        ]  # fmt: skip
        self.assertTrue(ours)
        for family, name in ours:
            run("nft", "delete", "table", family, name)


class NftablesTests(NftablesPortals, UserModePortals, ProxyTestCase):
    """User mode, with native nftables."""


class KernelTests(NftablesPortals, ProxyTestCase):
    """Kernel mode."""

    mode = "kernel"
