"""Tests that clients with affinity keep their endpoint while they return in time."""

from __future__ import annotations

from twisted.internet import reactor
from twisted.internet.defer import Deferred, gatherResults, maybeDeferred

from tests.e2e.proxy.network import CLIENT, FIRST_POD, LAST_POD, OTHER_CLIENT, address
from tests.e2e.proxy.objects import BOTH, Pod
from tests.e2e.proxy.support import (
    LOCAL,
    REMOTE,
    KernelMode,
    Legacy,
    Nftables,
    ProxyTestCase,
    spread,
)

PODS = (*REMOTE, *LOCAL)
SHORT, LONG = 1, 3600

IDLE = (CLIENT, OTHER_CLIENT, *range(FIRST_POD, LAST_POD))
WITNESS = LAST_POD
"""Clients: those that do nothing while the timeout becomes shorter, and one that detects when."""


class Affinity:
    """The test; subclasses choose the mode and the back end."""

    async def test_client_keeps_its_endpoint(self) -> None:
        """Each client has one endpoint, for all its ports, and keeps it while its pauses are
        shorter than the timeout. A changed timeout applies from then on. A client whose endpoint is
        removed, or dead, gets another one, and keeps it.
        """
        self.serve(*PODS)
        await self.start_cloud()
        self.write(SHORT)
        self.objects.endpoints("web", *PODS)
        await self.start_proxy()
        await self.each_family(self.short_time)
        self.write(LONG)
        await self.each_family(self.long_time)
        for version in BOTH:
            # One after the other: an endpoint that ends does so in both families.
            await self.dead_ones(version)
        had = {version: await self.endpoints(version) for version in BOTH}
        self.write(SHORT)
        await self.each_family(self.until_shorter_timeout)
        for version in BOTH:
            # Some may be sent to the same endpoint again.
            self.assertNotEqual(await self.endpoints(version), had[version])

    async def each_family(self, what) -> None:
        """Do something in both families at a time, because it mostly waits."""
        await gatherResults([Deferred.fromCoroutine(what(version)) for version in BOTH])

    async def short_time(self, version: int) -> None:
        """Require the effects of the short timeout."""
        host = self.objects.address("web", version)
        await self.it_slides(host)
        await self.it_ends(host)

    async def long_time(self, version: int) -> None:
        """Require the effects of the long timeout."""
        host = self.objects.address("web", version)
        await self.eventually(lambda: self.outlasts(host), "the longer time counts")
        await self.assert_one_each(host, version)
        await self.assert_another(host, version)

    async def until_shorter_timeout(self, version: int) -> None:
        """Wait until the shorter timeout applies, and has expired for existing clients."""
        source = address("clients", WITNESS, version)
        await self.it_ends(self.objects.address("web", version), source=source)
        await self.pause(SHORT + 0.5)

    async def endpoints(self, version: int) -> list[str]:
        """Return the endpoints of otherwise idle clients."""
        host = self.objects.address("web", version)
        sources = [address("clients", number, version) for number in IDLE]
        return [(await self.assert_served(host, source=source)).endpoint for source in sources]

    def write(self, seconds: int) -> None:
        """Write the Service."""
        affinity = {"clientIP": {"timeoutSeconds": seconds}}
        self.objects.service("web", sessionAffinity="ClientIP", sessionAffinityConfig=affinity)

    async def assert_one_each(self, host: str, version: int) -> None:
        """Require that each client has one endpoint for all of its connections."""
        for number in (CLIENT, OTHER_CLIENT):
            source = address("clients", number, version)
            got = spread(await self.calls(30, host, source=source, at_once=5))
            self.assertEqual(len(got), 1, got)

    async def it_slides(self, host: str) -> None:
        """Require that a client which returns repeatedly keeps its endpoint.

        One that was late on a busy machine may get another one.
        """
        before = reactor.seconds()
        assigned = (await self.assert_served(host)).endpoint
        for _ in range(4):
            await self.pause(SHORT / 2)
            again = reactor.seconds()
            found = (await self.assert_served(host)).endpoint
            if reactor.seconds() - before < 0.9 * SHORT:
                self.assertEqual(found, assigned)
            before, assigned = again, found

    async def it_ends(self, host: str, source: str = "") -> None:
        """Require that a client which is away for long is treated as a new one."""
        assigned = (await self.assert_served(host, source=source)).endpoint

        async def is_another() -> bool:
            await self.pause(SHORT + 0.5)
            return (await self.assert_served(host, source=source)).endpoint != assigned

        # The same one can be chosen again, even several times in a row.
        await self.eventually(is_another, "the client gets another endpoint", 40)

    async def outlasts(self, host: str) -> bool:
        """Return whether a client keeps its endpoint for longer than the short timeout."""
        assigned = (await self.assert_served(host)).endpoint
        await self.pause(SHORT + 0.5)
        return (await self.assert_served(host)).endpoint == assigned

    async def assert_another(self, host: str, version: int) -> None:
        """Require that a client of a removed endpoint gets another one."""
        assigned = (await self.assert_served(host)).endpoint
        others: list[Pod] = [pod for pod in PODS if pod.address(version) != assigned]
        self.objects.endpoints("web", *others, versions=(version,))

        async def has_left() -> bool:
            return (await self.assert_served(host)).endpoint != assigned

        await self.eventually(has_left, "the client has another endpoint")
        got = spread(await self.calls(20, host))
        self.assertEqual(len(got), 1, got)

    async def dead_ones(self, version: int) -> None:
        """Require that a client is served by another endpoint if its own refuses, or is silent,
        without having been removed; and that it stays there, also when the previous one is back.
        """
        host = self.objects.address("web", version)
        for die, live in ((self.end, self.serve), (self.black_hole, self.restore)):
            assigned = (await self.assert_served(host)).endpoint
            (pod,) = (each for each in PODS if each.address(version) == assigned)
            await maybeDeferred(die, pod)
            another = (await self.assert_served(host)).endpoint
            self.assertNotEqual(another, assigned)
            self.assertEqual(spread(await self.calls(20, host)), {another: 20})
            live(pod)
            self.assertEqual(spread(await self.calls(20, host)), {another: 20})

    def black_hole(self, pod: Pod) -> None:
        """Have a pod drop all packets."""
        self.network.drop_packets(pod.site, pod.number)

    def restore(self, pod: Pod) -> None:
        """Have it respond again, and all others on its machine."""
        for version in BOTH:
            self.network.run(pod.site, "nft", "flush", "set", "inet", "dead", f"ipv{version}")


class UserTests(Affinity, ProxyTestCase):
    """User mode."""


class LegacyTests(Legacy, Affinity, ProxyTestCase):
    """User mode, with legacy iptables."""


class NftablesTests(Nftables, Affinity, ProxyTestCase):
    """User mode, with native nftables."""


class KernelTests(KernelMode, Affinity, ProxyTestCase):
    """Kernel mode."""
