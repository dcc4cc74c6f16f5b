"""A CONNECT that succeeds."""

from __future__ import annotations

from twisted.internet.error import ConnectionDone

from tests.server.frontends.connecting import (
    ESTABLISHED,
    ConnectTestCase,
    HalfClosingConnection,
    connect,
)
from yurttunnel.wire.codes import Code


class EstablishTests(ConnectTestCase):
    """A CONNECT that succeeds."""

    def test_the_session_gets_the_destination(self):
        """Host, port, timeout and request id reach the session; there is no response yet."""
        connection = self.open(connect("edge-1:10250", "X-Request-Id: audit-7"))
        connection.turns()
        (dial,) = self.session.dials
        self.assertEqual((dial.host, dial.port), ("edge-1", 10250))
        self.assertEqual((dial.timeout, dial.request_id), (15.0, "audit-7"))
        self.assertEqual(connection.sent, b"")

    def test_a_request_without_id_gets_one(self):
        """A request without an id gets a numbered one."""
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
        """``X-Tunnel-Proxy-Host`` selects the node, with or without a port, unless empty."""
        for value in ("edge-1", "edge-1:10250", "[2001:db8::1]:1"):
            self.open(connect("127.0.0.1:10255", f"X-Tunnel-Proxy-Host: {value}"))
            self.assertEqual(self.session.dials[-1].host, "127.0.0.1")
        self.open(connect("edge-1:80", "X-Tunnel-Proxy-Host:"))
        self.assertEqual(len(self.session.dials), 4)

    def test_the_answer_is_200_once_the_far_end_has_connected(self):
        """Exactly the status line and the empty line."""
        connection = self.open(connect())
        self.session.dials[0].succeed()
        connection.turns()
        self.assertEqual(connection.segments, [ESTABLISHED])

    def test_no_byte_of_the_target_is_sent_along_with_the_200(self):
        """Data that a target sends at once arrives in later sends than the 200."""
        connection = self.open(connect())
        self.session.dials[0].succeed(greeting=b"SSH-2.0-edge\r\n")
        connection.turn()
        self.assertEqual(connection.segments, [ESTABLISHED])
        connection.turn()
        self.assertEqual(connection.segments, [ESTABLISHED, b"SSH-2.0-edge\r\n"])

    def test_joining_takes_no_further_iteration(self):
        """The stream is attached in the same iteration in which the 200 is sent."""
        connection = self.open(connect())
        target = self.session.dials[0].succeed()
        connection.turn()
        connection.receive(b"hello")
        self.assertEqual(target.received, b"hello")

    def test_early_bytes_reach_the_target(self):
        """Data that follows the head in the same piece, or before the response, is sent first."""
        connection = self.open(connect() + b"one ")
        connection.receive(b"two ")
        target = self.session.dials[0].succeed()
        connection.turns()
        connection.receive(b"three")
        connection.turns()
        self.assertEqual(target.received, b"one two three")

    def test_a_caller_that_sends_early_is_read_no_further(self):
        """Data is not buffered while the dial is pending."""
        connection = self.open(connect())
        self.assertTrue(connection.reading)
        connection.receive(b"early")
        self.assertFalse(connection.reading)

    def test_a_head_in_pieces(self):
        """The head may arrive byte by byte, with early data after it."""
        connection = self.open()
        for value in connect() + b"early":
            connection.receive(bytes([value]))
        target = self.session.dials[0].succeed()
        connection.turns()
        self.assertEqual(target.received, b"early")

    def test_http_1_0(self):
        """``curl --proxy1.0`` is served, too."""
        self.join(b"CONNECT edge-1:80 HTTP/1.0\r\n\r\n")

    def test_an_empty_body_is_no_body(self):
        """``Content-Length: 0`` is accepted."""
        self.join(connect("edge-1:80", "Content-Length: 0"))

    def test_both_directions(self):
        """After the response the connection is the target's."""
        connection, target = self.join()
        connection.receive(b"question")
        self.session.dials[0].far.write(b"answer")
        connection.turns()
        self.assertEqual((target.received, connection.sent), (b"question", b"answer"))

    def test_half_close(self):
        """A caller that closes its direction gets its response, then the connection closes."""
        connection, target = self.join()
        connection.receive(b"x")
        connection.receive_end()
        self.assertEqual((target.received, target.read_ended), (b"x", 1))
        far = self.session.dials[0].far
        far.write(b"answer")
        far.loseWriteConnection()
        connection.turns()
        self.assertEqual(connection.sent, b"answer")
        self.assertIsInstance(connection.closed_with, ConnectionDone)

    def test_half_close_after_the_head(self):
        """A caller that closes its direction after its head gets the 200 and what follows."""
        connection = self.open(connect(), HalfClosingConnection)
        connection.receive_end()
        connection.turns()
        target = self.session.dials[0].succeed()
        connection.turns()
        self.assertEqual(target.read_ended, 1)
        self.session.dials[0].far.write(b"answer")
        connection.turns()
        self.assertEqual(connection.sent, ESTABLISHED + b"answer")

    def test_half_close_before_the_answer(self):
        """A caller that has sent everything and closed before the 200 gets its response, too."""
        connection = self.open(connect() + b"x")
        connection.receive_end()
        target = self.session.dials[0].succeed()
        connection.turns()
        self.assertEqual((target.received, target.read_ended), (b"x", 1))
        self.session.dials[0].far.write(b"answer")
        connection.turns()
        self.assertEqual(connection.sent, ESTABLISHED + b"answer")

    def test_an_end_while_the_200_goes_out(self):
        """The end reaches the target after the join, and the target can still respond."""
        connection = self.open(connect())
        target = self.session.dials[0].succeed()
        connection.receive_end()
        connection.turns()
        self.assertEqual(target.read_ended, 1)
        self.session.dials[0].far.write(b"answer")
        connection.turns()
        self.assertEqual(connection.sent, ESTABLISHED + b"answer")

    def test_a_stream_that_breaks_resets_the_caller(self):
        """The caller must not mistake it for a regular end."""
        connection, _ = self.join()
        self.session.dials[0].far.abort(Code.SESSION_LOST, "gone")
        self.assertTrue(connection.aborted)

    def test_a_caller_that_stalls_pauses_the_stream(self):
        """Twisted's buffer never exceeds its limit by more than one piece."""
        connection, _ = self.join()
        far = self.session.dials[0].far
        for _ in range(100):
            far.write(b"x" * 16384)
        connection.turn()
        self.assertLessEqual(len(connection.segments[0]), 65536 + 16384)
        connection.turns(200)
        self.assertEqual(len(connection.sent), 100 * 16384)
