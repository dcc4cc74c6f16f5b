"""Tests of pages for operators and load balancers, and of a proxy without rules."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from twisted.internet import reactor

from tests.e2e.hub.cloud import KINDS
from tests.e2e.hub.cloud import NODE as NODE_NAME
from tests.e2e.network.namespaces import run
from tests.e2e.proxy.network import NODE, address
from tests.e2e.proxy.objects import BOTH
from tests.e2e.proxy.programs import HEALTH_PORT, Proxy
from tests.e2e.proxy.support import REMOTE, ProxyTestCase
from tests.e2e.proxy.traffic import REFUSED
from yurttunnel.proxy.kernel.connection_counts import PERIOD_SECONDS


class HealthTests(ProxyTestCase):
    """``/healthz``, ``/livez``, ``/readyz`` and the pages."""

    async def test_pages(self) -> None:
        """A node that is being deleted is unhealthy for load balancers, but alive; the status page,
        its JSON and the metrics show Services, endpoints and their counters.
        """
        self.serve(*REMOTE)
        await self.start_cloud()
        self.objects.service("web")
        self.objects.endpoints("web", *REMOTE)
        proxy = await self.start_proxy()
        host = self.objects.address("web", 4)
        await self.eventually_by(REMOTE, host)
        await self.healthy(200, eligible=True)
        taints = [{"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule"}]
        self.cloud.change("nodes", NODE_NAME, spec={"taints": taints})
        await self.healthy(503, eligible=False)
        status, body = await self.health("livez")
        self.assertEqual(status, 200, body)
        self.cloud.change("nodes", NODE_NAME, spec={})
        await self.healthy(200, eligible=True)
        _, page = await proxy.get("/")
        _, services = await proxy.get("/services")
        for word in ("default/web", host, *(f"{pod.address(4)}:8080" for pod in REMOTE)):
            self.assertIn(word, page)
            self.assertIn(word, services)
        accepted = await proxy.metric("yurtproxy_accepted_connections_total", protocol="TCP")
        await self.calls(10, host)
        more = await proxy.metric("yurtproxy_accepted_connections_total", protocol="TCP")
        self.assertEqual(more, accepted + 10)
        self.assertEqual(await proxy.metric("yurtproxy_endpoints"), 6)

    async def health(self, page: str) -> tuple[int, str]:
        """Send a request from outside."""
        url = f"http://{address('outside', NODE, 4)}:{HEALTH_PORT}/{page}"
        return await self.curl(url, machine="outside")

    async def healthy(self, expected: int, eligible: bool) -> None:
        """Wait until ``/healthz`` has this status."""

        async def is_shown() -> bool:
            status, body = await self.health("healthz")
            return status == expected and json.loads(body)["nodeEligible"] is eligible

        await self.eventually(is_shown, f"/healthz answers {expected}")

    async def test_rules_that_cannot_be_created(self) -> None:
        """If changes wait for more than two periods, ``/healthz`` returns 503, and ``/readyz`` says
        why. Existing Services are still served, and both recover when rules can be changed again.
        """
        self.serve(*REMOTE)
        await self.start_cloud()
        self.objects.service("web")
        self.objects.endpoints("web", *REMOTE)
        proxy = self.make_proxy()
        broken = self.break_programs(proxy)
        proxy.start()
        await proxy.ready()
        await self.eventually_by(REMOTE, self.objects.address("web", 4))
        broken.touch()
        self.objects.service("late")
        self.objects.endpoints("late", *REMOTE)
        await self.healthy(503, eligible=True)

        async def is_reason_shown() -> bool:
            status, body = await proxy.get("/readyz")
            return status == 503 and "out of order" in body

        await self.eventually(is_reason_shown, "/readyz says why")
        await self.eventually_by(REMOTE, self.objects.address("web", 4))
        broken.unlink()
        await self.eventually_by(REMOTE, self.objects.address("late", 4), seconds=40)
        await self.healthy(200, eligible=True)

    async def test_rules_of_kube_proxy(self) -> None:
        """``/readyz`` and the log name the rules that a kube-proxy has left, in its modes."""
        self.serve(*REMOTE)
        await self.start_cloud()
        for prefix in ("iptables-nft", "ip6tables-nft", "iptables-legacy"):
            run(prefix, "-w", "20", "-t", "nat", "-N", "KUBE-SERVICES")
        run("nft", "add", "table", "ip", "kube-proxy")
        proxy = await self.start_proxy()

        async def are_shown() -> bool:
            return "rules of kube-proxy (" in (await proxy.get("/readyz"))[1]

        await self.eventually(are_shown, "/readyz names them")
        status, page = await proxy.get("/readyz")
        self.assertEqual(200, status)
        (problem,) = re.findall(r"rules of kube-proxy \((.*?)\)", page)
        expected = [
            "iptables-nft -t nat -S KUBE-SERVICES",
            "iptables-legacy -t nat -S KUBE-SERVICES",
            "ip6tables-nft -t nat -S KUBE-SERVICES",
            "nft list table ip kube-proxy",
        ]
        self.assertEqual(expected, problem.split(", "))
        self.assertIn(
            f"Clients may not reach this proxy: rules of kube-proxy ({problem})", proxy.log
        )
        for command in expected:
            run(*command.split())

    def break_programs(self, proxy: Proxy) -> Path:
        """Have ``iptables-restore`` fail while there is a file."""
        directory, broken = Path(self.directory, "bin"), Path(self.directory, "broken")
        directory.mkdir()
        for name in ("iptables-nft-restore", "ip6tables-nft-restore", "iptables-restore",
                     "ip6tables-restore"):  # fmt: skip
            script = directory / name
            fails = f'if [ -e {broken} ]; then echo "out of order" >&2; exit 4; fi'
            script.write_text(f'#!/bin/sh\n{fails}\nexec /usr/sbin/{name} "$@"\n')
            script.chmod(0o700)
        proxy.prepend_path(directory)
        return broken


class KernelTests(ProxyTestCase):
    """What is shown in kernel mode, which ``auto`` selects if possible."""

    def flags(self) -> tuple[str, ...]:
        """Leave mode and back end at ``auto``."""
        return ()

    async def prepare(self) -> Proxy:
        """Serve one Service by the kernel."""
        self.serve(*REMOTE)
        await self.start_cloud()
        self.objects.service("web")
        self.objects.endpoints("web", *REMOTE)
        proxy = await self.start_proxy()
        for version in BOTH:
            await self.eventually_by(REMOTE, self.objects.address("web", version))
        _, body = await proxy.get("/mode")
        self.assertEqual(json.loads(body), {"mode": "kernel", "backend": "nftables"})
        return proxy

    async def test_connections(self) -> None:
        """The page and the metrics show the connections of endpoints some seconds later."""
        proxy = await self.prepare()
        accepted = sum(each.total for each in self.streams.values())

        async def are_shown() -> bool:
            _, body = await proxy.get("/services")
            return sum(each.get("total", 0) for each in json.loads(body)) == accepted

        await self.eventually(are_shown, f"{accepted} connections are shown", 2 * PERIOD_SECONDS)
        name = "yurtproxy_accepted_connections_total"
        before = await proxy.metric(name, protocol="TCP")
        await self.calls(10, self.objects.address("web", 4))

        async def are_counted() -> bool:
            return await proxy.metric(name, protocol="TCP") == before + 10

        await self.eventually(are_counted, "10 connections more are counted", 2 * PERIOD_SECONDS)

    async def test_connections_of_the_moment(self) -> None:
        """The page and the metrics show open connections while they last, some seconds later."""
        proxy = await self.prepare()
        callers = [
            self.dial(self.objects.address("web", version), keeps_open=True, answer_timeout=120)
            for version, count in zip(BOTH, (3, 2), strict=True)
            for _ in range(count)
        ]
        for caller in callers:
            await caller.greeted

        async def are_shown(*numbers: int) -> bool:
            _, body = await proxy.get("/services")
            shown = {each["version"]: each.get("active") for each in json.loads(body)}
            all_in_all = await proxy.metric("yurtproxy_connections", protocol="TCP")
            return [shown[each] for each in BOTH] == [*numbers] and all_in_all == sum(numbers)

        await self.eventually(
            lambda: are_shown(3, 2), "five connections are shown", 3 * PERIOD_SECONDS
        )
        for caller in callers[1:]:
            caller.finish()
            await caller.answered
        await self.eventually(lambda: are_shown(1, 0), "one is left", 3 * PERIOD_SECONDS)
        callers[0].finish()
        await callers[0].answered


class WithoutRulesTests(ProxyTestCase):
    """``--proxy-backend none``: clients connect to the proxy's own ports."""

    backend = "none"

    async def test_ports_alone(self) -> None:
        """On loopback only, with a file and no API, it serves without changing the firewall."""
        self.serve(*REMOTE)
        await self.start_cloud()
        self.objects.service("web")
        self.objects.endpoints("web", *REMOTE)
        store = self.cloud.store
        items: list[dict[str, Any]] = [store.get(KINDS["services"], "default", "web")]
        items += [
            store.get(KINDS["endpointslices"], "default", f"web-a-{version}") for version in BOTH
        ]
        path = Path(self.directory, "services.json")
        path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
        before = self.all_rules()
        extra = (*self.flags(), "--services-file", str(path), "--bind-address", "127.0.0.1")
        proxy = self.end_with_test(Proxy(reactor, self.directory, extra=extra))
        proxy.start()
        await proxy.ready()
        _, body = await proxy.get("/services")
        [port] = [each["proxy_port"] for each in json.loads(body) if each["version"] == 4]
        _, body = await proxy.get("/mode")
        self.assertEqual(json.loads(body), {"mode": "user", "backend": "none"})
        await self.eventually_by(REMOTE, "127.0.0.1", port, machine="node")
        answer = await self.call(address("clients", NODE, 4), port)
        self.assertEqual(answer.problem, REFUSED)
        self.assertEqual(self.all_rules(), before)

    async def test_loopback_with_rules_is_refused(self) -> None:
        """Rules cannot redirect clients to a loopback address: this is an error."""
        extra = ("--services-file", "/nonexistent", "--bind-address", "127.0.0.1")
        extra = (*extra, "--mode", "user", "--proxy-backend", "iptables")
        proxy = Proxy(reactor, self.directory, extra=extra)
        proxy.start()
        self.assertNotEqual(await proxy.ended(20), 0)
        self.assertIn("--bind-address", proxy.log)
