"""Networks in memory: an endpoint whose connections tests can cut, and a reactor for programs."""

from __future__ import annotations

import time

from twisted.internet.defer import Deferred, fail, maybeDeferred, succeed
from twisted.internet.error import ConnectingCancelledError, ConnectionRefusedError
from twisted.internet.interfaces import IStreamClientEndpoint
from twisted.internet.protocol import connectionDone
from twisted.internet.testing import MemoryReactorClock
from twisted.test.iosim import ConnectionCompleter
from zope.interface import implementer

from tests.ops.test_http_site import TcpTransport
from tests.tunnel.memory import MIB, Acceptor, HalfCloseUser
from tests.tunnel.test_connection import Link
from yurttunnel.tunnel.session import SessionContext
from yurttunnel.tunnel.statistics import TunnelCounters
from yurttunnel.wire.credit import MemoryBudget


def context_with(clock, acceptor=None):
    """Return the state that the sessions of one process share."""
    budget = MemoryBudget(512 * MIB)
    return SessionContext(clock, TunnelCounters(), budget, acceptor or Acceptor())


class Links:
    """The connections in ``links``, which deliver data as ``clock`` advances."""

    step = 0.25

    def turn(self, link):
        """Run one iteration for a connection; return whether any data was moved."""
        return link.turn()

    @property
    def open_links(self):
        """The connections that are open at both ends."""
        return [
            link
            for link in self.links
            if not (link.client_io.disconnected or link.server_io.disconnected)
        ]

    def settle(self):
        """Deliver all data."""
        idle = 0
        while idle < 3:
            moved = [self.turn(link) for link in self.links]
            self.clock.advance(0)
            idle = 0 if any(moved) else idle + 1

    def pass_time(self, seconds, step=None):
        """Let time pass in steps, and deliver all data."""
        step = step or self.step
        for _ in range(round(seconds / step)):
            self.clock.advance(step)
            self.settle()

    def cut(self):
        """Cut all connections; both ends are notified."""
        for link in self.open_links:
            link.cut()


@implementer(IStreamClientEndpoint)
class MemoryNetwork(Links):
    """An endpoint that connects to ``factory``, which accepts TLS.

    While ``problem`` is an exception, attempts fail with it; while ``hangs``, they never complete.
    """

    def __init__(self, clock, factory):
        self.clock = clock
        self.factory = factory
        self.problem = None
        self.hangs = False
        self.attempts = 0
        self.cancelled = 0
        self.links = []

    def refuse(self):
        """Refuse connections."""
        self.problem = ConnectionRefusedError()

    def connect(self, protocolFactory):
        """Connect, fail or hang."""
        self.attempts += 1
        if self.hangs:
            return Deferred(self._cancel)
        if self.problem is not None:
            return fail(self.problem)
        client, server = protocolFactory.buildProtocol(None), self.factory.buildProtocol(None)
        self.links.append(Link(self.clock, client, server))
        return succeed(client)

    def _cancel(self, attempt):
        # Like Twisted's endpoints, which do not fail with CancelledError.
        self.cancelled += 1
        attempt.errback(ConnectingCancelledError(None))


def without_thread(reactor, name, function, argument):
    """Call a function synchronously instead of in a new thread."""
    return maybeDeferred(function, argument)


class ProgramReactor(MemoryReactorClock):
    """A reactor on which whole programs run in memory, starting at the current time."""

    def __init__(self):
        super().__init__()
        self.advance(time.time())
        self._completer = ConnectionCompleter(self)
        self._pumps = []
        self.closed_ports = []

    def listenTCP(self, port, factory, backlog=50, interface=""):
        """Listen; ``closed_ports`` records when it stops."""
        listening = super().listenTCP(port, factory, backlog, interface)
        listening.stopListening = lambda: self.closed_ports.append(port)
        return listening

    def settle(self):
        """Complete connections to listening ports, and deliver all data."""
        idle = 0
        while idle < 3:
            self.advance(0)
            moved = False
            while pump := self._completer.succeedOnce(greet=False):
                self._pumps.append(pump)
                moved = True
            for pump in self._pumps:
                moved = bool(pump.pump()) or moved
            idle = 0 if moved else idle + 1

    def refuse(self):
        """Refuse the oldest connection attempt."""
        self._completer.failOnce()
        self.settle()

    def pass_time(self, seconds, step=0.25):
        """Let time pass in steps, and deliver all data."""
        for _ in range(round(seconds / step)):
            self.advance(step)
            self.settle()

    def site(self, port):
        """Return the factory that listens on a port."""
        return next(factory for number, factory, _, _ in self.tcpServers if number == port)

    def get(self, port, path):
        """Get a page of a meta port; return the status and the body."""
        transport = TcpTransport()
        channel = self.site(port).buildProtocol(None)
        channel.makeConnection(transport)
        request = f"GET {path} HTTP/1.1\r\nHost: meta\r\nConnection: close\r\n\r\n"
        channel.dataReceived(request.encode())
        # Pages are written in slices, in later iterations.
        self.advance(0)
        channel.connectionLost(connectionDone)
        head, _, body = transport.value().decode().partition("\r\n\r\n")
        return int(head.split()[1]), body


def open_stream(network, registry, acceptor):
    """Open a stream from the server to edge-1; return the users of its near and far end."""
    opened, near, far = [], HalfCloseUser(), HalfCloseUser()
    session = registry.find("edge-1")
    session.open_stream("192.0.2.80", 80, 15.0, "r").addCallback(opened.append)
    network.settle()
    acceptor.requests[-1].accept().attach(far)
    network.settle()
    opened[0].attach(near)
    return near, far
