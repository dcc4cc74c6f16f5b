"""Support for the tests of the service proxy."""

from __future__ import annotations

import re
import signal
import stat
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from twisted.internet import reactor
from twisted.internet.defer import Deferred, gatherResults
from twisted.internet.interfaces import IConnector
from twisted.internet.utils import getProcessOutputAndValue

from tests.apiserver.bootstrap_roles import rule
from tests.e2e.hub.cloud import READ, Cloud
from tests.e2e.network.namespaces import run
from tests.e2e.proxy.network import CLIENT, SITES, NodeNetwork, address, version_of
from tests.e2e.proxy.objects import BOTH, TARGET_PORT, Objects, Pod
from tests.e2e.proxy.programs import SYNCS, Proxy
from tests.e2e.proxy.traffic import (
    REFUSED,
    Answer,
    Caller,
    CallerFactory,
    DatagramCaller,
    DatagramEndpoint,
    StreamEndpoint,
)
from tests.e2e.support import EndToEndTestCase, which

USER = "system:kube-proxy"
GROUP = "system:node-proxiers-of-tests"

SHOWN_SECONDS = 15.0
"""How long the effect of a change may take on a busy machine; otherwise it is immediate."""

TIMEOUT = 30.0
"""Seconds for which a client waits for an answer; in some of them it may have no processor."""

CACHED_PIPE_ENDS = 2 * 16
"""Pipes that a proxy keeps for reuse."""

REMOTE = tuple(Pod(number) for number in (11, 12, 13))
LOCAL = tuple(Pod(number, local=True) for number in (14, 15))


class Legacy:
    """The part of a :class:`ProxyTestCase` with legacy iptables."""

    legacy = True


class Nftables:
    """The part of a :class:`ProxyTestCase` with native nftables."""

    backend = "nftables"


class KernelMode(Nftables):
    """The part of a :class:`ProxyTestCase` in kernel mode."""

    mode = "kernel"


class ProxyTestCase(EndToEndTestCase):
    """A test case with a node, an API, proxies, endpoints and clients.

    ``mode`` and ``backend`` are flags of its proxies; with ``legacy`` the node uses legacy
    iptables.
    """

    mode = "user"
    backend = "iptables"
    legacy = False

    maxDiff = None  # Show rules that differ completely.

    async def setUp(self) -> None:
        """Make the networks."""
        await super().setUp()
        self.network = NodeNetwork()
        self.addCleanup(self.network.close)
        if self.legacy:
            # The chain that shows which of the two firewalls kubelet uses.
            for program in ("iptables-legacy", "ip6tables-legacy"):
                run(program, "-w", "20", "-t", "mangle", "-N", "KUBE-KUBELET-CANARY")
        self.streams: dict[tuple[Pod, int, int], StreamEndpoint] = {}
        self.datagrams: dict[tuple[Pod, int, int], DatagramEndpoint] = {}
        self._ports: dict[tuple[Pod, int], list] = {}
        self._connectors: dict[Caller, IConnector] = {}
        self.addCleanup(self.abort_calls)

    # -- The programs of the node --------------------------------------------------------------

    async def start_cloud(self) -> Cloud:
        """Start an API on the node; ``objects`` writes its content."""
        self.cloud = Cloud(reactor, self.directory)
        self.addCleanup(lambda: Deferred.fromCoroutine(self.cloud.stop()))
        await self.cloud.start()
        self.cloud.grant(GROUP, rule(READ, "", "services", "endpoints", "nodes"))
        self.cloud.grant(GROUP, rule(READ, "discovery.k8s.io", "endpointslices"))
        self.objects = Objects(self.cloud)
        return self.cloud

    def make_proxy(self, *flags: str, server: str = "", **options) -> Proxy:
        """Prepare a proxy that watches the API, or another ``server``; it ends with the test."""
        config = self.cloud.identities.client_kubeconfig(
            "proxy", server or self.cloud.urls, USER, GROUP
        )
        extra = ("--kubeconfig", str(config), *self.flags(), *flags)
        return self.end_with_test(Proxy(reactor, self.directory, extra=extra, **options))

    def flags(self) -> tuple[str, ...]:
        """Return the flags of the variant that a test is about."""
        return ("--mode", self.mode, "--proxy-backend", self.backend)

    def end_with_test(self, proxy: Proxy) -> Proxy:
        """End a proxy with the test, gracefully and without errors."""
        self.addCleanup(lambda: Deferred.fromCoroutine(self._end_proxy(proxy)))
        return proxy

    async def start_proxy(self, *flags: str, **options) -> Proxy:
        """Start a proxy, and wait until it is ready."""
        proxy = self.make_proxy(*flags, **options)
        proxy.start()
        await proxy.ready()
        return proxy

    async def start(self, *flags: str) -> Proxy:
        """Start an API and a proxy."""
        await self.start_cloud()
        return await self.start_proxy(*flags)

    async def _end_proxy(self, proxy: Proxy) -> None:
        await self.abort_calls()
        status = await proxy.stop(20) if proxy.running else 0
        if status not in (0, -signal.SIGTERM):
            raise proxy.failed(f"SIGTERM gave exit status {status}")
        forbidden_log_lines = proxy.forbidden_log_lines()
        if forbidden_log_lines:
            raise proxy.failed("complains:\n" + "\n".join(forbidden_log_lines))

    async def next_sync(self, proxy: Proxy) -> None:
        """Wait for the end of a sync that started after this call."""
        before = await proxy.metric(SYNCS)

        async def is_over() -> bool:
            # The first one may have been in progress.
            return await proxy.metric(SYNCS) >= before + 2

        await self.eventually(is_over, "two syncs have ended")

    def count_programs(self, proxy: Proxy) -> Path:
        """Record each start of a firewall program in a file."""
        directory, log = Path(self.directory, "bin"), Path(self.directory, "started")
        directory.mkdir()
        log.touch()
        families = ("iptables", "ip6tables")
        names = [f"{f}{b}{s}" for f in families for b in ("", "-nft", "-legacy")
                 for s in ("", "-save", "-restore")]  # fmt: skip
        for name in (*names, "nft", "conntrack"):
            script = directory / name
            script.write_text(f'#!/bin/sh\necho "{name} $*" >> {log}\nexec {which(name)} "$@"\n')
            script.chmod(script.stat().st_mode | stat.S_IXUSR)
        proxy.prepend_path(directory)
        return log

    def changing_since(self, began: str, log: Path) -> list[str]:
        """Return the programs started since the log had the content ``began``, without checks of
        legacy tables, whose changes the kernel does not count.
        """
        started = log.read_text().removeprefix(began).splitlines()
        return [line for line in started if not (self.legacy and "-save" in line)]

    async def assert_no_descriptor_leak(
        self, proxy: Proxy, before: dict[str, str], seconds: float = 20
    ) -> None:
        """Require that a proxy has no more descriptors than before, except for kept pipes."""
        had = _without_pipes(before)

        def are_back() -> bool:
            now = proxy.descriptors()
            others = _without_pipes(now)
            return others <= had and len(now) - others <= len(before) - had + CACHED_PIPE_ENDS

        await self.eventually(are_back, f"the descriptors are back to {before}", seconds)

    # -- Endpoints -----------------------------------------------------------------------------

    def serve(self, *pods: Pod, port: int = TARGET_PORT, versions: Iterable[int] = BOTH) -> None:
        """Have pods listen by TCP and UDP until the test ends, or until :meth:`end`."""
        for pod in pods:
            ports = self._ports.setdefault((pod, port), [])
            for version in versions:
                where = pod.address(version)
                stream, datagram = StreamEndpoint(), DatagramEndpoint(reactor, where)
                with self.network.inside(pod.site):
                    ports.append(reactor.listenTCP(port, stream, 1024, interface=where))
                    ports.append(
                        reactor.listenUDP(port, datagram, interface=where, maxPacketSize=65536)
                    )
                self.streams[pod, port, version] = stream
                self.datagrams[pod, port, version] = datagram
            self.addCleanup(self.end, pod, port)

    def end(self, pod: Pod, port: int = TARGET_PORT) -> Deferred:
        """Have a pod stop listening, and reset its connections, as at the end of a process."""
        closed = [one.stopListening() for one in self._ports.pop((pod, port), [])]
        for version in BOTH:
            stream = self.streams.pop((pod, port, version), None)
            self.datagrams.pop((pod, port, version), None)
            if stream is not None:
                stream.cut()
        return gatherResults([each for each in closed if each is not None])

    # -- Clients -------------------------------------------------------------------------------

    def dial(
        self,
        host: str,
        port: int = 80,
        *,
        machine: str = "clients",
        source: str = "",
        source_port: int = 0,
        size: int = 1000,
        keeps_open: bool = False,
        answer_timeout: float = TIMEOUT,
    ) -> Caller:
        """Start a client's call; it runs on a machine, and uses an address of it as the source.

        Without ``source_port`` the kernel chooses one.
        """
        caller = Caller(reactor, size, keeps_open)
        if machine in SITES:
            source = source or address(machine, CLIENT, version_of(host))
        with self.network.inside(machine):
            bound = (source, source_port) if source else None
            connector = reactor.connectTCP(host, port, CallerFactory(caller), answer_timeout, bound)
        self._connectors[caller] = connector
        limit = reactor.callLater(answer_timeout + 5, _hang_up, connector)

        def over(answer: Answer) -> Answer:
            del self._connectors[caller]
            if limit.active():
                limit.cancel()
            return answer

        caller.answered.addCallback(over)
        return caller

    def abort_calls(self) -> Deferred:
        """End all remaining calls."""
        calls = list(self._connectors)
        for connector in list(self._connectors.values()):
            _hang_up(connector)
        return gatherResults([caller.answered for caller in calls])

    async def call(self, host: str, port: int = 80, **options) -> Answer:
        """Make a client's call, and return the answer."""
        return await self.dial(host, port, **options).answered

    async def calls(
        self, count: int, host: str, port: int = 80, at_once: int = 20, **options
    ) -> list[Answer]:
        """Make this many calls, some of them at a time."""
        found: list[Answer] = []

        async def one_after_the_other(number: int) -> None:
            for _ in range(number, count, at_once):
                answer = await self.call(host, port, **options)
                found.append(answer)

        workers = [Deferred.fromCoroutine(one_after_the_other(n)) for n in range(at_once)]
        await gatherResults(workers, consumeErrors=True)
        return found

    async def assert_served(self, host: str, port: int = 80, **options) -> Answer:
        """Require that a client is served."""
        answer = await self.call(host, port, **options)
        self.assertEqual(answer.problem, "", f"{host} {port} {options}")
        return answer

    async def eventually_by(
        self, pods: Iterable[Pod], host: str, port: int = 80, seconds: float = SHOWN_SECONDS, **how
    ) -> None:
        """Wait until only these pods serve; without any, until clients are refused."""
        version = version_of(host)
        expected = {pod.address(version) for pod in pods} or {REFUSED}
        how.setdefault("answer_timeout", 1.0)

        async def are() -> bool:
            # One call mostly shows that it is too early; many at each poll would busy a processor.
            if not spread([await self.call(host, port, **how)]).keys() <= expected:
                return False
            # In kernel mode the choice is random: of three endpoints, another one stays unseen once
            # in 3,000 times.
            count = max(20, 4 * len(expected))
            return spread(await self.calls(count, host, port, **how)).keys() == expected

        await self.eventually(are, f"{host} {port} is served by {expected}", seconds)

    def datagram_caller(
        self,
        host: str,
        port: int = 53,
        *,
        machine: str = "clients",
        source: str = "",
        source_port: int = 0,
    ) -> DatagramCaller:
        """Make a UDP client at an address; without ``source_port`` the kernel chooses one."""
        caller = DatagramCaller(reactor)
        if machine in SITES:
            source = source or address(machine, CLIENT, version_of(host))
        source = source or ("::" if version_of(host) == 6 else "")
        with self.network.inside(machine):
            reactor.listenUDP(source_port, caller, interface=source, maxPacketSize=65536)
        caller.transport.connect(host, port)
        self.addCleanup(caller.close)
        return caller

    async def ask(
        self,
        host: str,
        port: int = 53,
        question: bytes = b"?",
        answer_timeout: float = TIMEOUT,
        **options,
    ) -> Answer:
        """Send from a new UDP client, and return the answer."""
        caller = self.datagram_caller(host, port, **options)
        answer = await caller.ask(question, answer_timeout)
        await caller.close()
        return answer

    # -- The state of the node -----------------------------------------------------------------

    async def curl(self, url: str, machine: str = "node") -> tuple[int, str]:
        """Request a page with curl; return the status, 0 without an answer, and the body."""
        options = ("--silent", "--max-time", f"{TIMEOUT:g}", "--write-out", "\n%{http_code}", url)
        with self.network.inside(machine):
            asked = getProcessOutputAndValue(which("curl"), options, reactor=reactor)
        out, _, _ = await asked
        body, _, status = out.decode().rpartition("\n")
        return int(status), body

    def saved(self, version: int = 4, table: str = "nat") -> list[str]:
        """Return the rules of a table from iptables-save, without what changes by itself."""
        base = "iptables" if version == 4 else "ip6tables"
        program = f"{base}-{'legacy' if self.legacy else 'nft'}-save"
        lines = run(program, "-t", table).splitlines()
        return [re.sub(r" \[\d+:\d+\]$", "", line) for line in lines if not line.startswith("#")]

    async def eventually_rules(self, expected: list[str]) -> None:
        """Wait until all rules of the node are these; show the differences if they are not."""
        with suppress(self.failureException):
            await self.eventually(lambda: self.all_rules() == expected, "", interval=0.1)
        self.assertEqual("\n".join(self.all_rules()), "\n".join(expected))

    def all_rules(self) -> list[str]:
        """Return all rules of the node, in both firewalls, and all user-defined chains.

        Counters, elements that packets add to sets, and tables and chains without rules, which
        iptables creates when it lists them, are omitted, and so are tables that end with a process.
        """
        found = []
        for family, version in (("iptables", "ip"), ("ip6tables", "ip6")):
            lines = run(f"{family}-nft-save").splitlines()
            names = Path(f"/proc/thread-self/net/{version}_tables_names")
            for table in names.read_text().split() if names.exists() else ():
                lines += run(f"{family}-legacy-save", "-t", table).splitlines()
            found += [f"{family} {line}" for line in lines if _is_rule_or_chain(line)]
        for line in run("nft", "list", "tables").splitlines():
            _, family, name = line.split()
            if (family, name) not in _OF_IPTABLES and not name.startswith(OF_A_PROCESS):
                listed = run("nft", "-s", "list", "table", family, name)
                found += _ADDED_BY_PACKETS.sub(r"\1", listed).splitlines()
        return found


_OF_IPTABLES = {(f, t) for f in ("ip", "ip6") for t in ("nat", "filter", "mangle", "raw")}

_ADDED_BY_PACKETS = re.compile(r"(flags dynamic[^{}]*)\n\t\telements = \{[^{}]*\}")

OF_A_PROCESS = ("yurtproxy-", "yurttunnel-")
"""The prefixes of tables that belong to a process: no other program can change them."""


def _is_rule_or_chain(line: str) -> bool:
    """Whether a line of iptables-save is a rule, or a user-defined chain."""
    built_in = re.match(r":[A-Z]+ (ACCEPT|DROP) ", line)
    return line.startswith((":", "-A")) and not built_in and "KUBELET-CANARY" not in line


def _without_pipes(descriptors: dict[str, str]) -> int:
    return sum(not target.startswith("pipe:") for target in descriptors.values())


def _hang_up(connector: IConnector) -> None:
    if connector.state == "connecting":
        connector.stopConnecting()
    elif connector.state == "connected":
        connector.transport.abortConnection()


def spread(answers: Iterable[Answer]) -> Counter[str]:
    """Count clients by the endpoint that served them, or by their problem."""
    return Counter(answer.problem or answer.endpoint for answer in answers)
