"""Errors of CONNECT, and their responses."""

from __future__ import annotations

import gc
import json
import weakref

from twisted.internet.error import ConnectionDone

from tests.logged import Logged
from tests.server.frontends.connecting import ConnectTestCase, HalfClosingConnection, connect
from yurttunnel.ops.log_levels import REQUESTS
from yurttunnel.wire.codes import Code


class RefusalTests(ConnectTestCase):
    """A failed CONNECT gets a response with the reason."""

    def test_failed_dials(self):
        """Each code of a failed dial has its status, and the text of the far end is the body."""
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
        """kube-apiserver shows only the status line of the response to its users."""
        refused, unknown = self.open(connect()), self.open(connect("edge-9:80"))
        self.session.dials[0].fail(Code.REFUSED, "connect 10.0.0.7:1:\r\nrefus\xe9")
        for connection, line in (
            (refused, b"HTTP/1.1 502 connect 10.0.0.7:1: refus?"),
            (unknown, b"HTTP/1.1 503 no agent is connected for edge-9, and none has been"),
        ):
            connection.turns()
            self.assertTrue(connection.sent.partition(b"\r\n")[0].startswith(line))

    def test_half_close_before_a_refusal(self):
        """A caller that closes its direction after its head gets the error, and is closed."""
        connection = self.open(connect(), HalfClosingConnection)
        connection.receive_end()
        connection.turns()
        self.session.dials[0].fail(Code.DENIED, "not allowed at edge-1")
        connection.turns()
        self.assertIn(b"HTTP/1.1 403 ", connection.sent)
        self.assertTrue(connection.sent.endswith(b"not allowed at edge-1\n"))
        self.assertIsInstance(connection.closed_with, ConnectionDone)

    def test_a_refused_call_is_no_garbage(self):
        """No CONNECT, and one to an unknown node, are freed without the garbage collector."""
        gc.disable()
        self.addCleanup(gc.enable)
        for head, status, text in (
            (b"GET / HTTP/1.1\r\nHost: server\r\n\r\n", 405, "only CONNECT"),
            (connect("edge-9:80"), 503, "none has been"),
        ):
            connection = self.open()
            call = weakref.ref(connection.protocol.handler)
            connection.receive(head)
            self.assert_answer(connection, status, text)
            connection.receive_end()
            connection.turns()
            del connection.protocol
            self.assertIsNone(call(), text)

    def test_an_unknown_node(self):
        """503, with whether it was ever seen."""
        self.assert_answer(self.open(connect("edge-9:80")), 503, "none has been")

    def test_a_disconnected_node(self):
        """503, with when it was last seen."""
        self.registry.remove(self.session)
        self.reactor.advance(30)
        self.assert_answer(self.open(connect()), 503, "last seen 30 s ago")

    def test_a_caller_of_the_api_gets_a_status(self):
        """With ``Accept: application/json`` the body is a ``metav1.Status``."""
        connection = self.open(connect("edge-9:80", "Accept: application/json, */*"))
        connection.turns()
        status = json.loads(connection.sent.partition(b"\r\n\r\n")[2])
        self.assertEqual((status["kind"], status["code"]), ("Status", 503))

    def test_a_defect_of_ours(self):
        """An unexpected exception is logged and gets a response."""
        connection = self.open(connect())
        self.session.dials[0].opening.errback(ZeroDivisionError("boom"))
        self.assert_answer(connection, 500, "internal error: see test-1 in the log of the server")
        self.assertNotIn(b"boom", connection.sent)
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)

    def test_other_methods(self):
        """405, with the allowed method."""
        for method in ("GET", "POST", "OPTIONS"):
            connection = self.open(f"{method} / HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            self.assert_answer(connection, 405, "CONNECT")
            self.assertIn(b"\r\nAllow: CONNECT\r\n", connection.sent)

    def test_malformed_heads(self):
        """400 for a malformed head, at its first bad byte."""
        for data in (b"\x16\x03\x01\x00", b"connect a:1 HTTP/1.1\r\n", connect()[:-2] + b"a b\r\n"):
            self.assert_answer(self.open(data), 400, "malformed")

    def test_bad_destinations(self):
        """400 for a target without host and port."""
        for target in ("edge-1", "edge-1:0", "edge-1:65536", "http://edge-1:80/", "*", "a@b:1"):
            self.assert_answer(self.open(connect(target)), 400, "bad destination")
        self.assertEqual(self.session.dials, [])

    def test_what_is_logged_of_bad_heads(self):
        """Malformed heads are logged truncated, without passwords and queries."""
        lines = Logged(self, REQUESTS)
        for head in (
            connect("http://u:S3CRET@edge-1/"),
            connect("edge-1:1", "X-Tunnel-Proxy-Host: u:S3CRET@edge-1"),
            connect().replace(b"CONNECT edge-1:10250", b"GET /run/a/b/c?cmd=S3CRET"),
            connect("x" * 15_000 + ":1"),
        ):
            self.open(head).turns()
        self.assertEqual(len(lines), 4)
        for line in lines:
            self.assertNotIn("S3CRET", line)
            self.assertLess(len(line), 800)

    def test_bad_nodes(self):
        """400 for an ``X-Tunnel-Proxy-Host`` that is not a host, or is given twice."""
        field = "X-Tunnel-Proxy-Host: "
        for fields in ([field + "a b"], [field + "\xe9"], [field + "edge-1", field + "edge-1"]):
            connection = self.open(connect("edge-1:80", *fields))
            self.assert_answer(connection, 400, "X-Tunnel-Proxy-Host")

    def test_bodies_and_expectations(self):
        """A CONNECT has neither a body nor expectations."""
        for field in ("Content-Length: 5", "Transfer-Encoding: chunked"):
            self.assert_answer(self.open(connect("edge-1:80", field)), 400, "no body")
        connection = self.open(connect("edge-1:80", "Expect: 100-continue"))
        self.assert_answer(connection, 417, "expect")

    def test_large_heads(self):
        """431 for more bytes or fields than the limits allow."""
        self.assert_answer(self.open(connect("a:1", "A: " + "b" * 16384)), 431, "16384 bytes")
        self.assert_answer(self.open(connect("a:1", *["A: b"] * 100)), 431, "100 header fields")

    def test_nothing_of_the_caller_reaches_the_head_of_the_answer(self):
        """A target with encoded line ends is quoted only in the body."""
        connection = self.open(connect("a%0d%0aSet-Cookie:x:1"))
        connection.turns()
        self.assertNotIn(b"Cookie", connection.sent.partition(b"\r\n\r\n")[0])


class ClosingTests(ConnectTestCase):
    """After an error response the connection is closed, without losing the response."""

    def test_what_the_caller_still_sends_is_read_and_dropped(self):
        """A reset would discard the response, so the caller's data is read until it closes."""
        connection = self.open(connect("edge-9:80") + b"early")
        self.assert_answer(connection, 503, "edge-9")
        self.assertTrue(connection.reading)
        connection.receive(b"more" * 1000)
        connection.receive_end()
        connection.turns()
        self.assertIsInstance(connection.closed_with, ConnectionDone)
        self.assertFalse(connection.aborted)

    def test_a_caller_that_does_not_close_is_aborted(self):
        """After the linger time, and not before."""
        connection = self.open(connect("edge-9:80"))
        connection.turns()
        self.reactor.advance(4.9)
        self.assertFalse(connection.aborted)
        self.reactor.advance(0.1)
        self.assertTrue(connection.aborted)

    def test_a_caller_that_does_not_read_is_aborted(self):
        """A response that cannot be sent is dropped after the linger time."""
        connection = self.open(connect("edge-9:80"))
        self.reactor.advance(5)
        self.assertTrue(connection.aborted)

    def test_an_early_caller_whose_dial_fails(self):
        """A paused caller is read again, so that its end is seen."""
        connection = self.open(connect() + b"early")
        self.session.dials[0].fail(Code.REFUSED, "refused")
        self.assert_answer(connection, 502, "refused")
        connection.receive_end()
        connection.turns()
        self.assertIsInstance(connection.closed_with, ConnectionDone)
