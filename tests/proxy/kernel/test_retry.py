"""Tests of dead endpoints: the kernel sends clients to others, with real packets."""

from __future__ import annotations

import re
import socket
import time
from collections import Counter
from ipaddress import ip_network
from pathlib import Path

from twisted.internet.defer import DeferredList
from twisted.internet.error import ConnectionRefusedError
from twisted.trial.unittest import SkipTest

from tests.proxy.kernel.lab import CLUSTER, NODE, PORT, Flow, connect
from tests.proxy.kernel.support import FAMILY, HOSTS, KernelTestCase, most_retransmissions
from tests.waiting import until
from yurttunnel.proxy.kernel import ejections
from yurttunnel.proxy.rules.nftables.table import FAMILIES
from yurttunnel.proxy.rules.nftables.tables import Networks
from yurttunnel.proxy.state.virtual_services import Endpoint, Portal, PortalKind, Protocol

NARROW = 1400
"""The maximum size of a packet on a narrow path, in bytes."""

PATH_MTU = {4: (socket.IPPROTO_IP, 14), 6: (socket.IPPROTO_IPV6, 24)}
"""The level, and ``IP_MTU`` of linux/in.h and of linux/in6.h."""

BRIDGED = {4: "bridge-nf-call-iptables", 6: "bridge-nf-call-ip6tables"}
"""The setting by which rules see bridged packets."""

_POLICY = """
table inet network-policy {{
    chain {hook} {{
        type filter hook {hook} priority filter;
        {family} daddr {endpoint} {verdict}
    }}
}}
"""
"""A firewall of the node that blocks one endpoint."""


class NodePorts:
    """Clients of node ports."""

    async def test_clients_seen_as_the_node(self):
        """Clients of a node port, whose addresses are replaced, are sent elsewhere like others."""
        self.serve(0)
        self.lab.drop(1)
        node_port = Portal(PortalKind.NODE_PORT, None, 30080)
        await self.apply(self.service(numbers=[0, 1], portals=(node_port,)))
        host = NODE[self.version]
        await self.clients_are_soon_served(host=host, port=30080)
        self.assertTrue(self.mode.ejections.is_ejected(*self.target(1)))


class Retry(NodePorts):
    """Dead endpoints, by the version of IP."""

    async def all_are_served(self, by):
        """Require that clients are connected in time, and later ones at once."""
        found = await self.clients_are_soon_served()
        self.assertEqual(by, {each.server for each in found})
        found = await self.clients(24, CLUSTER[self.version])
        self.assertEqual(0, most_retransmissions(found))

    async def test_two_of_three_dead(self):
        """One refuses, and one drops packets."""
        self.serve(0)
        self.lab.drop(1)
        await self.apply(self.service())
        await self.all_are_served({"0"})

    async def test_two_black_holes(self):
        """Both are detected before any client retries."""
        self.serve(0)
        self.lab.drop(1)
        self.lab.drop(2)
        await self.apply(self.service())
        await self.all_are_served({"0"})

    async def test_a_black_hole_is_replaced(self):
        """Clients of a removed endpoint that drops packets are sent elsewhere."""
        self.serve(0)
        self.lab.drop(1)
        await self.apply(self.service(numbers=[1]))
        sent = 0

        def all_have_tried():
            nonlocal sent
            sent += self.lab.attempts()
            return sent >= 24

        async def replace():
            await until(all_have_tried)
            await self.apply(self.service(numbers=[0]))

        found = await self.clients_are_soon_served(then=replace)
        self.assertEqual({"0"}, {each.server for each in found})

    async def test_during_a_change(self):
        """A client whose packet meets a deleted map is served by the following rules."""
        self.serve(0)
        family = FAMILIES[self.version]
        for affinity in (None, 60.0):
            proxied = self.service(numbers=[0], affinity=affinity)
            await self.apply(proxied)
            listed = self.lab.node.run("nft", "-a", "list", "table", family, "yurtproxy")
            (choice,) = (line for line in listed.splitlines() if "numgen random" in line)
            rule, _, handle = choice.strip().partition(" # handle ")
            # Without its digest as a comment the rule is written again.
            rule, _, _ = rule.partition(" comment ")
            (name,) = re.findall(r"chain (svc-\S+) {[^}]*numgen random", listed)
            # The map contains no number now.
            empty = rule.replace("numgen random mod 1", "numgen random mod 1 offset 1")
            where = f"{family} yurtproxy {name}"
            self.lab.node.run("nft", f"replace rule {where} handle {handle} {empty}")
            self.lab.attempts()

            async def repair(proxied=proxied):
                await until(self.lab.attempts)
                await self.apply(proxied)

            await self.clients_are_soon_served(then=repair)

    async def test_refusal_by_icmp(self):
        """No client sees the refusal by a firewall in front of an endpoint."""
        self.serve(0)
        self.lab.refuse(1)
        await self.apply(self.service(numbers=[0, 1]))
        await self.all_are_served({"0"})

    async def test_with_affinity(self):
        """A client whose endpoint dies gets another, and keeps it."""
        ports = self.serve_all()
        await self.apply(self.service(affinity=60.0))
        ((first, _),) = Counter(
            each.server for each in await self.clients(6, CLUSTER[self.version])
        ).items()
        await ports[int(first)].stopListening()
        found = await self.clients_are_soon_served()
        self.assertEqual(1, len({each.server for each in found}))

    async def test_programs_of_the_node(self):
        """Programs of the node are clients like others."""
        self.serve(0)
        await self.apply(self.service())
        await self.clients_are_soon_served(self.lab.node)

    async def test_an_endpoint_of_the_node(self):
        """An endpoint in the node's own network that refuses is ejected for all clients."""
        self.serve(0)
        own = Endpoint(HOSTS[self.version], PORT)
        for inside in (self.lab.client, self.lab.node):
            await self.apply(self.service(numbers=[0], others=[own]))
            await self.clients_are_soon_served(inside)
            self.assertTrue(self.mode.ejections.is_ejected(Protocol.TCP, own))
            await self.apply(self.service(numbers=[0]))

    async def test_a_firewall_of_the_node(self):
        """A client that the node's firewall blocks is refused at once; others are served."""
        self.serve_all()
        await self.apply(self.service())
        for hook, inside in (("forward", self.lab.client), ("output", self.lab.node)):
            self.forbid(hook, "reject with tcp reset")
            clients = [connect(inside, CLUSTER[self.version], 80) for _ in range(24)]
            results = await DeferredList(clients, consumeErrors=True)
            refused = {each.type for is_served, each in results if not is_served}
            self.assertEqual({ConnectionRefusedError}, refused)
            found = [each for is_served, each in results if is_served]
            self.assertEqual({"0", "2"}, {each.server for each in found})
            self.assertEqual(0, most_retransmissions(found))
            if hook == "forward":
                # The other one blocks probes of this machine as well.
                await self.log_is_read()
                self.assertFalse(self.mode.ejections.is_ejected(*self.target(1)))
            self.lab.node.run("nft", "delete", "table", "inet", "network-policy")

    async def test_a_firewall_that_refuses_by_icmp(self):
        """An endpoint stays in use for others also if the firewall rejects by ICMP."""
        self.serve_all()
        await self.apply(self.service())
        for reason in ("port-unreachable", "host-unreachable", "admin-prohibited"):
            self.forbid("forward", f"reject with icmpx {reason}")
            clients = [connect(self.lab.client, CLUSTER[self.version], 80) for _ in range(24)]
            # Some kernels do not know by then whom to notify.
            await DeferredList(clients, consumeErrors=True)
            await self.log_is_read()
            self.assertFalse(self.mode.ejections.is_ejected(*self.target(1)), reason)
            self.lab.node.run("nft", "delete", "table", "inet", "network-policy")

    def forbid(self, hook, verdict):
        """Have the node block packets to endpoint 1 at one hook."""
        endpoint = self.lab.address(1, self.version).address
        family = FAMILIES[self.version]
        policy = _POLICY.format(hook=hook, family=family, endpoint=endpoint, verdict=verdict)
        self.lab.node.run("nft", "-f", "-", stdin=policy)

    async def test_all_dead(self):
        """If all endpoints refuse, so are clients once that is known: by their second packet."""
        await self.apply(self.service())
        begun = time.monotonic()
        await self.is_refused()
        late = int(max(0.0, self.last_job - begun))
        self.assertLessEqual(self.lab.attempts(), 2 + late)

    async def test_all_silent(self):
        """If all are silent, clients get no answer and retry. They are served soon after one
        endpoint is back, wherever their packets were sent before.
        """
        self.patch(
            ejections, "MAX_SECONDS", ejections.FIRST_SECONDS
        )  # The pause between two probes.
        self.serve(0)

        async def live():
            self.lab.endpoints[0].run("nft", "delete", "table", "inet", "hole")
            await until(lambda: not self.mode.ejections.is_ejected(*self.target(0)))

        self.assertEqual({"0"}, await self.who_serves_at_last(live))

    async def test_all_silent_until_there_is_another(self):
        """A new endpoint serves clients of silent ones, which still belong to the Service."""
        self.serve(2)

        async def live():
            await self.apply(self.service())

        self.assertEqual({"2"}, await self.who_serves_at_last(live))

    async def who_serves_at_last(self, live):
        """Have clients connect to two silent endpoints, before and after that is detected; then
        make one ``live``, and return which endpoints have served them.
        """
        for number in (0, 1):
            self.lab.drop(number)
        await self.apply(self.service(numbers=[0, 1]))
        first = self.clients(24, CLUSTER[self.version])
        known, targets = self.mode.ejections, [self.target(0), self.target(1)]
        await until(lambda: all(known.is_ejected(*each) for each in targets))
        await until(lambda: not any(known.is_in_doubt(*each) for each in targets))

        async def live_amid_attempts():
            await self.log_is_read()
            self.assertFalse(first.called)
            await live()

        then = await self.clients_are_soon_served(then=live_amid_attempts)
        return {each.server for each in (*then, *await first)}

    async def test_one_endpoint(self):
        """The refusal of a single endpoint reaches the client at once."""
        await self.apply(self.service(numbers=[0]))
        await self.is_refused()
        self.assertEqual(1, self.lab.attempts())

    async def test_return(self):
        """An endpoint that listens again is used again."""
        self.serve(0)
        await self.apply(self.service(numbers=[0, 1]))
        await self.all_are_served({"0"})
        self.assertTrue(self.mode.ejections.is_ejected(*self.target(1)))
        self.serve(1)
        await until(lambda: not self.mode.ejections.is_ejected(*self.target(1)))
        await self.until_served_by({"0", "1"})

    async def test_udp(self):
        """Datagrams to a port without a listener go elsewhere, and the client gets no error."""
        self.answer_datagrams()
        await self.apply(self.service(numbers=[0, 1], protocol=Protocol.UDP))
        found = await self.resolve(10)
        self.assertEqual([0] * 10, [each.refusals for each in found])

    async def test_too_big(self):
        """The client learns that its packets are too big, which is no failure of the endpoint."""
        endpoints = [self.lab.address(number, self.version) for number in (0, 1)]
        for number in (0, 1):
            self.lab.drop(number)
        await self.apply(self.service(numbers=[0, 1], protocol=Protocol.UDP))
        with self.lab.client.inside():
            client = socket.socket(FAMILY[self.version], socket.SOCK_DGRAM)
        self.addCleanup(client.close)
        client.connect((CLUSTER[self.version], 80))
        client.send(b"?")
        level, mtu = PATH_MTU[self.version]

        def is_told():
            for each in endpoints:
                self.lab.tell_too_big(2, client.getsockname()[:2], each, NARROW)
            return client.getsockopt(level, mtu) == NARROW

        await until(is_told)
        await self.log_is_read()
        for each in endpoints:
            self.assertFalse(self.mode.ejections.is_ejected(Protocol.UDP, each))

    async def test_no_route(self):
        """An endpoint without a route is ejected, and the client gets no error."""
        self.serve(0)
        there = str(self.lab.address(1, self.version).address)
        self.lab.node.run("ip", f"-{self.version}", "route", "add", "unreachable", there)
        await self.apply(self.service(numbers=[0, 1]))
        await self.all_are_served({"0"})
        self.assertTrue(self.mode.ejections.is_ejected(*self.target(1)))

    async def test_flows_begun_without_a_process(self):
        """A long UDP flow is sent elsewhere by a process that starts later."""
        self.answer_datagrams()
        with self.lab.endpoints[1].inside():
            # Otherwise a machine limits the errors to one host (RFC 1812, 4.3.2.8).
            for setting in ("ipv4/icmp_ratelimit", "ipv6/icmp/ratelimit"):
                Path("/proc/sys/net", setting).write_text("0")
        proxied = self.service(numbers=[0, 1], protocol=Protocol.UDP)
        await self.apply(proxied)
        await self.mode.stopService()
        flows = [Flow(self.lab.client, CLUSTER[self.version]) for _ in range(20)]
        for each in flows:
            self.addCleanup(each.close)

        def all_are_told():
            statuses = [each.ask() for each in flows]
            return all(statuses)

        await until(all_are_told)
        self.assertIn(False, [each.is_answered for each in flows])
        self.mode = self.new()
        self.mode.startService()
        await self.apply(proxied)
        await until(lambda: all_are_told() and all(each.is_answered for each in flows))

    async def test_the_end_of_the_process(self):
        """The remaining rules eject no endpoint, and pass refusals to clients."""
        self.serve(0)
        await self.apply(self.service(numbers=[0, 1]))
        await self.all_are_served({"0"})
        await self.mode.stopService()
        listed = self.listed()
        self.assertNotIn("watch", listed)
        self.assertIn("numgen random mod 2", listed)


class RetryTests(Retry, KernelTestCase):
    """IPv4."""


class RetryIPv6Tests(Retry, KernelTestCase):
    """IPv6."""

    version = 6


class NodePortFamilyTests(NodePorts, KernelTestCase):
    """Node ports are in the given IPv4 networks, and at all IPv6 addresses."""

    version = 6
    networks = Networks((ip_network("10.5.0.0/24"),))


class Bridge:
    """Pods on one bridge of the node, as with CNI bridge plugins."""

    bridged = True

    async def test_a_pod_that_refuses_another(self):
        """The rules see a refusal that is bridged."""
        setting = Path("/proc/sys/net/bridge", BRIDGED[self.version])
        if not setting.exists():
            raise SkipTest("this kernel has no br_netfilter")
        setting.write_text("1")
        self.serve(0)
        await self.apply(self.service(numbers=[0, 1]))
        await self.clients_are_soon_served(self.lab.endpoints[2])
        self.assertTrue(self.mode.ejections.is_ejected(*self.target(1)))


class BridgeTests(Bridge, KernelTestCase):
    """IPv4."""


class BridgeIPv6Tests(Bridge, KernelTestCase):
    """IPv6."""

    version = 6
