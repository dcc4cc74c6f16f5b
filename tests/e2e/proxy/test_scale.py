"""A cluster's worth of Services: the first sync, a change of one of them, and memory."""

from __future__ import annotations

from twisted.internet import reactor
from twisted.internet.task import deferLater

from tests.e2e.programs import MEBIBYTE
from tests.e2e.proxy.objects import Pod
from tests.e2e.proxy.support import LOCAL, REMOTE, ProxyTestCase

SERVICES = 1000
ENDPOINTS = 10
WATCHED = "svc-500"

FIRST_SECONDS = 10.0
"""From the start of the process until it is ready, without what others use of the processors. What
the first sync takes is in docs/performance.md."""

CHANGE_SECONDS = 1.0
"""The same of a change, of which the median is printed."""

CHANGES = 10
APART_SECONDS = 0.2
MOST_RESIDENT = 120 * MEBIBYTE


class Scale:
    """The test; a class chooses who carries the bytes."""

    async def test_thousand_services(self) -> None:
        """1,000 Services with 10,000 endpoints are there soon, and a change of one endpoint is seen
        by the next client.
        """
        self.serve(*REMOTE, *LOCAL)
        await self.start_cloud()
        for number in range(SERVICES):
            name = f"svc-{number}"
            pods = [Pod(0, at=f"10.80.{number % 250}.{n + 1}") for n in range(ENDPOINTS)]
            if name == WATCHED:
                pods = list(REMOTE)
            self.objects.service(name, versions=(4,))
            self.objects.endpoints(name, *pods, versions=(4,))
        proxy = self.make_proxy("--iptables-sync-period", "30s")
        proxy.load_itself()
        proxy.start()
        ready = await proxy.ready(60) - proxy.waited()
        host = self.objects.address(WATCHED, 4)
        await self.eventually_by(REMOTE, host)
        synced = await proxy.metric("kubeproxy_sync_proxy_rules_duration_seconds_sum")
        syncs = await proxy.metric("kubeproxy_sync_proxy_rules_duration_seconds_count")
        print(
            f"\n{self.mode}, {self.backend}: ready after {ready:.2f} s,"
            f" {syncs:.0f} syncs took {synced:.2f} s",
            end="",
        )
        self.assertLess(ready, FIRST_SECONDS)
        seconds = sorted([await self.change(host, number) for number in range(CHANGES)])
        print(f"; a change is seen after {seconds[CHANGES // 2] * 1000:.0f} ms"
              f" (at most {seconds[-1] * 1000:.0f})", end="")  # fmt: skip
        self.assertLess(seconds[CHANGES // 2], CHANGE_SECONDS)
        resident = proxy.resident()
        print(f"; {resident / MEBIBYTE:.0f} MiB resident")
        self.assertLess(resident, MOST_RESIDENT)

    async def change(self, host: str, number: int) -> float:
        """Replace the one endpoint of a Service; return the seconds until a client sees it."""
        pod = (*REMOTE, *LOCAL)[number % 5]
        # Longer than rules may wait for more changes since the last one.
        await self.pause(APART_SECONDS)
        self.objects.endpoints(WATCHED, pod, versions=(4,))
        began = reactor.seconds()
        while (await self.call(host, size=1)).endpoint != pod.address(4):
            self.assertLess(reactor.seconds() - began, 20.0)
            await deferLater(reactor, 0.002)
        return reactor.seconds() - began


class UserTests(Scale, ProxyTestCase):
    """User mode."""


class NftablesTests(Scale, ProxyTestCase):
    """User mode, with nftables."""

    backend = "nftables"


class KernelTests(Scale, ProxyTestCase):
    """Kernel mode."""

    mode = "kernel"
    backend = "nftables"
