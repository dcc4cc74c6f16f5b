"""Nodes of a worker, as the rest of the server has them."""

from __future__ import annotations

import socket
from types import SimpleNamespace

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from tests.fakes import FakeSession
from tests.pki.support import Issuer
from yurttunnel.pki.identity import identity_from_certificate, parse_identifiers
from yurttunnel.server.frontends.calls import ITakesCallers
from yurttunnel.server.node_session import NodeSession
from yurttunnel.server.registry import SessionRegistry
from yurttunnel.server.siblings.feed import NodeEntry
from yurttunnel.server.workers import messages
from yurttunnel.server.workers.nodes import WorkerNodes
from yurttunnel.wire.codes import Code


class FakeChannel:
    """Remembers what was sent to the worker."""

    def __init__(self):
        self.sent = []
        self.full = False

    def send(self, kind, fields=None, data=b""):
        """Remember a message."""
        self.sent.append((kind, fields))

    def pass_on(self, kind, fields, data, connection):
        """Remember a message, unless there is no room."""
        if not self.full:
            self.sent.append((kind, fields, data, connection))
        return not self.full


def entry(draining=False):
    """Return what a worker tells of edge-1."""
    return NodeEntry(1, "edge-1", parse_identifiers("host=edge-1&ipv4=192.0.2.7"), draining)


class WorkerNodesTests(SynchronousTestCase):
    """The nodes of one worker in a registry."""

    def setUp(self):
        """Have a worker with a session with edge-1."""
        clock = Clock()
        self.registry = SessionRegistry(clock)
        self.changed, self.gone, self.drained = [], [], []
        self.registry.on_direct_changed.append(self.changed.append)
        self.channel = FakeChannel()
        tunnel = SimpleNamespace(going_away=False)
        self.nodes = WorkerNodes(
            clock, self.registry, tunnel, self.drained.append, self.channel, self.gone.append
        )
        self.nodes.told(entry())

    def test_a_node_is_as_the_servers_own(self):
        """It is found by what its certificate says, and siblings are told of it."""
        session = self.registry.find("192.0.2.7")
        self.assertIs(session, self.registry.direct("edge-1"))
        self.assertEqual(self.changed, ["edge-1"])

    def test_a_caller_is_passed_on(self):
        """With the node that was found, unless the worker has no room."""
        taker = ITakesCallers(self.registry.find("edge-1"))
        with socket.socket() as caller:
            self.assertTrue(taker.take_caller(caller, b"CONNECT", "--connect-endpoint tcp:1"))
            fields = {"node": "edge-1", "flag": "--connect-endpoint tcp:1"}
            sent = (messages.CALLER, fields, b"CONNECT", caller)
            self.assertEqual(self.channel.sent, [sent])
            self.channel.full = True
            self.assertFalse(taker.take_caller(caller, b"CONNECT", "--connect-endpoint tcp:1"))

    def test_a_newer_session_elsewhere_wins(self):
        """The worker is told to end its own."""
        newer = FakeSession("edge-1")
        self.registry.add(newer)
        ((kind, fields),) = self.channel.sent
        self.assertEqual(kind, messages.END)
        self.assertEqual((fields["node"], fields["code"]), ("edge-1", Code.REPLACED))
        self.assertFalse(self.nodes.has("edge-1"))
        self.registry.direct_changed("edge-1")
        self.assertEqual(len(self.channel.sent), 1)
        self.nodes.told(1)
        self.assertIs(self.registry.direct("edge-1"), newer)
        self.assertEqual(self.gone, [])

    def test_it_wins_over_an_older_one_here(self):
        """That is closed."""
        self.nodes.told(1)
        closed = []
        tunnel = SimpleNamespace(
            close=lambda code, text: closed.append(code),
            connected=True,
            going_away=False,
            on_closed=[],
        )
        identity = identity_from_certificate(Issuer.make(self).node().certificate)
        self.registry.add(NodeSession(identity, identity.identifiers, tunnel, self.registry))
        self.nodes.told(entry())
        self.assertEqual(closed, [Code.REPLACED])

    def test_a_newer_one_that_hesitates_is_not_ended(self):
        """It is the newest although an older one, which is about to be closed, would serve."""
        self.nodes.told(1)
        self.registry.add(FakeSession("edge-1"))
        self.nodes.told(entry(draining=True))
        self.assertEqual(self.channel.sent, [])

    def test_a_node_that_goes_is_told(self):
        """Whether it alone goes, or the worker."""
        self.nodes.told(1)
        self.nodes.told(entry())
        self.nodes.clear()
        self.assertEqual(self.gone, ["edge-1", "edge-1"])
        self.assertFalse(self.nodes.has("edge-1"))
        self.assertEqual(self.registry.on_direct_changed, [self.changed.append])

    def test_hesitation_is_told(self):
        """While an agent's connection is lost, siblings had better ask another server."""
        del self.changed[:]
        self.nodes.told(entry(draining=True))
        self.assertTrue(self.registry.direct("edge-1").draining)
        self.nodes.told(entry(draining=False))
        self.assertEqual(self.changed, ["edge-1", "edge-1"])
        self.assertEqual(len(self.drained), 1)
