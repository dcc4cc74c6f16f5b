"""Tests of dead endpoints: clients are served by the others, without errors."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from twisted.internet import reactor
from twisted.internet.defer import gatherResults

from tests.e2e.clients import Latencies
from tests.e2e.proxy.network import version_of
from tests.e2e.proxy.objects import BOTH, Pod
from tests.e2e.proxy.programs import Proxy
from tests.e2e.proxy.support import REMOTE, KernelMode, Legacy, Nftables, ProxyTestCase, spread
from tests.e2e.proxy.traffic import CLOSED, REFUSED, Answer, Caller
from tests.e2e.stopwatch import Stopwatch

ALIVE, REFUSING, SILENT = REMOTE
REFUSERS = (REFUSING, Pod(14), Pod(15))
BLACK_HOLES = (SILENT, Pod(16))

CLIENTS = 200
AT_ONCE = 10

LEFT_OUT_SECONDS = 10
"""Seconds after which user mode probes an ejected endpoint, with one client."""

SERVED_SECONDS, FAILED_SECONDS = 0.75, 4.0
"""Seconds within which a client is served if one endpoint is alive, and refused if none is; the
time that programs wait for processors is not counted."""

SECOND_PACKET_SECONDS = 1.2
"""Seconds within which kernel mode does both: the client's retry after one, and some more."""

MANY = 1000
DIALS_AT_ONCE = 50


def latencies(answers: Sequence[Answer]) -> Latencies:
    """Return how long clients waited."""
    return Latencies([answer.seconds for answer in answers])


LOST_RESETS = """
table inet lost {
    chain output {
        type filter hook output priority 0;
        tcp flags & rst != 0 tcp sequence != 0 drop
    }
}
"""
"""Matches packets of established connections; a refusal is another kind of reset."""


class Retry:
    """The tests; subclasses choose the mode, and the Services without live endpoints.

    Clients of these Services fail with ``expected_problem`` within ``failure_seconds``.
    """

    dead: Mapping[str, Sequence[Pod]]
    expected_problem: str
    failure_seconds: float

    def allowance(self) -> float:
        """Return the additional seconds that a client may wait, since ``watch`` was started."""
        return self.watch.waited()

    async def found_out(self, version: int, clients: Sequence[Answer]) -> None:
        """Require that not more clients were sent to dead endpoints than there are at once."""
        raise NotImplementedError

    async def left_out(self, version: int, clients: Sequence[Answer]) -> None:
        """Require that no client is sent to dead endpoints any more."""
        raise NotImplementedError

    async def test_two_of_three_are_dead(self) -> None:
        """One refuses, and one drops packets: no client fails, the dead endpoints are detected by
        the first clients, and later ones do not wait. (Percentiles are in the benchmarks.)
        """
        await self.start_cloud()
        self.serve(ALIVE)
        self.network.drop_packets("outside", SILENT.number)
        self.objects.service("web")
        self.objects.endpoints("web", *REMOTE)
        self.proxy = await self.start_proxy()
        for version in BOTH:
            host = self.objects.address("web", version)
            self.watch = Stopwatch(reactor)
            first = await self.calls(CLIENTS, host, at_once=AT_ONCE)
            self.assertEqual(spread(first), {ALIVE.address(version): CLIENTS})
            print(f"\n{self.mode} IPv{version}, two of three dead: {latencies(first)}", end="")
            await self.found_out(version, first)
            then = await self.calls(CLIENTS, host, at_once=1)
            self.assertEqual(spread(then), {ALIVE.address(version): CLIENTS})
            print(f"; then: {latencies(then)}", end="")
            await self.left_out(version, then)

    async def test_ejected_endpoint_returns(self) -> None:
        """An ejected endpoint gets connections again some time after it is back."""
        await self.start_cloud()
        self.serve(ALIVE)
        self.objects.service("web")
        self.objects.endpoints("web", ALIVE, REFUSING)
        await self.start_proxy()
        hosts = [self.objects.address("web", version) for version in BOTH]
        for host in hosts:
            await self.eventually_by([ALIVE], host)
        self.serve(REFUSING)
        for host in hosts:
            await self.eventually_by([ALIVE, REFUSING], host, seconds=40)

    async def test_endpoint_ends_with_many_connections(self) -> None:
        """Only its own connections break; those of an endpoint that gets no new ones continue."""
        await self.start_cloud()
        self.serve(*REMOTE)
        self.objects.service("web")
        self.objects.endpoints("web", *REMOTE)
        await self.start_proxy()
        hosts = [self.objects.address("web", version) for version in BOTH]
        for host in hosts:
            await self.eventually_by(REMOTE, host)
        callers: list[Caller] = []
        while len(callers) < MANY:
            batch = [
                self.dial(hosts[number % 2], keeps_open=True, answer_timeout=60)
                for number in range(DIALS_AT_ONCE)
            ]
            await gatherResults([caller.greeted for caller in batch], consumeErrors=True)
            callers += batch
        killed, removed, _ = ({pod.address(version) for version in BOTH} for pod in REMOTE)
        await self.end(REMOTE[0])
        self.objects.endpoints("web", *REMOTE[2:])
        doomed = [one for one in callers if one.answer.endpoint in killed]
        others = [one for one in callers if one not in doomed]
        self.assertGreater(len(doomed), MANY / 5)
        self.assertLess(removed, {one.answer.endpoint for one in others})
        broken = await gatherResults([caller.answered for caller in doomed])
        self.assertEqual({answer.problem for answer in broken}, {CLOSED})
        for host in hosts:
            await self.eventually_by(REMOTE[2:], host)
        for caller in others:
            caller.finish()
        complete = await gatherResults([caller.answered for caller in others])
        self.assertEqual({answer.problem for answer in complete}, {""})

    async def test_all_are_dead(self) -> None:
        """Clients of one or several Services with dead endpoints only get an error in time; others
        are not delayed meanwhile.
        """
        await self.start_cloud()
        self.serve(ALIVE)
        for pod in BLACK_HOLES:
            self.network.drop_packets("outside", pod.number)
        for name, pods in (("web", (ALIVE,)), *self.dead.items()):
            self.objects.service(name)
            self.objects.endpoints(name, *pods)
        self.proxy = await self.start_proxy()
        for version in BOTH:
            await self.eventually_by([ALIVE], self.objects.address("web", version))
        for version in BOTH:
            self.watch = Stopwatch(reactor)
            dead = [
                self.dial(self.objects.address(name, version))
                for name in self.dead
                for _ in range(10)
            ]
            host = self.objects.address("web", version)
            before = self.watch.waited()
            concurrent = await self.calls(CLIENTS // 2, host, at_once=2)
            # Of two at once each has half of the time, and all programs wait for a processor in it.
            busy = (self.watch.waited() - before) / (CLIENTS // 4)
            self.assertEqual(spread(concurrent), {ALIVE.address(version): CLIENTS // 2})
            # If they waited for other dials, most would wait for a step of the plan, 0.25 s or
            # more.
            self.assertLessEqual(latencies(concurrent).percentile(50), 0.2 + busy)
            failed = await gatherResults([caller.answered for caller in dead])
            self.assertEqual({answer.problem for answer in failed}, {self.expected_problem})
            print(f"\n{self.mode} IPv{version}, no endpoint: {latencies(failed)}", end="")
            self.assertLess(
                latencies(failed).percentile(100), self.failure_seconds + self.allowance()
            )
            await self.all_were_tried(version)

    async def all_were_tried(self, version: int) -> None:
        """Require that each endpoint of a Service without live ones has failed."""
        _, body = await self.proxy.get("/services")
        tried = {
            each["service"].split("/")[-1]: [one["failures"] > 0 for one in each["endpoints"]]
            for each in json.loads(body)
            if each["version"] == version
        }
        for name, pods in self.dead.items():
            self.assertEqual(tried[name], [True] * len(pods), name)


class UserRetry(Retry):
    """User mode, in which clients of silent endpoints get an error as well."""

    dead = MappingProxyType(
        {
            "one-silent": BLACK_HOLES[:1],
            "silent": BLACK_HOLES,
            "one-refuses": REFUSERS[:1],
            "refusing": REFUSERS,
            "both": (SILENT, *REFUSERS),
        }
    )
    expected_problem = CLOSED
    failure_seconds = FAILED_SECONDS

    async def found_out(self, version: int, clients: Sequence[Answer]) -> None:
        """Each fails in two consecutive dials, besides those in progress by then; a client that was
        sent to both waits for less than the first two steps of the plan.
        """
        slowest = latencies(clients).percentile(100)
        self.assertLess(slowest, SERVED_SECONDS + self.watch.waited())
        self.failed_at = reactor.seconds()
        self.failed_dials = await self.failures(version)
        self.assertGreaterEqual(min(self.failed_dials), 2)
        self.assertLessEqual(max(self.failed_dials), 2 + AT_ONCE)

    async def left_out(self, version: int, clients: Sequence[Answer]) -> None:
        """One client probes each endpoint when its ejection is over."""
        failed = await self.failures(version)
        tries = 1 + (reactor.seconds() - self.failed_at) // LEFT_OUT_SECONDS
        for before, after in zip(self.failed_dials, failed, strict=True):
            self.assertLessEqual(after - before, tries)

    async def failures(self, version: int) -> list[int]:
        """Return how many dials to dead endpoints have failed."""
        _, body = await self.proxy.get("/services")
        (service,) = [each for each in json.loads(body) if each["version"] == version]
        failures = [each["failures"] for each in service["endpoints"] if each["failures"]]
        self.assertEqual(len(failures), 2)
        return failures


class UserTests(UserRetry, ProxyTestCase):
    """User mode, with iptables."""


class LegacyTests(Legacy, UserRetry, ProxyTestCase):
    """User mode, with legacy iptables."""


class NftablesTests(Nftables, UserRetry, ProxyTestCase):
    """User mode, with native nftables."""


class KernelTests(KernelMode, Retry, ProxyTestCase):
    """Kernel mode: a client's own retransmission, after a second, goes to another endpoint."""

    dead = MappingProxyType({"refusing": REFUSERS})
    expected_problem = REFUSED
    failure_seconds = SECOND_PACKET_SECONDS

    async def found_out(self, version: int, clients: Sequence[Answer]) -> None:
        """Of clients of three endpoints of which two are dead, two thirds would have to retry.
        These are connected by their second packet.
        """
        again = [each for each in clients if each.attempts > 1]
        print(f", {len(again)} tried again", end="")
        self.assertLessEqual(len(again), CLIENTS / 4)
        self.assertLessEqual(max(each.attempts for each in clients), 2 + self.packets_too_early())
        slowest = latencies(clients).percentile(100)
        self.assertLess(slowest, SECOND_PACKET_SECONDS + self.allowance())

    def packets_too_early(self) -> int:
        """Return the number of additional packets until dead endpoints are detected: one for each
        second in which programs waited for a processor, rounded.
        """
        return int(self.watch.waited() + 0.5)

    def allowance(self) -> float:
        """Return the time that programs have waited, and that further packets take: old kernels
        send the third one two seconds after the second.
        """
        return super().allowance() + 2 * self.packets_too_early()

    async def left_out(self, version: int, clients: Sequence[Answer]) -> None:
        """All are connected by their first packet, as without a proxy."""
        self.assertEqual({each.attempts for each in clients}, {1})

    async def test_port_is_added_again(self) -> None:
        """The kernel assigns a client to the entry of an earlier connection from its port, whose
        resets were lost. If that endpoint refuses by now, or is silent and was removed, the
        client's next packet goes to another one.
        """
        await self.start_cloud()
        self.serve(*REMOTE)
        self.objects.service("web")
        self.objects.endpoints("web", *REMOTE)
        proxy = await self.start_proxy()
        for machine in ("clients", "outside"):
            self.network.run(machine, "nft", "-f", "-", stdin=LOST_RESETS)
        pods = list(REMOTE)
        for version in BOTH:
            host = self.objects.address("web", version)
            await self.eventually_by(pods, host)
            pod, port = await self.abort_body(host)
            await self.end(pod)
            await self.assert_next_packet_moves(proxy, host, port)
            self.serve(pod)
            await self.eventually_by(pods, host)
            pod, port = await self.abort_body(host)
            self.network.drop_packets("outside", pod.number)
            pods.remove(pod)
            self.objects.endpoints("web", *pods)
            await self.eventually_by(pods, host)
            await self.assert_next_packet_moves(proxy, host, port)

    async def assert_next_packet_moves(self, proxy: Proxy, host: str, port: int) -> None:
        """Require that a client's next packet goes elsewhere; if others had the processors for most
        of the second until then, it may be the one after that.
        """
        before = proxy.waited()
        again = await self.assert_served(host, source_port=port)
        is_late = proxy.waited() - before > 0.5
        self.assertIn(again.attempts, (2, 3) if is_late else (2,))

    async def abort_body(self, host: str) -> tuple[Pod, int]:
        """Start a call and reset it; return which endpoint has answered, and the client's port."""
        caller = self.dial(host, keeps_open=True)
        await caller.greeted
        port = caller.transport.getHost().port
        caller.drop()
        endpoint = (await caller.answered).endpoint
        (pod,) = (each for each in REMOTE if each.address(version_of(host)) == endpoint)
        return pod, port

    async def test_process_is_killed(self) -> None:
        """Clients of endpoints that refuse then get the refusal: no process would detect it, so
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
