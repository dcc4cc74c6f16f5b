"""The examples of docs/middlewares.md, as plugin files that Twisted finds."""

from __future__ import annotations

import re
from types import SimpleNamespace

from zope.interface.verify import verifyObject

from tests.cluster.fakes import FakeInformers, node
from tests.documented_plugins import install_example
from tests.server.frontends.kubelet.test_resolution import Late
from tests.server.frontends.kubelet.world import World
from yurttunnel.http.errors import RequestFailed
from yurttunnel.kube.resources import NODES
from yurttunnel.server.frontends.calls import IGate
from yurttunnel.server.frontends.kubelet.middleware import (
    BadMiddleware,
    ClusterInformers,
    find_middlewares,
    installed_makers,
)


class Example(World):
    """An example that is saved where the text says, and requested by its name."""

    number: int
    cluster = None

    def setUp(self):
        """Save and load it."""
        text = install_example(self, "middlewares.md", self.number)
        name = re.findall(r"--middleware ([a-z-]+)", text)[self.number]
        made = find_middlewares(None, [name], installed_makers(), self.cluster)
        self.middlewares = [*self.middlewares, *made]
        super().setUp()


class ReadOnlyTests(Example):
    """The documented behavior of the first example."""

    number = 0

    def test_reading(self):
        """Reading requests are passed on to the kubelet."""
        caller = self.dial()
        for target in ("/metrics", "/containerLogs/default/web/web?follow=true", "/stats/summary"):
            self.send_request(caller, target)
            self.answered(caller, 200)
        self.assertEqual(3, len(self.kubelet.exchanges))

    def test_others(self):
        """Other requests are rejected with the id of the request, in any spelling."""
        caller = self.dial()
        for method, target in (
            ("GET", "/exec/default/web/web"),
            ("POST", "/run/default/web/web"),
            ("DELETE", "/pods"),
            ("GET", "/%65xec/default/web/web"),
            ("GET", "//exec/default/web/web"),
        ):
            self.send_request(caller, target, method, X_Request_Id="abc-7")
            self.answered(caller, 403, "only reading is allowed here (abc-7)")
        self.assertEqual([], self.kubelet.exchanges)


class MaintenanceTests(Example):
    """The documented behavior of the example with an informer, after the resolution."""

    number = 1

    def setUp(self):
        """Create a cluster of one node."""
        self.informers = FakeInformers(synced=False)
        self.cluster = ClusterInformers(self.informers, "kube-system")
        self.middlewares = [Late(self)]
        super().setUp()
        self.informers.put(NODES, node("edge-1", "192.0.2.7"))
        self.informers.complete()
        self.caller = self.dial()

    def test_maintenance(self):
        """A node with the label gets no requests, however it is named."""
        for host in ("edge-1:10250", "192.0.2.7:10250"):
            self.send_request(self.caller, Host=host)
            self.answered(self.caller, 200)
            self.informers.put(
                NODES, node("edge-1", "192.0.2.7", labels={"example.com/maintenance": "true"})
            )
            self.send_request(self.caller, Host=host, X_Request_Id="abc-7")
            self.answered(self.caller, 503, "edge-1 is in maintenance (abc-7)")
            self.informers.put(NODES, node("edge-1", "192.0.2.7"))
        self.assertEqual(2, len(self.kubelet.exchanges))

    def test_calls(self):
        """A node with the label gets no calls either, by its name or another of its identifiers."""
        gate = self.middlewares[-1]
        verifyObject(IGate, gate)
        call = SimpleNamespace(node="192.0.2.7", serving_node="edge-1", request_id="abc-7")
        gate.admit(call)
        self.informers.put(
            NODES, node("edge-1", "192.0.2.7", labels={"example.com/maintenance": "true"})
        )
        for serving_node, called in (("edge-1", "192.0.2.7"), ("", "edge-1")):
            call.serving_node, call.node = serving_node, called
            error = self.assertRaises(RequestFailed, gate.admit, call)
            self.assertEqual((503, "edge-1 is in maintenance (abc-7)"), (error.status, error.text))

    def test_unknown_node(self):
        """Requests for an unknown node are not rejected."""
        self.informers.delete(NODES, "edge-1")
        self.send_request(self.caller)
        self.answered(self.caller, 200)

    def test_standalone(self):
        """Without a cluster the example is rejected."""
        self.assertRaises(
            BadMiddleware, find_middlewares, None, ["maintenance"], installed_makers()
        )
