"""A server's interception, a session to a node, and a kubelet there, all in memory."""

from __future__ import annotations

from twisted.internet.protocol import Factory
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import implementer

from tests.fakes import Recorder
from tests.logged import Logged
from tests.pki.support import Issuer
from tests.tunnel.memory import SessionPair
from tests.tunnel.test_connection import Link
from yurttunnel.http.head import HeadLimits
from yurttunnel.http.interfaces import IRequestHandler
from yurttunnel.http.server import HTTPFactory, ServerSettings
from yurttunnel.pki.caller_contexts import HTTP_PROTOCOL, CallerContexts
from yurttunnel.pki.contexts import ClientContexts
from yurttunnel.pki.identity import Identifiers
from yurttunnel.pki.interception import InterceptionContexts
from yurttunnel.pki.kubelets import KubeletContexts, KubeletVerification
from yurttunnel.pki.names import CALLER_NAME
from yurttunnel.server.frontends.kubelet.listeners import SETTINGS, Interception
from yurttunnel.server.registry import INodeSession, SessionRegistry
from yurttunnel.tunnel import tls
from yurttunnel.tunnel.direct.reactor import DirectReactor
from yurttunnel.tunnel.shares import OTHER

RESPONSE_TIMEOUT = 60.0

KUBELET_SETTINGS = ServerSettings(limits=HeadLimits(max_bytes=1 << 20, max_fields=1000))
"""Kubelets accept heads of 1 MiB (``DefaultMaxHeaderBytes`` of Go's net/http)."""


@implementer(IRequestHandler)
class Kubelet:
    """Stores requests; ``answer`` is called with each."""

    def __init__(self):
        self.exchanges = []
        self.answer = lambda exchange: exchange.respond(200, [], b"metric 1\n")

    def request_received(self, exchange):
        """Store and respond."""
        self.exchanges.append(exchange)
        self.answer(exchange)

    @property
    def head(self):
        """The head of the latest request."""
        return self.exchanges[-1].head


class KubeletTLS(CallerContexts):
    """The TLS of a kubelet."""

    trusting = True

    def _verify(self, *certificate):
        return self.trusting or super()._verify(*certificate)


@implementer(INodeSession)
class Session:
    """The session of a node, as the registry holds it."""

    node = "edge-1"
    identifiers = Identifiers(frozenset({"edge-1"}))

    def __init__(self, tunnel):
        self.tunnel = tunnel
        self.holders = []

    @property
    def draining(self):
        """Whether it is draining."""
        return self.tunnel.draining

    @property
    def connected(self):
        """Whether a connection carries it."""
        return self.tunnel.connected

    def open_stream(self, host, port, timeout, request_id, holder=OTHER):
        """Open a stream, and record its holder."""
        self.holders.append(holder)
        return self.tunnel.open_stream(host, port, timeout, request_id, holder)

    def snapshot(self):
        """Return a snapshot."""
        return self.tunnel.snapshot()


class _Body:
    """Stores a request's body, and responds with it, reversed."""

    def __init__(self, exchange, bodies):
        self.exchange = exchange
        self.bodies = bodies
        self.data = b""

    def write(self, data):
        """Store data."""
        self.data += data

    def finish(self, trailers=()):
        """Respond."""
        self.bodies.append(self.data)
        self.exchange.respond(201, [], self.data[::-1])


class World(SynchronousTestCase):
    """The common test case of the interception; nothing may remain after it is closed."""

    mode = KubeletVerification.AUTO
    direct = True
    middlewares = ()
    settings = SETTINGS

    def setUp(self):
        """Connect a node, and start a kubelet there."""
        self.issuer = Issuer.make(self)
        self.pair = SessionPair()
        self.clock = self.pair.clock
        self.reactor = DirectReactor(self.clock) if self.direct else self.clock
        self.session = Session(self.pair.server)
        self.registry = SessionRegistry(self.clock)
        self.registry.add(self.session)
        self.kubelet = Kubelet()
        self.connected = []
        self.kubelet_factories = []
        self.serve_kubelet(self.issuer.server("edge-1"))
        self.links = []
        self.contexts = KubeletContexts(self.issuer.clock, self.issuer.kubelet_client(), self.mode)
        self.interception = Interception(
            self.reactor,
            self.registry,
            self.contexts,
            self.middlewares,
            RESPONSE_TIMEOUT,
            self.settings,
        )
        self.stats = self.interception.stats
        self.counters = self.stats().counters
        self.lines = Logged(self, "yurttunnel.server", "yurttunnel.pki")
        self.addCleanup(self.close)

    def pooled(self):
        """Return the connections to kubelets by their state."""
        statistics = self.stats().pool
        return {"in_use": statistics.in_use, "idle": statistics.idle}

    def return_bodies(self):
        """Let the kubelet respond with each request's body, reversed; return a list of them."""
        bodies = []
        self.kubelet.answer = lambda exchange: exchange.deliver_body(_Body(exchange, bodies))
        return bodies

    def serve_kubelet(self, credentials, trusting=True):
        """Let the kubelet serve HTTPS with ``credentials``, or HTTP without.

        Unless ``trusting`` it requires callers of its own authority.
        """
        factory = HTTPFactory(self.clock, self.kubelet, KUBELET_SETTINGS)
        self.kubelet_factories.append(factory)
        if credentials is not None:
            contexts = KubeletTLS(credentials, names=None)
            contexts.trusting = trusting
            factory = tls.server_side(self.reactor, contexts, factory)
        self.listen(factory)

    def listen(self, factory):
        """Let the agent connect streams to ``factory``."""

        def accept(request):
            self.connected.append((request.host, request.port))
            request.accept().attach(factory.buildProtocol(None))

        self.pair.acceptor.answer = accept

    def settle(self):
        """Deliver all data."""
        idle = 0
        while idle < 5:
            moved = [link.turn() for link in self.links] + [self.pair.turn()]
            idle = 0 if any(moved) else idle + 1

    def pass_time(self, seconds, step=0.5):
        """Advance the clock in steps, and deliver all data."""
        for _ in range(round(seconds / step)):
            self.clock.advance(step)
            self.settle()

    def dial(self, credentials=..., name="edge-1"):
        """Connect a caller to the port with TLS; return its protocol."""
        if credentials is ...:
            credentials = self.issuer.caller()
        caller = Recorder()
        creator = ClientContexts(credentials, HTTP_PROTOCOL).creator(name)
        near = tls.client_side(self.reactor, creator, Factory.forProtocol(lambda: caller))
        self.link(near.buildProtocol(None), self.secured())
        return caller

    def secured(self):
        """Return the far end of a connection to the port with TLS."""
        contexts = InterceptionContexts(self.issuer.clock, self.issuer.authority, [CALLER_NAME])
        return tls.server_side(self.reactor, contexts, self.interception.secure).buildProtocol(None)

    def dial_insecurely(self):
        """Connect a caller to the port without TLS; return its protocol."""
        caller = Recorder()
        self.link(caller, self.interception.insecure.buildProtocol(None))
        return caller

    def link(self, near, far):
        """Connect two ends."""
        self.links.append(Link(self.clock, near, far))
        self.settle()

    def send_request(self, caller, target="/metrics", method="GET", body=b"", **fields):
        """Send a request as ``caller``."""
        fields.setdefault("Host", "edge-1:10250")
        lines = [f"{method} {target} HTTP/1.1"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in fields.items()]
        caller.received = b""
        caller.transport.write("\r\n".join([*lines, "\r\n"]).encode() + body)
        self.settle()

    def answered(self, caller, status, *words):
        """Assert that ``caller`` has received ``status`` and ``words``."""
        head, _, body = caller.received.partition(b"\r\n\r\n")
        self.assertIn(f" {status} ".encode(), head.partition(b"\r\n")[0], caller.received)
        for each in words:
            self.assertIn(each, body.decode())

    def close(self):
        """Stop everything; no timer may remain."""
        self.interception.close()
        self.settle()
        for factory in self.kubelet_factories:
            factory.close()
        self.pair.close()
        self.settle()
        self.assertEqual([], self.clock.getDelayedCalls())
        self.assertEqual({"in_use": 0, "idle": 0}, self.pooled())
        self.assertEqual(0, self.counters.in_flight.total())
