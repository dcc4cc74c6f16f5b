"""Tests of the sources of Services and EndpointSlices, and of outages."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from twisted.internet import reactor
from twisted.internet.defer import Deferred

from tests.e2e.hub.canned import Canned
from tests.e2e.hub.cloud import KINDS
from tests.e2e.hub.programs import Hub
from tests.e2e.programs import READY_SECONDS
from tests.e2e.proxy.network import NODE, address
from tests.e2e.proxy.objects import BOTH, Pod, port
from tests.e2e.proxy.programs import SYNCS, Proxy
from tests.e2e.proxy.support import (
    LOCAL,
    REMOTE,
    KernelMode,
    Legacy,
    Nftables,
    ProxyTestCase,
    spread,
)
from tests.e2e.proxy.traffic import REFUSED

SERVICES = "/api/v1/services"
SLICES = "/apis/discovery.k8s.io/v1/endpointslices"

NODE_PORT = 30080
BURST = 100

FILE_SECONDS = 20.0
"""How long a change of a file may take: it is checked every five seconds."""


class SourcesTestCase(ProxyTestCase):
    """A test case that checks which addresses are not served."""

    async def is_not_served(self, host: str) -> bool:
        """Return whether no client is served at an address."""
        return bool((await self.call(host, answer_timeout=0.3)).problem)


class Api:
    """An API with many changes, outages and errors; subclasses choose the mode and the back end."""

    async def prepare(self) -> None:
        """Make two Services in the API."""
        self.serve(*REMOTE, *LOCAL)
        await self.start_cloud()
        for name in ("web", "other"):
            self.objects.service(name)
            self.objects.endpoints(name, *REMOTE)
        self.hosts = {version: self.objects.address("web", version) for version in BOTH}

    async def still_served(self) -> None:
        """Require that clients are served by the last known endpoints, by round robin."""
        for version, host in self.hosts.items():
            got = spread(await self.calls(60, host))
            self.assertEqual(set(got), {pod.address(version) for pod in REMOTE})
            if self.mode == "user":
                self.assertEqual(set(got.values()), {20})

    async def changes_are_seen(self) -> None:
        """Require that the API's current state is applied."""
        self.objects.endpoints("web", *LOCAL)
        for host in self.hosts.values():
            await self.eventually_by(LOCAL, host, seconds=60)

    async def test_burst(self) -> None:
        """A hundred updates of a Service at once end in the last state, and rules are changed for
        some of them only.
        """
        await self.prepare()
        # Without periodic syncs, which are counted as well.
        proxy = await self.start_proxy("--iptables-sync-period", "10m")
        await self.eventually_by(REMOTE, self.hosts[6])
        before = await proxy.metric(SYNCS)
        for number in range(BURST):
            pods = LOCAL if number % 2 else REMOTE[:1]
            self.objects.service("web", port(80, node=NODE_PORT + number), type="NodePort")
            self.objects.endpoints("web", *pods)
        for version, host in self.hosts.items():
            await self.eventually_by(LOCAL, host)
            node = address("clients", NODE, version)
            await self.eventually_by(LOCAL, node, NODE_PORT + BURST - 1)
            for number in (0, BURST - 2):
                answer = await self.call(node, NODE_PORT + number)
                self.assertEqual(answer.problem, REFUSED)
        self.assertLess(await proxy.metric(SYNCS) - before, BURST / 4)

    async def test_api_is_unavailable_for_a_time(self) -> None:
        """Traffic continues with the previous endpoints, and nothing is changed; changes meanwhile
        are applied afterwards.
        """
        await self.prepare()
        await self.start_proxy()
        await self.eventually_by(REMOTE, self.hosts[6])
        rules = self.all_rules()
        await self.cloud.refuse_connections()
        await self.still_served()
        self.objects.remove("other")
        await self.pause(2)
        await self.still_served()
        self.assertEqual(self.all_rules(), rules)
        self.cloud.restore()
        await self.changes_are_seen()
        other = self.objects.address("other", 4)
        # Services have a separate watch, which may be restored later.
        await self.eventually(lambda: self.is_not_served(other), "the other Service is gone", 60)

    async def test_lists_that_fail(self) -> None:
        """A list that fails, also one with an empty list and an error, and an invalid one, remove
        nothing, neither at a restart of the watch nor later.
        """
        await self.prepare()
        await self.start_proxy()
        await self.eventually_by(REMOTE, self.hosts[6])
        empty = {"kind": "ServiceList", "apiVersion": "v1", "metadata": {}, "items": []}
        failing = [
            Canned(b'{"kind":"Status","status":"Failure","code":500}', status=500),
            Canned(json.dumps(empty).encode(), status=500),
            Canned(json.dumps(empty).encode(), status=410),
            Canned(b""),
            Canned(b'{"kind":"ServiceList"'),
        ]
        for answer in failing:
            for path in (SERVICES, SLICES):
                self.cloud.answers[path] = self.cloud.answers[f"{path}?watch"] = answer
            for server in self.cloud.servers:
                server.for_all("reset")
            await self.pause(1.0)
            await self.still_served()
        self.cloud.answers.clear()
        await self.changes_are_seen()

    async def test_one_kind_is_not_listed(self) -> None:
        """Until both kinds have been listed nothing is changed: the rules of a previous process
        stay, and ``/readyz`` says what is missing.
        """
        await self.prepare()
        before = await self.start_proxy()
        await self.eventually_by(REMOTE, self.hosts[6])
        rules = self.all_rules()
        before.kill()
        self.cloud.answers[SLICES] = Canned(b'{"kind":"Status","code":500}', status=500)
        proxy = self.make_proxy(name="next")
        proxy.start()

        async def says() -> bool:
            status, body = await proxy.get("/readyz")
            return status == 503 and "endpointslices" in body.lower()

        await self.answering(proxy)
        await self.eventually(says, "/readyz names the kind that is missing")
        self.assertEqual(self.all_rules(), rules)
        self.cloud.answers.clear()
        await proxy.ready(60)
        for host in self.hosts.values():
            await self.eventually_by(REMOTE, host)

    async def answering(self, proxy: Proxy) -> None:
        """Wait until a program that need not be ready responds on its port."""

        async def answers() -> bool:
            try:
                await proxy.get("/healthz")
            except Exception:
                return False
            return True

        await self.eventually(answers, "the proxy answers", READY_SECONDS)

    async def test_start_without_the_cloud(self) -> None:
        """Behind a hub that has listed everything once, the node starts without the cloud: hub and
        proxy are killed, and serve as before.
        """
        await self.prepare()
        hub = Hub(reactor, self.directory, self.cloud.urls)
        self.cloud.join(hub.state)
        self.addCleanup(lambda: Deferred.fromCoroutine(self.end_hub(hub)))
        hub.start()
        await hub.ready()
        extra = (*self.flags(), "--master", hub.url)
        proxy = self.end_with_test(Proxy(reactor, self.directory, extra=extra))
        proxy.start()
        await proxy.ready()
        await self.eventually_by(REMOTE, self.hosts[6])

        async def settled() -> bool:
            return await hub.metric("yurthub_cache_waiting_bytes") == 0

        await self.eventually(settled, "the hub's cache is written")
        await self.cloud.refuse_connections()
        proxy.kill()
        hub.kill()
        for each in (hub, proxy):
            each.start()
        await proxy.ready()
        await self.eventually_by(REMOTE, self.hosts[4])
        await self.still_served()
        self.cloud.restore()
        await self.changes_are_seen()

    async def end_hub(self, hub: Hub) -> None:
        """Shut it down gracefully."""
        await hub.stop(20)
        self.assertEqual(hub.forbidden_log_lines(), [])


class Files:
    """A file beside the API; subclasses choose the mode and the back end."""

    def write(self, *names: str) -> None:
        """Write a file with the objects of Services, atomically."""
        items: list[dict[str, Any]] = []
        for name in names:
            items.append(self.cloud.store.get(KINDS["services"], "default", name))
            items += [
                self.cloud.store.get(KINDS["endpointslices"], "default", f"{name}-a-{version}")
                for version in BOTH
            ]
        path = Path(self.directory, "services.json")
        new = path.with_suffix(".new")
        new.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
        os.replace(new, path)
        self.file = ("--services-file", str(path))

    async def test_file_beside_the_api(self) -> None:
        """The content of the file is served beside that of the API; a change of either leaves the
        other's alone; an unreadable file changes nothing.
        """
        self.serve(*REMOTE, *LOCAL)
        await self.start_cloud()
        for name in ("filed", "listed"):
            self.objects.service(name)
            self.objects.endpoints(name, *REMOTE)
        self.write("filed")
        self.objects.remove_endpoints("filed")
        self.objects.remove("filed")
        proxy = await self.start_proxy(*self.file)
        filed, listed = (
            [self.objects.address(name, version) for version in BOTH]
            for name in ("filed", "listed")
        )
        await self.each_by(REMOTE, [*filed, *listed])
        self.objects.remove("listed")
        for host in listed:
            await self.eventually(lambda host=host: self.is_not_served(host), f"{host} is gone")
        await self.each_by(REMOTE, filed)
        path = Path(self.file[1])
        good = json.loads(path.read_text())
        path.write_text("{")
        await self.eventually(lambda: str(path) in proxy.log, "the log names the file", 20)
        await self.each_by(REMOTE, filed)
        for item in good["items"]:
            if item["kind"] == "EndpointSlice":
                item["endpoints"] = item["endpoints"][:1]
        path.write_text(json.dumps(good))
        await self.each_by(REMOTE[:1], filed, seconds=FILE_SECONDS)

    async def each_by(self, pods: Iterable[Pod], hosts: Iterable[str], **how) -> None:
        """Wait until only these pods serve at each of these addresses."""
        for host in hosts:
            await self.eventually_by(pods, host, **how)


class UserTests(Api, Files, SourcesTestCase):
    """User mode."""


class LegacyTests(Legacy, Api, Files, SourcesTestCase):
    """User mode, with legacy iptables."""


class NftablesTests(Nftables, Api, Files, SourcesTestCase):
    """User mode, with native nftables."""


class KernelTests(KernelMode, Api, Files, SourcesTestCase):
    """Kernel mode."""
