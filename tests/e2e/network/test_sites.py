"""The simulated network has the documented properties."""

from __future__ import annotations

import os

from twisted.internet import reactor
from twisted.internet.utils import getProcessOutputAndValue
from twisted.trial.unittest import SynchronousTestCase, TestCase

from tests.e2e.network.sites import Sites
from tests.e2e.network.witness import start_witness
from tests.e2e.support import which

PORT = 10250


class SitesTests(TestCase):
    """Reachability."""

    def setUp(self) -> None:
        """Start servers on all addresses."""
        self.network = Sites()
        self.addCleanup(self.network.close)
        for machine, addresses in self.network.addresses.items():
            for address in addresses:
                start_witness(self, reactor, self.network, machine, address, PORT)

    async def ask(self, machine: str, address: str, port: int = PORT) -> str | None:
        """Return the response of an address to a program on a machine; empty if it is refused."""
        host = f"[{address}]" if ":" in address else address
        options = ("--silent", "--max-time", "20", f"http://{host}:{port}/")
        with self.network.inside(machine):
            asked = getProcessOutputAndValue(which("curl"), options, reactor=reactor)
        out, _, status = await asked
        return out.decode() if status == 0 else None

    async def test_machines_of_the_cloud_reach_each_other(self) -> None:
        """They reach each other in both families, and see the client's address."""
        for address in self.network.addresses["cloud-2"]:
            mine = next(
                a for a in self.network.addresses["other"] if (":" in a) == (":" in address)
            )
            self.assertEqual(await self.ask("other", address), f"cloud-2 {mine}")

    async def test_site_reaches_the_cloud_as_its_gateway(self) -> None:
        """A machine behind NAT reaches the cloud, which sees the gateway."""
        for address, gateway in (("10.77.0.21", "10.77.0.254"), ("fd77::21", "fd77::254")):
            self.assertEqual(await self.ask("edge-1", address), f"cloud {gateway}")

    async def test_cloud_does_not_reach_the_site(self) -> None:
        """Connections from the cloud to a machine behind NAT are refused; those of its neighbor are
        not."""
        for address in self.network.addresses["edge-2"]:
            for machine in ("cloud", "cloud-2", "other"):
                self.assertIsNone(await self.ask(machine, address), machine)
            mine = next(
                a for a in self.network.addresses["edge-1"] if (":" in a) == (":" in address)
            )
            self.assertEqual(await self.ask("edge-1", address), f"edge-2 {mine}")

    async def test_sheltered_machine(self) -> None:
        """It reaches the cloud with its router's address, which forwards one port only."""
        outside = self.network.add_nat_machine("home", "other", PORT + 1)
        self.assertEqual("10.77.0.61", outside)
        for port in (PORT, PORT + 1):
            start_witness(self, reactor, self.network, "home", "192.168.1.2", port)
        self.assertEqual(await self.ask("home", "10.77.0.51"), f"cloud-2 {outside}")
        self.assertEqual(await self.ask("edge-1", outside, PORT + 1), "home 10.77.0.254")
        self.assertEqual(await self.ask("cloud-2", outside), "other 10.77.0.51")
        self.network.run("cloud-2", "ip", "route", "add", "192.168.1.0/24", "via", outside)
        self.assertIsNone(await self.ask("cloud-2", "192.168.1.2"))


class EndingTests(SynchronousTestCase):
    """Cleanup."""

    def test_two_networks_at_a_time(self) -> None:
        """They are separate, and after one the previous namespace is restored."""
        before = os.readlink("/proc/thread-self/ns/net")
        first = Sites()
        self.addCleanup(first.close)
        inside = os.readlink("/proc/thread-self/ns/net")
        descriptors = len(os.listdir("/proc/self/fd"))
        second = Sites()
        first.run("other", "ip", "address", "add", "192.0.2.1/32", "dev", "lo")
        self.assertNotIn("192.0.2.1", second.run("other", "ip", "address"))
        second.close()
        self.assertEqual(os.readlink("/proc/thread-self/ns/net"), inside)
        self.assertEqual(len(os.listdir("/proc/self/fd")), descriptors)
        self.assertNotEqual(inside, before)
