"""The dialer on the real reactor: errors of the kernel map to the documented codes."""

from __future__ import annotations

import socket
from ipaddress import ip_address

from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.trial.unittest import TestCase

from tests.agent.fakes import FakeLookups, FakeRequest
from tests.black_hole import BlackHole
from tests.descriptors import no_descriptor_left
from tests.e2e.network.namespaces import Namespace
from yurttunnel.agent.dialer import Dialer
from yurttunnel.agent.policy import DestinationPolicy, parse_pattern
from yurttunnel.agent.resolver import NodeResolver
from yurttunnel.tunnel.direct.reactor import with_transports
from yurttunnel.tunnel.statistics import DIAL_SECONDS_BOUNDS, Durations
from yurttunnel.wire.codes import Code


class WaitingRequest(FakeRequest):
    """A request whose failure can be awaited."""

    def __init__(self, host: str, port: int, timeout: float = 10.0) -> None:
        super().__init__(host, port, timeout)
        self.failed: Deferred[tuple[Code, str]] = Deferred()

    def fail(self, code: Code, text: str) -> None:
        """Record a failure, and notify the test."""
        super().fail(code, text)
        self.failed.callback((code, text))


class KernelErrors:
    """Errors on loopback; no connection is ever established."""

    transports: str
    unreachable: str

    def setUp(self) -> None:
        """Reserve a port without a listener."""
        self.held = socket.socket()
        self.addCleanup(self.held.close)
        self.held.bind(("127.0.0.1", 0))
        self.port = self.held.getsockname()[1]
        policy = DestinationPolicy(
            "edge-1", [ip_address("127.0.0.1")], [parse_pattern("fe80::/10")]
        )
        resolver = NodeResolver(FakeLookups(), {})
        self.dialer = Dialer(
            with_transports(reactor, self.transports),
            policy,
            resolver,
            "edge-1",
            Durations(DIAL_SECONDS_BOUNDS),
        )
        self.addCleanup(self.dialer.stop)

    def ask(self, host: str, timeout: float = 10.0) -> Deferred[tuple[Code, str]]:
        """Dial and return the failure."""
        request = WaitingRequest(host, self.port, timeout)
        self.dialer.stream_requested(request)
        return request.failed

    async def test_a_port_on_which_nobody_listens_refuses(self) -> None:
        """REFUSED, with a text that names target, node and reason."""
        self.assertEqual(
            await self.ask("127.0.0.1"),
            (Code.REFUSED, f"connect 127.0.0.1:{self.port} from edge-1: connection refused"),
        )

    async def test_a_target_that_does_not_answer_times_out(self) -> None:
        """TIMEOUT, after the timeout of the request."""
        hole = BlackHole()
        self.addCleanup(hole.close)
        self.port = hole.port
        code, _ = await self.ask("127.0.0.1", timeout=0.05)
        self.assertEqual(code, Code.TIMEOUT)

    async def test_a_target_that_the_network_cannot_reach(self) -> None:
        """UNREACHABLE at once, and not "operation in progress"."""
        network = Namespace()
        self.addCleanup(network.close)
        rule = "-A OUTPUT -p tcp -j REJECT --reject-with icmp-host-unreachable"
        network.run("iptables", "-w", *rule.split())
        with network.inside():
            failed = self.ask("127.0.0.1")
        code, text = await failed
        self.assertEqual(code, Code.UNREACHABLE)
        self.assertEqual(text, f"connect 127.0.0.1:{self.port} from edge-1: {self.unreachable}")

    async def test_a_zone_without_an_interface_is_unreachable(self) -> None:
        """UNREACHABLE, without a lookup."""
        code, text = await self.ask("fe80::1%no-such-if")
        self.assertEqual(code, Code.UNREACHABLE)
        self.assertIn("zone id", text)

    async def test_running_out_of_descriptors_is_an_overload(self) -> None:
        """OVERLOADED: a later retry may succeed, and does."""
        with no_descriptor_left():
            failed = self.ask("127.0.0.1")
        code, text = await failed
        self.assertEqual(code, Code.OVERLOADED)
        self.assertIn("too many open files", text)
        code, _ = await self.ask("127.0.0.1")
        self.assertEqual(code, Code.REFUSED)


class DirectKernelErrorTests(KernelErrors, TestCase):
    """With the tunnel's transports."""

    transports = "direct"
    unreachable = "no route to host"


class TwistedKernelErrorTests(KernelErrors, TestCase):
    """With Twisted's, which lose the reason."""

    transports = "twisted"
    unreachable = "the network reports that it is unreachable"
