"""The CONNECT front end."""

from __future__ import annotations

import json
import socket

from twisted.internet.address import UNIXAddress
from twisted.internet.error import ConnectionDone, ConnectionLost
from twisted.internet.interfaces import ISSLTransport
from twisted.internet.testing import MemoryReactorClock
from twisted.logger import formatEvent, globalLogPublisher
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import implementer

from tests.fakes import FakeSession, MemoryConnection
from yurttunnel.http.head import HeadLimits
from yurttunnel.ops.log_levels import REQUESTS
from yurttunnel.pki.problems import refusal
from yurttunnel.server.audit import Audit
from yurttunnel.server.frontends.calls import DialSettings
from yurttunnel.server.frontends.connect import ConnectFactory
from yurttunnel.server.registry import SessionRegistry
from yurttunnel.server.request_ids import RequestIds
from yurttunnel.tunnel.errors import StreamFailed
from yurttunnel.wire.codes import Code

ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"


def connect(target="edge-1:10250", *fields):
    """Build the head of a CONNECT as kube-apiserver sends it, with more fields."""
    lines = [f"CONNECT {target} HTTP/1.1", "Host: 127.0.0.1", *fields, "", ""]
    return "\r\n".join(lines).encode("latin-1")


class HalfClosingConnection(MemoryConnection):
    """A connection whose peer, when it ends its direction, still reads."""

    def getHandle(self):
        """Return a Unix socket whose peer has done what this one's has."""
        self.own, self.peer = socket.socketpair()
        self.end(self.peer)
        return self.own

    def end(self, peer):
        """End one direction."""
        peer.shutdown(socket.SHUT_WR)


class ClosingConnection(HalfClosingConnection):
    """A connection whose peer ends both directions."""

    def end(self, peer):
        """End both."""
        peer.close()


class ConnectTestCase(SynchronousTestCase):
    """A front end in front of one node."""

    limits: dict[str, object] = {}
    dials: dict[str, object] = {}

    def setUp(self):
        """Connect edge-1, which is also 192.0.2.1."""
        self.reactor = MemoryReactorClock()
        self.reactor.advance(1000)
        self.registry = SessionRegistry(self.reactor)
        self.session = FakeSession("edge-1", addresses=["192.0.2.1", "2001:db8::1"])
        self.registry.add(self.session)
        dials = DialSettings(request_ids=RequestIds("test"), **self.dials)
        self.factory = ConnectFactory(self.reactor, self.registry, dials=dials, **self.limits)

    def tearDown(self):
        """Nothing is left when all connections have been closed."""
        self.factory.close()
        self.assertEqual(self.factory.connections, set())
        self.assertEqual(self.factory.pending_dials.taken, 0)
        self.reactor.advance(0)
        self.assertEqual(self.reactor.getDelayedCalls(), [])

    def open(self, data=b"", connection_class=MemoryConnection):
        """Open a connection on which ``data`` comes."""
        protocol = self.factory.buildProtocol(None)
        connection = connection_class(self.reactor).open(protocol)
        if data:
            connection.receive(data)
        return connection

    def turns(self, connection, count=4):
        """Let the reactor turn a few times."""
        for _ in range(count):
            self.reactor.advance(0)
            connection.turn()

    def join(self, data=None, **kwargs):
        """Open a connection, have its dial succeed, and take the 200."""
        connection = self.open(data or connect(), **kwargs)
        target = self.session.dials[-1].succeed()
        self.turns(connection)
        self.assertEqual(connection.segments.pop(0), ESTABLISHED)
        return connection, target

    def assert_answer(self, connection, status, text):
        """The connection has got this error and is closing: our direction has ended."""
        self.turns(connection)
        self.assertTrue(connection.sent.startswith(b"HTTP/1.1 %d " % status), connection.sent)
        body = connection.sent.partition(b"\r\n\r\n")[2]
        self.assertIn(text.encode(), body)
        self.assertTrue(body.endswith(b"\n"))
        self.assertIn(b"\r\nContent-Length: %d\r\n" % len(body), connection.sent)
        self.assertTrue(connection.write_ended)


class EstablishTests(ConnectTestCase):
    """A CONNECT that succeeds."""

    def test_the_destination_is_asked_of_the_node(self):
        """Host, port, timeout and request id reach the session; nothing is answered yet."""
        connection = self.open(connect("edge-1:10250", "X-Request-Id: audit-7"))
        self.turns(connection)
        (dial,) = self.session.dials
        self.assertEqual((dial.host, dial.port), ("edge-1", 10250))
        self.assertEqual((dial.timeout, dial.request_id), (15.0, "audit-7"))
        self.assertEqual(connection.sent, b"")

    def test_a_request_without_id_gets_one(self):
        """The ids count."""
        self.open(connect())
        self.open(connect())
        ids = [dial.request_id for dial in self.session.dials]
        self.assertEqual(ids, ["test-1", "test-2"])

    def test_addresses(self):
        """The node is found by address; the brackets of IPv6 are not passed on."""
        self.open(connect("192.0.2.1:80"))
        self.open(connect("[2001:db8::1]:80"))
        hosts = [dial.host for dial in self.session.dials]
        self.assertEqual(hosts, ["192.0.2.1", "2001:db8::1"])

    def test_the_node_can_be_named_apart_from_the_destination(self):
        """``X-Tunnel-Proxy-Host`` chooses the node, with or without a port; empty it does not."""
        for value in ("edge-1", "edge-1:10250", "[2001:db8::1]:1"):
            self.open(connect("127.0.0.1:10255", f"X-Tunnel-Proxy-Host: {value}"))
            self.assertEqual(self.session.dials[-1].host, "127.0.0.1")
        self.open(connect("edge-1:80", "X-Tunnel-Proxy-Host:"))
        self.assertEqual(len(self.session.dials), 4)

    def test_the_answer_is_200_once_the_far_end_has_connected(self):
        """Exactly the status line and the empty line."""
        connection = self.open(connect())
        self.session.dials[0].succeed()
        self.turns(connection)
        self.assertEqual(connection.segments, [ESTABLISHED])

    def test_no_byte_of_the_target_is_sent_along_with_the_200(self):
        """A target that speaks at once is heard in the sends after the one of the 200."""
        connection = self.open(connect())
        self.session.dials[0].succeed(greeting=b"SSH-2.0-edge\r\n")
        connection.turn()
        self.assertEqual(connection.segments, [ESTABLISHED])
        connection.turn()
        self.assertEqual(connection.segments, [ESTABLISHED, b"SSH-2.0-edge\r\n"])

    def test_joining_costs_no_further_turn(self):
        """The stream is attached in the turn in which the 200 goes out."""
        connection = self.open(connect())
        target = self.session.dials[0].succeed()
        connection.turn()
        connection.receive(b"hello")
        self.assertEqual(target.received, b"hello")

    def test_early_bytes_reach_the_target(self):
        """What follows the head in the same piece, or before the answer, is sent first."""
        connection = self.open(connect() + b"one ")
        connection.receive(b"two ")
        target = self.session.dials[0].succeed()
        self.turns(connection)
        connection.receive(b"three")
        self.turns(connection)
        self.assertEqual(target.received, b"one two three")

    def test_a_caller_that_sends_early_is_read_no_further(self):
        """Nothing piles up while the dial is pending."""
        connection = self.open(connect())
        self.assertTrue(connection.reading)
        connection.receive(b"early")
        self.assertFalse(connection.reading)

    def test_a_head_in_pieces(self):
        """The head may come byte by byte, and early bytes behind it."""
        connection = self.open()
        for value in connect() + b"early":
            connection.receive(bytes([value]))
        target = self.session.dials[0].succeed()
        self.turns(connection)
        self.assertEqual(target.received, b"early")

    def test_http_1_0(self):
        """``curl --proxy1.0`` is served too."""
        self.join(b"CONNECT edge-1:80 HTTP/1.0\r\n\r\n")

    def test_an_empty_body_is_no_body(self):
        """``Content-Length: 0`` does no harm."""
        self.join(connect("edge-1:80", "Content-Length: 0"))

    def test_bytes_go_both_ways(self):
        """After the answer the connection is the target's."""
        connection, target = self.join()
        connection.receive(b"question")
        self.session.dials[0].far.write(b"answer")
        self.turns(connection)
        self.assertEqual((target.received, connection.sent), (b"question", b"answer"))

    def test_half_close(self):
        """A caller that ends its direction still gets its answer, then the connection closes."""
        connection, target = self.join()
        connection.receive(b"x")
        connection.receive_end()
        self.assertEqual((target.received, target.read_ended), (b"x", 1))
        far = self.session.dials[0].far
        far.write(b"answer")
        far.loseWriteConnection()
        self.turns(connection)
        self.assertEqual(connection.sent, b"answer")
        self.assertIsInstance(connection.closed_with, ConnectionDone)

    def test_half_close_behind_the_head(self):
        """A caller that ends its direction behind its head gets the 200 and what follows."""
        connection = self.open(connect(), HalfClosingConnection)
        connection.receive_end()
        self.turns(connection)
        target = self.session.dials[0].succeed()
        self.turns(connection)
        self.assertEqual(target.read_ended, 1)
        self.session.dials[0].far.write(b"answer")
        self.turns(connection)
        self.assertEqual(connection.sent, ESTABLISHED + b"answer")

    def test_half_close_before_the_answer(self):
        """A caller that has sent all it has, and ended, before the 200 gets its answer, too."""
        connection = self.open(connect() + b"x")
        connection.receive_end()
        target = self.session.dials[0].succeed()
        self.turns(connection)
        self.assertEqual((target.received, target.read_ended), (b"x", 1))
        self.session.dials[0].far.write(b"answer")
        self.turns(connection)
        self.assertEqual(connection.sent, ESTABLISHED + b"answer")

    def test_an_end_while_the_200_goes_out(self):
        """The end reaches the target after the join, and the target can still answer."""
        connection = self.open(connect())
        target = self.session.dials[0].succeed()
        connection.receive_end()
        self.turns(connection)
        self.assertEqual(target.read_ended, 1)
        self.session.dials[0].far.write(b"answer")
        self.turns(connection)
        self.assertEqual(connection.sent, ESTABLISHED + b"answer")

    def test_a_stream_that_breaks_resets_the_caller(self):
        """The caller must not take it for the end."""
        connection, _ = self.join()
        self.session.dials[0].far.abort(Code.SESSION_LOST, "gone")
        self.assertTrue(connection.aborted)

    def test_a_caller_that_stalls_pauses_the_stream(self):
        """Twisted's buffer is filled no further than its limit and one piece."""
        connection, _ = self.join()
        far = self.session.dials[0].far
        for _ in range(100):
            far.write(b"x" * 16384)
        connection.turn()
        self.assertLessEqual(len(connection.segments[0]), 65536 + 16384)
        self.turns(connection, 200)
        self.assertEqual(len(connection.sent), 100 * 16384)


class UnixConnection(MemoryConnection):
    """A connection on a real pair of Unix sockets, of which ``caller`` is the caller's."""

    def __init__(self, reactor):
        super().__init__(reactor)
        self.own, self.caller = socket.socketpair()

    def getHandle(self):
        """Return the server's socket."""
        return self.own

    def getHost(self):
        """Return the address of a Unix socket."""
        return UNIXAddress(b"/run/yurttunnel/connect.sock")

    def getPeer(self):
        """Return the address of a Unix socket that has none."""
        return UNIXAddress(b"")

    def writeSomeData(self, data):
        """Send, to the caller's socket too."""
        self.own.sendall(data)
        return super().writeSomeData(data)

    def connectionLost(self, reason):
        """Close both sockets with the connection."""
        super().connectionLost(reason)
        self.own.close()
        self.caller.close()

    def read(self):
        """Return what one read of the caller gives."""
        return self.caller.recv(4096, socket.MSG_DONTWAIT)


class SlowToEndConnection(UnixConnection):
    """One that ends some turns after it has been aborted."""

    def abortConnection(self):
        """Abort it soon."""
        self.reactor.callLater(1, super().abortConnection)


class UnixTests(ConnectTestCase):
    """On a Unix socket nothing follows the 200 until the caller has read it.

    What has been written to a Unix socket by several writes comes out by one read.
    """

    def tearDown(self):
        """No timer is left, either."""
        self.factory.heads.stop()
        self.assertEqual(self.reactor.getDelayedCalls(), [])
        super().tearDown()

    def establish(self, greeting=b""):
        """Open a connection, and have the 200 sent to a caller that does not read."""
        connection = self.open(connect(), UnixConnection)
        target = self.session.dials[-1].succeed(greeting=greeting)
        self.turns(connection)
        return connection, target

    def test_a_target_that_speaks_at_once(self):
        """Its bytes wait while the caller does not read, and then come by themselves."""
        connection, _ = self.establish(greeting=b"SSH-2.0-edge\r\n")
        for _ in range(20):
            self.reactor.advance(0.1)
            connection.turn()
        self.assertEqual(connection.read(), ESTABLISHED)
        self.reactor.advance(2.1)
        self.turns(connection)
        self.assertEqual(connection.read(), b"SSH-2.0-edge\r\n")

    def test_a_caller_that_reads_at_once_is_not_held_up(self):
        """A millisecond later the target is heard."""
        connection, _ = self.establish(greeting=b"hello")
        self.assertEqual(connection.read(), ESTABLISHED)
        self.reactor.advance(0.001)
        self.turns(connection)
        self.assertEqual(connection.read(), b"hello")

    def test_a_caller_that_speaks_first(self):
        """What it sends reaches the target with no delay."""
        connection, target = self.establish()
        self.assertEqual(connection.read(), ESTABLISHED)
        connection.receive(b"question")
        self.assertEqual(target.received, b"question")
        self.assertTrue(connection.reading)

    def test_a_caller_that_sends_without_reading(self):
        """That it sends says nothing; its bytes are kept for the target, and it is paused."""
        connection, target = self.establish(greeting=b"hello")
        connection.receive(b"one ")
        self.assertFalse(connection.reading)
        self.assertEqual((target.received, connection.read()), (b"", ESTABLISHED))
        self.reactor.advance(0.001)
        self.turns(connection)
        self.assertEqual((target.received, connection.read()), (b"one ", b"hello"))

    def test_a_caller_that_never_reads(self):
        """After 4 s the stream is joined all the same: nobody watches the caller for ever."""
        connection, _ = self.establish(greeting=b"hello")
        self.assertEqual(connection.segments, [ESTABLISHED])
        for _ in range(60):
            self.reactor.advance(0.1)
            connection.turn()
        self.assertEqual(connection.read(), ESTABLISHED + b"hello")

    def test_a_caller_that_leaves_without_reading(self):
        """The stream is reset, and nobody waits for the caller any longer."""
        connection, target = self.establish(greeting=b"hello")
        connection.break_off(ConnectionLost())
        (end,) = target.ended_with
        self.assertEqual(end.code, Code.CANCELLED)

    def test_a_caller_that_has_left_is_looked_at_no_more(self):
        """It is not taken for one that has read its answer while its connection still ends."""
        connection = self.open(connect(), SlowToEndConnection)
        target = self.session.dials[-1].succeed()
        self.turns(connection)
        connection.caller.close()
        connection.receive_end()
        (end,) = target.ended_with
        self.assertEqual(end.code, Code.CANCELLED)
        self.reactor.advance(0.5)
        self.turns(connection)
        self.reactor.advance(0.5)
        self.assertTrue(connection.aborted)


class RefusalTests(ConnectTestCase):
    """A CONNECT that fails is told why."""

    def test_failed_dials(self):
        """Each code has its status, and the sentence of the far end is the body."""
        for code, status in {
            Code.REFUSED: 502,
            Code.UNREACHABLE: 502,
            Code.NAME_NOT_RESOLVED: 502,
            Code.TIMEOUT: 504,
            Code.DENIED: 403,
            Code.OVERLOADED: 503,
            Code.BAD_DESTINATION: 400,
            Code.SESSION_LOST: 503,
        }.items():
            connection = self.open(connect())
            self.session.dials[-1].fail(code, "a sentence from edge-1")
            self.assert_answer(connection, status, "a sentence from edge-1")

    def test_the_sentence_is_in_the_status_line(self):
        """kube-apiserver tells its users the status line, and nothing else of the answer."""
        refused, unknown = self.open(connect()), self.open(connect("edge-9:80"))
        self.session.dials[0].fail(Code.REFUSED, "connect 10.0.0.7:1:\r\nrefus\xe9")
        for connection, line in (
            (refused, b"HTTP/1.1 502 connect 10.0.0.7:1: refus?"),
            (unknown, b"HTTP/1.1 503 no agent is connected for edge-9, and none has been"),
        ):
            self.turns(connection)
            self.assertTrue(connection.sent.partition(b"\r\n")[0].startswith(line))

    def test_half_close_before_a_refusal(self):
        """A caller that ends its direction behind its head is told of the failure, and closed."""
        connection = self.open(connect(), HalfClosingConnection)
        connection.receive_end()
        self.turns(connection)
        self.session.dials[0].fail(Code.DENIED, "not allowed at edge-1")
        self.turns(connection)
        self.assertIn(b"HTTP/1.1 403 ", connection.sent)
        self.assertTrue(connection.sent.endswith(b"not allowed at edge-1\n"))
        self.assertIsInstance(connection.closed_with, ConnectionDone)

    def test_an_unknown_node(self):
        """503, with whether it was ever seen."""
        self.assert_answer(self.open(connect("edge-9:80")), 503, "none has been")

    def test_a_node_that_has_gone(self):
        """503, with when it was last seen."""
        self.registry.remove(self.session)
        self.reactor.advance(30)
        self.assert_answer(self.open(connect()), 503, "last seen 30 s ago")

    def test_a_caller_of_the_api_gets_a_status(self):
        """With ``Accept: application/json`` the body is a ``metav1.Status``."""
        connection = self.open(connect("edge-9:80", "Accept: application/json, */*"))
        self.turns(connection)
        status = json.loads(connection.sent.partition(b"\r\n\r\n")[2])
        self.assertEqual((status["kind"], status["code"]), ("Status", 503))

    def test_a_defect_of_ours(self):
        """An unforeseen exception is logged and answered, not left hanging."""
        connection = self.open(connect())
        self.session.dials[0].opening.errback(ZeroDivisionError("boom"))
        self.assert_answer(connection, 500, "the log of the server has more, as test-1")
        self.assertNotIn(b"boom", connection.sent)
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)

    def test_other_methods(self):
        """405, with the method that is allowed."""
        for method in ("GET", "POST", "OPTIONS"):
            connection = self.open(f"{method} / HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            self.assert_answer(connection, 405, "CONNECT")
            self.assertIn(b"\r\nAllow: CONNECT\r\n", connection.sent)

    def test_malformed_heads(self):
        """400 for what is no head, at its first bad byte."""
        for data in (b"\x16\x03\x01\x00", b"connect a:1 HTTP/1.1\r\n", connect()[:-2] + b"a b\r\n"):
            self.assert_answer(self.open(data), 400, "malformed")

    def test_bad_destinations(self):
        """400 for a target that is not host and port."""
        for target in ("edge-1", "edge-1:0", "edge-1:65536", "http://edge-1:80/", "*", "a@b:1"):
            self.assert_answer(self.open(connect(target)), 400, "bad destination")
        self.assertEqual(self.session.dials, [])

    def test_what_is_logged_of_bad_heads(self):
        """No password, no query, and not all of what is very long."""
        events = []
        globalLogPublisher.addObserver(events.append)
        self.addCleanup(globalLogPublisher.removeObserver, events.append)
        for head in (
            connect("http://u:S3CRET@edge-1/"),
            connect("edge-1:1", "X-Tunnel-Proxy-Host: u:S3CRET@edge-1"),
            connect().replace(b"CONNECT edge-1:10250", b"GET /run/a/b/c?cmd=S3CRET"),
            connect("x" * 15_000 + ":1"),
        ):
            self.turns(self.open(head))
        lines = [formatEvent(each) for each in events if each["log_namespace"] == REQUESTS]
        self.assertEqual(len(lines), 4)
        for line in lines:
            self.assertNotIn("S3CRET", line)
            self.assertLess(len(line), 800)

    def test_bad_nodes(self):
        """400 for an ``X-Tunnel-Proxy-Host`` that is no host, or is given twice."""
        field = "X-Tunnel-Proxy-Host: "
        for fields in ([field + "a b"], [field + "\xe9"], [field + "edge-1", field + "edge-1"]):
            connection = self.open(connect("edge-1:80", *fields))
            self.assert_answer(connection, 400, "X-Tunnel-Proxy-Host")

    def test_bodies_and_expectations(self):
        """A CONNECT has no body, and nothing to expect."""
        for field in ("Content-Length: 5", "Transfer-Encoding: chunked"):
            self.assert_answer(self.open(connect("edge-1:80", field)), 400, "no body")
        connection = self.open(connect("edge-1:80", "Expect: 100-continue"))
        self.assert_answer(connection, 417, "expect")

    def test_large_heads(self):
        """431 for more bytes or fields than the limits allow."""
        self.assert_answer(self.open(connect("a:1", "A: " + "b" * 16384)), 431, "16384 bytes")
        self.assert_answer(self.open(connect("a:1", *["A: b"] * 100)), 431, "100 header fields")

    def test_nothing_of_the_caller_reaches_the_head_of_the_answer(self):
        """A target with encoded line ends is only quoted in the body."""
        connection = self.open(connect("a%0d%0aSet-Cookie:x:1"))
        self.turns(connection)
        self.assertNotIn(b"Cookie", connection.sent.partition(b"\r\n\r\n")[0])


class ClosingTests(ConnectTestCase):
    """After an error answer the connection is closed, but not on top of the answer."""

    limits = {"linger": 5.0}

    def test_what_the_caller_still_sends_is_read_and_dropped(self):
        """A reset would take the answer away; so the caller is read until it closes."""
        connection = self.open(connect("edge-9:80") + b"early")
        self.assert_answer(connection, 503, "edge-9")
        self.assertTrue(connection.reading)
        connection.receive(b"more" * 1000)
        connection.receive_end()
        self.turns(connection)
        self.assertIsInstance(connection.closed_with, ConnectionDone)
        self.assertFalse(connection.aborted)

    def test_a_caller_that_does_not_close_is_aborted(self):
        """After the linger time, and not before."""
        connection = self.open(connect("edge-9:80"))
        self.turns(connection)
        self.reactor.advance(4.9)
        self.assertFalse(connection.aborted)
        self.reactor.advance(0.1)
        self.assertTrue(connection.aborted)

    def test_a_caller_that_does_not_read_is_aborted(self):
        """An answer that cannot be sent holds nothing longer than the linger time."""
        connection = self.open(connect("edge-9:80"))
        self.reactor.advance(5)
        self.assertTrue(connection.aborted)

    def test_an_early_caller_whose_dial_fails(self):
        """A caller that was paused is read again, so that its end is seen."""
        connection = self.open(connect() + b"early")
        self.session.dials[0].fail(Code.REFUSED, "refused")
        self.assert_answer(connection, 502, "refused")
        connection.receive_end()
        self.turns(connection)
        self.assertIsInstance(connection.closed_with, ConnectionDone)


class LeavingTests(ConnectTestCase):
    """A caller may leave at any time."""

    def test_while_the_head_is_read(self):
        """Nothing happens."""
        connection = self.open(b"CONNECT edge-1")
        connection.receive_end()
        self.turns(connection)
        self.assertIsInstance(connection.closed_with, ConnectionDone)
        self.assertEqual(len(self.factory.heads), 0)

    def test_while_the_dial_is_pending(self):
        """The dial is canceled, whether the caller closes or breaks."""
        connection = self.open(connect(), ClosingConnection)
        connection.receive_end()
        self.turns(connection)
        self.open(connect()).break_off(ConnectionLost())
        self.assertEqual([dial.cancelled for dial in self.session.dials], [True, True])
        self.assertEqual(connection.sent, b"")

    def test_while_the_200_goes_out(self):
        """The stream is reset."""
        connection = self.open(connect())
        target = self.session.dials[0].succeed()
        connection.break_off(ConnectionLost())
        (end,) = target.ended_with
        self.assertIsInstance(end, StreamFailed)
        self.assertEqual(end.code, Code.CANCELLED)

    def test_when_the_dial_succeeds_in_spite_of_its_cancellation(self):
        """A stream that comes too late is reset."""
        connection = self.open(connect())
        dial = self.session.dials[0]
        dial.opening._canceller = lambda opening: dial.succeed()
        connection.break_off(ConnectionLost())
        self.turns(connection)
        self.assertIsNotNone(dial.near._end)

    def test_when_joined(self):
        """The stream is reset with the broken connection."""
        connection, target = self.join()
        connection.break_off(ConnectionLost())
        (end,) = target.ended_with
        self.assertEqual(end.code, Code.CONNECTION_LOST)


class LimitTests(ConnectTestCase):
    """Every wait and every number has a bound."""

    limits = {
        "head_timeout": 10.0,
        "max_unread_heads": 2,
        "limits": HeadLimits(max_bytes=100),
    }
    dials = {"timeout": 7.0, "max_pending": 4}

    def test_slow_heads(self):
        """A caller that sends a byte now and then gets 408 after the head's time."""
        connection = self.open()
        for value in connect()[:19]:
            self.reactor.advance(0.5)
            connection.receive(bytes([value]))
        self.reactor.advance(0.4)
        self.assertEqual(connection.sent, b"")
        self.reactor.advance(0.1)
        self.assert_answer(connection, 408, "in time")

    def test_a_head_in_time_ends_its_deadline(self):
        """A dial may take longer than a head."""
        connection = self.open(connect())
        self.reactor.advance(60)
        self.assertEqual(connection.sent, b"")
        self.assertIsNone(connection.closed_with)

    def test_unread_heads(self):
        """Of more connections without a head than allowed the oldest is cut off; others go on."""
        dialing, silent = self.open(connect()), self.open()
        slow, caller = self.open(connect()[:9]), self.open()
        self.assertEqual((silent.aborted, silent.sent), (True, b""))
        caller.receive(connect())
        self.assertEqual(len(self.session.dials), 2)
        newest = [self.open() for _ in range(2)]
        self.assertTrue(slow.aborted)
        self.assertEqual([], [each for each in (dialing, caller, *newest) if each.aborted])

    def test_a_caller_that_is_passed_over(self):
        """A connection that ends makes room, too."""
        self.open().break_off(ConnectionLost())
        self.open()
        last = self.open()
        self.turns(last)
        self.assertEqual(last.sent, b"")

    def test_connections_that_linger(self):
        """Of more callers that are told of an error than that the oldest is not waited for."""
        callers = [self.open(b"\0") for _ in range(3)]
        self.assertEqual([caller.aborted for caller in callers], [True, False, False])
        self.assert_answer(callers[2], 400, "")

    def test_pending_dials(self):
        """More pending dials of a caller than of others' room get 503; an answer makes room."""
        self.open(connect())
        self.open(connect()).break_off(ConnectionLost())
        self.open(connect())
        self.assert_answer(self.open(connect()), 503, "2 dials are pending")
        self.session.dials[0].fail(Code.REFUSED, "refused")
        self.open(connect())
        self.assertEqual(len(self.session.dials), 4)

    def test_the_dial_timeout_is_passed_on(self):
        """The session watches it."""
        self.open(connect())
        self.assertEqual(self.session.dials[0].timeout, 7.0)

    def test_limits_of_the_head(self):
        """They can be chosen."""
        self.assert_answer(self.open(b"CONNECT " + b"a" * 93), 431, "100 bytes")


class CloseTests(ConnectTestCase):
    """``ConnectFactory.close`` ends whatever there is."""

    def test_every_connection_is_aborted(self):
        """Those with an unread head, a pending dial, an answer under way, a stream, an error."""
        joined, target = self.join()
        established = self.open(connect())
        self.session.dials[-1].succeed()
        connections = [
            joined,
            established,
            self.open(),
            self.open(connect()),
            self.open(connect("edge-9:80")),
        ]
        self.factory.close()
        self.assertTrue(all(connection.aborted for connection in connections))
        self.assertTrue(self.session.dials[-1].cancelled)
        self.assertEqual(len(target.ended_with), 1)


class DrainTests(ConnectTestCase):
    """``ConnectFactory.drain`` waits for what callers still have to take."""

    def drain(self):
        """Begin to end; give what fires in the end."""
        return self.factory.drain()

    def test_idle(self):
        """Without connections there is nothing to wait for."""
        self.successResultOf(self.drain())

    def test_a_caller_that_reads_slowly(self):
        """The stream has ended, and the last of it waits in the transport of the caller."""
        connection, _ = self.join()
        connection.receive_end()
        far = self.session.dials[0].far
        far.write(b"x" * 60_000)
        far.loseWriteConnection()
        gone = self.drain()
        self.assertIsNone(connection.protocol._user.stream)
        self.assertNoResult(gone)
        self.turns(connection)
        self.assertEqual(connection.sent, b"x" * 60_000)
        self.successResultOf(gone)

    def test_every_wait(self):
        """All that wait are told."""
        connection, _ = self.join()
        waits = [self.drain(), self.drain()]
        connection.break_off(ConnectionLost())
        for gone in waits:
            self.successResultOf(gone)

    def test_callers_that_want_nothing_yet(self):
        """Those without a byte of a head are ended, others are served until they are answered."""
        silent, begun, dialing = self.open(), self.open(connect()[:9]), self.open(connect())
        gone = self.drain()
        self.assertEqual([True, False, False], [c.aborted for c in (silent, begun, dialing)])
        begun.receive(connect()[9:])
        for dial, connection in zip(self.session.dials, (dialing, begun), strict=True):
            dial.fail(Code.GOING_AWAY, "the server is about to stop")
            self.assert_answer(connection, 503, "about to stop")
            self.assertNoResult(gone)
            connection.receive_end()
            self.turns(connection)
        self.successResultOf(gone)

    def test_callers_that_do_not_end(self):
        """``close`` ends the wait."""
        self.join()
        gone = self.drain()
        self.assertNoResult(gone)
        self.factory.close()
        self.successResultOf(gone)


class PlainHalf:
    """What is below TLS: a socket whose caller is told of by ``taken``."""

    def __init__(self):
        self.taken = True

    def getHandle(self):
        """Return a socket on which something waits for the peer, or nothing."""
        self.own, self.peer = socket.socketpair()
        if not self.taken:
            self.own.send(b"x")
        return self.own


@implementer(ISSLTransport)
class MemoryTLSConnection(MemoryConnection):
    """A connection that, like Twisted's TLS, makes one record of what is written in one turn.

    Its handshake is done unless a subclass says otherwise.
    """

    handshaken = True

    def __init__(self, reactor):
        super().__init__(reactor)
        self.collected = b""
        self.records = []
        self.transport = PlainHalf()

    def open(self, protocol):
        """Connect ``protocol`` and shake hands."""
        super().open(protocol)
        if self.handshaken:
            protocol.handshakeCompleted()
        return self

    def getPeerCertificate(self):
        """Have none."""
        raise NotImplementedError("no part of the front end looks at certificates")

    def write(self, data):
        """Collect ``data`` until the next turn."""
        if not self.connected:
            return
        if not self.collected:
            self.reactor.callLater(0, self.send_collected)
        self.collected += data

    def send_collected(self):
        """Send one record."""
        data, self.collected = self.collected, b""
        self.records.append(data)
        super().write(data)

    def loseWriteConnection(self):
        """Fail, as it does."""
        raise AssertionError("this destroys data under TLS")

    def loseConnection(self):
        """Report that nothing more will be sent, and wait for the caller to close, too."""
        self.close_notified = True


class TLSTests(ConnectTestCase):
    """Over TLS, which has no half-close in Twisted."""

    def open(self, data=b"", connection_class=MemoryTLSConnection):
        """Open a TLS connection."""
        return super().open(data, connection_class)

    def test_no_byte_of_the_target_is_in_the_record_of_the_200(self):
        """A target that speaks at once is heard in a later record."""
        connection = self.open(connect())
        self.session.dials[0].succeed(greeting=b"hello")
        self.turns(connection)
        self.assertEqual(connection.records, [ESTABLISHED, b"hello"])

    def test_the_target_ends_its_direction(self):
        """The caller is told by close_notify, and has limited time to close."""
        connection, _ = self.join()
        far = self.session.dials[0].far
        far.write(b"last")
        far.loseWriteConnection()
        self.turns(connection)
        self.assertEqual(connection.sent, b"last")
        self.assertTrue(connection.close_notified)
        self.reactor.advance(5)
        self.assertTrue(connection.aborted)

    def test_a_caller_that_reads_slowly(self):
        """It has longer to take the last of the stream, but not for ever."""
        connection, _ = self.join()
        connection.transport.taken = False
        self.session.dials[0].far.loseWriteConnection()
        self.reactor.advance(5)
        self.assertFalse(connection.aborted)
        self.reactor.advance(74)
        self.assertFalse(connection.aborted)
        self.reactor.advance(1)
        self.assertTrue(connection.aborted)

    def test_a_slow_caller_that_closes(self):
        """Nobody waits for it any longer."""
        connection, _ = self.join()
        connection.transport.taken = False
        self.session.dials[0].far.loseWriteConnection()
        self.reactor.advance(5)
        self.assertEqual(len(self.factory.stalled), 1)
        connection.connectionLost(Failure(ConnectionDone()))
        self.assertEqual(len(self.factory.stalled), 0)

    def test_an_error_answer_that_is_not_taken(self):
        """For the few bytes of an error nobody waits longer."""
        connection = self.open(connect("edge-9:80"))
        connection.transport.taken = False
        self.turns(connection)
        self.reactor.advance(5)
        self.assertTrue(connection.aborted)

    def test_a_target_that_ends_after_the_caller_has_left(self):
        """Nobody is waited for any longer."""
        connection, _ = self.join()
        # A stream may tell of the end of its target after it has been let go of.
        side = self.session.dials[0].near._protocol
        connection.connectionLost(Failure(ConnectionDone()))
        side.readConnectionLost()
        self.assertEqual(len(self.factory.lingering), 0)

    def test_an_error_answer(self):
        """It is sent, the connection is closed softly, and a caller that stays is aborted."""
        connection = self.open(connect("edge-9:80"))
        self.turns(connection)
        self.assertIn(b"503", connection.sent)
        self.assertTrue(connection.close_notified)
        self.reactor.advance(5)
        self.assertTrue(connection.aborted)

    def test_callers_that_tls_refuses(self):
        """The log tells of each reason once in a minute, with the address."""
        events = []
        globalLogPublisher.addObserver(events.append)
        self.addCleanup(globalLogPublisher.removeObserver, events.append)
        for problem in ("it is one", "it is another", "it is one"):
            self.open(connection_class=UnfinishedTLSConnection).break_off(refusal(problem))
        self.open().break_off(refusal("it has been let in before"))
        lines = [formatEvent(event) for event in events if "problem" in event]
        said = [f"a caller from 127.0.0.1 is refused: it is {what}" for what in ("one", "another")]
        self.assertEqual(said, lines)

    def test_a_caller_that_leaves_while_the_200_goes_out(self):
        """The stream is reset and nothing is left."""
        connection = self.open(connect())
        target = self.session.dials[0].succeed()
        connection.break_off(ConnectionLost())
        self.assertEqual(len(target.ended_with), 1)


class UnfinishedTLSConnection(MemoryTLSConnection):
    """A TLS connection whose handshake is done when the test says so."""

    handshaken = False

    def getPeerCertificate(self):
        """Have none, which the audit log puts up with."""

    def finish(self):
        """End the handshake."""
        self.protocol.handshakeCompleted()


class HandshakeTests(ConnectTestCase):
    """Who has not ended its TLS handshake may be anybody."""

    limits = {"head_timeout": 10.0, "max_unread_heads": 2, "max_handshakes": 3}

    def setUp(self):
        """Keep what is logged and audited."""
        super().setUp()
        self.lines = []
        self.factory.audit = Audit(self.reactor, self.lines.append)
        self.events = []
        globalLogPublisher.addObserver(self.events.append)
        self.addCleanup(globalLogPublisher.removeObserver, self.events.append)

    def open(self, data=b"", connection_class=UnfinishedTLSConnection):
        """Open a TLS connection."""
        return super().open(data, connection_class)

    def logged(self, word):
        """Return the lines of the log with ``word``."""
        return [line for line in map(formatEvent, self.events) if line and word in line]

    def test_strangers_keep_nobody_out(self):
        """Of more handshakes than may be under way the oldest is cut off, without an answer."""
        strangers = [self.open() for _ in range(6)]
        caller = self.open()
        caller.finish()
        caller.receive(connect())
        self.assertEqual(len(self.session.dials), 1)
        self.assertEqual([True] * 4 + [False] * 2, [each.aborted for each in strangers])
        self.assertEqual({b""}, {each.sent for each in strangers})

    def test_one_line_for_all_of_them(self):
        """The log has one in a minute, with what can be done; the audit log has none."""
        for _ in range(10):
            self.open()
        (line,) = self.logged("is cut off")
        self.assertIn("a caller from 127.0.0.1 is cut off: 3 newer ones", line)
        self.assertEqual(self.lines, [])

    def test_heads_count_apart(self):
        """Handshakes take no room of callers that are known, nor the other way round."""
        for _ in range(3):
            self.open()
        callers = [self.open() for _ in range(3)]
        for caller in callers:
            caller.finish()
        self.assertEqual([caller.aborted for caller in callers], [True, False, False])
        (line,) = [line for line in self.logged("is cut off") if "handshake" not in line]
        self.assertIn("a caller from 127.0.0.1 is cut off: 2 newer ones", line)
        self.assertEqual(self.lines, [])
        self.assertFalse(self.open().aborted)

    def test_time(self):
        """Handshake and head have ten seconds together; who is known by then is told."""
        stranger, other, caller = self.open(), self.open(), self.open()
        self.reactor.advance(6)
        caller.finish()
        self.reactor.advance(4)
        self.assert_told(caller, b"HTTP/1.1 408 ")
        for each in (stranger, other):
            self.assertTrue(each.aborted)
            self.assertEqual(each.sent, b"")
        (line,) = self.logged("is cut off")
        self.assertIn("its TLS handshake was not done within 10 s", line)
        self.assertEqual(len(self.lines), 1)
        self.assertEqual(len(self.logged("answered 408")), 1)

    def assert_told(self, connection, status_line):
        """The connection has got an answer."""
        self.turns(connection)
        self.assertTrue(connection.sent.startswith(status_line), connection.sent)

    def test_handshakes_that_end(self):
        """They make room, whether the caller goes on or leaves."""
        first, second, third = (self.open() for _ in range(3))
        first.finish()
        second.break_off(ConnectionLost())
        self.open()
        self.open()
        self.assertFalse(third.aborted)
        self.assertEqual(len(self.factory.handshakes), 3)

    def test_drain(self):
        """A server that stops waits for none of them."""
        stranger = self.open()
        gone = self.factory.drain()
        self.assertTrue(stranger.aborted)
        self.successResultOf(gone)
