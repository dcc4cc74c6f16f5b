"""The contract of a firewall for the manager, for the fake and for the kernel's."""

from __future__ import annotations

from dataclasses import replace

from twisted.internet import reactor
from twisted.trial.unittest import TestCase

from tests.steering.fake_firewall import FakeFirewall
from tests.steering.fakes import FakeAddressSets
from tests.steering.firewall.machines import RealMachine
from tests.steering.manager_support import EDGE4, INSECURE, SECURE, addresses
from tests.steering.netlink.support import run_at_once
from yurttunnel.steering.failures import SteeringFailed
from yurttunnel.steering.firewall.tables import BackEnd
from yurttunnel.steering.firewall.tunnel import Iptables
from yurttunnel.steering.interception import Interception, Match
from yurttunnel.steering.netlink.address_sets import AddressSets

CLOUD_RETURN = Interception(
    4,
    Match.CLOUD_RETURN,
    addresses("192.168.0.1"),
    addresses("10.0.0.1"),
    {10250: SECURE, 10255: INSECURE},
)
EDGE_SET = replace(CLOUD_RETURN, match=Match.EDGE_SET)


class FirewallContract:
    """Tests; a test case has ``firewall`` and ``sets``, and overrides :meth:`lose_port`."""

    def lose_port(self):
        """Have another program remove the rules of port 10250."""
        raise NotImplementedError

    async def test_unchanged(self):
        """New rules do not differ a second time."""
        applied = await self.firewall.apply(CLOUD_RETURN, None)
        self.assertTrue(applied.differences)
        self.assertEqual(frozenset(), applied.former_ports)
        applied = await self.firewall.apply(CLOUD_RETURN, None)
        self.assertEqual(((), {10250, 10255}), (applied.differences, applied.former_ports))

    async def test_changes(self):
        """Each part of the desired state makes a difference, and removed ports are returned."""
        await self.firewall.apply(CLOUD_RETURN, None)
        for changes in (
            {"cloud": addresses("10.0.0.1", "10.0.0.2")},
            {"ports": {10250: INSECURE, 10255: INSECURE}},
            {"ports": {10250: SECURE}},
            {"ports": {}, "pod_ports": {10255: SECURE}},
        ):
            applied = await self.firewall.apply(replace(CLOUD_RETURN, **changes), None)
            self.assertTrue(applied.differences, changes)
        self.assertEqual({10250}, applied.former_ports)

    async def test_edge_is_in_set(self):
        """With sets, the rules are the same for any nodes."""
        await self.sets.put(EDGE4, 4, EDGE_SET.edge)
        self.assertTrue((await self.firewall.apply(EDGE_SET, EDGE4)).differences)
        changed = replace(EDGE_SET, edge=addresses("192.168.0.2"), cloud=addresses("10.0.0.2"))
        self.assertEqual((), (await self.firewall.apply(changed, EDGE4)).differences)

    async def test_set_in_use(self):
        """A set stays as long as rules refer to it."""
        await self.sets.put(EDGE4, 4, EDGE_SET.edge)
        await self.firewall.apply(EDGE_SET, EDGE4)
        with self.assertRaises(SteeringFailed):
            await self.sets.remove(EDGE4)
        await self.firewall.apply(CLOUD_RETURN, None)
        self.assertTrue(await self.sets.remove(EDGE4))

    async def test_nothing(self):
        """If nothing is desired, nothing remains."""
        await self.firewall.apply(CLOUD_RETURN, None)
        nothing = replace(CLOUD_RETURN, edge=frozenset())
        applied = await self.firewall.apply(nothing, None)
        self.assertTrue(applied.differences)
        self.assertEqual({10250, 10255}, applied.former_ports)
        self.assertFalse(await self.firewall.remove())

    async def test_remove(self):
        """The result of a removal is whether there was anything."""
        self.assertFalse(await self.firewall.remove())
        await self.firewall.apply(CLOUD_RETURN, None)
        self.assertTrue(await self.firewall.remove())
        self.assertFalse(await self.firewall.remove())

    async def test_disturbed(self):
        """What another program removed differs, and is restored."""
        await self.firewall.apply(CLOUD_RETURN, None)
        self.lose_port()
        self.assertTrue((await self.firewall.apply(CLOUD_RETURN, None)).differences)
        self.assertEqual((), (await self.firewall.apply(CLOUD_RETURN, None)).differences)


class FakeFirewallTests(FirewallContract, TestCase):
    """The fake."""

    def setUp(self):
        """Make it."""
        self.sets = FakeAddressSets()
        self.firewall = FakeFirewall(4, self.sets, [])

    def lose_port(self):
        """Remove the rules of the port."""
        del self.firewall.rules[10250]


class RealFirewallTests(FirewallContract, TestCase):
    """The kernel's, in its own network namespace."""

    def setUp(self):
        """Enter the namespace."""
        self.machine = RealMachine(4, "nft")
        self.addCleanup(self.machine.close)
        self.sets = AddressSets(run_at_once, reactor)
        back_end = BackEnd(4, "nft", self.machine.prefix)
        self.firewall = Iptables(self.machine.programs, back_end)

    def lose_port(self):
        """Remove the rules of the port."""
        self.machine.iptables("-t nat -F TUNNEL-PORT-10250")
