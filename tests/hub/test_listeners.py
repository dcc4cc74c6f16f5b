"""The hub's listeners, and the reports of whether pods can reach them."""

from __future__ import annotations

from ipaddress import ip_address

from twisted.internet.defer import fail, succeed
from twisted.internet.testing import MemoryReactorClock
from twisted.trial.unittest import SynchronousTestCase

from tests.fakes import MemoryConnection
from tests.http.support import Handler, request, responses, settle
from yurttunnel.hub import listeners
from yurttunnel.hub.listeners import DRAIN_SECONDS, HubListeners
from yurttunnel.hub.network.interface import INTERVAL, NodeInterface
from yurttunnel.hub.settings import InterfaceSettings, ListenerSettings
from yurttunnel.ops.listen import CannotListen
from yurttunnel.steering.failures import SteeringFailed

INTERFACE = InterfaceSettings("yurthub-dummy0", ip_address("169.254.2.1"))
SETTINGS = ListenerSettings("127.0.0.1", 10267, "127.0.0.1", 10261, 10268, INTERFACE)


class Identity:
    """A hub with, or without, a certificate for pods."""

    def __init__(self):
        self.serving = None
        self.on_serving = []

    def set_ready(self):
        """Add the certificate."""
        self.serving = object()
        for callback in self.on_serving:
            callback()


class ReachabilityTests(SynchronousTestCase):
    """Whether pods can reach the hub over TLS: each change is reported, once."""

    def setUp(self):
        """Start with a kernel and ports that the test controls, and without a certificate."""
        self.reactor = MemoryReactorClock()
        self.identity = Identity()
        self.kernel = ["made"]
        self.taken = False
        self.patch(listeners, "listen_tcp", self.listen)
        self.patch(listeners.tls, "server_side", lambda reactor, contexts, factory: factory)
        self.interface = NodeInterface(self.reactor, INTERFACE, self.run_job)
        self.reports = []
        self.ports = HubListeners(
            self.reactor,
            SETTINGS,
            None,
            None,
            self.identity,
            self.interface,
            self.record_reachability,
        )

    def start(self):
        """Start them like the hub."""
        for part in (self.ports, self.interface):
            part.startService()
            self.addCleanup(lambda part=part: self.successResultOf(part.stopService()))
        self.reactor.advance(0)

    def listen(self, reactor, flag, host, port, factory):
        """Listen, unless the port is in use."""
        if self.taken and port == SETTINGS.secure_port:
            raise CannotListen(flag, "another process listens there")
        return reactor.listenTCP(port, factory, interface=host)

    def run_job(self, job):
        """Run a job synchronously."""
        return fail(self.kernel) if isinstance(self.kernel, Exception) else succeed(self.kernel)

    def record_reachability(self, reached):
        """Record changes."""
        if self.reports[-1:] != [reached]:
            self.reports.append(reached)

    def run_checks(self):
        """Run the checks of the interface and the ports."""
        self.reactor.pump([INTERVAL, 0, 0])
        return self.reports

    def test_certificate(self):
        """They can once there is a certificate."""
        self.start()
        self.assertEqual([], self.run_checks())
        self.identity.set_ready()
        self.assertEqual([True], self.run_checks())

    def test_no_interface(self):
        """They cannot without the interface."""
        self.identity.set_ready()
        self.kernel = SteeringFailed("not permitted")
        self.start()
        self.assertEqual([False], self.run_checks())
        self.kernel = ["made"]
        self.assertTrue(self.run_checks()[-1])

    def test_port_in_use(self):
        """They cannot while another program uses the port."""
        self.identity.set_ready()
        self.taken = True
        self.start()
        self.assertEqual([False], self.run_checks())
        self.taken = False
        self.assertTrue(self.run_checks()[-1])

    def test_lost(self):
        """A damaged interface, repaired or not, is not a change."""
        self.identity.set_ready()
        self.start()
        self.assertTrue(self.run_checks()[-1])
        for self.kernel in (["169.254.2.1 added"], SteeringFailed("not permitted"), []):
            self.assertEqual([True], self.run_checks())


class DrainTests(SynchronousTestCase):
    """The ports close, and responses in progress get time to end."""

    def setUp(self):
        """Listen on loopback, with a handler that leaves requests in progress."""
        self.reactor = MemoryReactorClock()
        self.handler = Handler()
        settings = ListenerSettings("127.0.0.1", 10267, "127.0.0.1", 10261, 10268, None)
        self.ports = HubListeners(
            self.reactor,
            settings,
            self.handler,
            self.handler,
            Identity(),
            None,
            lambda reached: None,
        )
        self.ports.startService()
        self.addCleanup(lambda: self.successResultOf(self.ports.stopService()))
        self.reactor.advance(0)
        self.ended = []

    def send_request(self, target):
        """Send a request; return the exchange, and the hub's connection."""
        (factory,) = (server[1] for server in self.reactor.tcpServers if server[0] == 10261)
        connection = MemoryConnection(self.reactor).open(factory.buildProtocol(None))
        connection.receive(request(target))
        return self.handler.exchange, connection

    def watch(self):
        """Begin a watch that ends on request; return the hub's connection."""
        exchange, connection = self.send_request(b"/api/v1/pods?watch=1")
        exchange.send_head(200)
        self.ended.append(exchange.finish)
        return connection

    def drain(self):
        """Begin to close."""
        return self.ports.drain(lambda: [end() for end in self.ended])

    def leave(self, connection):
        """Let a client that has its response disconnect."""
        settle(self.reactor, connection)
        self.assertTrue(connection.write_ended)
        connection.receive_end()
        settle(self.reactor, connection)

    def test_watches(self):
        """Watches end at once, without a delay."""
        connections = [self.watch() for _ in range(3)]
        began = self.reactor.seconds()
        drained = self.drain()
        for connection in connections:
            self.leave(connection)
            self.assertEqual(b"", responses(connection.sent, b"GET")[0][2])
        self.successResultOf(drained)
        self.assertEqual(began, self.reactor.seconds())

    def test_others(self):
        """A response in progress is waited for, with or without an open watch, but not forever."""
        watch = self.watch()
        exchange, connection = self.send_request(b"/version")
        drained = self.drain()
        self.leave(watch)
        self.reactor.advance(DRAIN_SECONDS / 2)
        self.assertNoResult(drained)
        exchange.respond(200, (), b"ok")
        self.leave(connection)
        self.successResultOf(drained)
        self.assertEqual(b"ok", responses(connection.sent, b"GET")[0][2])

    def test_time(self):
        """The rest is aborted after the timeout."""
        self.send_request(b"/version")
        drained = self.drain()
        self.reactor.advance(DRAIN_SECONDS)
        self.successResultOf(drained)
