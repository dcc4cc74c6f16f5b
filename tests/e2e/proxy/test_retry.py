"""Endpoints that are dead: clients are served by the others, and see nothing of it."""

from __future__ import annotations

from collections.abc import Sequence

from twisted.internet.defer import gatherResults

from tests.e2e.clients import Latencies
from tests.e2e.proxy.objects import BOTH
from tests.e2e.proxy.support import REMOTE, ProxyTestCase, spread
from tests.e2e.proxy.traffic import CLOSED, Answer, Caller

ALIVE, REFUSING, SILENT = REMOTE

CLIENTS = 200
AT_ONCE = 10

EJECTED_SECONDS = 0.005
"""How long half of the clients wait at the most once the dead are left out."""

MANY = 1000
DIALS_AT_ONCE = 50


def latencies(answers: Sequence[Answer]) -> Latencies:
    """Return how long clients waited."""
    return Latencies([answer.seconds for answer in answers])


class Retry:
    """The tests; a class chooses who carries the bytes."""

    p99_seconds = 0.8
    most_seconds = 2.0

    async def test_two_of_three_are_dead(self) -> None:
        """One refuses, and one is a black hole: no client fails or waits for long, and after a
        moment nobody waits any more.
        """
        await self.start_cloud()
        self.serve(ALIVE)
        self.network.fall_silent("outside", SILENT.number)
        self.objects.service("web")
        self.objects.endpoints("web", *REMOTE)
        await self.start_proxy()
        for version in BOTH:
            host = self.objects.address("web", version)
            first = await self.calls(CLIENTS, host, at_once=AT_ONCE)
            self.assertEqual(spread(first), {ALIVE.address(version): CLIENTS})
            waited = latencies(first)
            print(f"\n{self.mode} IPv{version}, two of three dead: {waited}", end="")
            self.assertLessEqual(waited.percentile(99), self.p99_seconds)
            self.assertLessEqual(waited.percentile(100), self.most_seconds)
            then = await self.calls(CLIENTS, host, at_once=1)
            self.assertEqual(spread(then), {ALIVE.address(version): CLIENTS})
            print(f"; then: {latencies(then)}", end="")
            self.assertLessEqual(latencies(then).percentile(50), EJECTED_SECONDS)

    async def test_endpoint_comes_back(self) -> None:
        """One that was left out gets connections again some time after it serves."""
        await self.start_cloud()
        self.serve(ALIVE)
        self.objects.service("web")
        self.objects.endpoints("web", ALIVE, REFUSING)
        await self.start_proxy()
        host = self.objects.address("web", 4)
        await self.eventually_by([ALIVE], host)
        self.serve(REFUSING)
        await self.eventually_by([ALIVE, REFUSING], host, seconds=40)

    async def test_endpoint_ends_amid_many_connections(self) -> None:
        """Only its own connections break; those of one that is to get no more go on."""
        await self.start_cloud()
        self.serve(*REMOTE)
        self.objects.service("web")
        self.objects.endpoints("web", *REMOTE)
        await self.start_proxy()
        host = self.objects.address("web", 4)
        await self.eventually_by(REMOTE, host)
        callers: list[Caller] = []
        while len(callers) < MANY:
            batch = [self.dial(host, stays=True) for _ in range(DIALS_AT_ONCE)]
            await gatherResults([caller.greeted for caller in batch], consumeErrors=True)
            callers += batch
        killed, removed, _ = REMOTE
        await self.end(killed)
        self.objects.endpoints("web", *REMOTE[2:])
        doomed = [one for one in callers if one.answer.endpoint == killed.address(4)]
        others = [one for one in callers if one not in doomed]
        self.assertGreater(len(doomed), MANY / 5)
        self.assertTrue(any(one.answer.endpoint == removed.address(4) for one in others))
        broken = await gatherResults([caller.answered for caller in doomed])
        self.assertEqual({answer.problem for answer in broken}, {CLOSED})
        await self.eventually_by(REMOTE[2:], host)
        for caller in others:
            caller.finish()
        whole = await gatherResults([caller.answered for caller in others])
        self.assertEqual({answer.problem for answer in whole}, {""})


class UserTests(Retry, ProxyTestCase):
    """User mode."""

    async def test_all_are_dead(self) -> None:
        """Who asks for a Service of black holes alone is told within four seconds; nobody else is
        delayed meanwhile.
        """
        await self.start_cloud()
        self.serve(ALIVE)
        self.network.fall_silent("outside", SILENT.number)
        for name, pod in (("web", ALIVE), ("dead", SILENT), ("refusing", REFUSING)):
            self.objects.service(name)
            self.objects.endpoints(name, pod)
        await self.start_proxy()
        await self.eventually_by([ALIVE], self.objects.address("web", 4))
        dead = [
            self.dial(self.objects.address(name, version))
            for name in ("dead", "refusing")
            for version in BOTH
            for _ in range(10)
        ]
        beside = await self.calls(CLIENTS, self.objects.address("web", 4), at_once=2)
        self.assertEqual(spread(beside), {ALIVE.address(4): CLIENTS})
        self.assertLessEqual(latencies(beside).percentile(99), 0.1)
        told = await gatherResults([caller.answered for caller in dead])
        self.assertEqual({answer.problem for answer in told}, {CLOSED})
        self.assertLessEqual(latencies(told).percentile(100), 4.2)


class KernelTests(Retry, ProxyTestCase):
    """Kernel mode: a client's own retransmission, after a second, goes to another endpoint."""

    mode = "kernel"
    backend = "nftables"
    p99_seconds = 1.2
    most_seconds = 1.5

    async def test_process_is_killed(self) -> None:
        """Who then speaks to endpoints that refuse is told so: there is nobody to find that out, so
        that clients need not wait for other endpoints.
        """
        await self.start_cloud()
        self.serve(*REMOTE)
        self.objects.service("web")
        self.objects.endpoints("web", *REMOTE)
        proxy = await self.start_proxy()
        for version in BOTH:
            await self.eventually_by(REMOTE, self.objects.address("web", version))
        proxy.kill()
        for pod in REMOTE:
            await self.end(pod)
        for version in BOTH:
            await self.eventually_by([], self.objects.address("web", version))
