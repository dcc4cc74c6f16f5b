"""Ends of connections pass each way by themselves, and nothing is left of any."""

from __future__ import annotations

from twisted.internet.defer import Deferred, gatherResults

from tests.e2e.proxy.network import CLIENT, address, version_of
from tests.e2e.proxy.objects import BOTH
from tests.e2e.proxy.support import REMOTE, ProxyTestCase
from tests.e2e.proxy.traffic import CLOSED

BIG = 20_000_000
CALLERS = 40
TEXT = b"0123456789" * 10_000

GUARD = 65
"""Seconds for which the open direction of a half-closed connection may carry nothing, with those
until it is noticed."""


class Endings:
    """User mode, where two connections are made into one; a class chooses the rules."""

    timeout = 4 * GUARD

    async def test_bytes_and_ends(self) -> None:
        """Large bodies pass whole both ways at a time, with the end of one direction long before
        the other's; ``nc -N`` has its answer; those who break off leave nothing behind.
        """
        self.serve(*REMOTE)
        await self.start_cloud()
        self.objects.service("web")
        self.objects.endpoints("web", *REMOTE)
        proxy = await self.start_proxy()
        for version in BOTH:
            await self.eventually_by(REMOTE, self.objects.address("web", version))
        before = proxy.descriptors()
        for version in BOTH:
            host = self.objects.address("web", version)
            big = [self.dial(host, size=BIG, patience=30).answered for _ in range(4)]
            self.assertEqual({one.problem for one in await gatherResults(big)}, {""})
            await self.breaks(host)
            _, _, echoed = (await self.netcat(host, TEXT)).partition(b"\n")
            self.assertEqual(echoed, TEXT)
        await self.nothing_is_held(proxy, before)

    async def breaks(self, host: str) -> None:
        """Have clients reset their connections, and endpoints theirs; the other end is told."""
        callers = [self.dial(host, stays=True) for _ in range(CALLERS)]
        await gatherResults([caller.greeted for caller in callers])
        for caller in callers[: CALLERS // 2]:
            caller.drop()
        await self.eventually(
            lambda: sum(len(each.connections) for each in self.streams.values()) == CALLERS // 2,
            "endpoints are told of clients that break off",
        )
        for each in self.streams.values():
            each.cut()
        answers = await gatherResults([caller.answered for caller in callers])
        self.assertEqual({answer.problem for answer in answers}, {CLOSED})

    async def netcat(self, host: str, text: bytes) -> bytes:
        """Have somebody else's program send, end, and read the answer."""
        source = address("clients", CLIENT, version_of(host))
        command = ("nc", "-N", "-w", "10", "-s", source, host, "80")
        with self.network.inside("clients"):
            running = Deferred.fromCoroutine(self.run_command(*command, standard_input=text))
        output, errors, status = await running
        self.assertEqual(status, 0, errors)
        return output

    async def test_proxy_protocol(self) -> None:
        """With the annotation an endpoint is told first who its client is."""
        self.serve(*REMOTE)
        await self.start_cloud()
        self.objects.service("web", annotations={"yurttunnel.io/proxy-protocol": "v1"})
        self.objects.endpoints("web", *REMOTE)
        await self.start_proxy()
        for version in BOTH:
            host = self.objects.address("web", version)
            await self.eventually(lambda h=host: self.answers(h), f"{host} answers")
            output = await self.netcat(host, b"hello")
            _, head, text = output.split(b"\n")
            words = head.decode().split()
            client = address("clients", CLIENT, version)
            self.assertEqual(words[:4], ["PROXY", f"TCP{version}", client, host])
            self.assertEqual((words[5], text), ("80", b"hello"))

    async def answers(self, host: str) -> bool:
        """Whether an endpoint has greeted."""
        return bool((await self.call(host)).endpoint)

    async def test_an_endpoint_that_is_gone(self) -> None:
        """Without a word, as a machine without power is, behind its clients' ends: what the proxy
        has of both is given back when the minute of half-closed connections is over.
        """
        gone = REMOTE[0]
        self.serve(gone)
        await self.start_cloud()
        self.objects.service("web")
        self.objects.endpoints("web", gone)
        proxy = await self.start_proxy()
        hosts = [self.objects.address("web", version) for version in BOTH]
        for host in hosts:
            await self.eventually_by([gone], host)
        before = proxy.descriptors()
        callers = [
            self.dial(hosts[number % 2], stays=True, patience=2 * GUARD)
            for number in range(CALLERS)
        ]
        await gatherResults([caller.greeted for caller in callers])
        self.network.fall_silent("outside", gone.number)
        for caller in callers:
            caller.transport.loseWriteConnection()
        await self.nothing_is_held(proxy, before, seconds=GUARD + 30)
        # They are told so, too.
        await gatherResults([caller.answered for caller in callers])


class IptablesTests(Endings, ProxyTestCase):
    """iptables on nf_tables."""


class LegacyTests(Endings, ProxyTestCase):
    """iptables on the old tables."""

    legacy = True


class NftablesTests(Endings, ProxyTestCase):
    """Native nftables."""

    backend = "nftables"
