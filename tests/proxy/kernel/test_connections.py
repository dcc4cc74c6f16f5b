"""Tests of looking up single connections in the kernel's conntrack table."""

from __future__ import annotations

from ipaddress import ip_address

from tests.e2e.network.namespaces import run
from tests.steering.netlink.support import KernelTestCase, run_at_once
from yurttunnel.proxy.kernel.connections import MAX_PORTALS, Connections
from yurttunnel.proxy.kernel.targets import Attempt, Target
from yurttunnel.proxy.state.virtual_services import Endpoint, Protocol

CLIENT = {4: "10.5.0.2", 6: "fd05::2"}
NODE = {4: "10.5.0.1", 6: "fd05::1"}
PODS = {4: ("10.1.0.10", "10.1.0.11"), 6: ("fd01::10", "fd01::11")}
PORT, PORTAL, CLIENTS = 8080, 30080, 40000


class ConnectionsTests(KernelTestCase):
    """A client that is sent from a node port to a pod."""

    version = 4

    def setUp(self) -> None:
        """Create a table."""
        super().setUp()
        self.portals = [(ip_address(NODE[self.version]), PORTAL)]
        self.connections = Connections(run_at_once, lambda target: self.portals)
        self.connections.start()
        self.addCleanup(self.connections.stop)

    def lead(self, seen_as: str, *more: str) -> None:
        """Create an entry by which the first pod sees the client with an address."""
        client, node, pod = CLIENT[self.version], NODE[self.version], PODS[self.version][0]
        run(
            *("conntrack", "-I", "-p", "tcp", "-s", client, "-d", node),
            *("--sport", str(CLIENTS), "--dport", str(PORTAL)),
            *("--reply-src", pod, "--reply-dst", seen_as),
            *("--reply-port-src", str(PORT), "--reply-port-dst", str(CLIENTS)),
            *("--state", "SYN_SENT", "--timeout", "60", *more),
        )

    def attempt(self, pod: int = 0) -> Attempt:
        """Return the client's attempt at a pod."""
        endpoint = Endpoint(ip_address(PODS[self.version][pod]), PORT)
        return Attempt(Target(Protocol.TCP, endpoint), ip_address(CLIENT[self.version]), CLIENTS)

    def test_whether_it_is_answered(self) -> None:
        """The lookup finds clients that the pod sees with their address, or with the node's."""
        for seen_as in (CLIENT[self.version], NODE[self.version]):
            for more, expected in (((), False), (("--status", "SEEN_REPLY"), True)):
                self.lead(seen_as, *more)
                self.assertIs(expected, self.connections.is_answered(self.attempt()), seen_as)
                self.connections.delete_entry(self.attempt())
                self.assertIsNone(self.connections.is_answered(self.attempt()))

    def test_by_answers_alone(self) -> None:
        """A client that the pod sees with its address is found for any portal."""
        client, node, pod = CLIENT[self.version], NODE[self.version], PODS[self.version][0]
        run(
            *("conntrack", "-I", "-p", "tcp", "-s", client, "-d", node),
            *("--sport", str(CLIENTS), "--dport", str(PORTAL)),
            *("--dst-nat", f"{pod}:{PORT}" if self.version == 4 else f"[{pod}]:{PORT}"),
            *("--state", "SYN_SENT", "--timeout", "60"),
        )
        self.portals = []
        self.assertIs(False, self.connections.is_answered(self.attempt()))

    def test_another_endpoint(self) -> None:
        """A connection with another pod is not the attempt at this one."""
        self.lead(NODE[self.version])
        self.assertIsNone(self.connections.is_answered(self.attempt(1)))
        self.connections.delete_entry(self.attempt(1))
        self.assertIs(False, self.connections.is_answered(self.attempt()))

    def test_the_endpoint_itself(self) -> None:
        """A direct connection of the client with the pod from the same port is another one."""
        client, pod = CLIENT[self.version], PODS[self.version][0]
        run(
            *("conntrack", "-I", "-p", "tcp", "-s", client, "-d", pod),
            *("--sport", str(CLIENTS), "--dport", str(PORT)),
            *("--state", "SYN_SENT", "--timeout", "60", "--status", "SEEN_REPLY"),
        )
        self.assertIsNone(self.connections.is_answered(self.attempt()))
        self.lead(NODE[self.version])
        self.assertIs(False, self.connections.is_answered(self.attempt()))

    def test_portals_beyond_a_bound(self) -> None:
        """The number of lookups is limited: a portal beyond the limit is not found."""
        self.lead(NODE[self.version])
        self.portals = [*((self.portals[0][0], 1) for _ in range(MAX_PORTALS)), *self.portals]
        self.assertIsNone(self.connections.is_answered(self.attempt()))
        del self.portals[0]
        self.assertIs(False, self.connections.is_answered(self.attempt()))


class ConnectionsIPv6Tests(ConnectionsTests):
    """The same with IPv6."""

    version = 6
