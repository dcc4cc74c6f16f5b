"""Tests with continuous clients while endpoints change: nothing is lost, and nothing is left over.

``YURTTUNNEL_PROXY_SOAK_CONNECTIONS`` is the total number of clients, 72,000 in a long run.
"""

from __future__ import annotations

import os
from collections import Counter
from math import inf
from random import Random

from twisted.internet import reactor
from twisted.internet.defer import Deferred, gatherResults
from twisted.internet.task import deferLater

from tests.e2e.network.namespaces import run
from tests.e2e.programs import OTHER_GROWTH
from tests.e2e.proxy.objects import BOTH, TARGET_PORT, Pod, port
from tests.e2e.proxy.support import LOCAL, REMOTE, KernelMode, ProxyTestCase
from tests.e2e.proxy.traffic import CLOSED, Answer
from tests.e2e.stopwatch import Stopwatch

CONNECTIONS = int(os.environ.get("YURTTUNNEL_PROXY_SOAK_CONNECTIONS", "2400"))
SEED = os.environ.get("YURTTUNNEL_SOAK_SEED", "1")

AT_ONCE = 24
SIZES = (0, 1, 1000, 20_000, 300_000)
PODS = (*REMOTE, *LOCAL)
CHURN_SECONDS = 0.1
ANSWER_SECONDS = 1.0
KILLED = "killed"
RESET = "ConnectError"
"""The problem of a connection that was reset before the client checked its dial."""
SECONDS_EACH = 0.02
"""The time of a connection on a busy machine, so that a run of any length has its deadline."""


class Soak:
    """The test; subclasses choose the mode."""

    timeout = ProxyTestCase.timeout + CONNECTIONS * SECONDS_EACH

    udp_attempts = 4
    """The number of UDP attempts of a client, one per second, before it fails."""

    async def test_churn(self) -> None:
        """Endpoints are removed, added and killed, and Services are created and deleted: every
        client gets back what it has sent, except for those whose own endpoint was killed meanwhile,
        and afterwards everything is as it was.
        """
        self.random = Random(SEED)
        self.serve(*PODS)
        await self.start_cloud()
        self.objects.service("web", port(80, name="a"), port(53, "UDP", name="b"))
        self.objects.endpoints("web", *PODS)
        proxy = await self.start_proxy("--udp-timeout", "2s", "--udp-first-timeout", "2s")
        hosts = [self.objects.address("web", version) for version in BOTH]
        for host in hosts:
            await self.eventually_by(PODS, host)
            await self.ask(host)
        rules, listeners = self.all_rules(), self.listeners()
        before, resident = proxy.descriptors(), proxy.resident()
        self.left, self.problems = CONNECTIONS, Counter[str]()
        self.killed: dict[Pod, float] = {}
        self.kills = 0
        self.unexplained: list[str] = []
        churning = Deferred.fromCoroutine(self.churn())
        began = reactor.seconds()
        callers = [Deferred.fromCoroutine(self.keep_calling(hosts)) for _ in range(AT_ONCE)]
        await gatherResults(callers, consumeErrors=True)
        seconds = reactor.seconds() - began
        await churning
        print(f"\n{self.mode}: {CONNECTIONS} connections in {seconds:.0f} s, seed {SEED},"
              f" {self.kills} endpoints killed: {dict(self.problems)}", end="")  # fmt: skip
        unexplained = "\n".join(self.unexplained)
        self.assertLessEqual(self.problems.keys(), {"", KILLED}, f"{self.problems}\n{unexplained}")
        self.assertLessEqual(self.problems[KILLED], self.kills * AT_ONCE)
        self.assertTrue(self.kills)
        # In kernel mode a killed UDP endpoint stays ejected for minutes, because it cannot be
        # probed; its state is dropped with it.
        self.objects.endpoints("web")
        for host in hosts:
            await self.eventually_by([], host)
        self.objects.endpoints("web", *PODS)
        for host in hosts:
            await self.eventually_by(PODS, host)
        await self.assert_no_descriptor_leak(proxy, before, 30)
        await self.eventually(lambda: self.listeners() == listeners, "the same ports are open")
        await self.eventually_rules(rules)
        growth = proxy.resident() - resident
        print(f"; grown by {growth / 1024:.0f} KiB")
        self.assertLess(growth, OTHER_GROWTH)

    def listeners(self) -> list[str]:
        """Return the ports of the node that have listeners."""
        return sorted(line.split()[3] for line in run("ss", "-Htuln").splitlines())

    async def keep_calling(self, hosts: list[str]) -> None:
        """Call until all calls of the run are made; now and then by UDP."""
        while self.left > 0:
            self.left -= 1
            host = self.random.choice(hosts)
            if self.random.random() < 0.1:
                answer = await self.ask_with_retries(host)
            else:
                size, began = self.random.choice(SIZES), reactor.seconds()
                found = await self.call(host, size=size, answer_timeout=20.0)
                answer = KILLED if self.was_killed(found, began) else found.problem
                if answer not in ("", KILLED):
                    self.unexplained.append(f"{found}: {size} bytes, from {began}; {self.killed}")
            self.problems[answer] += 1

    def was_killed(self, answer: Answer, began: float) -> bool:
        """Return whether the endpoint of a call was killed after the call had started.

        If a call failed before its endpoint was known, it may have been any that was killed.
        """
        killed = [pod.address(v) for pod, at in self.killed.items() if at >= began for v in BOTH]
        broken = answer.problem in (CLOSED, RESET) and answer.endpoint in ("", *killed)
        return broken and bool(killed)

    async def ask_with_retries(self, host: str) -> str:
        """Send by UDP as resolvers do, which retry; return the last problem.

        It gives up after ``udp_attempts``, each of which has its time with a processor.
        """
        began, watch, attempts = reactor.seconds(), Stopwatch(reactor), 0
        while attempts < self.udp_attempts or watch.seconds() < self.udp_attempts * ANSWER_SECONDS:
            attempts += 1
            answer = await self.ask(host, answer_timeout=ANSWER_SECONDS)
            if not answer.problem:
                return ""
            await deferLater(reactor, max(0.0, ANSWER_SECONDS - answer.seconds))
        self.unexplained.append(f"{answer}: UDP, {attempts} times from {began}; {self.killed}")
        return answer.problem

    async def churn(self) -> None:
        """Change endpoints at random: usually those removed continue, as terminating pods do."""
        others = 0
        while self.left > 0:
            await deferLater(reactor, CHURN_SECONDS)
            if not self.killed or self.random.random() < 0.1:
                await self.kill_one()
            pods = self.random.sample(PODS, self.random.randint(1, len(PODS)))
            self.objects.endpoints("web", *pods)
            if self.random.random() < 0.2:
                # An endpoint that never existed: some clients that are sent there detect it.
                self.objects.endpoints("web", *pods, Pod(16))
            if self.random.random() < 0.3:
                name = f"other-{others % 5}"
                others += 1
                if others > 5:
                    self.objects.remove(name)
                self.objects.service(name, port(80, name="a"), port(80, "UDP", name="b"))
                self.objects.endpoints(name, *pods)
        for number in range(min(others, 5)):
            self.objects.remove(f"other-{number}")

    async def kill_one(self) -> None:
        """Kill an endpoint, once clients are known to be sent to others as well, and start it
        again.

        Before all have been reached, by both families, the previous state may still apply, such as
        that endpoint only.
        """
        self.objects.endpoints("web", *PODS)
        streams = [self.streams[pod, TARGET_PORT, version] for pod in PODS for version in BOTH]
        before = [stream.total for stream in streams]

        def are_come_to() -> bool:
            return all(each.total > one for each, one in zip(streams, before, strict=True))

        await self.eventually(lambda: self.left <= 0 or are_come_to(), "all endpoints serve")
        pod = self.random.choice(PODS)
        # Clients that call before its ports are closed may still be sent there.
        self.killed[pod], self.kills = inf, self.kills + 1
        await self.end(pod)
        self.killed[pod] = reactor.seconds()
        await deferLater(reactor, CHURN_SECONDS)
        self.serve(pod)


class UserTests(Soak, ProxyTestCase):
    """User mode."""


class KernelTests(KernelMode, Soak, ProxyTestCase):
    """Kernel mode."""

    # A silent UDP endpoint is not detected, and killed ones are ejected for tens of seconds: in
    # between all clients are sent to the silent one.
    udp_attempts = 8
