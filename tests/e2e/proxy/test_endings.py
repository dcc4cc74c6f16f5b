"""Tests that the two directions of a connection end separately, and that nothing remains."""

from __future__ import annotations

import itertools
import json

from twisted.internet.defer import Deferred, gatherResults

from tests.e2e.proxy.network import CLIENT, NODE, address, version_of
from tests.e2e.proxy.objects import BOTH, port
from tests.e2e.proxy.support import REMOTE, KernelMode, Legacy, Nftables, ProxyTestCase
from tests.e2e.proxy.traffic import CLOSED
from tests.proxy.sockets.test_proxy_protocol import parse

BIG = 20_000_000
CALLERS = 40
TEXT = b"0123456789" * 10_000

NODE_PORT = 30080

FIRST_SOURCE_PORT = 20_000
"""The source ports that clients choose, below those that the kernel chooses."""

BEGINNINGS = {"v1": b"PROXY ", "v2": b"\r\n\r\n\0\r\nQUIT\n"}
"""The beginnings of the headers of both versions of the PROXY protocol."""

GUARD = 65
"""Seconds for which half of a half-closed connection may be idle, with the time of detection."""


class Introductions:
    """Endpoints that get the client's address, for which a Service has a proxy socket in both
    modes; subclasses choose the mode and the back end.
    """

    async def setUp(self) -> None:
        """Reserve source ports for clients, each of which is used once."""
        await super().setUp()
        self._source_ports = itertools.count(FIRST_SOURCE_PORT)

    async def test_proxy_protocol(self) -> None:
        """With the annotation an endpoint first gets the address of its client, and of the portal,
        in the version of the PROXY protocol that the annotation has at the time.
        """
        self.serve(*REMOTE)
        await self.start_cloud()
        self.proxy = await self.start_proxy()
        for version_name in BEGINNINGS:
            self.objects.service(
                "web",
                port(80, node=NODE_PORT),
                type="NodePort",
                annotations={"yurttunnel.io/proxy-protocol": version_name},
            )
            self.objects.endpoints("web", *REMOTE)
            for version in BOTH:
                host = self.objects.address("web", version)
                await self.eventually(lambda h=host: self.answers(h), f"{host} answers")
                await self.eventually(
                    lambda h=host, a=version_name: self.is_introduced(h, a),
                    f"{host} has {version_name}",
                )
                for portal in ((host, 80), (address("clients", NODE, version), NODE_PORT)):
                    client = address("clients", CLIENT, version), next(self._source_ports)
                    received = await self.introduction(*portal, b"hello", client[1])
                    self.assertEqual(
                        received[: len(BEGINNINGS[version_name])], BEGINNINGS[version_name]
                    )
                    self.assertEqual(parse(received), (f"IPv{version}", client, portal, b"hello"))

    async def answers(self, host: str) -> bool:
        """Return whether an endpoint has sent its greeting."""
        return bool((await self.call(host)).endpoint)

    async def is_introduced(self, host: str, version_name: str) -> bool:
        """Return whether an endpoint gets the header of the requested version."""
        received = await self.introduction(host, 80, b"", next(self._source_ports))
        return received.startswith(BEGINNINGS[version_name])

    async def introduction(self, host: str, number: int, text: bytes, source_port: int) -> bytes:
        """Send from a client; return all that its endpoint received."""
        output = await self.netcat(host, text, number, "-p", f"{source_port}")
        _, _, echoed = output.partition(b"\n")
        return echoed

    async def netcat(self, host: str, text: bytes, number: int = 80, *options: str) -> bytes:
        """Have a third-party program send, half-close, and read the response."""
        source = address("clients", CLIENT, version_of(host))
        command = ("nc", "-N", "-w", "10", "-s", source, *options, host, f"{number}")
        with self.network.inside("clients"):
            running = Deferred.fromCoroutine(self.run_command(*command, standard_input=text))
        output, errors, status = await running
        self.assertEqual(status, 0, errors)
        return output


class Endings(Introductions):
    """User mode, which connects two connections; subclasses choose the back end."""

    async def test_bytes_and_ends(self) -> None:
        """Large bodies pass completely in both directions at a time, with the end of one direction
        long before the other's; ``nc -N`` gets its response; resets leave nothing behind.
        """
        self.serve(*REMOTE)
        await self.start_cloud()
        self.objects.service("web")
        self.objects.endpoints("web", *REMOTE)
        proxy = await self.start_proxy()
        for version in BOTH:
            await self.eventually_by(REMOTE, self.objects.address("web", version))
        before = proxy.descriptors()
        for version in BOTH:
            host = self.objects.address("web", version)
            big = [self.dial(host, size=BIG, answer_timeout=GUARD).answered for _ in range(4)]
            self.assertEqual({one.problem for one in await gatherResults(big)}, {""})
            await self.breaks(host)
            _, _, echoed = (await self.netcat(host, TEXT)).partition(b"\n")
            self.assertEqual(echoed, TEXT)
        await self.assert_no_descriptor_leak(proxy, before)

    async def breaks(self, host: str) -> None:
        """Have clients reset their connections, and endpoints theirs; the other end is notified."""
        callers = [self.dial(host, keeps_open=True) for _ in range(CALLERS)]
        await gatherResults([caller.greeted for caller in callers])
        for caller in callers[: CALLERS // 2]:
            caller.drop()
        await self.eventually(
            lambda: sum(len(each.connections) for each in self.streams.values()) == CALLERS // 2,
            "endpoints are told of clients that break off",
        )
        for each in self.streams.values():
            each.cut()
        answers = await gatherResults([caller.answered for caller in callers])
        self.assertEqual({answer.problem for answer in answers}, {CLOSED})

    async def test_removed_endpoint(self) -> None:
        """An endpoint disappears without notice, as at a power failure, after its clients have
        half-closed. The proxy's resources for both ends are released when the timeout of
        half-closed connections, a minute, is over.
        """
        gone = REMOTE[0]
        self.serve(gone)
        await self.start_cloud()
        self.objects.service("web")
        self.objects.endpoints("web", gone)
        proxy = await self.start_proxy()
        hosts = [self.objects.address("web", version) for version in BOTH]
        for host in hosts:
            await self.eventually_by([gone], host)
        before = proxy.descriptors()
        callers = [
            self.dial(hosts[number % 2], keeps_open=True, answer_timeout=2 * GUARD)
            for number in range(CALLERS)
        ]
        await gatherResults([caller.greeted for caller in callers])
        self.network.drop_packets("outside", gone.number)
        for caller in callers:
            caller.transport.loseWriteConnection()
        await self.assert_no_descriptor_leak(proxy, before, seconds=GUARD + 30)
        # The clients are notified, too.
        await gatherResults([caller.answered for caller in callers])


class IptablesTests(Endings, ProxyTestCase):
    """iptables on nf_tables."""


class LegacyTests(Legacy, Endings, ProxyTestCase):
    """legacy iptables."""


class NftablesTests(Nftables, Endings, ProxyTestCase):
    """Native nftables."""


class KernelTests(KernelMode, Introductions, ProxyTestCase):
    """Kernel mode, in which the kernel carries all other Services."""

    async def test_proxy_protocol(self) -> None:
        """The same with a proxy socket, which no other Service has: the endpoints of others see the
        clients' addresses.
        """
        await super().test_proxy_protocol()
        self.objects.service("other")
        self.objects.endpoints("other", *REMOTE)
        for version in BOTH:
            host = self.objects.address("other", version)
            await self.eventually_by(REMOTE, host)
            answer = await self.assert_served(host)
            self.assertEqual(answer.client, address("clients", CLIENT, version))
        _, body = await self.proxy.get("/services")
        have_ports = {
            (each["service"], each["version"]): each["proxy_port"] is not None
            for each in json.loads(body)
        }
        expected = {
            (f"default/{name}", version): name == "web"
            for name in ("web", "other")
            for version in BOTH
        }
        self.assertEqual(have_ports, expected)
