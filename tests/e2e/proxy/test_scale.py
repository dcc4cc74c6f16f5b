"""Tests with the Services of a large cluster: the first sync, a change, and memory."""

from __future__ import annotations

from twisted.internet import reactor
from twisted.internet.task import deferLater

from tests.e2e.programs import MEBIBYTE
from tests.e2e.proxy.objects import BOTH, Pod
from tests.e2e.proxy.programs import SYNCS
from tests.e2e.proxy.support import LOCAL, REMOTE, KernelMode, Legacy, Nftables, ProxyTestCase
from tests.e2e.stopwatch import Stopwatch

SERVICES = 1000
ENDPOINTS = 10
WATCHED = {4: "svc-500", 6: "svc-501"}
PERIOD_SECONDS = 2

FIRST_SECONDS = 10.0
"""From the start of the process until it is ready, without the time that others use the processors.
The duration of the first sync is in docs/performance.md."""

CHANGE_SECONDS = 1.0
"""The same for a change, whose median is printed."""

CHANGES = 10
APART_SECONDS = 0.2
MAX_RESIDENT = 120 * MEBIBYTE


class Scale:
    """The test; subclasses choose the mode and the back end."""

    async def test_thousand_services(self) -> None:
        """1,000 Services with 10,000 endpoints, half of each family, are served soon; syncs without
        a change start no program; the next client sees a change of one endpoint.
        """
        self.serve(*REMOTE, *LOCAL)
        await self.start_cloud()
        for number in range(SERVICES):
            name, version = f"svc-{number}", BOTH[number % 2]
            pods = [Pod(0, at=_elsewhere(version, number, n)) for n in range(1, ENDPOINTS + 1)]
            self.objects.service(name, versions=(version,))
            self.objects.endpoints(name, *pods, versions=(version,))
        for version, name in WATCHED.items():
            self.objects.endpoints(name, *REMOTE, versions=(version,))
        proxy = self.make_proxy("--iptables-sync-period", f"{PERIOD_SECONDS}s")
        log = self.count_programs(proxy)
        proxy.start()
        # From here on: the first process of a test run waits for the others to be forked from.
        watch = Stopwatch(reactor)
        await proxy.ready(60)
        ready = watch.seconds()
        for version, name in WATCHED.items():
            await self.eventually_by(REMOTE, self.objects.address(name, version))
        synced, syncs = [
            await proxy.metric(SYNCS.replace("count", each)) for each in ("sum", "count")
        ]
        print(
            f"\n{self.mode}, {self.backend}{' of old tables' if self.legacy else ''}:"
            f" ready after {ready:.2f} s, {syncs:.0f} syncs took {synced:.2f} s",
            end="",
        )
        self.assertLess(ready, FIRST_SECONDS)
        began = log.read_text()
        self.objects.service("svc-0", annotations={"changes": "nothing"}, versions=(4,))
        await self.next_sync(proxy)
        self.assertEqual(self.changing_since(began, log), [])
        seconds = sorted([await self.change(number) for number in range(CHANGES)])
        print(f"; a change is seen after {seconds[CHANGES // 2] * 1000:.0f} ms"
              f" (at most {seconds[-1] * 1000:.0f})", end="")  # fmt: skip
        self.assertLess(seconds[CHANGES // 2], CHANGE_SECONDS)
        resident = proxy.resident()
        print(f"; {resident / MEBIBYTE:.0f} MiB resident")
        self.assertLess(resident, MAX_RESIDENT)

    async def change(self, number: int) -> float:
        """Replace the only endpoint of a Service; return the seconds until a client sees it."""
        version, pod = BOTH[number % 2], (*LOCAL, *REMOTE)[number // 2]
        host = self.objects.address(WATCHED[version], version)
        # Longer than rules may wait for more changes since the last one.
        await self.pause(APART_SECONDS)
        self.objects.endpoints(WATCHED[version], pod, versions=(version,))
        watch = Stopwatch(reactor)
        while (await self.call(host, size=1)).endpoint != pod.address(version):
            self.assertLess(watch.seconds(), 20.0)
            await deferLater(reactor, 0.002)
        return watch.seconds()


def _elsewhere(version: int, service: int, endpoint: int) -> str:
    """Return the address of an endpoint without clients."""
    return f"10.80.{service % 250}.{endpoint}" if version == 4 else f"fd80::{service:x}:{endpoint}"


class UserTests(Scale, ProxyTestCase):
    """User mode."""


class LegacyTests(Legacy, Scale, ProxyTestCase):
    """User mode, with legacy iptables."""


class NftablesTests(Nftables, Scale, ProxyTestCase):
    """User mode, with nftables."""


class KernelTests(KernelMode, Scale, ProxyTestCase):
    """Kernel mode."""
