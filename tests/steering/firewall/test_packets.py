"""Tests of where the kernel sends real connections with our rules."""

from __future__ import annotations

import select
import shutil
import socket
from dataclasses import replace
from ipaddress import ip_address

from twisted.internet import reactor
from twisted.trial.unittest import SkipTest, TestCase

from tests.e2e.network.namespaces import run
from tests.steering.firewall.machines import BASES, use_own_lock
from tests.steering.firewall.networks import Networks
from yurttunnel.ops.programs import Programs
from yurttunnel.steering.firewall import rules as rules_module
from yurttunnel.steering.firewall.tables import BackEnd
from yurttunnel.steering.firewall.tunnel import Iptables
from yurttunnel.steering.interception import Interception, Match, Target
from yurttunnel.steering.marks import MARK

OWN, BRIDGE, CLOUD, EDGE, THIRD = range(5)
ADDRESSES = {
    4: ("172.16.1.199", "172.17.0.1", "172.16.1.20", "192.168.7.1", "203.0.113.5"),
    6: ("fd00::199", "fd17::1", "fd00::20", "fd07::1", "fd99::5"),
}
LOOPBACK = {4: "127.0.0.53", 6: "::1"}
PODS = {4: ("10.9.0.1", "10.9.0.2"), 6: ("fd09::1", "fd09::2")}
NODES = {4: ("10.8.0.1", "10.8.0.2"), 6: ("fd08::1", "fd08::2")}
KUBELET, OTHER, TUNNEL = 10250, 10251, 10263
SET = "YURTTUNNEL-EDGE"
SO_MARK = 36


class PacketsContract(Networks):
    """A machine with two addresses, and a network behind it with the addresses of all other nodes.

    Both have listeners on the intercepted port. An edge node also reports the second address of the
    machine as its own. A pod in a separate network has a route to the machine.
    """

    def setUp(self):
        """Make both."""
        self.prefix = f"{BASES[self.version]}-{self.back_end}"
        if shutil.which(self.prefix) is None or shutil.which("ipset") is None:
            raise SkipTest(f"{self.prefix} or ipset is not installed")
        use_own_lock(self)
        addresses = ADDRESSES[self.version]
        self.desired = Interception(
            self.version,
            Match.CLOUD_RETURN,
            frozenset({ip_address(addresses[EDGE]), ip_address(addresses[BRIDGE])}),
            frozenset({ip_address(addresses[OWN]), ip_address(addresses[CLOUD])}),
            {KUBELET: Target(ip_address(addresses[OWN]), TUNNEL)},
        )
        self.enter()
        self.add(addresses[:CLOUD])
        inet = "inet" if self.version == 4 else "inet6"
        run(*f"ipset create {SET} hash:ip family {inet}".split())
        for address in (addresses[EDGE], addresses[BRIDGE]):
            run(*f"ipset add {SET} {address}".split())
        self.tunnel = self.listen(TUNNEL)
        with self.neighbour("nodes", *NODES[self.version]):
            self.add(addresses[CLOUD:])
            nodes = [self.listen(KUBELET), self.listen(OTHER)]
        self.direct = [self.listen(KUBELET), *nodes]
        for address in addresses[CLOUD:]:
            run("ip", "route", "add", address, "via", NODES[self.version][1])
        self.firewall = Iptables(
            Programs(reactor), BackEnd(self.version, self.back_end, self.prefix)
        )

    def way(self, address, port=KUBELET, *, mark=0, client=None):
        """Return the path of a new connection: ``tunnel`` or ``direct``."""
        client = client or self.socket()
        if mark:
            client.setsockopt(socket.SOL_SOCKET, SO_MARK, mark)
        client.connect((address, port))
        (took,), _, _ = select.select([self.tunnel, *self.direct], [], [], 20)
        connection, _ = took.accept()
        connection.close()
        return "tunnel" if took is self.tunnel else "direct"

    async def check(self, desired, third):
        """Apply rules, and check all paths; ``third`` is that of a host that is not a node."""
        await self.firewall.apply(desired, SET)
        addresses = ADDRESSES[self.version]
        found = [self.way(address) for address in addresses]
        self.assertEqual(["direct", "direct", "direct", "tunnel", third], found)
        self.assertEqual("direct", self.way(LOOPBACK[self.version]))
        self.assertEqual("direct", self.way(addresses[EDGE], OTHER))
        self.assertEqual("direct", self.way(addresses[EDGE], mark=MARK))
        self.assertEqual("direct", self.way(addresses[EDGE], mark=MARK | 0x4000))
        self.assertEqual("tunnel", self.way(addresses[EDGE], mark=0x4000))

    async def test_edge_set(self):
        """With a set only its addresses are redirected; a third host's are not (F3)."""
        await self.check(replace(self.desired, match=Match.EDGE_SET), "direct")

    async def test_cloud_return(self):
        """Without one, all are redirected except those to loopback and cloud nodes."""
        await self.check(self.desired, "tunnel")

    async def test_many_cloud_nodes(self):
        """The structure for many nodes redirects the same connections."""
        self.patch(rules_module, "MAX_RETURNS_BY_PORT", 0)
        await self.check(self.desired, "tunnel")

    async def test_every_address(self):
        """A listener on all addresses is reached at any of them."""
        ports = {KUBELET: Target(None, TUNNEL)}
        await self.check(replace(self.desired, ports=ports), "tunnel")

    async def test_removed(self):
        """Without rules all connections are direct."""
        await self.firewall.apply(self.desired, None)
        await self.firewall.remove()
        self.assertEqual("direct", self.way(ADDRESSES[self.version][EDGE]))

    async def test_pods(self):
        """Forwarded connections are redirected if requested, with every structure."""
        with self.neighbour("pods", *PODS[self.version]):
            pod = [self.socket() for _ in range(18)]
        leads = {KUBELET: Target(None, TUNNEL)}
        addresses = ADDRESSES[self.version]
        for match, most, third in (
            (Match.EDGE_SET, 0, "direct"),
            (Match.CLOUD_RETURN, 5000, "tunnel"),
            (Match.CLOUD_RETURN, 0, "tunnel"),
        ):
            self.patch(rules_module, "MAX_RETURNS_BY_PORT", most)
            desired = replace(self.desired, match=match)
            await self.firewall.apply(desired, SET)
            self.assertEqual("direct", self.way(addresses[EDGE], client=pod.pop()))
            await self.firewall.apply(replace(desired, pod_ports=leads), SET)
            found = [self.way(address, client=pod.pop()) for address in addresses]
            self.assertEqual(["direct", "direct", "direct", "tunnel", third], found)


class NftIPv4Tests(PacketsContract, TestCase):
    """The newer back end."""

    version, back_end = 4, "nft"


class NftIPv6Tests(PacketsContract, TestCase):
    """The newer back end."""

    version, back_end = 6, "nft"


class LegacyIPv4Tests(PacketsContract, TestCase):
    """The older back end."""

    version, back_end = 4, "legacy"


class LegacyIPv6Tests(PacketsContract, TestCase):
    """The older back end."""

    version, back_end = 6, "legacy"
