"""Tests with invalid objects: they are reported, and do not affect others."""

from __future__ import annotations

import json
import re
import socket
import struct
from collections.abc import Iterable, Mapping, Sequence

from twisted.internet import reactor
from twisted.internet.defer import Deferred, gatherResults

from tests.e2e.network.namespaces import run
from tests.e2e.proxy.network import NODE, address
from tests.e2e.proxy.objects import BOTH, Pod, port
from tests.e2e.proxy.programs import Proxy
from tests.e2e.proxy.support import (
    LOCAL,
    REMOTE,
    SHOWN_SECONDS,
    KernelMode,
    Legacy,
    Nftables,
    ProxyTestCase,
    spread,
)
from tests.e2e.proxy.test_portals import FOREIGN
from tests.e2e.proxy.traffic import StreamEndpoint

NODE_PORT = 30080
MANY, MANY_PORT = 1000, 9090

LONGEST, LONGEST_PORT_NAME = 253, 63
"""The maximum lengths of names of objects, and of ports of a Service."""

RING = {
    "ping": {4: "203.0.113.20", 6: "2001:db8:113::20"},
    "pong": {4: "203.0.113.21", 6: "2001:db8:113::21"},
}
"""Load-balancer IPs of two Services, each of which is the endpoint of the other."""

AROUND = {"port": "port", "there": "back", "back": "there"}
"""Services, and the ones whose proxy ports are their endpoints."""

MAX_LOOP_SHARE = 2 * 2 * 6
"""The descriptors of the proxy for them: proxy sockets of six Services, with some to spare."""


OTHER = {4: 6, 6: 4}

LIST_COMMAND = re.compile(r"\w+-(nft|legacy)-save\b|nft list\b")
"""Programs that read rules, and change none."""


def occupy(number: int, version: int) -> socket.socket:
    """Listen on a port of all addresses of a family, as another process would."""
    family, everywhere = (socket.AF_INET, "0.0.0.0") if version == 4 else (socket.AF_INET6, "::")
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if version == 6:
        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    listener.bind((everywhere, number))
    listener.listen()
    return listener


class PortInUse:
    """A resource that is in use, and a valid Service; subclasses choose mode and back end."""

    async def prepare(self, *flags: str) -> Proxy:
        """Make a valid Service, and a proxy."""
        self.serve(*REMOTE, *LOCAL)
        await self.start_cloud()
        self.objects.service("good")
        self.objects.endpoints("good", *REMOTE)
        self.proxy = self.make_proxy(*flags)
        self.started = self.count_programs(self.proxy)
        self.proxy.start()
        await self.proxy.ready()
        await self.good_is_served()
        return self.proxy

    async def good_is_served(self) -> None:
        """Require that the valid Service is served as before."""
        for version in BOTH:
            await self.eventually_by(REMOTE, self.objects.address("good", version))

    async def no_repair_needed(self) -> bool:
        """Return whether the current rules are the desired ones when they are checked after a
        change by another program: comments that iptables truncates would differ.
        """
        began = self.started.read_text()
        for change in ("add", "delete"):
            run("nft", change, "table", "inet", FOREIGN)
        await self.next_sync(self.proxy)
        lines = self.started.read_text().removeprefix(began).splitlines()
        return bool(lines) and all(LIST_COMMAND.match(line) for line in lines)

    async def assert_reported(self, *words: str) -> None:
        """Wait until the status page and the log contain these words, each in one line."""

        async def on_page() -> bool:
            _, page = await self.proxy.get("/")
            return all(word in page for word in words)

        await self.eventually(on_page, f"the status page says {words}")
        await self.eventually(
            lambda: any(
                all(word in line for word in words) for line in self.proxy.log.splitlines()
            ),
            f"a line of the log says {words}",
        )

    async def test_node_port_in_use(self) -> None:
        """If another process listens there, its clients stay with it, every other portal is served,
        and so is this one when it is free. The same holds with the longest names, of Services and
        ports that differ in the last character only; their rules need no repair.
        """
        await self.prepare()
        node = {each: address("clients", NODE, each) for each in BOTH}
        ports = ["http".ljust(LONGEST_PORT_NAME - 1, "b") + each for each in "01"]
        served = {
            (version, "web".ljust(LONGEST - 1, "a") + str(version)): pods
            for version, pods in ((4, REMOTE), (6, LOCAL))
        }
        for (version, name), pods in served.items():
            number = NODE_PORT + 10 * version
            listener = occupy(number, version)
            self.addCleanup(listener.close)
            self.objects.service(
                name,
                port(80, name=ports[0], node=number),
                port(81, name=ports[1], node=number + 1),
                type="NodePort",
            )
            self.objects.endpoints(name, *pods)
            await self.assert_reported(f"default/{name}:{ports[0]}", str(number))
            for each in (80, 81):
                await self.eventually_by(pods, self.objects.address(name, version), each)
            await self.eventually_by(pods, node[version], number + 1)
            await self.eventually_by(pods, node[OTHER[version]], number)
            caller = self.dial(node[version], number, keeps_open=True)
            await caller.made
            accepted, _ = listener.accept()
            # With a reset, after which the kernel does not reserve the port.
            accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            accepted.close()
            self.assertEqual((await caller.answered).endpoint, "")
            listener.close()
            await self.eventually_by(pods, node[version], number)
            await self.good_is_served()
        for (version, name), pods in served.items():
            for each in (80, 81):
                host = self.objects.address(name, OTHER[version])
                await self.eventually_by(pods, host, each)
        await self.eventually(self.no_repair_needed, "rules stay as they were written")


class BadInput(PortInUse):
    """Other invalid objects, for which the back end does not matter."""

    async def test_endpoints_that_cannot_be(self) -> None:
        """Loopback, link-local, unspecified and multicast addresses, names, and invalid ports are
        left out: the other endpoints of the same Service serve.
        """
        await self.prepare()
        bad = {
            4: ("127.0.0.1", "169.254.7.7", "0.0.0.0", "224.0.0.1", "example.org", "10.70.2.999"),
            6: ("::1", "fe80::7", "::", "ff02::1", "example.org", "::ffff:127.0.0.1"),
        }
        self.objects.service("web")
        for version, texts in bad.items():
            pods = [Pod(0, at=text) for text in texts]
            self.objects.endpoints("web", *pods, *REMOTE[:2], versions=(version,))
        for version, texts in bad.items():
            await self.eventually_by(REMOTE[:2], self.objects.address("web", version))
            for text in texts[:2]:
                await self.assert_reported("default/web", text)
        for number in (0, -1, 70_000):
            self.objects.endpoints("web", *REMOTE, part="b", target=number)
            await self.assert_reported("default/web", f"{number} is not a port number")
            for version in BOTH:
                got = spread(await self.calls(60, self.objects.address("web", version)))
                self.assertEqual(set(got), {pod.address(version) for pod in REMOTE[:2]})
        await self.good_is_served()

    async def test_services_that_cannot_be(self) -> None:
        """Invalid ports and addresses, unsupported protocols, two Services with one address, and
        names of 253 characters.
        """
        await self.prepare()
        self.objects.service("zero", port(0), port(81, name="b"))
        self.objects.service("huge", port(70_000), port(81, name="b"))
        self.objects.service("node-port", port(80, node=70_000), type="NodePort")
        self.objects.service("nonsense", clusterIP="10.96.0.999", clusterIPs=["10.96.0.999"])
        self.objects.service("loopback", externalIPs=["127.0.0.1", "not an address"])
        self.objects.service("sctp", port(80, "SCTP"))
        long = "a" * 253
        self.objects.service(long, port(80, name="b" * 63))
        for name in ("zero", "huge", "node-port", "loopback", long):
            self.objects.endpoints(name, *REMOTE)
        for name, text in (
            ("zero", "0 is not a port number"),
            ("huge", "70000 is not a port number"),
            ("node-port", "70000 is not a port number"),
            ("nonsense", "10.96.0.999 is not an IP address"),
            ("loopback", "127.0.0.1 is"),
            ("loopback", "not an address is not an IP address"),
            ("sctp", "protocol SCTP is not supported"),
        ):
            await self.assert_reported(f"default/{name}", text)
        for version in BOTH:
            for name, number in (("zero", 81), ("huge", 81), ("node-port", 80), ("loopback", 80),
                                 (long, 80)):  # fmt: skip
                await self.eventually_by(REMOTE, self.objects.address(name, version), number)
        await self.good_is_served()

    async def test_two_services_with_one_address(self) -> None:
        """One of them is served, and the other one is reported."""
        await self.prepare()
        first = self.objects.address("good", 4)
        self.objects.service("thief", versions=(4,), clusterIP=first, clusterIPs=[first])
        self.objects.endpoints("thief", *LOCAL, versions=(4,))
        await self.assert_reported("default/thief", first)
        await self.good_is_served()

    async def test_many_endpoints_in_a_slice(self) -> None:
        """A slice with ten times as many endpoints as Kubernetes writes is served completely."""
        await self.prepare()
        numbers = range(1, MANY + 1)
        networks = {
            4: (
                "",
                "10.71.0.0/16",
                [f"10.71.{number // 250}.{number % 250}" for number in numbers],
            ),
            6: ("::", "fd71::/64", [f"fd71::{number:x}" for number in numbers]),
        }
        for version, (interface, network, addresses) in networks.items():
            added = "dev lo" if version == 4 else "dev lo nodad"
            lines = "\n".join(f"address add {text} {added}" for text in addresses)
            self.network.run("outside", "ip", "-batch", "-", stdin=lines)
            outside = address("outside", 2, version)
            self.network.run("node", "ip", f"-{version}", "route", "add", network, "via", outside)
            number, name = MANY_PORT + version, f"web{version}"
            with self.network.inside("outside"):
                listening = reactor.listenTCP(number, StreamEndpoint(), 1024, interface=interface)
            self.addCleanup(listening.stopListening)
            self.objects.service(name, versions=(version,))
            pods = [Pod(0, at=text) for text in addresses]
            self.objects.endpoints(name, *pods, versions=(version,), target=number)
            await self.all_are_reached(self.objects.address(name, version), addresses)
        await self.good_is_served()

    async def all_are_reached(self, host: str, addresses: Sequence[str]) -> None:
        """Require that clients reach nearly all endpoints, and no others."""

        async def is_one_of_them() -> bool:
            return (await self.call(host, answer_timeout=1.0)).endpoint in addresses

        await self.eventually(is_one_of_them, "it is served")
        got = spread(await self.calls(2 * MANY, host))
        self.assertEqual(got.keys() - set(addresses), set())
        self.assertGreater(len(got), MANY * (0.99 if self.mode == "user" else 0.75))


class NoPorts(PortInUse):
    """The same for proxy ports, in user mode."""

    async def test_no_ports_are_left(self) -> None:
        """Of six Services five get a port of a range of five, in each family; this is reported, and
        the sixth gets one when another one is deleted.
        """
        await self.prepare("--proxy-port-range", "17000-17005")
        for version in BOTH:
            names = [f"web-{version}-{number}" for number in range(6)]
            for name in names:
                self.objects.service(name, versions=(version,))
                self.objects.endpoints(name, *REMOTE, versions=(version,))
            await self.assert_reported(f"default/web-{version}", "no remaining ports")
            served = await self.five_are_served(names, version)
            [without] = set(names) - set(served)
            self.objects.remove(served[0])
            await self.eventually_by(REMOTE, self.objects.address(without, version))
        await self.good_is_served()

    async def five_are_served(self, names: list[str], version: int) -> list[str]:
        """Wait until only one of some Services is not served; return the others."""
        served: list[str] = []

        async def so() -> bool:
            served.clear()
            for name in names:
                host = self.objects.address(name, version)
                if not (await self.call(host, answer_timeout=1.0)).problem:
                    served.append(name)
            return len(served) == 5

        await self.eventually(so, "five Services are served")
        return served


class Loops(PortInUse):
    """Endpoints that lead back to the node."""

    async def test_loop(self) -> None:
        """Endpoints that lead back to the proxy, by a proxy port, by a portal, or by those of two
        Services that lead to each other, fail soon for TCP and UDP, and do not affect others.
        """
        proxy = await self.prepare()
        before = len(proxy.descriptors())
        by_ports, by_portals = await self.point_to_proxy_ports(), self.point_to_portals()
        protocols = {**by_ports, **dict.fromkeys(by_portals, ("TCP", "UDP"))}
        everywhere = [
            (name, each, version)
            for name in protocols
            for each in protocols[name]
            for version in BOTH
        ]
        await gatherResults(Deferred.fromCoroutine(self.ends(*where)) for where in everywhere)
        # The first one may have been lost during the changes.
        await gatherResults(Deferred.fromCoroutine(self.answers(*where, 2)) for where in everywhere)
        for name in by_ports:
            await self.assert_reported(f"default/{name}", "it is a port of this proxy")
        for name in by_portals:
            await self.assert_reported(f"default/{name}", "which would be a loop")
        for answered in await gatherResults(
            Deferred.fromCoroutine(self.answers(*where, 10)) for where in everywhere
        ):
            self.assertEqual(answered, {""})
        await self.eventually(
            lambda: len(proxy.descriptors()) <= before + MAX_LOOP_SHARE, "nothing goes round", 10
        )
        await self.good_is_served()

    async def point_to_proxy_ports(self) -> Mapping[str, Sequence[str]]:
        """Make Services whose endpoints are proxy ports of this node; return their protocols."""
        found = {f"{name}-{each.lower()}": [each] for name in AROUND for each in ("TCP", "UDP")}
        for name, [protocol] in found.items():
            self.objects.service(name, port(80, protocol))
            self.objects.endpoints(name, *REMOTE)
        proxy_ports: dict[tuple[str, int], int] = {}

        async def all_are_open() -> bool:
            _, body = await self.proxy.get("/services")
            for each in json.loads(body):
                if each["proxy_port"]:
                    name = each["service"].removeprefix("default/")
                    proxy_ports[name, each["version"]] = each["proxy_port"]
            return all((name, version) in proxy_ports for name in found for version in BOTH)

        await self.eventually(all_are_open, "all have proxy ports")
        for name, [protocol] in found.items():
            for version in BOTH:
                await self.eventually(
                    lambda n=name, p=protocol, v=version: self.is_served(n, p, v),
                    f"{name} is served",
                    SHOWN_SECONDS,
                )
        for name in found:
            first, _, protocol = name.partition("-")
            for version in BOTH:
                own = Pod(0, at=address("outside", NODE, version))
                target = proxy_ports[f"{AROUND[first]}-{protocol}", version]
                self.objects.endpoints(name, own, target=target, versions=(version,))
        return found

    def point_to_portals(self) -> Iterable[str]:
        """Make Services whose endpoints are portals; return their names."""
        self.objects.service("portal", port(80), port(80, "UDP"))
        for name, addresses in RING.items():
            ingress = [{"ip": text} for text in addresses.values()]
            self.objects.service(
                name,
                port(80),
                port(80, "UDP"),
                type="LoadBalancer",
                status={"loadBalancer": {"ingress": ingress}},
            )
        for version in BOTH:
            own = Pod(0, at=self.objects.address("portal", version))
            self.objects.endpoints("portal", own, target=80, versions=(version,))
            for name, other in (("ping", "pong"), ("pong", "ping")):
                next_one = Pod(0, at=RING[other][version])
                self.objects.endpoints(name, next_one, target=80, versions=(version,))
        return ("portal", *RING)

    async def is_served(self, name: str, protocol: str, version: int) -> bool:
        """Return whether a client of a Service is served."""
        return await self.answers(name, protocol, version, 1) != {""}

    async def ends(self, name: str, protocol: str, version: int) -> None:
        """Wait until no client of a Service is served any more."""

        async def clients_are_refused() -> bool:
            # The log shows some of the clients of a minute.
            return not await self.is_served(name, protocol, version)

        await self.eventually(clients_are_refused, f"{name} is served no more")

    async def answers(self, name: str, protocol: str, version: int, count: int) -> set[str]:
        """Return which endpoints serve clients of a Service; an empty name means none."""
        host = self.objects.address(name, version)
        if protocol == "TCP":
            found = await self.calls(count, host, answer_timeout=6.0)
        else:
            requests = [self.ask(host, 80, answer_timeout=1.0) for _ in range(count)]
            found = await gatherResults(map(Deferred.fromCoroutine, requests))
        return {answer.endpoint for answer in found}


class UserTests(BadInput, NoPorts, Loops, ProxyTestCase):
    """User mode."""


class LegacyTests(Legacy, NoPorts, Loops, ProxyTestCase):
    """User mode, with legacy iptables."""


class NftablesTests(Nftables, NoPorts, Loops, ProxyTestCase):
    """User mode, with native nftables."""


class KernelTests(KernelMode, BadInput, Loops, ProxyTestCase):
    """Kernel mode."""

    async def point_to_proxy_ports(self) -> Mapping[str, Sequence[str]]:
        """Return none: the kernel uses no proxy ports."""
        return {}
