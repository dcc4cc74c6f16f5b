"""Tests of starts, shutdowns and kills: what stays, what is removed, and what continues."""

from __future__ import annotations

import signal

from twisted.internet.defer import Deferred, gatherResults

from tests.e2e.proxy.objects import BOTH
from tests.e2e.proxy.programs import Proxy
from tests.e2e.proxy.support import REMOTE, KernelMode, Legacy, Nftables, ProxyTestCase, spread
from tests.e2e.proxy.traffic import REFUSED

DRAIN_SECONDS = 60


class Lifetime:
    """The tests; subclasses choose the mode."""

    drain_flags: tuple[str, ...] = ()

    async def prepare(self, *flags: str) -> Proxy:
        """Serve one Service."""
        self.serve(*REMOTE)
        await self.start_cloud()
        self.objects.service("web")
        self.objects.endpoints("web", *REMOTE)
        proxy = await self.start_proxy("--drain-timeout", f"{DRAIN_SECONDS}s", *flags)
        for version in BOTH:
            await self.eventually_by(REMOTE, self.objects.address("web", version))
        return proxy

    async def test_kill_and_restart(self) -> None:
        """A killed proxy leaves its rules, which the next one takes over without any change, and
        clients are served.
        """
        proxy = await self.prepare()
        rules = self.all_rules()
        proxy.kill()
        self.assertEqual(self.all_rules(), rules)
        await self.assert_while_stopped()
        proxy.start()
        await proxy.ready()
        for version in BOTH:
            await self.eventually_by(REMOTE, self.objects.address("web", version))
        self.assertEqual(self.all_rules(), rules)

    async def assert_while_stopped(self) -> None:
        """Require the promised behavior of the mode while no proxy runs."""
        raise NotImplementedError

    async def test_drain(self) -> None:
        """After SIGTERM clients continue for a while, and the process ends with the last one."""
        proxy = await self.prepare(*self.drain_flags)
        callers = [
            self.dial(self.objects.address("web", version), keeps_open=True, size=500_000)
            for version in BOTH
            for _ in range(20)
        ]
        await gatherResults([caller.greeted for caller in callers])
        proxy.signal(signal.SIGTERM)
        ending = Deferred.fromCoroutine(proxy.ended(20))
        await self.pause(0.5)
        for caller in callers:
            caller.finish()
        answers = await gatherResults([caller.answered for caller in callers])
        self.assertEqual({answer.problem for answer in answers}, {""})
        await ending

    async def test_last_bytes(self) -> None:
        """Data that a client has not read yet is delivered even if the process ends meanwhile."""
        proxy = await self.prepare(*self.drain_flags)
        callers = [
            self.dial(self.objects.address("web", version), keeps_open=True, size=200_000)
            for version in BOTH
        ]
        for caller in callers:
            await caller.greeted
            caller.transport.pauseProducing()
            caller.finish()
        endpoints = self.streams.values()
        await self.eventually(lambda: not any(one.connections for one in endpoints), "it has ended")
        proxy.signal(signal.SIGTERM)
        await self.pause(1)
        for caller in callers:
            caller.transport.resumeProducing()
        for caller in callers:
            self.assertEqual((await caller.answered).problem, "")
        await proxy.ended(20)

    async def test_end_with_removal(self) -> None:
        """With the flag a graceful shutdown removes all rules; without it, they stay."""
        before = self.all_rules()
        proxy = await self.prepare("--remove-rules-at-exit")
        self.assertNotEqual(self.all_rules(), before)
        await proxy.stop()
        self.assertEqual(self.all_rules(), before)

    async def test_removed_service_drains(self) -> None:
        """Connections of a removed Service continue for a while; no new ones are accepted."""
        await self.prepare()
        callers = {
            host: self.dial(host, keeps_open=True)
            for host in (self.objects.address("web", version) for version in BOTH)
        }
        await gatherResults([caller.greeted for caller in callers.values()])
        self.objects.remove("web")

        async def is_removed(host: str) -> bool:
            return bool((await self.call(host, answer_timeout=0.3)).problem)

        for host in callers:
            await self.eventually(lambda h=host: is_removed(h), "new clients are not served")
        for caller in callers.values():
            caller.finish()
            self.assertEqual((await caller.answered).problem, "")


class UserLifetime(Lifetime):
    """User mode."""

    def flags(self) -> tuple[str, ...]:
        """Choose proxy ports that no test's API uses, and that the next process can use again."""
        return (*super().flags(), "--proxy-port-range", "17000-17010")

    async def assert_while_stopped(self) -> None:
        """Require that clients are refused, because no process carries them."""
        answer = await self.call(self.objects.address("web", 4))
        self.assertEqual(answer.problem, REFUSED)


class UserTests(UserLifetime, ProxyTestCase):
    """User mode, with iptables."""


class LegacyTests(Legacy, UserLifetime, ProxyTestCase):
    """User mode, with legacy iptables."""


class NftablesTests(Nftables, UserLifetime, ProxyTestCase):
    """User mode, with native nftables; connections drain also if the rules are removed first."""

    drain_flags = ("--remove-rules-at-exit",)


class KernelTests(KernelMode, Lifetime, ProxyTestCase):
    """Kernel mode."""

    async def assert_while_stopped(self) -> None:
        """Require that no client is affected."""
        for version in BOTH:
            got = spread(await self.calls(60, self.objects.address("web", version)))
            self.assertEqual(set(got), {pod.address(version) for pod in REMOTE})
