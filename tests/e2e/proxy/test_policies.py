"""Tests of which endpoints serve which clients: traffic policies, conditions, hints, and Services
without endpoints.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

from twisted.internet import reactor
from twisted.internet.defer import gatherResults

from tests.e2e.hub.cloud import NODE as NODE_NAME
from tests.e2e.proxy.network import CLIENT, NODE, OTHER_CLIENT, address
from tests.e2e.proxy.objects import BOTH, Pod, port
from tests.e2e.proxy.support import LOCAL, REMOTE, KernelMode, Legacy, Nftables, ProxyTestCase
from tests.e2e.proxy.test_portals import BALANCER, SPARE_ADDRESS
from tests.e2e.proxy.traffic import REFUSED, UNREACHED
from tests.e2e.stopwatch import Stopwatch

ALL = (*REMOTE, *LOCAL)
NODE_PORT, HEALTH_PORT = 30080, 30500
SOON = 1.0
"""Seconds within which a refusal is for the client's first packet: then it sends another."""


class PolicyTestCase(ProxyTestCase):
    """A test case with an API, and running endpoints."""

    async def setUp(self) -> None:
        """Start them."""
        await super().setUp()
        self.serve(*ALL)
        await self.start_cloud()

    async def each_family(self, name: str, pods: Iterable[Pod]) -> None:
        """Wait until a Service's cluster IPs are served by these pods only."""
        for version in BOTH:
            await self.eventually_by(pods, self.objects.address(name, version))


class Policies:
    """The tests; subclasses choose the mode and the back end."""

    async def test_local_policies(self) -> None:
        """With the policy, only local endpoints serve clients within the cluster or external ones,
        except programs of the node that use an external portal. Without a local one, clients within
        are refused, and external ones get no answer. Load balancers get the number of local
        endpoints.
        """
        self.objects.service("within", internalTrafficPolicy="Local")
        self.objects.endpoints("within", *ALL)
        self.external()
        self.objects.endpoints("without", *ALL)
        await self.start_proxy()
        await self.each_family("within", LOCAL)
        await self.each_family("without", ALL)
        for version in BOTH:
            node = address("outside", NODE, version)
            await self.eventually_by(LOCAL, node, NODE_PORT, machine="outside")
            await self.eventually_by(LOCAL, BALANCER[version], machine="outside")
            # As if the packets had gone out to the balancer, which may send them to any node.
            await self.eventually_by(ALL, BALANCER[version], machine="node")
            await self.assert_source_preserved(node, version)
        await self.eventually_healthy(200, len(LOCAL))
        self.objects.endpoints("within", *REMOTE)
        self.objects.endpoints("without", *REMOTE)
        await self.each_family("within", [])
        await self.each_family("without", REMOTE)
        await self.eventually_healthy(503, 0)
        # Until rules exist for that, sockets refuse them.
        await self.eventually(self.no_answer_outside, "they drop what comes", 20)
        self.objects.remove("without")
        await self.eventually_healthy(0, 0)

    async def no_answer_outside(self) -> bool:
        """Return whether clients of node port and load balancer get no answer."""
        unanswered = [
            self.dial(host, number, machine="outside", answer_timeout=1.5).answered
            for version in BOTH
            for host, number in (
                (address("outside", NODE, version), NODE_PORT),
                (BALANCER[version], 80),
            )
        ]
        answers = await gatherResults(unanswered)
        return {answer.problem for answer in answers} == {"TimeoutError"}

    def external(self) -> None:
        """Write a Service whose external traffic stays on the node."""
        self.objects.service(
            "without",
            port(80, node=NODE_PORT),
            type="LoadBalancer",
            externalTrafficPolicy="Local",
            healthCheckNodePort=HEALTH_PORT,
            status={"loadBalancer": {"ingress": [{"ip": text} for text in BALANCER.values()]}},
        )

    async def assert_source_preserved(self, host: str, version: int) -> None:
        """Require that endpoints see the client's address in kernel mode."""
        answer = await self.assert_served(host, NODE_PORT, machine="outside")
        if self.mode == "kernel":
            self.assertEqual(answer.client, address("outside", CLIENT, version))

    async def eventually_healthy(self, status: int, count: int) -> None:
        """Wait until load balancers get this status and this number of endpoints."""
        url = f"http://{address('outside', NODE, 4)}:{HEALTH_PORT}/healthz"

        async def is_expected() -> bool:
            got, body = await self.curl(url, machine="outside")
            if got != status:
                return False
            if status == 0:
                return True
            health = json.loads(body)
            service = {"namespace": "default", "name": "without"}
            return health["service"] == service and health["localEndpoints"] == count

        await self.eventually(is_expected, f"{url} answers {status} with {count}")

    async def test_no_endpoints(self) -> None:
        """Without endpoints clients are refused at once, at each portal; with the first one they
        are served, also if it is in another slice, and when the last is removed they are refused.
        """
        self.objects.service(
            "web",
            port(80, node=NODE_PORT),
            type="LoadBalancer",
            status={"loadBalancer": {"ingress": [{"ip": text} for text in BALANCER.values()]}},
        )
        await self.start_proxy()
        for version in BOTH:
            portals = (
                ("clients", self.objects.address("web", version), 80),
                ("node", self.objects.address("web", version), 80),
                ("outside", BALANCER[version], 80),
                ("outside", address("outside", NODE, version), NODE_PORT),
            )
            for state in range(2):
                for machine, host, number in portals:
                    await self.eventually_by([], host, number, machine=machine)
                    watch = Stopwatch(reactor)
                    answer = await self.call(host, number, machine=machine)
                    self.assertEqual(answer.problem, REFUSED)
                    self.assertLess(watch.seconds(), SOON)
                if state == 0:
                    self.objects.endpoints("web", REMOTE[0], versions=(version,))
                    await self.eventually_by(REMOTE[:1], portals[0][1])
                    self.objects.endpoints("web", REMOTE[1], versions=(version,), part="b")
                    await self.eventually_by(REMOTE[:2], portals[0][1])
                    self.objects.remove_endpoints("web", versions=(version,))
                    await self.eventually_by(REMOTE[1:2], portals[0][1])
                    self.objects.remove_endpoints("web", part="b", versions=(version,))

    async def test_source_ranges(self) -> None:
        """Clients outside the ranges of a load balancer get no answer there; by the cluster IP all
        are served.
        """
        allowed = [f"{address('clients', CLIENT, 4)}/32", f"{address('clients', CLIENT, 6)}/128"]
        self.objects.service(
            "web",
            type="LoadBalancer",
            loadBalancerSourceRanges=allowed,
            status={"loadBalancer": {"ingress": [{"ip": text} for text in BALANCER.values()]}},
        )
        self.objects.endpoints("web", *REMOTE)
        await self.start_proxy()
        for version in BOTH:
            other = address("clients", OTHER_CLIENT, version)
            await self.eventually_by(REMOTE, BALANCER[version])
            await self.assert_served(self.objects.address("web", version), source=other)
            answer = await self.call(BALANCER[version], source=other, answer_timeout=1.5)
            self.assertEqual(answer.problem, "TimeoutError")

    async def test_pod_connects_to_itself(self) -> None:
        """A pod that is the only endpoint of a Service reaches itself through it."""
        [pod] = LOCAL[:1]
        self.objects.service("web")
        self.objects.endpoints("web", pod)
        await self.start_proxy()
        await self.each_family("web", [pod])
        for version in BOTH:
            own = pod.address(version)
            host = self.objects.address("web", version)
            self.assertEqual(
                (await self.assert_served(host, machine="pods", source=own)).endpoint, own
            )

    async def test_services_without_a_portal(self) -> None:
        """Headless Services and names of others are skipped: they are neither listed nor in any
        rule. One without a selector, whose EndpointSlices are written by others, is served.
        """
        self.objects.service(
            "headless",
            clusterIP="None",
            clusterIPs=["None"],
            externalIPs=list(SPARE_ADDRESS.values()),
        )
        self.objects.service("elsewhere", type="ExternalName", externalName="example.org")
        for name in ("headless", "elsewhere"):
            self.objects.endpoints(name, *REMOTE)
        self.objects.service("manual")
        self.objects.endpoints("manual", *REMOTE[:1])
        proxy = await self.start_proxy()
        await self.each_family("manual", REMOTE[:1])
        for name in ("headless", "elsewhere"):
            for version in BOTH:
                answer = await self.call(self.objects.address(name, version), answer_timeout=0.5)
                self.assertIn(answer.problem, UNREACHED)
            self.assertNotIn(f"default/{name}", proxy.log)
        _, body = await proxy.get("/services")
        listed = [(each["service"], each["version"]) for each in json.loads(body)]
        self.assertEqual(sorted(listed), [("default/manual", version) for version in BOTH])
        _, page = await proxy.get("/")
        rules = "\n".join(self.all_rules())
        for version in BOTH:
            self.assertRegex(rules, self.anywhere(self.objects.address("manual", version)))
            for name in ("headless", "elsewhere"):
                self.assertNotIn(f"default/{name}", page)
                self.assertNotIn(f"default/{name}", rules)
                self.assertNotRegex(rules, self.anywhere(self.objects.address(name, version)))
            for host in (SPARE_ADDRESS[version], *(pod.address(version) for pod in REMOTE[1:])):
                self.assertNotRegex(rules, self.anywhere(host))

    def anywhere(self, host: str) -> str:
        """Return a pattern for an address that does not match longer ones."""
        return rf"(?<![\w.:]){re.escape(host)}(?![\w.:])"


class IptablesTests(Policies, PolicyTestCase):
    """User mode, with iptables."""


class LegacyTests(Legacy, Policies, PolicyTestCase):
    """User mode, with legacy iptables."""


class NftablesTests(Nftables, Policies, PolicyTestCase):
    """User mode, with nftables."""


class KernelTests(KernelMode, Policies, PolicyTestCase):
    """Kernel mode."""


class SelectionTests(PolicyTestCase):
    """The selection of endpoints, which is the same in all modes."""

    async def test_conditions_and_hints(self) -> None:
        """Ready endpoints serve; if there are none, terminating ones that still serve; those that
        are not ready if they are to be published; those for this node, or else this zone, if all
        have such a hint; without hints those of this zone or node, if the Service prefers these and
        has some there.
        """
        self.cloud.change("nodes", NODE_NAME, labels={"topology.kubernetes.io/zone": "here"})
        first, second, third = REMOTE
        ending = second.but(ready=False, serving=True, terminating=True)
        gone = third.but(ready=False, serving=False, terminating=True)
        starting = third.but(ready=False, serving=False)
        hinted = [pod.but(zone="there", for_zones=("there",)) for pod in REMOTE]
        hinted += [pod.but(zone="here", for_zones=("here",)) for pod in LOCAL]
        for_nodes = [first.but(for_nodes=(NODE_NAME,))]
        for_nodes += [pod.but(for_nodes=("elsewhere",)) for pod in LOCAL]
        near, far = first.but(zone="here"), second.but(zone="there")
        own, own_far = LOCAL[0].but(zone="here"), LOCAL[1].but(zone="there")
        zoned = [near, far, own, own_far]
        expected = {
            "ready": ([first, ending, gone], [first]),
            "ending": ([ending, gone], [second]),
            "starting": ([first, starting], [first]),
            "published": ([first, starting], [first, third]),
            "hinted": (hinted, LOCAL),
            "partly-hinted": ([*hinted[:-1], LOCAL[1]], ALL),
            "hints-for-others": (hinted[:3], REMOTE),
            "hinted-for-nodes": (for_nodes, [first]),
            "anywhere": (zoned, zoned),
            "close": (zoned, [near, own]),
            "same-zone": (zoned, [near, own]),
            "no-such-zone": ([far, own_far], [far, own_far]),
            "same-node": (zoned, [own, own_far]),
            "no-such-node": ([near, far], [near]),
            "hinted-otherwise": (
                [near.but(for_zones=("there",)), own_far.but(for_zones=("here",))],
                [own_far],
            ),
        }
        spec: dict[str, dict[str, Any]] = {
            "published": {"publishNotReadyAddresses": True},
            "close": {"trafficDistribution": "PreferClose"},
            "same-zone": {"trafficDistribution": "PreferSameZone"},
            "no-such-zone": {"trafficDistribution": "PreferSameZone"},
            "same-node": {"trafficDistribution": "PreferSameNode"},
            "no-such-node": {"trafficDistribution": "PreferSameNode"},
            "hinted-otherwise": {"trafficDistribution": "PreferSameZone"},
        }
        for name, (pods, _) in expected.items():
            self.objects.service(name, **spec.get(name, {}))
            self.objects.endpoints(name, *pods)
        await self.start_proxy()
        for name, (_, serving) in expected.items():
            await self.each_family(name, serving)
