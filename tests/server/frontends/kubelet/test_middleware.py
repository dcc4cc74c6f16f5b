"""Chains of middlewares, and finding them by name."""

from __future__ import annotations

from twisted.internet.task import Clock
from twisted.plugin import IPlugin
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import implementer
from zope.interface.verify import verifyObject

from tests.cluster.fakes import FakeInformers, node
from tests.server.frontends.kubelet.fakes import request
from yurttunnel.kube.resources import NODES
from yurttunnel.server.frontends.kubelet import middleware
from yurttunnel.server.frontends.kubelet.metrics import InterceptionCounters, RequestMetrics
from yurttunnel.server.frontends.kubelet.middleware import (
    BadMiddleware,
    ClusterInformers,
    IMiddleware,
    IMiddlewareMaker,
    chain,
    find_middlewares,
    installed_makers,
)
from yurttunnel.server.frontends.kubelet.trace import Trace


@implementer(IMiddleware)
class Noting:
    """A middleware that records its turn."""

    def __init__(self, name, notes):
        self.name = name
        self.notes = notes

    def wrap(self, handler):
        """Record the turn, then continue."""

        def noted(intercepted):
            self.notes.append(self.name)
            handler(intercepted)

        return noted


@implementer(IPlugin, IMiddlewareMaker)
class Maker:
    """A plugin."""

    def __init__(self, name, informers=()):
        self.name = name
        self.informers = informers

    def make(self, clock, informers):
        """Return a middleware."""
        self.clock = clock
        self.received = informers
        return Noting(self.name, [])


class ChainTests(SynchronousTestCase):
    """The order of middlewares."""

    def test_order(self):
        """The first is the outermost, and the handler is last."""
        notes = []
        handler = chain(
            [Noting("a", notes), Noting("b", notes)], lambda request: notes.append(request)
        )
        intercepted = request()
        handler(intercepted)
        self.assertEqual(["a", "b", intercepted], notes)

    def test_defect_in_a_delayed_call(self):
        """An exception in a delayed call is answered, too, where nothing else would respond."""
        clock = Clock()

        class Waiting:
            def wrap(self, handler):
                """Handle a request after a second."""
                return lambda request: clock.callLater(1, handler, request)

        intercepted = request()
        chain([Waiting(), Noting("a", [])], lambda request: 1 / 0)(intercepted)
        clock.advance(1)
        self.assertEqual(1, len(self.flushLoggedErrors(ZeroDivisionError)))
        [(status, text)] = intercepted.exchange.failures
        self.assertEqual((500, "internal error: see the log of the server"), (status, text))

    def test_own_ones(self):
        """The server's own middlewares provide the interface."""
        for own in (Trace(Clock()), RequestMetrics(Clock(), InterceptionCounters())):
            verifyObject(IMiddleware, own)


class FindingTests(SynchronousTestCase):
    """Middlewares by name."""

    def refused(self, names, makers, *words, cluster=None):
        """Assert that names are rejected with ``words`` in one line."""
        error = self.assertRaises(BadMiddleware, find_middlewares, Clock(), names, makers, cluster)
        for each in words:
            self.assertIn(each, str(error))
        self.assertNotIn("\n", str(error))

    def test_found(self):
        """Middlewares are created in the order of the names, with the clock."""
        clock = Clock()
        makers = [Maker("audit"), Maker("quota"), Maker("unused", ["Node"])]
        found = find_middlewares(clock, ["quota", "audit"], makers)
        self.assertEqual(["quota", "audit"], [each.name for each in found])
        self.assertIs(clock, makers[0].clock)
        self.assertEqual({}, makers[0].received)

    def test_unknown(self):
        """An unknown name is rejected, with a list of the installed ones."""
        self.refused(["audit"], [], "'audit'", "installed are: none")
        self.refused(["x"], [Maker("b"), Maker("a")], "'x'", "installed are: a, b")

    def test_twice(self):
        """A name of two plugins is rejected."""
        self.refused(["a"], [Maker("a"), Maker("a")], "2 plugins are called 'a'")

    def test_informers(self):
        """A middleware that needs Kubernetes objects is rejected without a cluster."""
        self.refused(
            ["policy"],
            [Maker("policy", ["Node", "Pod"])],
            "'policy' needs Kubernetes objects (Node, Pod)",
            "--standalone",
        )

    def test_kinds(self):
        """In a cluster it gets an informer of whole objects for each kind."""
        informers = FakeInformers(synced=False)
        kinds = ["Node", "Pod", "Service", "ConfigMap", "EndpointSlice"]
        maker = Maker("policy", kinds)
        find_middlewares(Clock(), ["policy"], [maker], ClusterInformers(informers, "tunnel"))
        self.assertEqual(kinds, list(maker.received))
        stored = node("edge-1", "192.0.2.7")
        informers.put(NODES, stored)
        self.assertEqual(stored, maker.received["Node"].get("edge-1"))
        namespaces = [maker.received[kind].spec.namespace for kind in kinds]
        self.assertEqual([None, None, "tunnel", "tunnel", "tunnel"], namespaces)

    def test_shared(self):
        """Two that need the same kind share an informer."""
        makers = [Maker("a", ["Node"]), Maker("b", ["Node"])]
        cluster = ClusterInformers(FakeInformers(), "tunnel")
        find_middlewares(Clock(), ["a", "b"], makers, cluster)
        self.assertIs(makers[0].received["Node"], makers[1].received["Node"])

    def test_unknown_kind(self):
        """A kind that the server does not have is rejected, before anything is created."""
        informers = FakeInformers()
        makers = [Maker("fine", ["Node"]), Maker("policy", ["Pod", "Secret"])]
        self.refused(
            ["fine", "policy"],
            makers,
            "'policy' needs Kubernetes objects of the kind 'Secret'",
            "the server has Node, Pod, Service, ConfigMap, EndpointSlice",
            cluster=ClusterInformers(informers, "tunnel"),
        )
        self.assertFalse(hasattr(makers[0], "clock"))

    def test_plugins(self):
        """Middlewares are searched for among Twisted's plugins."""
        interfaces = []

        def plugins(interface):
            interfaces.append(interface)
            return iter([Maker("a")])

        self.patch(middleware, "getPlugins", plugins)
        self.assertEqual(["a"], [maker.name for maker in installed_makers()])
        self.assertEqual([IMiddlewareMaker], interfaces)
