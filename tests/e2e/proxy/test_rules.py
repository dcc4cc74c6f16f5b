"""Tests that the rules of iptables are those of kube-proxy's userspace mode: chains, order and
targets. The rules of every back end follow a Service that changes, which keeps its socket and its
connections.
"""

from __future__ import annotations

import contextlib
import json
import re
import shlex
from collections.abc import Mapping, Sequence

from twisted.internet.defer import Deferred, gatherResults

from tests.e2e.network.namespaces import run
from tests.e2e.proxy.network import NODE, address
from tests.e2e.proxy.objects import BOTH, port
from tests.e2e.proxy.support import REMOTE, KernelMode, Legacy, Nftables, ProxyTestCase, spread
from tests.e2e.proxy.test_portals import BALANCER, SPARE_ADDRESS

NODE_PORT = 30080
NAME = "default/web:http"

NEXT_BALANCER = {4: "203.0.113.10", 6: "2001:db8:113::10"}
"""New addresses of a Service's load balancer."""

FIRST = "handle ClusterIPs; NOTE: this must be before the NodePort rules"
LAST = "handle service NodePorts; NOTE: this must be the last rule in the chain"
FILTER = "Ensure that non-local NodePort traffic can flow"

Rule = tuple[tuple[str, ...], ...]


def read(line: str) -> Rule:
    """Return the options of a rule with their values, in any order."""
    found: list[list[str]] = []
    for word in shlex.split(line):
        if found and (found[-1] == ["!"] or not word.startswith(("-", "!"))):
            found[-1].append(word)
        else:
            found.append([word])
    # A rule that names a match twice has the same effect as one that names it once.
    return tuple(sorted({tuple(option) for option in found}))


class Changes:
    """A Service that changes; subclasses choose the mode and the back end."""

    async def test_proxy_port_stays(self) -> None:
        """A Service keeps its proxy port, which stays open, and its connections, also those to
        removed portals, while addresses, node port, affinity and status change; the rules follow.
        """
        self.serve(*REMOTE)
        self.proxy = await self.start()
        self.write(NODE_PORT)
        for version in BOTH:
            await self.eventually_by(REMOTE, BALANCER[version])
        before = await self.sockets()
        self.assertEqual({bool(each) for each in before.values()}, {self.mode == "user"})
        portals = [
            *((self.objects.address("web", version), 80) for version in BOTH),
            *((host, 80) for host in (*SPARE_ADDRESS.values(), *BALANCER.values())),
            *((address("clients", NODE, version), NODE_PORT) for version in BOTH),
        ]
        standing = [self.dial(*portal, keeps_open=True, answer_timeout=60) for portal in portals]
        await gatherResults([caller.greeted for caller in standing])
        self.write(NODE_PORT + 1, NEXT_BALANCER, sessionAffinity="ClientIP", externalIPs=[])
        for version in BOTH:
            await self.follow(version, before[version])
        self.assertEqual(await self.sockets(), before)
        for caller in standing:
            caller.finish()
        answers = await gatherResults([caller.answered for caller in standing])
        problems = {portal: answer.problem for portal, answer in zip(portals, answers, strict=True)}
        self.assertEqual(problems, dict.fromkeys(portals, ""))

    async def sockets(self) -> Mapping[int, tuple[int, str] | None]:
        """Return the proxy port of the Service in each family, and the kernel's socket for it;
        ``None`` if the kernel carries it.
        """
        _, body = await self.proxy.get("/services")
        ports = {each["version"]: each["proxy_port"] for each in json.loads(body)}
        return {
            version: ports[version] and self.socket(version, ports[version]) for version in BOTH
        }

    def socket(self, version: int, number: int) -> tuple[int, str]:
        """Return a listening port, and the kernel's number of the socket."""
        lines = run("ss", "-Htlne", f"-{version}", f"sport = :{number}")
        [inode] = re.findall(r"\bino:(\d+)", lines)
        return number, inode

    async def follow(self, version: int, socket: tuple[int, str] | None) -> None:
        """Wait until exactly the current portals lead to the Service."""
        cluster, node = self.objects.address("web", version), address("clients", NODE, version)
        served = [(cluster, 80), (NEXT_BALANCER[version], 80), (node, NODE_PORT + 1)]
        others = [(SPARE_ADDRESS[version], 80), (BALANCER[version], 80), (node, NODE_PORT)]

        async def are_as_expected() -> bool:
            calls = [self.call(*portal, answer_timeout=1.0) for portal in (*served, *others)]
            answers = await gatherResults(map(Deferred.fromCoroutine, calls))
            return [bool(each.endpoint) for each in answers] == [True] * 3 + [False] * 3

        await self.eventually(are_as_expected, f"{served} are served, and {others} are not")

        async def is_unchanged() -> bool:
            return len(spread(await self.calls(20, cluster, answer_timeout=1.0))) == 1

        await self.eventually(is_unchanged, "clients keep their endpoints")

    def write(
        self, node_port: int, balancer: Mapping[int, str] = BALANCER, **changes: object
    ) -> None:
        """Write the Service."""
        ingress = [{"ip": text} for text in balancer.values()]
        spec = {"type": "LoadBalancer", "externalIPs": list(SPARE_ADDRESS.values()), **changes}
        self.objects.service(
            "web",
            port(80, name="http", node=node_port),
            status={"loadBalancer": {"ingress": ingress}},
            **spec,
        )
        self.objects.endpoints("web", *REMOTE)


class IptablesRules(Changes):
    """The tests; subclasses choose the firewall."""

    backend = "iptables"

    async def test_rules_of_each_portal(self) -> None:
        """A Service with a cluster IP, an external IP, a load-balancer IP and a node port has the
        rules of each, in both families; deleted, it has none.
        """
        await self.start()
        empty = {version: self.rules(version) for version in BOTH}
        self.write(NODE_PORT)
        for version in BOTH:
            proxy_port = await self.proxy_port(version)
            await self.rules_follow(version, proxy_port, NODE_PORT)
            self.assertIn(f":{proxy_port} ", run("ss", "-Htln", f"-{version}"))
            self.jumps(version)
        self.objects.remove("web")
        await self.eventually(
            lambda: {version: self.rules(version) for version in BOTH} == empty, "no rule is left"
        )
        self.assertEqual([empty[version] for version in BOTH], [[], []])
        await self.eventually(
            lambda: f":{proxy_port} " not in run("ss", "-Htln"), "the port is closed"
        )

    async def follow(self, version: int, socket: tuple[int, str] | None) -> None:
        """Require the exact rules, too."""
        self.assertIsNotNone(socket)
        await super().follow(version, socket)
        await self.rules_follow(
            version, socket[0], NODE_PORT + 1, external=False, balancer=NEXT_BALANCER
        )

    def rules(self, version: int) -> list[Rule]:
        """Return the rules of the proxy's chains."""
        lines = [*self.saved(version), *self.saved(version, "filter")]
        return sorted(read(line) for line in lines if line.startswith("-A KUBE-"))

    async def rules_follow(self, version: int, *values: int, **how: object) -> None:
        """Wait until the rules are the :meth:`expected` ones; show the differences if they are not.

        Each table of each family is written separately, and a Service may be seen before its
        status.
        """
        expected = self.expected(version, *values, **how)
        with contextlib.suppress(self.failureException):
            await self.eventually(lambda: self.rules(version) == expected, "", interval=0.1)
        self.assertEqual(self.rules(version), expected)

    async def proxy_port(self, version: int) -> int:
        """Wait until rules redirect to a port, and return it."""
        [port] = await self.eventually(lambda: self.proxy_ports(version), "the rules are there")
        return port

    def proxy_ports(self, version: int) -> set[int]:
        """Return the ports that rules redirect to."""
        words = [line.split() for line in self.saved(version) if "--to-ports" in line]
        return {int(each[each.index("--to-ports") + 1]) for each in words}

    def expected(
        self,
        version: int,
        proxy_port: int,
        node_port: int,
        external: bool = True,
        balancer: Mapping[int, str] = BALANCER,
    ) -> list[Rule]:
        """Return the rules of reference 5.3."""
        prefix = {4: 32, 6: 128}[version]
        host = address("outside", NODE, version)
        if version == 6:
            host = f"[{host}]"
        redirect = f"-j REDIRECT --to-ports {proxy_port}"
        translate = f"-j DNAT --to-destination {host}:{proxy_port}"
        common = f'-p tcp -m comment --comment "{NAME}" -m tcp --dport'
        here = "-m addrtype --dst-type LOCAL"
        lines = [
            f"-A KUBE-NODEPORT-CONTAINER {common} {node_port} {redirect}",
            f"-A KUBE-NODEPORT-HOST {common} {node_port} {translate}",
            f"-A KUBE-NODEPORT-NON-LOCAL {common} {proxy_port} -m state --state NEW -j ACCEPT",
        ]
        for portal in (self.objects.address("web", version), balancer[version]):
            to = f"-d {portal}/{prefix} {common} 80"
            lines.append(f"-A KUBE-PORTALS-CONTAINER {to} {redirect}")
            lines.append(f"-A KUBE-PORTALS-HOST {to} {translate}")
        if external:
            to = f"-d {SPARE_ADDRESS[version]}/{prefix} {common} 80"
            bridged = "-m physdev ! --physdev-is-in"
            lines.append(f"-A KUBE-PORTALS-CONTAINER {to} {bridged} {redirect}")
            lines.append(f"-A KUBE-PORTALS-CONTAINER {to} {here} {redirect}")
            lines.append(f"-A KUBE-PORTALS-HOST {to} {here} {translate}")
        return sorted(map(read, lines))

    def jumps(self, version: int) -> None:
        """Require the jumps to the chains, from the right chains and in order."""
        nat, filtering = self.saved(version), self.saved(version, "filter")
        for chain, kind in (("PREROUTING", "CONTAINER"), ("OUTPUT", "HOST")):
            self.assertEqual(
                _in(nat, chain),
                [
                    read(f'-A {chain} -m comment --comment "{FIRST}" -j KUBE-PORTALS-{kind}'),
                    read(
                        f"-A {chain} -m addrtype --dst-type LOCAL -m comment"
                        f' --comment "{LAST}" -j KUBE-NODEPORT-{kind}'
                    ),
                ],
            )
        jump = f'-A INPUT -m comment --comment "{FILTER}" -j KUBE-NODEPORT-NON-LOCAL'
        self.assertEqual(_in(filtering, "INPUT").count(read(jump)), 1)


def _in(lines: Sequence[str], chain: str) -> list[Rule]:
    return [read(line) for line in lines if line.startswith(f"-A {chain} ")]


class NftTests(IptablesRules, ProxyTestCase):
    """iptables on nf_tables."""


class LegacyTests(Legacy, IptablesRules, ProxyTestCase):
    """legacy iptables."""


class NftablesTests(Nftables, Changes, ProxyTestCase):
    """User mode, with native nftables."""


class KernelTests(KernelMode, Changes, ProxyTestCase):
    """Kernel mode."""
