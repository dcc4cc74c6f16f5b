"""Clients with affinity keep their endpoint for as long as they come back in time."""

from __future__ import annotations

from twisted.internet import reactor
from twisted.internet.defer import Deferred, gatherResults, maybeDeferred

from tests.e2e.proxy.network import CLIENT, FIRST_POD, LAST_POD, OTHER_CLIENT, address
from tests.e2e.proxy.objects import BOTH, Pod
from tests.e2e.proxy.support import LOCAL, REMOTE, ProxyTestCase, spread

PODS = (*REMOTE, *LOCAL)
SHORT, LONG = 1, 3600

IDLE = (CLIENT, OTHER_CLIENT, *range(FIRST_POD, LAST_POD))
WITNESS = LAST_POD
"""Clients: those that do nothing while the time gets shorter, and one that finds out when."""


class Affinity:
    """The test; a class chooses who keeps count."""

    async def test_client_keeps_its_endpoint(self) -> None:
        """Each client has one endpoint, whatever its port, and keeps it while its pauses are
        shorter than the time; a time that is changed counts from then on; a client whose endpoint
        is gone, or is dead, gets another one, and keeps that.
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
            # One after the other: an endpoint that ends does so in both.
            await self.dead_ones(version)
        had = {version: await self.endpoints(version) for version in BOTH}
        self.write(SHORT)
        await self.each_family(self.short_again)
        for version in BOTH:
            # One or the other may be led to the same endpoint again.
            self.assertNotEqual(await self.endpoints(version), had[version])

    async def each_family(self, what) -> None:
        """Do something in both families at a time, since it mostly waits."""
        await gatherResults([Deferred.fromCoroutine(what(version)) for version in BOTH])

    async def short_time(self, version: int) -> None:
        """Require what is said of the short time."""
        host = self.objects.address("web", version)
        await self.it_slides(host)
        await self.it_ends(host)

    async def long_time(self, version: int) -> None:
        """Require what is said of the long time."""
        host = self.objects.address("web", version)
        await self.eventually(lambda: self.outlasts(host), "the longer time counts")
        await self.each_has_one(host, version)
        await self.another_one(host, version)

    async def short_again(self, version: int) -> None:
        """Wait until the shorter time counts, and has passed for clients of before."""
        source = address("clients", WITNESS, version)
        await self.it_ends(self.objects.address("web", version), source=source)
        await self.pause(SHORT + 0.5)

    async def endpoints(self, version: int) -> list[str]:
        """Return those of the clients that are idle else."""
        host = self.objects.address("web", version)
        sources = [address("clients", number, version) for number in IDLE]
        return [(await self.served(host, source=source)).endpoint for source in sources]

    def write(self, seconds: int) -> None:
        """Write the Service."""
        affinity = {"clientIP": {"timeoutSeconds": seconds}}
        self.objects.service("web", sessionAffinity="ClientIP", sessionAffinityConfig=affinity)

    async def each_has_one(self, host: str, version: int) -> None:
        """Require that each client has one endpoint for all of its connections."""
        for number in (CLIENT, OTHER_CLIENT):
            source = address("clients", number, version)
            got = spread(await self.calls(30, host, source=source, at_once=5))
            self.assertEqual(len(got), 1, got)

    async def it_slides(self, host: str) -> None:
        """Require that a client which comes back again and again keeps its endpoint.

        One that a busy machine has made come too late may get another one.
        """
        before = reactor.seconds()
        kept = (await self.served(host)).endpoint
        for _ in range(4):
            await self.pause(SHORT / 2)
            again = reactor.seconds()
            found = (await self.served(host)).endpoint
            if reactor.seconds() - before < 0.9 * SHORT:
                self.assertEqual(found, kept)
            before, kept = again, found

    async def it_ends(self, host: str, source: str = "") -> None:
        """Require that a client which stays away for long is treated as a new one."""
        kept = (await self.served(host, source=source)).endpoint

        async def is_another() -> bool:
            await self.pause(SHORT + 0.5)
            return (await self.served(host, source=source)).endpoint != kept

        # The same one can be chosen again, even some times in a row.
        await self.eventually(is_another, "the client gets another endpoint", 40)

    async def outlasts(self, host: str) -> bool:
        """Whether a client keeps its endpoint for longer than the short time."""
        kept = (await self.served(host)).endpoint
        await self.pause(SHORT + 0.5)
        return (await self.served(host)).endpoint == kept

    async def another_one(self, host: str, version: int) -> None:
        """Require that a client leaves an endpoint that is removed."""
        kept = (await self.served(host)).endpoint
        others: list[Pod] = [pod for pod in PODS if pod.address(version) != kept]
        self.objects.endpoints("web", *others, versions=(version,))

        async def has_left() -> bool:
            return (await self.served(host)).endpoint != kept

        await self.eventually(has_left, "the client has another endpoint")
        got = spread(await self.calls(20, host))
        self.assertEqual(len(got), 1, got)

    async def dead_ones(self, version: int) -> None:
        """Require that a client is served by another endpoint where its own refuses, or is silent,
        and no one has removed it; and that it stays with that, also when the former lives again.
        """
        host = self.objects.address("web", version)
        for die, live in ((self.end, self.serve), (self.fall_silent, self.speak_again)):
            kept = (await self.served(host)).endpoint
            (pod,) = (each for each in PODS if each.address(version) == kept)
            await maybeDeferred(die, pod)
            another = (await self.served(host)).endpoint
            self.assertNotEqual(another, kept)
            self.assertEqual(spread(await self.calls(20, host)), {another: 20})
            live(pod)
            self.assertEqual(spread(await self.calls(20, host)), {another: 20})

    def fall_silent(self, pod: Pod) -> None:
        """Have a pod be a black hole."""
        self.network.fall_silent(pod.site, pod.number)

    def speak_again(self, pod: Pod) -> None:
        """Have it, and whoever else has fallen silent on its machine, speak again."""
        for version in BOTH:
            self.network.run(pod.site, "nft", "flush", "set", "inet", "dead", f"ipv{version}")


class UserTests(Affinity, ProxyTestCase):
    """User mode."""


class LegacyTests(Affinity, ProxyTestCase):
    """User mode, with the old tables of iptables."""

    legacy = True


class NftablesTests(Affinity, ProxyTestCase):
    """User mode, with native nftables."""

    backend = "nftables"


class KernelTests(Affinity, ProxyTestCase):
    """Kernel mode."""

    mode = "kernel"
    backend = "nftables"
