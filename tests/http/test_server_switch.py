"""The server: connections that switch to another protocol."""

from __future__ import annotations

from twisted.internet.error import ConnectionDone, ConnectionLost

from tests.fakes import FakeStream, Recorder
from tests.http.serving import ServerTestCase
from tests.http.support import (
    Sink,
    request,
)
from tests.tunnel.memory import Producer, User
from yurttunnel.http.interfaces import ExchangeFailed


class SwitchTests(ServerTestCase):
    """Handing a connection over to another protocol."""

    UPGRADE = (b"Connection: Upgrade", b"Upgrade: spdy/3.1")
    FIELDS = ((b"Connection", b"Upgrade"), (b"Upgrade", b"spdy/3.1"))

    def switch(self, protocol, early=b""):
        """Request a switch, with ``early`` bytes from the client."""
        self.send(request(b"/exec", *self.UPGRADE, body=early))
        self.exchange.switch(101, b"", self.FIELDS, protocol)
        self.settle()

    def test_switch(self):
        """The 101 is sent with its fields unchanged; then the data is the protocol's."""
        protocol = User()
        self.switch(protocol)
        self.assertEqual(
            b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: spdy/3.1\r\n\r\n",
            self.client.sent,
        )
        self.send(request())
        self.assertEqual(request(), protocol.received)
        self.assertEqual(1, len(self.handler.exchanges))
        protocol.transport.write(b"raw")
        self.settle()
        self.assertTrue(self.client.sent.endswith(b"\r\n\r\nraw"))
        self.assertEqual((101, True), (self.exchange.status, self.exchange.head_sent))
        self.pass_time(1000)
        self.assertEqual([], self.handler.ends)

    def test_it_is_the_response(self):
        """No other response follows the 101."""
        self.switch(User())
        self.assertRaises(RuntimeError, self.exchange.respond, 200, (), b"late")
        self.assertRaises(RuntimeError, self.exchange.switch, 101, b"", self.FIELDS, User())

    def test_early_bytes(self):
        """Data after the head is delivered first, in order."""
        protocol = User()
        self.switch(protocol, b"early ")
        self.send(b"and late")
        self.assertEqual(b"early and late", protocol.received)

    def test_later(self):
        """The response may be sent later; data from the client is held, at most one read."""
        self.send(request(b"/exec", *self.UPGRADE))
        self.send(b"one ")
        self.assertFalse(self.client.reading)
        self.send(b"two")
        protocol = User()
        self.exchange.switch(101, b"", self.FIELDS, protocol)
        self.settle()
        self.assertEqual(b"one two", protocol.received)

    def test_own_producer(self):
        """The protocol may register its own producer."""
        protocol = User()
        self.switch(protocol)
        producer = Producer()
        protocol.transport.registerProducer(producer, True)
        protocol.transport.write(bytes(100_000))
        self.assertEqual(["pause"], producer.events)

    def test_half_close(self):
        """A protocol with half-close support is notified of each; another one is closed."""
        protocol = Recorder()
        self.switch(protocol)
        self.client.receive_end()
        self.assertEqual(1, protocol.read_ended)
        protocol.transport.loseWriteConnection()
        self.settle()
        self.assertEqual(1, protocol.write_ended)
        self.client = self.server.connect()
        protocol = User()
        self.switch(protocol)
        self.client.receive_end()
        self.settle()
        self.assertEqual(["made", "lost"], protocol.events)

    def test_end_before(self):
        """An end that arrived before is reported afterwards."""
        self.send(request(b"/exec", *self.UPGRADE))
        self.client.receive_end()
        protocol = Recorder()
        self.exchange.switch(101, b"", self.FIELDS, protocol)
        self.assertEqual(1, protocol.read_ended)
        self.pass_time(20)
        self.assertEqual([], protocol.ended_with)

    def test_end_of_the_exchange(self):
        """The exchange ends with the connection, with an error if that breaks."""
        for reason, kind in ((ConnectionDone(), type(None)), (ConnectionLost(), ExchangeFailed)):
            self.client = self.server.connect()
            protocol = Recorder()
            self.switch(protocol)
            self.client.break_off(reason)
            self.assertEqual([reason], protocol.ended_with)
            self.assertIsInstance(self.handler.ends[-1][1], kind)

    def test_connect(self):
        """A CONNECT is answered with 2xx and handed over in the same way."""
        protocol = User()
        self.send(request(b"node:80", method=b"CONNECT", body=b"early"))
        with self.assertRaises(ValueError):
            self.exchange.send_head(200)
        self.exchange.switch(200, b"Connected", [], protocol)
        self.settle()
        self.assertEqual(b"HTTP/1.1 200 Connected\r\n\r\n", self.client.sent)
        self.assertEqual(b"early", protocol.received)

    def test_incomplete_request(self):
        """While the request body is incomplete the connection cannot be handed over."""
        self.send(request(b"/", *self.UPGRADE, b"Content-Length: 2", method=b"POST", body=b"1"))
        with self.assertRaises(ValueError):
            self.exchange.switch(101, b"", self.FIELDS, User())
        sink = Sink()
        self.exchange.deliver_body(sink)
        self.settle()
        self.send(b"2raw")
        protocol = User()
        self.exchange.switch(101, b"", self.FIELDS, protocol)
        self.assertEqual(b"raw", protocol.received)

    def test_refusal(self):
        """A refusal is an ordinary response, and the connection continues."""
        self.handler.answer = lambda exchange: exchange.respond(403, [], b"forbidden")
        self.send(request(b"/exec", *self.UPGRADE))
        self.send(request())
        self.assertEqual([403, 403], [answer[0] for answer in self.responses("GET", "GET")])

    def test_abort(self):
        """Aborting the exchange after the switch aborts the connection."""
        protocol = Recorder()
        self.switch(protocol)
        self.exchange.fail(500, "too late")
        self.assertTrue(self.client.aborted)
        self.assertEqual(1, len(protocol.ended_with))

    def test_over_a_stream(self):
        """All of this works on a stream of the tunnel."""
        near, far = FakeStream.pair()
        user = Recorder()
        far.attach(user)
        near.attach(self.server.factory.buildProtocol(None))
        protocol = Recorder()
        self.handler.answer = lambda exchange: exchange.switch(101, b"", self.FIELDS, protocol)
        far.write(request(b"/exec", *self.UPGRADE, body=b"early"))
        protocol.transport.write(b"raw")
        far.loseWriteConnection()
        self.assertEqual((b"early", 1), (protocol.received, protocol.read_ended))
        self.assertTrue(user.received.endswith(b"raw"))
