"""The server's side of the enrolment protocol, on one connection."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable

from OpenSSL.crypto import X509
from twisted.internet.address import IPv4Address
from twisted.internet.testing import StringTransport
from twisted.logger import LogLevel, capturedLogs, formatEvent

from tests.logged import Logged
from tests.pki.world import ADDRESS, World
from yurttunnel.pki.authority import request_certificate
from yurttunnel.pki.credentials import certificates_from_pem, new_key
from yurttunnel.pki.enrolment_messages import (
    EnrolmentRequest,
    EnrolmentResponse,
    Refusal,
    decode_response,
)
from yurttunnel.pki.enrolment_server import (
    MAX_CONNECTIONS,
    PROBLEM_SECONDS,
    EnrolmentFactory,
    EnrolmentProtocol,
)


class TLSStringTransport(StringTransport):
    """A transport that records writes, without a client certificate."""

    def __init__(self) -> None:
        super().__init__(peerAddress=IPv4Address("TCP", ADDRESS, 4321))

    def getPeerCertificate(self) -> X509 | None:
        """Return the client's certificate."""
        return None


class EnrolmentProtocolTests(World):
    """The server's side, on one connection."""

    def setUp(self) -> None:
        """Connect."""
        super().setUp()
        self.factory = EnrolmentFactory(self.clock, self.admission)
        self.connect()

    def connect(self) -> EnrolmentProtocol:
        """Open a connection, which the other methods use from now on."""
        self.transport = TLSStringTransport()
        self.protocol = self.factory.buildProtocol(None)
        self.protocol.makeConnection(self.transport)
        return self.protocol

    def tearDown(self) -> None:
        """Close the connection, and assert that no timer is left."""
        self.protocol.connectionLost()
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def answer(self) -> EnrolmentResponse:
        """Decode the response; raises EnrolmentRefused."""
        content = self.transport.value()
        (length,) = struct.unpack("!I", content[:4])
        self.assertEqual(len(content), 4 + length)
        self.assertTrue(self.transport.disconnecting)
        return decode_response(content[4:])

    def refuses(self, code: Refusal, words: str, ask: Callable[[], object]) -> None:
        """Assert that the response after ``ask`` is a rejection."""
        ask()
        super().refuses(code, words, self.answer)

    def test_refusals_do_not_fill_the_log(self) -> None:
        """One rejection of each kind is logged a minute; the next one has the number of others."""
        lines = Logged(self)
        for _ in range(100):
            self.protocol.dataReceived(struct.pack("!I", 4) + b"junk")
            self.protocol.connectionLost()
            self.connect()
        self.protocol.lengthLimitExceeded(100000)
        self.protocol.connectionLost()
        self.connect()
        self.protocol.dataReceived(self.request().replace(self.token.secret.encode(), b"0" * 32))
        first, other = (line for line in lines if line.startswith("enrolment from"))
        self.assertEqual(first, f"enrolment from {ADDRESS}: the message is not JSON (bad-request)")
        self.assertIn("(bad-token)", other)
        self.clock.advance(60)
        self.protocol.connectionLost()
        self.connect()
        self.protocol.dataReceived(struct.pack("!I", 4) + b"junk")
        self.assertIn("(100 more like this were not shown)", lines[-1])

    def request(self) -> bytes:
        """Return a valid request, as sent."""
        content = EnrolmentRequest(
            "edge-1",
            "host=edge-1",
            request_certificate(new_key()),
            self.token.token_id,
            self.token.secret,
        ).encode()
        return struct.pack("!I", len(content)) + content

    def test_answer(self) -> None:
        """A valid request is answered however it is fragmented, and the connection is closed."""
        for byte in self.request():
            self.protocol.dataReceived(bytes([byte]))
        certificate = certificates_from_pem(self.answer().certificate.encode())[0]
        self.assertEqual(self.identity(certificate).node, "edge-1")

    def test_one_request_only(self) -> None:
        """Data after the request is ignored."""
        request = self.request()
        self.protocol.dataReceived(request + request)
        self.protocol.dataReceived(request)
        self.answer()

    def test_slow_request(self) -> None:
        """A request that is not complete after ten seconds in all is rejected."""

        def trickle() -> None:
            for byte in self.request()[:99]:
                self.protocol.dataReceived(bytes([byte]))
                self.clock.advance(0.1)
            self.assertEqual(self.transport.value(), b"")
            self.clock.advance(0.2)

        self.refuses(Refusal.TIMEOUT, "within 10 seconds", trickle)

    def test_peer_that_does_not_close(self) -> None:
        """A peer that does not close after the response is disconnected."""
        self.protocol.dataReceived(self.request())
        self.clock.advance(4.9)
        self.assertFalse(self.transport.disconnected)
        self.clock.advance(0.2)
        self.assertTrue(self.transport.disconnected)

    def test_oversized(self) -> None:
        """A request over 64 KiB is rejected from its length alone."""
        self.refuses(
            Refusal.BAD_REQUEST,
            "65537 bytes",
            lambda: self.protocol.dataReceived(struct.pack("!I", 65537)),
        )

    def test_garbage(self) -> None:
        """A request that is not valid JSON is rejected with the reason."""
        good = json.loads(self.request()[4:])
        for content, words in (
            (b"", "not JSON"),
            (b"\xff\xfe", "not JSON"),
            (b"[" * 60000, "not JSON"),
            (b"[]", "not a JSON object"),
            (b"{}", "node is missing"),
            (json.dumps({**good, "csr": 7}).encode(), "csr is missing"),
            (json.dumps({**good, "token": "x"}).encode(), "token is not an object"),
            (json.dumps({**good, "token": {"id": "x"}}).encode(), "secret is missing"),
            (json.dumps({**good, "node": "a\r\nb"}).encode(), "node is missing, or not plain"),
            (json.dumps({**good, "node": "x" * 60000}).encode(), "is longer than"),
        ):
            self.protocol.connectionLost()
            self.connect()
            message = struct.pack("!I", len(content)) + content
            self.refuses(
                Refusal.BAD_REQUEST, words, lambda m=message: self.protocol.dataReceived(m)
            )

    def test_defect_of_the_server(self) -> None:
        """If the server fails, the details are in the log but not in the response."""
        self.patch(self.admission, "decide", lambda *arguments: {}["missing"])
        self.refuses(
            Refusal.INTERNAL, "see its log", lambda: self.protocol.dataReceived(self.request())
        )
        self.assertEqual(len(self.flushLoggedErrors(KeyError)), 1)
        self.assertIsNone(self.factory.problem())

    def cannot_write(self) -> str:
        """Make writes of records fail; return the error."""
        nodes = self.directory.path / "nodes"
        nodes.rmdir()
        nodes.touch()
        return f"{nodes}/edge-1 is not a directory, or lies below a file: choose another path"

    def ask_again(self) -> None:
        """Send a request on a new connection."""
        self.protocol.connectionLost()
        self.connect()
        self.protocol.dataReceived(self.request())

    def test_state_that_cannot_be_written(self) -> None:
        """The response contains the file and the reason, and permits a retry."""
        problem = self.cannot_write()
        self.refuses(Refusal.UNAVAILABLE, problem, self.ask_again)
        self.assertTrue(Refusal.UNAVAILABLE.is_temporary)
        self.assertIsNone(self.admission._records.get("edge-1"))

    def test_state_that_cannot_be_written_is_one_line_a_minute(self) -> None:
        """The log has an error without a traceback, however many nodes retry."""
        problem = self.cannot_write()
        with capturedLogs() as events:
            for _ in range(20):
                self.ask_again()
            self.clock.advance(60)
            self.ask_again()
        lines = [formatEvent(e) for e in events if e["log_level"] is LogLevel.error]
        line = f"no certificate for a node at {ADDRESS}, whose record cannot be stored: {problem}"
        self.assertEqual(lines, [line, f"{line} (19 more like this were not shown)"])
        self.assertEqual([e for e in events if e["log_level"] is LogLevel.warn], [])
        self.assertEqual(self.flushLoggedErrors(), [])

    def test_unwritable_state_is_reported(self) -> None:
        """The problem is reported until a node gets a certificate, or no attempt fails for long."""
        self.assertIsNone(self.factory.problem())
        problem = self.cannot_write()
        self.ask_again()
        expected = f"nodes get no certificates: {problem}"
        self.assertEqual(self.factory.problem(), expected)
        self.clock.advance(PROBLEM_SECONDS)
        self.assertIsNone(self.factory.problem())
        self.token = self.tokens.issue(600)
        self.ask_again()
        self.assertEqual(self.factory.problem(), expected)
        nodes = self.directory.path / "nodes"
        nodes.unlink()
        nodes.mkdir()
        self.ask_again()
        self.answer()
        self.assertIsNone(self.factory.problem())

    def test_the_oldest_makes_room(self) -> None:
        """Beyond 256 connections the oldest one is closed, and the newest is answered."""
        self.protocol.connectionLost()
        others = [self.connect() for _ in range(MAX_CONNECTIONS)]
        with capturedLogs() as events:
            self.connect()
        self.assertIn("256 newer connections (timeout)", formatEvent(events[0]))
        self.assertEqual(
            [protocol.transport.disconnected for protocol in others],
            [True] + [False] * (MAX_CONNECTIONS - 1),
        )
        self.protocol.dataReceived(self.request())
        self.assertIn("BEGIN CERTIFICATE", self.answer().certificate)
        # Data that the oldest one sends before it is closed is ignored.
        others[0].dataReceived(self.request())
        self.assertEqual(others[0].transport.value(), b"")
        for protocol in others:
            protocol.connectionLost()

    def test_those_that_are_answered_count(self) -> None:
        """A connection that does not read its response is evicted, too, without a report."""
        answered = self.protocol
        answered.dataReceived(self.request())
        with capturedLogs() as events:
            others = [self.connect() for _ in range(MAX_CONNECTIONS)]
        self.assertTrue(answered.transport.disconnected)
        self.assertEqual(events, [])
        for protocol in (answered, *others):
            protocol.connectionLost()
