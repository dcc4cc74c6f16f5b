"""The audit log of callers' streams."""

from __future__ import annotations

import json
import os
import socket
from ipaddress import ip_address

from twisted.internet.address import UNIXAddress
from twisted.internet.error import ConnectionLost
from twisted.internet.testing import MemoryReactorClock
from twisted.trial.unittest import SynchronousTestCase

from tests.cluster.fakes import EDGE, FakeInformers, node
from tests.fakes import FakeSession, MemoryConnection
from tests.server.frontends.connecting import ESTABLISHED, connect
from tests.server.frontends.passthrough.test_listener import Accepted
from tests.server.hellos import client_hello
from yurttunnel.cluster.nodes import Nodes
from yurttunnel.cluster.services import ClusterAddresses
from yurttunnel.kube.resources import NODES
from yurttunnel.server.audit import Audit
from yurttunnel.server.frontends.connect import ConnectFactory
from yurttunnel.server.frontends.forward import ForwardFactory, parse_forward
from yurttunnel.server.frontends.passthrough.listener import PassthroughFactory
from yurttunnel.server.frontends.passthrough.nodes import PassthroughNodes
from yurttunnel.server.registry import SessionRegistry
from yurttunnel.server.request_ids import RequestIds
from yurttunnel.steering.original_destination import SocketAddress
from yurttunnel.wire.codes import Code

BEGAN = 1_769_860_800.0
CALLER = "127.0.0.1:40000"

ALWAYS = {
    "time", "kind", "request_id", "who", "by", "peer", "node", "destination", "result", "code",
    "reason", "bytes_from_caller", "bytes_to_caller", "duration",
}  # fmt: skip


class UnixConnection(MemoryConnection):
    """A connection over a Unix socket, from this process."""

    def getPeer(self):
        """Return the address of an unnamed socket."""
        return UNIXAddress(None)

    def getHandle(self):
        """Return a socket whose other end also belongs to this process."""
        self.own, self.other = socket.socketpair()
        return self.own


class AuditTestCase(SynchronousTestCase):
    """A node is connected, and written lines are stored."""

    def setUp(self):
        """Connect edge-1, which is also 192.0.2.1."""
        self.reactor = MemoryReactorClock()
        self.reactor.advance(BEGAN)
        self.registry = SessionRegistry(self.reactor)
        self.session = FakeSession("edge-1", addresses=["192.0.2.1"])
        self.registry.add(self.session)
        self.lines = []
        self.factory = self.make_factory()
        self.factory.request_ids = RequestIds("test")
        self.factory.audit = Audit(self.reactor, self.lines.append)
        self.addCleanup(self.close)

    def make_factory(self):
        """Create the factory for callers."""
        raise NotImplementedError  # each class has its own

    def close(self):
        """No timer may remain."""
        self.factory.close()
        self.reactor.advance(0)
        self.assertEqual(self.reactor.getDelayedCalls(), [])

    def open(self, data=b"", connection_class=MemoryConnection):
        """Open a connection that receives ``data``."""
        connection = connection_class(self.reactor).open(self.factory.buildProtocol(None))
        if data:
            connection.receive(data)
        return connection

    def answer(self, connection, greeting=b""):
        """Let the node connect; return the far end of the stream."""
        dial = self.session.dials[0]
        dial.succeed(greeting)
        connection.turns()
        return dial.far

    def entry(self, **expected):
        """Check the only written line, and return it."""
        (line,) = self.lines
        entry = json.loads(line)
        self.assertEqual(set(entry) - {"status"}, ALWAYS)
        self.assertEqual({key: entry.get(key) for key in expected}, expected)
        return entry


class ForwardTests(AuditTestCase):
    """Connections of ``--forward``."""

    def make_factory(self):
        """Create one forward."""
        forward = parse_forward("127.0.0.1:9000=192.0.2.1/db.local:80")
        factory = ForwardFactory(self.registry, forward)
        factory.pending_dials.maximum = 2
        return factory

    def test_complete_record(self):
        """At the end of a stream the line has caller, target and result."""
        connection = self.open(b"question")
        far = self.answer(connection, b"hello ")
        self.reactor.advance(2.5)
        far.write(b"answer")
        far.loseWriteConnection()
        self.assertEqual(self.lines, [])
        connection.receive_end()
        connection.turns()
        entry = self.entry()
        self.assertEqual(
            entry,
            {
                "time": "2026-01-31T12:00:02.500Z",
                "kind": "forward",
                "request_id": "test-1",
                "who": CALLER,
                "by": "address",
                "peer": CALLER,
                "node": "edge-1",
                "destination": "db.local:80",
                "result": "ended",
                "code": "done",
                "reason": "",
                "bytes_from_caller": 8,
                "bytes_to_caller": 12,
                "duration": 2.5,
            },
        )

    def test_node_breaks_off(self):
        """The code and the text are those of the stream's end."""
        connection = self.open(b"12345")
        far = self.answer(connection)
        far.abort(Code.SESSION_LOST, "the agent did not come back")
        self.entry(
            result="ended",
            code="session_lost",
            reason="the agent did not come back",
            bytes_from_caller=5,
        )
        self.assertTrue(connection.aborted)

    def test_caller_breaks_off(self):
        """The node and the line have the same code."""
        connection = self.open(b"12345")
        self.answer(connection, b"1")
        connection.break_off(ConnectionLost())
        entry = self.entry(code="connection_lost", bytes_from_caller=5, bytes_to_caller=1)
        self.assertIn("the local connection broke", entry["reason"])

    def test_refused_by_the_node(self):
        """A failed dial has its code, too, and the text without it."""
        self.open()
        self.session.dials[0].fail(Code.DENIED, "the agent does not allow db.local:80")
        self.entry(
            result="refused",
            code="denied",
            reason="the agent does not allow db.local:80",
            node="edge-1",
            bytes_from_caller=0,
        )

    def test_not_connected(self):
        """The node has the name that the caller uses, and there is no code."""
        self.registry.remove(self.session)
        self.open()
        entry = self.entry(result="refused", code=None, node="192.0.2.1", request_id="test-1")
        self.assertIn("no agent is connected for 192.0.2.1", entry["reason"])

    def test_too_many(self):
        """A limit of the server is a reason, too."""
        self.open()
        self.open()
        self.entry(result="refused", code="overloaded", request_id="test-2")
        self.session.dials[0].fail(Code.TIMEOUT, "no answer")

    def test_left_during_the_dial(self):
        """The request of a caller that leaves is still recorded."""
        connection = self.open()
        connection.break_off(ConnectionLost())
        self.assertTrue(self.session.dials[0].cancelled)
        self.entry(result="refused", code="cancelled", reason="the dial was cancelled")

    def test_defect(self):
        """A defect of the server has a line, too."""
        self.open()
        self.session.dials[0].opening.errback(ZeroDivisionError("oops"))
        self.flushLoggedErrors(ZeroDivisionError)
        self.entry(result="refused", code=None, reason="oops")

    def test_off(self):
        """Without an audit log the stream is used directly."""
        self.factory.audit = None
        connection = self.open()
        self.answer(connection)
        self.assertIs(connection.protocol.stream, self.session.dials[0].near)
        connection.break_off(ConnectionLost())
        self.assertEqual(self.lines, [])


class ConnectTests(AuditTestCase):
    """CONNECT requests."""

    def make_factory(self):
        """Create the front end."""
        return ConnectFactory(self.reactor, self.registry)

    def test_stream(self):
        """The id is the caller's, the status that of the response, and neither counts as bytes."""
        head = connect("192.0.2.1:10250", "X-Request-Id: audit-7", "Authorization: Bearer S3CRET")
        connection = self.open(head)
        far = self.answer(connection, b"hello")
        connection.receive(b"question")
        self.assertEqual(connection.sent, ESTABLISHED + b"hello")
        far.loseWriteConnection()
        connection.receive_end()
        connection.turns()
        self.entry(
            kind="connect",
            request_id="audit-7",
            node="edge-1",
            destination="192.0.2.1:10250",
            status=200,
            result="ended",
            code="done",
            bytes_from_caller=8,
            bytes_to_caller=5,
        )
        self.assertNotIn(b"S3CRET", self.lines[0])

    def test_refused_by_the_node(self):
        """The status is that of the response, and the code is the reason."""
        self.open(connect())
        self.session.dials[0].fail(Code.REFUSED, "nobody listens on edge-1:10250")
        self.entry(
            result="refused", status=502, code="refused", reason="nobody listens on edge-1:10250"
        )

    def test_not_connected(self):
        """The target is recorded even if there is no such node."""
        self.open(connect("nobody:10250"))
        self.entry(result="refused", status=503, node="nobody", destination="nobody:10250")

    def test_bad_head(self):
        """A malformed destination is only in the reason, without a password before it."""
        self.open(connect("user:S3CRET@edge-1:99"))
        entry = self.entry(result="refused", status=400, node="", destination="")
        self.assertIn("bad destination: ***@edge-1", entry["reason"])

    def test_other_methods(self):
        """A request for the wrong port may have secrets in its query, which are not logged."""
        self.open(connect().replace(b"CONNECT edge-1:10250", b"GET /run/a/b/c?cmd=S3CRET"))
        self.entry(result="refused", status=405, destination="")
        self.assertNotIn(b"S3CRET", self.lines[0])

    def test_query(self):
        """The recorded reason, which quotes malformed input, has no query."""
        self.open(connect("http://edge-1/run/a/b/c?cmd=S3CRET"))
        entry = self.entry(result="refused", status=400, destination="")
        self.assertIn("/run/a/b/c?***", entry["reason"])
        self.assertNotIn(b"S3CRET", self.lines[0])

    def test_long_destination(self):
        """Long destinations are truncated."""
        self.open(connect("x" * 2000 + ":1"))
        entry = self.entry(result="refused", status=400, destination="")
        self.assertRegex(entry["reason"], r"\Abad destination: 'x{100,300}\.\.\.\Z")

    def test_no_head(self):
        """A caller that sends nothing in time has no target."""
        self.open()
        self.reactor.pump([1] * 12)
        self.entry(result="refused", status=408, destination="", who=CALLER)
        self.reactor.pump([1] * 6)

    def test_left_during_the_dial(self):
        """A caller without a response has the status 0, as in lines of requests."""
        self.open(connect()).break_off(ConnectionLost())
        self.entry(result="refused", code="cancelled", status=0)

    def test_left_before_the_answer(self):
        """The stream was open, but never used, and its 200 was not sent."""
        connection = self.open(connect())
        self.session.dials[0].succeed()
        connection.break_off(ConnectionLost())
        connection.turns()
        self.entry(
            result="ended",
            code="cancelled",
            status=0,
            reason="the caller left before the answer was sent",
        )

    def test_unix_socket(self):
        """The kernel knows the user at the other end."""
        connection = self.open(connect("nobody:1"), UnixConnection)
        who = f"unix:uid={os.getuid()},gid={os.getgid()},pid={os.getpid()}"
        self.entry(who=who, by="address", peer=who)
        connection.own.close()
        connection.other.close()


class PassthroughTests(AuditTestCase):
    """Connections to ``--passthrough-port``."""

    def make_factory(self):
        """Create the listener."""
        informers = FakeInformers(True)
        informers.put(NODES, node("edge-1", "10.0.0.1", port=12345, labels=EDGE))
        return PassthroughFactory(
            self.reactor,
            self.registry,
            PassthroughNodes(
                self.registry,
                Nodes(informers),
                ClusterAddresses(informers, "kube-system"),
                iptables=True,
            ),
            frozenset({10250}),
            redirect_source=lambda handle: handle.original,
        )

    def redirected(self, host=None, port=10250):
        """Open a connection that the kernel has redirected here from ``host``."""
        original = None if host is None else SocketAddress(ip_address(host), port)
        return Accepted(self.reactor, original, "127.0.0.1").open(self.factory.buildProtocol(None))

    def test_stream(self):
        """The bytes that were read to find the node count, too: they are passed on."""
        connection = self.redirected()
        hello = client_hello("edge-1")
        connection.receive(hello)
        far = self.answer(connection)
        far.loseWriteConnection()
        connection.receive_end()
        connection.turns()
        self.entry(
            kind="passthrough",
            node="edge-1",
            destination=f"{self.session.dials[0].host}:12345",
            code="done",
            bytes_from_caller=len(hello),
        )

    def test_refused(self):
        """The recorded reason is the logged one, with and without a dial."""
        self.redirected("10.0.0.1", 22)
        entry = self.entry(result="refused", destination="10.0.0.1:22", who=CALLER, code=None)
        self.assertIn("22 is not in --passthrough-ports", entry["reason"])

    def test_unknown_name(self):
        """A name from a caller is only in the reason."""
        self.redirected().receive(client_hello("nobody"))
        entry = self.entry(result="refused", request_id="test-1")
        self.assertIn("names nobody", entry["reason"])

    def test_dial_failed(self):
        """The code is that of the dial."""
        self.redirected("10.0.0.1")
        self.session.dials[0].fail(Code.UNREACHABLE, "no route")
        entry = self.entry(result="refused", code="unreachable", node="edge-1")
        self.assertIn("no route", entry["reason"])
