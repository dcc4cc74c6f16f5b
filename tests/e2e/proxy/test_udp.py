"""Tests of UDP: clients keep their endpoint while it exists, and no longer."""

from __future__ import annotations

import resource
import socket
from collections import Counter
from collections.abc import Sequence

from twisted.internet.defer import Deferred, gatherResults

from tests.e2e.network.namespaces import run
from tests.e2e.proxy.network import (
    CLIENT,
    FIRST_POD,
    LAST_POD,
    NODE,
    OTHER_CLIENT,
    address,
    version_of,
)
from tests.e2e.proxy.objects import BOTH, TARGET_PORT, port
from tests.e2e.proxy.support import (
    LOCAL,
    REMOTE,
    TIMEOUT,
    KernelMode,
    Legacy,
    Nftables,
    ProxyTestCase,
)
from tests.e2e.proxy.test_portals import BALANCER, SPARE_ADDRESS
from tests.e2e.proxy.traffic import REFUSED, UNANSWERED, Answer

NODE_PORT = 30053
LEFT = LOCAL[0]
MANY, AT_ONCE = 10_000, 20
FILES = 4096
"""The limit of open files of a proxy: fewer than one for each of many clients."""
MAX_CLIENTS, FILES_FOR_A_CLIENT = 16_384, 8
"""The limit of clients, and for how many open files one is allowed (docs/limits.md)."""
OTHER_SOCKETS = 50
"""Other sockets of a proxy: ports, and connections to the API and to the kernel."""
CLIENTS, ALL_CLIENTS = "yurtproxy_connections", "yurtproxy_accepted_connections_total"
"""The metrics of current clients, and of all so far."""
IDLE = ("--udp-timeout", "10s", "--udp-first-timeout", "10s")
"""Flags by which clients are kept until their limit is reached."""
SOURCES = (CLIENT, OTHER_CLIENT, *range(FIRST_POD, LAST_POD + 1))
"""The numbers of the addresses of many clients."""
FIRST_PORT = 20_000
"""Source ports that clients choose: the kernel assigns none of those that follow."""
DATAGRAM = bytes(range(250)) * 36


class Datagrams:
    """The tests; subclasses choose the mode and the back end."""

    async def prepare(self, *flags: str, **options) -> None:
        """Serve DNS by a Service with a portal of each kind."""
        self.serve(*REMOTE, LEFT)
        await self.start_cloud()
        self.write()
        self.objects.endpoints("dns", *REMOTE)
        self.proxy = await self.start_proxy(*flags, **options)
        for version in BOTH:
            await self.answered(self.objects.address("dns", version))

    def write(self) -> None:
        """Write the Service."""
        self.objects.service(
            "dns",
            port(53, "UDP", node=NODE_PORT),
            type="LoadBalancer",
            externalIPs=list(SPARE_ADDRESS.values()),
            status={"loadBalancer": {"ingress": [{"ip": text} for text in BALANCER.values()]}},
        )

    def portals(self, version: int) -> Sequence[tuple[str, str, int]]:
        """Return clients and portals."""
        cluster = self.objects.address("dns", version)
        return (
            ("clients", cluster, 53),
            ("node", cluster, 53),
            ("clients", SPARE_ADDRESS[version], 53),
            ("outside", BALANCER[version], 53),
            ("node", BALANCER[version], 53),
            ("clients", address("clients", NODE, version), NODE_PORT),
            ("outside", address("outside", NODE, version), NODE_PORT),
        )

    async def answered(self, host: str) -> None:
        """Wait until the Service is served."""

        async def is_answered() -> bool:
            return not (await self.ask(host, answer_timeout=0.3)).problem

        await self.eventually(is_answered, f"{host} answers")

    async def test_datagrams(self) -> None:
        """A late answer arrives; 9,000 bytes arrive completely; a client keeps its endpoint, and
        others have other ones.
        """
        await self.prepare()
        for version in BOTH:
            host = self.objects.address("dns", version)
            answer = await self.ask(host, question=DATAGRAM)
            self.assertEqual(answer.problem, "")
            served: Counter[str] = Counter()
            for _ in range(30):
                served[(await self.ask(host)).endpoint] += 1
            self.assertEqual(set(served), {pod.address(version) for pod in REMOTE})
            caller = self.datagram_caller(host)
            used = {(await caller.ask(b"%d" % n, TIMEOUT)).endpoint for n in range(20)}
            self.assertEqual(len(used), 1)
        for endpoint in self.datagrams.values():
            endpoint.delay = 2.0
        for version in BOTH:
            late = await self.ask(self.objects.address("dns", version))
            self.assertEqual(late.problem, "")
            self.assertGreater(late.seconds, 1.9)

    async def test_clients_leave_an_endpoint_that_is_removed(self) -> None:
        """A client that sends continuously is served by another one at once, at any portal
        (k#48370, k#98305).
        """
        await self.prepare()
        for version in BOTH:
            callers = [
                self.datagram_caller(host, number, machine=machine)
                for machine, host, number in self.portals(version)
                for _ in range(6)
            ]
            for caller in callers:
                self.assertEqual((await caller.ask(b"first", TIMEOUT)).problem, "")
            self.objects.endpoints("dns", LEFT, versions=(version,))
            for caller in callers:
                await self.eventually(
                    lambda c=caller, v=version: self.is_served_by(c, LEFT.address(v)),
                    "each client is served by the endpoint that is left",
                )

    async def is_served_by(self, caller, endpoint: str) -> bool:
        """Return whether a client is served by an endpoint."""
        return (await caller.ask(b"again", 0.5)).endpoint == endpoint

    async def test_endpoints_come_after_the_client(self) -> None:
        """A client that sends continuously is served once there are endpoints, and until then it is
        refused, at any portal.
        """
        self.serve(*REMOTE)
        await self.start_cloud()
        self.write()
        self.objects.endpoints("dns")
        await self.start_proxy()
        for version in BOTH:
            asking = [self.persistent(*portal) for portal in self.portals(version)]
            for each in asking:
                await self.eventually(
                    lambda e=each: self.hears(e, REFUSED.encode()), "each client is refused"
                )
            self.objects.endpoints("dns", *REMOTE, versions=(version,))
            for each in asking:
                await self.eventually(lambda e=each: self.hears(e, b"?"), "each client is served")

    def persistent(self, machine: str, host: str, port: int) -> socket.socket:
        """Make a client that keeps its port when it is refused; Twisted's would end."""
        family = socket.AF_INET6 if version_of(host) == 6 else socket.AF_INET
        with self.network.inside(machine):
            client = socket.socket(family, socket.SOCK_DGRAM)
        self.addCleanup(client.close)
        client.setblocking(False)
        client.connect((host, port))
        return client

    async def hears(self, client: socket.socket, end: bytes) -> bool:
        """Return whether a client that sends, repeatedly, gets something with this end."""
        try:
            client.send(b"?")
            await self.pause(0.05)
            return client.recv(1000).endswith(end)
        except BlockingIOError:
            return False
        except (ConnectionRefusedError, PermissionError):
            # The latter is the error for programs of this machine without an endpoint.
            return end == REFUSED.encode()

    async def test_service_ends(self) -> None:
        """With the Service its associations end: it serves no client any more."""
        await self.prepare()
        hosts = [self.objects.address("dns", version) for version in BOTH]
        callers = {host: self.datagram_caller(host, source_port=FIRST_PORT) for host in hosts}
        for caller in callers.values():
            self.assertEqual((await caller.ask(b"first", TIMEOUT)).problem, "")
        self.objects.remove("dns")

        async def ended(host: str) -> bool:
            if callers[host].transport is None:
                # Twisted's port ends when it is refused; another one is the same client.
                await self.pause(0)
                callers[host] = self.datagram_caller(host, source_port=FIRST_PORT)
            return (await callers[host].ask(b"again", 0.5)).problem in (UNANSWERED, REFUSED)

        for host in hosts:
            await self.eventually(lambda h=host: ended(h), "the client is not served any more")
            # It may have been refused, or not been answered in time, before they were removed.
            await self.eventually(
                lambda h=host: not self.is_forwarded(h), "the kernel leads nothing to its endpoints"
            )
            self.assertTrue(await ended(host))

    def is_forwarded(self, host: str) -> bool:
        """Return whether the kernel sends clients of an address to an endpoint."""
        version = version_of(host)
        flows = run("conntrack", "-L", "-f", f"ipv{version}", "-p", "udp", "--orig-dst", host)
        sources = [f"src={pod.address(version)} " for pod in REMOTE]
        return any(each in flows for each in (*sources, f"sport={TARGET_PORT} "))


class UserDatagrams(Datagrams):
    """User mode, with any back end."""

    async def test_ten_thousand_clients(self) -> None:
        """They do not exhaust descriptors, of which there are fewer: as many clients as allowed are
        kept at once, and no more. The last is served like the first, and their resources are
        released after the idle timeout.
        """
        limited = ("sh", "-c", f'ulimit -n {FILES}; exec "$0" "$@"')
        await self.prepare(*IDLE, prefix=limited)
        files, _ = resource.prlimit(self.proxy.pid, resource.RLIMIT_NOFILE)
        allowed = min(MAX_CLIENTS, files // FILES_FOR_A_CLIENT)
        before = len(self.proxy.descriptors())
        had = await self.proxy.metric(ALL_CLIENTS, protocol="UDP")
        problems: Counter[str] = Counter()
        clients, sockets = [], []
        for first in range(0, MANY, AT_ONCE):
            asked = [
                self.send_from_unique_client(number) for number in range(first, first + AT_ONCE)
            ]
            problems.update(each.problem for each in await gatherResults(asked))
            if first % 500 == 0:
                clients.append(await self.proxy.metric(CLIENTS, protocol="UDP"))
                sockets.append(self.sockets())
        self.assertEqual(problems, {"": MANY})
        # Each address may have as many clients as are free, so that some space is left.
        self.assertGreater(max(clients), 0.9 * min(MANY, allowed))
        self.assertLessEqual(max(clients), allowed)
        self.assertLessEqual(max(sockets), allowed + OTHER_SOCKETS)
        self.assertEqual(await self.proxy.metric(ALL_CLIENTS, protocol="UDP"), had + MANY)
        await self.eventually(
            lambda: len(self.proxy.descriptors()) <= before + 2, "descriptors are given back", 30
        )

    def send_from_unique_client(self, number: int) -> Deferred[Answer]:
        """Send from a client with a unique address and port, of alternating families."""
        host = self.objects.address("dns", BOTH[number % len(BOTH)])
        acquire_slot, which = divmod(number // len(BOTH), len(SOURCES))
        source = address("clients", SOURCES[which], version_of(host))
        question = b"%d" % number
        source_port = FIRST_PORT + acquire_slot
        asked = self.ask(host, 53, question, TIMEOUT, source=source, source_port=source_port)
        return Deferred.fromCoroutine(asked)

    def sockets(self) -> int:
        """Return how many sockets the proxy has."""
        return sum(each.startswith("socket:") for each in self.proxy.descriptors().values())


class UserTests(UserDatagrams, ProxyTestCase):
    """User mode, with iptables."""


class LegacyTests(Legacy, UserDatagrams, ProxyTestCase):
    """User mode, with legacy iptables."""


class NftablesTests(Nftables, UserDatagrams, ProxyTestCase):
    """User mode, with native nftables."""


class KernelTests(KernelMode, Datagrams, ProxyTestCase):
    """Kernel mode."""

    async def test_restart(self) -> None:
        """Clients that send continuously keep their endpoints when the proxy is restarted, except
        for those whose endpoint was removed meanwhile.
        """
        await self.prepare()
        callers = [
            self.datagram_caller(host, number, machine=machine)
            for version in BOTH
            for machine, host, number in self.portals(version)
            for _ in range(3)
        ]
        had = [(await caller.ask(b"first", TIMEOUT)).endpoint for caller in callers]
        await self.proxy.stop()
        self.objects.endpoints("dns", *REMOTE[1:])
        self.proxy.start()
        await self.proxy.ready()
        gone = {pod.address(version) for version in BOTH for pod in REMOTE[:1]}
        for caller, before in zip(callers, had, strict=True):
            await self.eventually(
                lambda c=caller: self.is_answered(c), "each client is served once more"
            )
            now = (await caller.ask(b"third", TIMEOUT)).endpoint
            self.assertEqual(now != before, before in gone)

    async def is_answered(self, caller) -> bool:
        """Return whether a client that sends is served."""
        return not (await caller.ask(b"second", 0.5)).problem
