"""Connecting: one contract for Twisted's connectors and for those of the direct transports."""

from __future__ import annotations

import errno
import os
import socket
from unittest import mock

from twisted.internet import reactor
from twisted.internet.address import IPv6Address
from twisted.internet.endpoints import TCP4ClientEndpoint
from twisted.internet.error import (
    ConnectError,
    ConnectionDone,
    ConnectionRefusedError,
    NotConnectingError,
    TimeoutError,
    UserError,
)
from twisted.internet.protocol import ClientFactory, Factory
from twisted.python.failure import Failure
from twisted.trial.unittest import TestCase

from tests.black_hole import BlackHole
from tests.descriptors import no_descriptor_left
from tests.e2e.network.namespaces import Namespace
from tests.peer import Peer
from tests.tunnel.direct.test_transport import MUCH, turns
from tests.tunnel.direct.users import HalfCloseUser, User
from tests.waiting import until
from yurttunnel.tunnel.direct import connector as direct_connector
from yurttunnel.tunnel.direct.descriptors import DescriptorSet
from yurttunnel.tunnel.direct.reactor import with_transports
from yurttunnel.tunnel.sockets import TunedEndpoint


class Client(ClientFactory):
    """Records the events of its connection in ``events``."""

    noisy = False

    def __init__(self, user: User | None = None) -> None:
        self.user = user or User()
        self.events: list[str] = []
        self.reason = None

    def startedConnecting(self, connector) -> None:
        """Record the event."""
        self.events.append("started")

    def buildProtocol(self, addr) -> User:
        """Return the user."""
        self.events.append("built")
        return self.user

    def clientConnectionFailed(self, connector, reason) -> None:
        """Record the event."""
        self.events.append("failed")
        self.reason = reason

    def clientConnectionLost(self, connector, reason) -> None:
        """Record the event."""
        self.events.append("lost")
        self.reason = reason


class ConnectorContract:
    """The requirements of endpoints and the dialer."""

    transports: str
    timeout = 20

    def setUp(self) -> None:
        """Reserve a port that does not listen yet."""
        self.reactor = with_transports(reactor, self.transports)
        self.held = socket.socket()
        self.addCleanup(self.held.close)
        self.held.bind(("127.0.0.1", 0))
        self.port = self.held.getsockname()[1]

    def dial(self, client: Client, host: str = "127.0.0.1", timeout: float = 10):
        """Start connecting."""
        return self.reactor.connectTCP(host, self.port, client, timeout)

    async def connect(self, client: Client) -> Peer:
        """Connect to a socket of this test."""
        self.held.listen()
        self.connector = self.dial(client)
        await until(lambda: client.user.events)
        peer = Peer(self.held.accept()[0])
        self.addCleanup(peer.socket.close)
        return peer

    async def test_a_connection_from_its_beginning_to_its_end(self) -> None:
        """The factory is started, notified of both, and stopped."""
        client = Client(HalfCloseUser())
        peer = await self.connect(client)
        user = client.user
        self.assertEqual(client.numPorts, 1)
        self.assertEqual(user.transport.getHost().port, peer.socket.getpeername()[1])
        self.assertEqual(user.transport.getPeer().port, self.port)
        with self.assertRaises(NotConnectingError):
            self.connector.stopConnecting()
        with self.assertRaises(RuntimeError):
            self.connector.connect()
        peer.socket.sendall(b"x")
        await until(lambda: user.received == b"x")
        user.transport.write(MUCH)
        self.connector.disconnect()
        await until(lambda: peer.read().ended and client.reason)
        self.assertEqual(len(peer.received), len(MUCH))
        self.assertEqual(client.events, ["started", "built", "lost"])
        client.reason.trap(ConnectionDone)
        self.assertEqual(client.numPorts, 0)

    async def test_a_tuned_connection_is_read_without_a_wrapper(self) -> None:
        """Twisted's endpoints leave a protocol on the transport that only passes on each read."""
        self.held.listen()
        tuned = []
        endpoint = TunedEndpoint(
            TCP4ClientEndpoint(self.reactor, "127.0.0.1", self.port), tuned.append
        )
        user = await endpoint.connect(Factory.forProtocol(User))
        self.assertEqual(tuned, [user.transport.getHandle()])
        self.assertIs(user.transport.protocol, user)
        peer = Peer(self.held.accept()[0])
        self.addCleanup(peer.socket.close)
        peer.socket.sendall(b"x")
        await until(lambda: user.received == b"x")
        user.transport.loseConnection()
        await until(lambda: peer.read().ended)

    async def test_sockets_are_prepared(self) -> None:
        """``prepare`` gets each socket of an outgoing connection before it is connected."""
        seen = []

        def prepare(sock: socket.socket) -> None:
            with self.assertRaises(OSError):
                sock.getpeername()
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY, 5)
            seen.append(sock)

        self.reactor = with_transports(reactor, self.transports, prepare)
        client = Client()
        await self.connect(client)
        self.assertEqual(len(seen), 1)
        self.assertEqual(seen[0].getsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY), 5)
        self.connector.disconnect()
        await until(lambda: client.reason)

    async def test_a_pause_in_connection_made_holds(self) -> None:
        """A dialed connection is joined to a stream there, which may have no credit."""
        client = Client()
        client.user.on["made"] = lambda: client.user.transport.pauseProducing()
        peer = await self.connect(client)
        peer.socket.sendall(b"x")
        await turns()
        self.assertEqual(client.user.received, b"")
        client.user.transport.resumeProducing()
        await until(lambda: client.user.received == b"x")
        client.user.transport.abortConnection()
        await until(lambda: client.reason)

    async def test_a_refusal_is_reported_later(self) -> None:
        """A refusal is never reported before ``connectTCP`` has returned."""
        client = Client()
        self.dial(client)
        self.assertEqual(client.events, ["started"])
        await until(lambda: client.reason)
        client.reason.trap(ConnectionRefusedError)
        self.assertEqual((client.events, client.numPorts), (["started", "failed"], 0))

    def fall_silent(self) -> None:
        """Connect to a port that never responds."""
        hole = BlackHole()
        self.addCleanup(hole.close)
        self.port = hole.port

    async def test_silence_ends_in_time(self) -> None:
        """The attempt fails with a ``TimeoutError``."""
        self.fall_silent()
        client = Client()
        self.dial(client, timeout=0.01)
        await until(lambda: client.reason)
        client.reason.trap(TimeoutError)
        self.assertEqual(client.events, ["started", "failed"])

    async def test_an_attempt_can_be_canceled(self) -> None:
        """An attempt can be cancelled once; afterwards it can be started again."""
        self.fall_silent()
        client = Client()
        connector = self.dial(client)
        connector.stopConnecting()
        self.assertEqual(client.events, ["started", "failed"])
        client.reason.trap(UserError)
        with self.assertRaises(NotConnectingError):
            connector.stopConnecting()
        connector.connect()
        connector.disconnect()
        self.assertEqual(client.events, ["started", "failed"] * 2)
        self.assertEqual(client.numPorts, 0)
        await turns()

    async def test_an_attempt_can_be_canceled_as_it_begins(self) -> None:
        """An attempt can be cancelled in ``startedConnecting``, by a caller that has left."""

        class Hasty(Client):
            def startedConnecting(self, connector) -> None:
                super().startedConnecting(connector)
                connector.stopConnecting()

        client = Hasty()
        self.dial(client)
        await turns()
        self.assertEqual(client.events, ["started", "failed"])

    async def test_a_zone_that_does_not_exist_is_found_at_once(self) -> None:
        """A zone that does not exist is an ``OSError``, without a leaked descriptor."""
        before = len(os.listdir("/proc/self/fd"))
        with self.assertRaises(OSError):
            self.dial(Client(), "fe80::1%no-such-if")
        self.assertEqual(len(os.listdir("/proc/self/fd")), before)

    async def test_ipv6(self) -> None:
        """Both ends of an IPv6 connection have IPv6 addresses."""
        listening = socket.socket(socket.AF_INET6)
        self.addCleanup(listening.close)
        listening.bind(("::1", 0))
        listening.listen()
        self.port = listening.getsockname()[1]
        client = Client()
        self.dial(client, "::1")
        await until(lambda: client.user.events)
        self.assertEqual(
            client.user.transport.getPeer(), IPv6Address("TCP", "::1", self.port, 0, 0)
        )
        self.assertIsInstance(client.user.transport.getHost(), IPv6Address)
        client.user.transport.abortConnection()
        await until(lambda: client.reason)

    async def test_running_out_of_descriptors_is_a_failure_with_its_number(self) -> None:
        """Running out of descriptors fails the attempt with the number of that error."""
        client = Client()
        with no_descriptor_left():
            self.dial(client)
        self.assertEqual(client.events, ["started"])
        await until(lambda: client.reason)
        self.assertEqual(client.reason.value.osError, errno.EMFILE)

    async def test_a_defect_in_connection_made_closes_the_connection(self) -> None:
        """The defect is logged, and the factory is notified."""
        client = Client()
        client.user.on["made"] = lambda: 1 // 0
        peer = await self.connect(client)
        await until(lambda: peer.read().ended)
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)
        self.assertEqual(client.events, ["started", "built", "lost"])
        client.reason.trap(ZeroDivisionError)

    async def test_a_defect_in_a_factory_fails_the_attempt(self) -> None:
        """The defect is logged, and the socket is closed."""

        class Broken(Client):
            def buildProtocol(self, addr) -> User:
                raise ZeroDivisionError

        self.held.listen()
        client = Broken()
        self.dial(client)
        await until(lambda: client.reason)
        peer = Peer(self.held.accept()[0])
        self.addCleanup(peer.socket.close)
        await until(lambda: peer.read().ended)
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)
        self.assertEqual((client.events, client.numPorts), (["started", "failed"], 0))


class TwistedConnectorTests(ConnectorContract, TestCase):
    """The contract with Twisted's connectors."""

    transports = "twisted"


class DirectConnectorTests(ConnectorContract, TestCase):
    """The contract with those of the direct transports."""

    transports = "direct"

    async def test_a_zone_reaches_the_kernel(self) -> None:
        """Without the number of the zone a link-local address is unreachable."""
        client = Client()
        connector = self.dial(client, "fe80::1%lo")
        self.assertEqual(connector.getDestination().scopeID, socket.if_nametoindex("lo"))
        if client.reason is None:
            connector.stopConnecting()
        await turns()

    async def test_a_name_is_no_address(self) -> None:
        """A name is rejected: endpoints resolve names before they connect."""
        with self.assertRaises(OSError):
            self.dial(Client(), "localhost")

    async def test_a_factory_that_builds_no_protocol(self) -> None:
        """The connection is closed, and the failure reported."""

        class Unwilling(Client):
            def buildProtocol(self, addr) -> None:
                return None

        self.held.listen()
        client = Unwilling()
        self.dial(client)
        await until(lambda: client.reason)
        client.reason.trap(ConnectError)

    async def test_what_cannot_be_watched(self) -> None:
        """If the kernel is out of watches, attempts and connections fail with that reason."""
        for prepare, method, number in (
            (self.held.listen, "addReader", errno.ENOSPC),
            (self.fall_silent, "addWriter", errno.ENOSPC),
            (self.fall_silent, "addWriter", errno.EMFILE),
        ):
            full = OSError(number, os.strerror(number))
            prepare()
            await turns()
            before = len(os.listdir("/proc/self/fd"))
            client = Client()
            with mock.patch.object(DescriptorSet, method, side_effect=full):
                self.dial(client)
                await until(lambda client=client: client.reason)
            self.assertEqual((method, client.reason.value.osError), (method, number))
            # No protocol is built that would wait for the connection.
            self.assertEqual(client.events, ["started", "failed"])
            self.assertEqual(len(os.listdir("/proc/self/fd")), before)

    async def test_a_socket_connected_to_itself_is_refused(self) -> None:
        """A free port of this host can be connected to itself: nothing listens there."""

        class Bound(socket.socket):
            def connect_ex(bound, address):
                if self.held.fileno() != -1:
                    self.held.close()
                    bound.bind(address)
                return super().connect_ex(address)

        self.patch(direct_connector.socket, "socket", Bound)
        client = Client()
        self.dial(client)
        await until(lambda: client.reason)
        client.reason.trap(ConnectionRefusedError)

    async def test_an_attempt_that_succeeds_at_once_sets_no_timeout(self) -> None:
        """Most targets of an agent are on its host; a timer would cost more than the attempt."""
        self.held.listen()
        client = Client()
        before = reactor.getDelayedCalls()
        connector = self.dial(client)
        soon = reactor.seconds() + 1
        late = [call for call in reactor.getDelayedCalls() if call.getTime() > soon]
        self.assertEqual([call for call in late if call not in before], [])
        await until(lambda: client.user.events)
        connector.disconnect()
        await until(lambda: client.reason)

    async def test_a_socket_that_is_connected_at_once(self) -> None:
        """connect(2) may succeed at once on a fast network."""

        class Quick(socket.socket):
            def connect_ex(quick, address):
                quick.setblocking(True)
                number = super().connect_ex(address)
                quick.setblocking(False)
                return number

        self.patch(direct_connector.socket, "socket", Quick)
        self.held.listen()
        client = Client()
        connector = self.dial(client)
        await until(lambda: client.user.events)
        connector.disconnect()
        self.held.close()
        await until(lambda: client.reason)
        client.reason.trap(ConnectionDone)

    async def test_an_unreachable_target_is_reported_with_its_reason(self) -> None:
        """An ICMP message ends the attempt at once, whatever connect(2) would return."""
        network = Namespace()
        self.addCleanup(network.close)
        kinds = {
            "icmp-host-unreachable": errno.EHOSTUNREACH,
            "icmp-net-unreachable": errno.ENETUNREACH,
            "icmp-host-prohibited": errno.EHOSTUNREACH,
            "icmp-port-unreachable": errno.ECONNREFUSED,
        }
        for self.port, kind in enumerate(kinds, 1):
            rule = f"-A OUTPUT -p tcp --dport {self.port} -j REJECT --reject-with {kind}"
            network.run("iptables", "-w", *rule.split())
            client = Client()
            with network.inside():
                self.dial(client)
            await until(lambda client=client: client.reason)
            self.assertEqual((kind, client.reason.value.osError), (kind, kinds[kind]))

    async def test_an_error_is_read_immediately(self) -> None:
        """A reactor may report an error like a success, and repeatedly (select(2))."""
        network = Namespace()
        self.addCleanup(network.close)
        rule = f"-A OUTPUT -p tcp --dport {self.port} -j REJECT --reject-with icmp-host-unreachable"
        network.run("iptables", "-w", *rule.split())
        client = Client()
        with network.inside():
            connector = self.dial(client)
        connector.doWrite()
        self.assertEqual(errno.EHOSTUNREACH, client.reason.value.osError)

    async def test_the_end_of_the_reactor_is_no_error_of_the_target(self) -> None:
        """A stopping reactor ends attempts, with that reason."""
        self.fall_silent()
        client = Client()
        connector = self.dial(client)
        connector.connectionLost(Failure(ConnectionDone("the reactor stops")))
        self.assertIn("the reactor stops", str(client.reason.value))
