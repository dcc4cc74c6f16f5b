"""Connections that are joined after an upgrade."""

from __future__ import annotations

import hashlib
import random

from twisted.internet.error import ConnectionDone, ConnectionLost
from twisted.internet.interfaces import IHalfCloseableProtocol, IPushProducer
from zope.interface.verify import verifyObject

from tests.fakes import FakeStream, MemoryConnection
from tests.http.relaying import OK, SWITCHING, UPGRADE, RelayTestCase
from tests.http.support import SecureConnection, request
from yurttunnel.http.client import ClientConnection
from yurttunnel.http.interfaces import ExchangeFailed
from yurttunnel.http.upgrade import join

BUFFER = 64 * 1024


class UpgradeTestCase(RelayTestCase):
    """A client that requests an upgrade."""

    def upgrade(self, early=b"", greeting=b""):
        """Grant an upgrade, with data directly after either head."""
        length = b"Content-Length: 0"
        self.send(request(b"/exec", *UPGRADE, length, method=b"POST", body=early))
        self.answer(SWITCHING + greeting)

    @property
    def to_origin(self):
        """The data that the origin received after the head."""
        return self.origin.sent.partition(b"\r\n\r\n")[2]

    @property
    def to_client(self):
        """The data that the client received after the head."""
        return self.client.sent.partition(b"\r\n\r\n")[2]


class UpgradeTests(UpgradeTestCase):
    """Granted upgrades."""

    def test_interfaces(self):
        """The sides provide their interfaces."""
        for side in join(MemoryConnection(), MemoryConnection(), self.relay.closing):
            self.assertTrue(verifyObject(IHalfCloseableProtocol, side))
            self.assertTrue(verifyObject(IPushProducer, side))

    def test_nothing_is_read_for_a_side_that_takes_no_more(self):
        """A transport that stops its producer pauses the other side."""
        near, far = MemoryConnection(), MemoryConnection()
        side, other = join(near, far, self.relay.closing)
        near.open(side)
        far.open(other)
        side.stopProducing()
        near.receive(b"unread")
        self.assertEqual(b"", far.sent)
        side.resumeProducing()
        near.reactor.advance(0)
        far.turn()
        self.assertEqual(b"unread", far.sent)

    def test_heads(self):
        """Both heads are forwarded with Connection and Upgrade, but no other hop-by-hop fields."""
        self.send(
            request(
                b"/exec?command=sh",
                b"Connection: upgrade, X-Secret",
                b"X-Secret: 1",
                b"Upgrade: websocket",
                b"Sec-WebSocket-Key: abc",
            )
        )
        self.assertEqual(
            request(
                b"/exec?command=sh",
                b"Sec-WebSocket-Key: abc",
                b"Connection: Upgrade",
                b"Upgrade: websocket",
            ),
            self.origin.sent,
        )
        self.answer(
            b"HTTP/1.1 101 Go Ahead\r\nUpgrade: websocket\r\nConnection: upgrade\r\n"
            b"Sec-WebSocket-Accept: def\r\nKeep-Alive: 5\r\n\r\n"
        )
        self.assertEqual(
            b"HTTP/1.1 101 Go Ahead\r\nSec-WebSocket-Accept: def\r\n"
            b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
            self.client.sent,
        )

    def test_length_of_the_answer(self):
        """A 101 has no length (RFC 9110 section 8.6)."""
        self.send(request(b"/exec", *UPGRADE))
        self.answer(SWITCHING[:-2] + b"Content-Length: 0\r\n\r\n")
        self.assertEqual(SWITCHING, self.client.sent)

    def test_bytes(self):
        """Data is forwarded unchanged in both directions."""
        self.upgrade()
        self.send(request(b"/not-http"))
        self.answer(b"HTTP/1.1 nonsense")
        self.assertEqual(request(b"/not-http"), self.to_origin)
        self.assertEqual(b"HTTP/1.1 nonsense", self.to_client)

    def test_early_bytes(self):
        """Data directly after the heads is forwarded, in order, and not before the 101."""
        self.send(request(b"/exec", *UPGRADE, body=b"early "))
        self.assertEqual(b"", self.to_origin)
        self.answer(SWITCHING + b"greeting ")
        self.send(b"late")
        self.answer(b"more")
        self.assertEqual((b"early late", b"greeting more"), (self.to_origin, self.to_client))

    def test_no_deadline(self):
        """A joined pair has no timeout."""
        self.upgrade()
        self.clock.advance(100_000)
        self.send(b"x")
        self.assertEqual(b"x", self.to_origin)

    def test_does_not_count_in_the_pool(self):
        """An upgraded connection frees its place, and is not reused."""
        self.upgrade()
        self.client.receive_end()
        self.origin.receive_end()
        self.settle()
        self.assertEqual((0, 0), (self.pool.statistics.in_use, self.pool.statistics.idle))

    def test_much_data(self):
        """Megabytes arrive completely in both directions."""
        self.upgrade()
        data = random.Random(2).randbytes(2_000_000)
        for start in range(0, len(data), 50_000):
            self.send(data[start : start + 50_000])
            self.answer(data[start : start + 50_000][::-1])
        self.assertEqual(hashlib.sha256(data).digest(), hashlib.sha256(self.to_origin).digest())
        self.assertEqual(len(data), len(self.to_client))

    def test_request_with_a_body(self):
        """An upgrade whose request has a body is granted after the body."""
        self.send(request(b"/", *UPGRADE, b"Content-Length: 4", method=b"POST", body=b"ab"))
        self.send(b"cdraw")
        self.answer(SWITCHING)
        self.assertEqual(b"abcdraw", self.to_origin)

    def test_over_streams(self):
        """The origin may be reached through a stream of the tunnel."""
        near, far = FakeStream.pair()

        def connect(key, caller):
            connection = ClientConnection(self.clock)
            near.attach(connection)
            return connection.when_ready()

        self.pool.connect = connect
        received = []

        class Origin:
            """Records data and events."""

            makeConnection = connectionLost = lambda self, argument: None
            dataReceived = received.append

        far.attach(Origin())
        self.send(request(b"/exec", *UPGRADE, body=b"early"))
        far.write(SWITCHING + b"greeting")
        self.settle()
        self.send(b"late")
        self.assertTrue(b"".join(received).endswith(b"\r\n\r\nearlylate"))
        self.assertEqual(b"greeting", self.to_client)


class RefusalTests(UpgradeTestCase):
    """Refused upgrades."""

    def test_refusal(self):
        """A refusal is forwarded with its whole body, and both connections are kept."""
        body = bytes(200_000)
        self.send(request(b"/exec", *UPGRADE))
        self.answer(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 200000\r\n\r\n" + body[:100_000])
        self.answer(body[100_000:])
        self.send(request())
        self.answer(OK)
        answers = self.responses("GET", "GET")
        self.assertEqual([(403, body), (200, b"ok")], [(a[0], a[2]) for a in answers])
        self.assertNotIn(b"connection", answers[0][1])
        self.assertEqual(1, len(self.origins))

    def test_bytes_behind_a_refused_request(self):
        """Data that a client sends before a refusal is its next request, if valid."""
        self.send(request(b"/exec", *UPGRADE, body=request(b"/next")))
        self.answer(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno")
        self.assertTrue(self.origin.sent.endswith(request(b"/next")))
        self.answer(OK)
        self.assertEqual([403, 200], [a[0] for a in self.responses("GET", "GET")])

    def test_failure(self):
        """An unreachable origin is reported as for any request."""
        self.send(request(b"/exec", *UPGRADE))
        self.origin.receive_end()
        self.assert_refused(502, b"closed before a response")

    def test_never_answers(self):
        """An origin that does not respond is reported as for any request."""
        self.send(request(b"/exec", *UPGRADE))
        self.clock.advance(30)
        self.assert_refused(504, b"no response")


class EndTests(UpgradeTestCase):
    """The end of joined connections."""

    def test_client_half_closes(self):
        """A half-close of the client is forwarded."""
        self.upgrade()
        self.client.receive(b"last")
        self.client.receive_end()
        self.settle()
        self.assertEqual((b"last", True), (self.to_origin, self.origin.write_ended))
        self.assertFalse(self.client.write_ended)
        self.clock.advance(1000)
        self.answer(b"answer")
        self.assertEqual(b"answer", self.to_client)
        self.origin.receive_end()
        self.settle()
        for side in (self.client, self.origin):
            self.assertIsInstance(side.closed_with, ConnectionDone)
        self.assertEqual([None], self.ends)

    def test_origin_half_closes(self):
        """A half-close of the origin is forwarded."""
        self.upgrade()
        self.origin.receive(b"last")
        self.origin.receive_end()
        self.settle()
        self.assertEqual((b"last", True), (self.to_client, self.client.write_ended))
        self.send(b"more")
        self.assertEqual(b"more", self.to_origin)

    def test_client_half_closes_before_the_answer(self):
        """A half-close before the 101 is forwarded after the early data."""
        self.send(request(b"/exec", *UPGRADE))
        self.client.receive_end()
        self.answer(SWITCHING + b"greeting")
        self.assertTrue(self.origin.write_ended)
        self.assertEqual(b"greeting", self.to_client)

    def test_origin_half_closes_with_the_answer(self):
        """A half-close of the origin that arrives with the 101 is forwarded, too."""
        self.send(request(b"/exec", *UPGRADE))
        self.origin.receive(SWITCHING + b"bye")
        self.origin.receive_end()
        self.settle()
        self.assertEqual((b"bye", True), (self.to_client, self.client.write_ended))

    def test_a_side_closes(self):
        """A clean close of one side closes the other once all data is sent."""
        self.upgrade()
        self.origin.receive(b"last words")
        self.origin.break_off(ConnectionDone())
        self.settle()
        self.assertEqual(b"last words", self.to_client)
        self.assertIsInstance(self.client.closed_with, ConnectionDone)
        self.assertEqual([None], self.ends)

    def test_a_side_breaks(self):
        """A broken side aborts the other, so that nothing incomplete looks complete."""
        for broken in ("client", "origin"):
            self.client = self.server.connect()
            self.upgrade()
            sides = {"client": self.client, "origin": self.origin}
            sides.pop(broken).break_off(ConnectionLost("reset"))
            (other,) = sides.values()
            self.assertTrue(other.aborted)
            self.assertIsInstance(self.ends[-1], ExchangeFailed)

    def test_client_leaves_before_the_answer(self):
        """A client that disconnects while it waits ends the connection to the origin."""
        self.send(request(b"/exec", *UPGRADE))
        self.client.break_off(ConnectionLost("reset"))
        self.assertTrue(self.origin.aborted)

    def test_a_side_that_does_not_close(self):
        """A side that does not read any more is finally aborted."""
        self.upgrade()
        self.origin.receive(bytes(1000))
        self.origin.break_off(ConnectionDone())
        self.clock.advance(59)
        self.assertIsNone(self.client.closed_with)
        self.clock.advance(1)
        self.assertTrue(self.client.aborted)

    def test_server_closes(self):
        """Closing the server ends both sides."""
        self.upgrade()
        self.server.factory.close()
        self.assertTrue(self.client.aborted)
        self.assertTrue(self.origin.aborted)


class SecureEndTests(UpgradeTestCase):
    """A client over TLS, whose end ends both directions."""

    client_kind = SecureConnection

    def test_client_ends(self):
        """The origin is closed once all data is sent to it."""
        self.upgrade()
        self.client.receive(b"last")
        self.client.receive_end()
        self.settle()
        self.assertEqual(b"last", self.to_origin)
        self.assertIsInstance(self.origin.closed_with, ConnectionDone)
        self.assertEqual([None], self.ends)

    def test_origin_ends(self):
        """The client is closed once all data is sent to it."""
        self.upgrade()
        self.origin.receive(b"last")
        self.origin.receive_end()
        self.settle()
        self.assertEqual(b"last", self.to_client)
        self.assertIsInstance(self.client.closed_with, ConnectionDone)
        self.assertIsInstance(self.origin.closed_with, ConnectionDone)


class BackPressureTests(UpgradeTestCase):
    """A side that does not keep up pauses the other."""

    PIECE = 16 * 1024

    def check(self, source, target):
        """Fill ``source`` while it is read; the buffered data is limited, and arrives."""
        before, total = len(target.sent), 0
        while source.reading and total < 10_000_000:
            source.receive(bytes(self.PIECE))
            total += self.PIECE
        self.assertLessEqual(total, BUFFER + 2 * self.PIECE)
        self.settle()
        self.assertTrue(source.reading)
        self.assertEqual(total, len(target.sent) - before)

    def test_stalled_client(self):
        """A client that does not read pauses the origin."""
        self.upgrade()
        self.check(self.origin, self.client)

    def test_stalled_origin(self):
        """An origin that does not read pauses the client."""
        self.upgrade()
        self.check(self.client, self.origin)

    def test_end_while_stalled(self):
        """An end that arrives while the other side is stalled is forwarded after all data."""
        self.upgrade()
        for _ in range(10):
            self.origin._incoming.append(bytes(self.PIECE))
        self.origin._incoming.append(None)
        self.origin._deliver()
        self.assertFalse(self.origin.reading)
        self.settle()
        self.assertEqual(10 * self.PIECE, len(self.to_client))
        self.assertTrue(self.client.write_ended)

    def test_break_while_stalled(self):
        """A side that breaks while the other is stalled ends both at once."""
        self.upgrade()
        while self.origin.reading:
            self.origin.receive(bytes(self.PIECE))
        self.client.break_off(ConnectionLost("reset"))
        self.assertTrue(self.origin.aborted)
