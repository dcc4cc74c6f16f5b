"""Where clients find the hub, and what is said of it to who leads pods there."""

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

    def give(self):
        """Get one."""
        self.serving = object()
        for callback in self.on_serving:
            callback()


class ReachTests(SynchronousTestCase):
    """Whether pods reach the hub by TLS: each time that it is told, and not twice the same."""

    def setUp(self):
        """Have a kernel and ports that do what the test says, and no certificate."""
        self.reactor = MemoryReactorClock()
        self.identity = Identity()
        self.kernel = ["made"]
        self.taken = False
        self.patch(listeners, "listen_tcp", self.listen)
        self.patch(listeners.tls, "server_side", lambda reactor, contexts, factory: factory)
        self.interface = NodeInterface(self.reactor, INTERFACE, self.run_job)
        self.told = []
        self.ports = HubListeners(
            self.reactor, SETTINGS, None, None, self.identity, self.interface, self.tell
        )

    def start(self):
        """Start them as the hub does."""
        for part in (self.ports, self.interface):
            part.startService()
            self.addCleanup(lambda part=part: self.successResultOf(part.stopService()))
        self.reactor.advance(0)

    def listen(self, reactor, flag, host, port, factory):
        """Listen, unless somebody else does."""
        if self.taken and port == SETTINGS.secure_port:
            raise CannotListen(flag, "another process listens there")
        return reactor.listenTCP(port, factory, interface=host)

    def run_job(self, job):
        """Answer at once."""
        return fail(self.kernel) if isinstance(self.kernel, Exception) else succeed(self.kernel)

    def tell(self, reached):
        """Keep what is new."""
        if self.told[-1:] != [reached]:
            self.told.append(reached)

    def look(self):
        """Let the interface and the ports be looked at again."""
        self.reactor.pump([INTERVAL, 0, 0])
        return self.told

    def test_certificate(self):
        """They do once there is a certificate."""
        self.start()
        self.assertEqual([], self.look())
        self.identity.give()
        self.assertEqual([True], self.look())

    def test_no_interface(self):
        """They do not without the interface."""
        self.identity.give()
        self.kernel = SteeringFailed("not permitted")
        self.start()
        self.assertEqual([False], self.look())
        self.kernel = ["made"]
        self.assertTrue(self.look()[-1])

    def test_taken(self):
        """They do not while another program listens there."""
        self.identity.give()
        self.taken = True
        self.start()
        self.assertEqual([False], self.look())
        self.taken = False
        self.assertTrue(self.look()[-1])

    def test_lost(self):
        """An interface that is disturbed, repaired or not, is no news for them."""
        self.identity.give()
        self.start()
        self.assertTrue(self.look()[-1])
        for self.kernel in (["169.254.2.1 added"], SteeringFailed("not permitted"), []):
            self.assertEqual([True], self.look())


class DrainTests(SynchronousTestCase):
    """The ports close, and what is under way has its time to end."""

    def setUp(self):
        """Listen on loopback, for a handler that leaves what it takes under way."""
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

    def ask(self, target):
        """Ask; return the exchange, and the connection at the hub."""
        (factory,) = (server[1] for server in self.reactor.tcpServers if server[0] == 10261)
        connection = MemoryConnection(self.reactor).open(factory.buildProtocol(None))
        connection.receive(request(target))
        return self.handler.exchange, connection

    def watch(self):
        """Begin a watch, that ends when it is told to; return the connection at the hub."""
        exchange, connection = self.ask(b"/api/v1/pods?watch=1")
        exchange.send_head(200)
        self.ended.append(exchange.finish)
        return connection

    def drain(self):
        """Begin to close."""
        return self.ports.drain(lambda: [end() for end in self.ended])

    def leave(self, connection):
        """Let a client that has its answer close, too."""
        settle(self.reactor, connection)
        self.assertTrue(connection.write_ended)
        connection.receive_end()
        settle(self.reactor, connection)

    def test_watches(self):
        """Watches end at once, and nobody waits for them."""
        connections = [self.watch() for _ in range(3)]
        began = self.reactor.seconds()
        drained = self.drain()
        for connection in connections:
            self.leave(connection)
            self.assertEqual(b"", responses(connection.sent, b"GET")[0][2])
        self.successResultOf(drained)
        self.assertEqual(began, self.reactor.seconds())

    def test_others(self):
        """An answer under way is waited for, with a watch open or without, but not for ever."""
        watch = self.watch()
        exchange, connection = self.ask(b"/version")
        drained = self.drain()
        self.leave(watch)
        self.reactor.advance(DRAIN_SECONDS / 2)
        self.assertNoResult(drained)
        exchange.respond(200, (), b"ok")
        self.leave(connection)
        self.successResultOf(drained)
        self.assertEqual(b"ok", responses(connection.sent, b"GET")[0][2])

    def test_time(self):
        """What does not end is left when the time is over."""
        self.ask(b"/version")
        drained = self.drain()
        self.reactor.advance(DRAIN_SECONDS)
        self.successResultOf(drained)
