"""The agent's side of the enrolment protocol, over TLS in memory."""

from __future__ import annotations

import struct
from collections.abc import Callable
from ipaddress import ip_address

from cryptography import x509
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.internet.protocol import Protocol
from twisted.internet.task import Clock
from twisted.trial.unittest import TestCase

from tests.pki.support import EDGE_1, Issuer, MemoryServer
from tests.pki.world import World
from yurttunnel.ops.clocks import utc_now
from yurttunnel.pki.authority import request_certificate
from yurttunnel.pki.contexts import (
    ENROLMENT_PROTOCOL,
    ServerContexts,
    ServerNotTrusted,
)
from yurttunnel.pki.credentials import Credentials, PrivateKey, certificates_to_pem, new_key
from yurttunnel.pki.enrolment_client import (
    ClockSeemsWrong,
    EnrolmentFailed,
    ServerAddress,
    enroll,
    renew,
)
from yurttunnel.pki.enrolment_messages import (
    TIME_REQUEST,
    EnrolmentRefused,
    EnrolmentRequest,
    EnrolmentResponse,
    Refusal,
    decode_response,
    encode_refusal,
)
from yurttunnel.pki.enrolment_server import EnrolmentFactory
from yurttunnel.pki.identity import (
    parse_identifiers,
)
from yurttunnel.pki.issuer import Chain
from yurttunnel.pki.names import CALLER_NAME
from yurttunnel.pki.token import JoinToken


class Silent(Protocol):
    """A server that accepts all data and does not respond."""


class Scripted(Protocol):
    """A server that responds to the first data with a given message."""

    def __init__(self, answer: bytes) -> None:
        self._answer = answer
        self.received = b""

    def dataReceived(self, data: bytes) -> None:
        """Respond, once."""
        self.received += data
        assert self.transport is not None
        self.transport.write(self._answer)
        self._answer = b""
        self.transport.loseConnection()


def framed(content: bytes) -> bytes:
    """Prefix a message with its length."""
    return struct.pack("!I", len(content)) + content


class _Ahead:
    """The test clock, with a time of day that is ahead of the server's by some seconds."""

    def __init__(self, clock: Clock, ahead: float) -> None:
        self.seconds = clock.seconds
        self.callLater = clock.callLater
        self.time_of_day = lambda: clock.seconds() + ahead


class ClientTests(World):
    """The agent's side, with correct and incorrect servers."""

    def setUp(self) -> None:
        """Start a correct server."""
        super().setUp()
        self.key = new_key()
        self.serve(self.issuer.server("server.test"))

    def tearDown(self) -> None:
        """Assert that all connections were closed, and no timer is left."""
        self.network.settle()
        self.assertEqual(self.network.open_connections, 0)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def serve(self, credentials: Credentials, build: Callable[[], Protocol] | None = None) -> None:
        """Start a server with these credentials, by default with the enrolment protocol."""
        factory = EnrolmentFactory(self.clock, self.admission)
        if build is not None:
            factory.buildProtocol = lambda addr: build()
        contexts = ServerContexts(credentials, optional=(ENROLMENT_PROTOCOL,))
        self.network = MemoryServer(self.clock, contexts, factory)

    def enroll(
        self,
        name: str = "server.test",
        token: JoinToken | None = None,
        clock: IReactorTime | None = None,
    ) -> Deferred[Credentials]:
        """Enroll over TLS in memory."""
        server = ServerAddress(name, 10262, self.network)
        enrolling = Deferred.fromCoroutine(
            enroll(
                clock or self.clock,
                token or self.token,
                "edge-1",
                EDGE_1,
                request_certificate(self.key),
                server,
            )
        ).addCallback(self.joined, self.key)
        self.network.settle()
        return enrolling

    def joined(self, chain: Chain, key: PrivateKey) -> Credentials:
        """Combine an issued chain with its key."""
        certificate, authority = chain
        return Credentials(key, certificate, (authority,), (authority,))

    def renew(self, current: Credentials, node: str = "edge-1") -> Deferred[Credentials]:
        """Renew over TLS in memory."""
        server = ServerAddress("server.test", 10262, self.network)
        key = new_key()
        renewing = Deferred.fromCoroutine(
            renew(self.clock, current, node, EDGE_1, request_certificate(key), server)
        ).addCallback(self.joined, key)
        self.network.settle()
        return renewing

    def fails(self, expected: type[Exception], words: str, deferred: Deferred[Credentials]) -> None:
        """Assert the error of an exchange."""
        failure = self.failureResultOf(deferred, expected)
        self.assertIn(words, str(failure.value))

    def test_enrolled(self) -> None:
        """The agent gets a certificate for its key, from the authority that the token pins."""
        credentials = self.successResultOf(self.enroll())
        self.assertEqual(credentials.certificate.public_key(), self.key.public_key())
        self.assertEqual(credentials.authorities, (self.issuer.authority.certificate,))
        self.assertEqual(self.identity(credentials.certificate).identifiers, EDGE_1)

    def test_by_address(self) -> None:
        """A server that is dialed by address is verified by it."""
        key = new_key()
        certificate = self.issuer.authority.sign_server(
            key.public_key(), [], [ip_address(each) for each in ("192.0.2.1", "fe80::1")]
        )
        self.serve(self.issuer.authority.credentials(key, certificate))
        self.successResultOf(self.enroll("192.0.2.1"))
        self.successResultOf(self.enroll("fe80::1"))
        self.successResultOf(self.enroll("fe80::1%eth0"))

    def test_by_a_name_with_an_underscore(self) -> None:
        """A server whose dialed name has an underscore, as containers have, is verified by it."""
        self.serve(self.issuer.server("my_server", "localhost"))
        self.successResultOf(self.enroll("my_server"))
        self.fails(ServerNotTrusted, "and not for your_server", self.enroll("your_server"))

    def test_a_name_that_cannot_be_verified(self) -> None:
        """A server whose certificate has only such a name is not trusted."""
        self.refuses_to_send(
            self.issuer.server("my_server"),
            "no name that can be verified",
            self.token,
            name="my_server",
        )

    def test_refused(self) -> None:
        """The server's rejection is raised with its code and sentence."""
        token = JoinToken(self.token.token_id, "0" * 32, self.token.pin)
        failure = self.failureResultOf(self.enroll(token=token), EnrolmentRefused)
        self.assertEqual(failure.value.code, Refusal.BAD_TOKEN)
        self.assertEqual(
            "server.test:10262: the join token is unknown: use the server's current one"
            " (bad-token)",
            str(failure.value),
        )

    def refuses_to_send(
        self,
        credentials: Credentials,
        words: str,
        token: JoinToken,
        expected: type[Exception] = ServerNotTrusted,
        name: str = "server.test",
    ) -> None:
        """Assert that an untrusted server does not receive the token."""
        scripted = Scripted(b"")
        self.serve(credentials, lambda: scripted)
        self.fails(expected, words, self.enroll(name, token))
        asked = framed(TIME_REQUEST) if expected is ClockSeemsWrong else b""
        self.assertEqual(scripted.received, asked)

    def test_wrong_pin(self) -> None:
        """A token with another pin is not sent."""
        token = JoinToken(self.token.token_id, self.token.secret, "0" * 64)
        self.refuses_to_send(self.issuer.server(), "does not belong to the authority", token)

    def test_foreign_authority(self) -> None:
        """A token is not sent to a server of another authority."""
        self.refuses_to_send(
            Issuer.make(self).server(), "does not belong to the authority", self.token
        )

    def test_borrowed_authority(self) -> None:
        """A server that only adds the pinned certificate to its chain is not trusted."""
        foreign = Issuer.make(self).server()
        borrowed = Credentials(
            foreign.key,
            foreign.certificate,
            (self.issuer.authority.certificate,),
            foreign.authorities,
        )
        self.refuses_to_send(borrowed, "is not valid", self.token)

    def test_wrong_name(self) -> None:
        """A token is not sent to a server whose certificate is for other names."""
        self.refuses_to_send(self.issuer.server("other.test"), "is for other.test", self.token)

    def test_node_as_server(self) -> None:
        """A token is not sent to a node that impersonates the server."""
        self.refuses_to_send(self.issuer.node("server.test"), "is not valid", self.token)

    def expired(self, name: str, issuer: Issuer) -> Credentials:
        """Issue a server's expired credentials of the pinned authority."""
        key = new_key()
        certificate = issuer.authority.sign_server(key.public_key(), [name], [], lifetime=-1)
        pinned = self.issuer.authority.certificate
        return Credentials(key, certificate, (pinned,), (pinned,))

    def test_expired_server(self) -> None:
        """A token is not sent to a server with an expired certificate; the clock may be wrong."""
        expired = self.expired("server.test", self.issuer)
        words = "the clock of this machine seems wrong, by 0:00:0"
        self.refuses_to_send(expired, words, self.token, ClockSeemsWrong)

    def test_the_servers_time(self) -> None:
        """A node whose clock differs from the server's reports that, and does not enroll."""
        key = new_key()
        certificate = self.issuer.authority.sign_server(key.public_key(), ["server.test"], [], 600)
        self.serve(self.issuer.authority.credentials(key, certificate))
        for ahead, expected in ((-2580.0, "43 minutes behind"), (21 * 86400.0, "21 days ahead of")):
            clock = _Ahead(self.clock, ahead)
            failing = self.enroll(clock=clock)
            self.fails(
                ClockSeemsWrong,
                f"server.test:10262: this machine's clock is {expected} the server's: it says"
                f" {utc_now(clock):%F %T} UTC. The agent waits until it is set",
                failing,
            )
            self.assertFalse(self.revocations.is_enrolled("edge-1"))

    def test_a_time_that_explains_nothing(self) -> None:
        """If the clocks agree, or the server sends no time, the error has the certificate dates."""
        expired = self.expired("server.test", self.issuer)
        self.serve(expired)
        self.fails(ClockSeemsWrong, "the clock of this machine seems wrong", self.enroll())
        for answer in (b"{", b"{}", b'{"time": true}', b'{"time": 1e300}', b'{"time": NaN}'):
            self.serve(expired, lambda answer=answer: Scripted(framed(answer)))
            self.fails(ClockSeemsWrong, "the clock of this machine seems wrong", self.enroll())

    def test_expired_and_worse(self) -> None:
        """A certificate with another fault is not excused by the clock."""
        for expired, words in (
            (self.expired("server.test", Issuer.make(self)), "is not valid"),
            (self.expired("other.test", self.issuer), "is for other.test"),
            (self.issuer.node("server.test", lifetime=-1), "is not valid"),
        ):
            self.refuses_to_send(expired, words, self.token)

    def test_unreachable(self) -> None:
        """After a failed connection, a retry may succeed."""
        self.network.reachable = False
        self.fails(EnrolmentFailed, "server.test:10262: Connection was refused", self.enroll())

    def test_no_enrolment_there(self) -> None:
        """A server without the enrolment protocol is named with the TLS error."""
        self.network = MemoryServer(
            self.clock,
            ServerContexts(self.issuer.server()),
            EnrolmentFactory(self.clock, self.admission),
        )
        self.fails(
            EnrolmentFailed,
            "server.test:10262: the server does not speak yurttunnel/1 there",
            self.enroll(),
        )

    def test_silent_server(self) -> None:
        """A server that does not respond times out after fifteen seconds."""
        self.serve(self.issuer.server(), Silent)
        enrolling = self.enroll()
        self.clock.advance(14.9)
        self.assertNoResult(enrolling)
        self.clock.advance(0.1)
        self.fails(EnrolmentFailed, "no answer within 15 seconds", enrolling)

    def test_black_hole(self) -> None:
        """A connection without any response times out, too."""
        self.network.frozen = True
        enrolling = self.enroll()
        self.clock.advance(15)
        self.fails(EnrolmentFailed, "no answer within 15 seconds", enrolling)
        self.network.frozen = False

    def test_cancelled(self) -> None:
        """Cancelling an exchange closes its connection."""
        self.serve(self.issuer.server(), Silent)
        enrolling = self.enroll()
        enrolling.cancel()
        self.failureResultOf(enrolling, CancelledError)

    def test_bad_answers(self) -> None:
        """Responses that do not match the request are rejected."""
        authority = certificates_to_pem([self.issuer.authority.certificate]).decode()

        def answer(certificate: x509.Certificate) -> bytes:
            pem = certificates_to_pem([certificate]).decode()
            return framed(EnrolmentResponse(pem, authority).encode())

        public = self.key.public_key()
        sign = self.issuer.authority.sign_node
        for content, words in (
            (b"", "closed the connection without a response"),
            (framed(b"{"), "not JSON"),
            (framed(b"{}"), "certificate is missing"),
            (struct.pack("!I", 65537), "65537 bytes"),
            (framed(EnrolmentResponse("junk", authority).encode()), "PEM form"),
            (answer(self.issuer.node().certificate), "does not belong to the certificate"),
            (answer(sign("edge-2", EDGE_1, public, "ab")), "for other names"),
            (
                answer(sign("edge-1", parse_identifiers("host=edge-1"), public, "ab")),
                "for other names",
            ),
            (answer(sign("edge-1", EDGE_1, public, "ab", -1)), "the clock of this machine"),
            (answer(self.issuer.authority.sign_client(public, CALLER_NAME)), "bad certificate"),
            (
                answer(Issuer.make(self).authority.sign_node("edge-1", EDGE_1, public, "ab")),
                "from another authority",
            ),
        ):
            self.serve(self.issuer.server(), lambda c=content: Scripted(c))
            self.fails(EnrolmentFailed, words, self.enroll())

    def test_unknown_refusal(self) -> None:
        """An unknown code is treated as a failure of the server."""
        content = b'{"error": {"code": "no-such-code", "text": "a reason"}}'
        self.serve(self.issuer.server(), lambda: Scripted(framed(content)))
        failure = self.failureResultOf(self.enroll(), EnrolmentRefused)
        self.assertEqual(
            (failure.value.code, failure.value.text),
            (Refusal.INTERNAL, "server.test:10262: a reason"),
        )

    def test_renewed(self) -> None:
        """A renewal returns a certificate for the new key, in the same enrolment."""
        first = self.successResultOf(self.enroll())
        second = self.successResultOf(self.renew(first))
        self.assertEqual(second.certificate.public_key(), second.key.public_key())
        self.assertNotEqual(second.key.public_key(), first.key.public_key())
        self.assertEqual(
            self.identity(second.certificate).enrolment, self.identity(first.certificate).enrolment
        )

    def test_renewal_of_another_name(self) -> None:
        """A node's certificate does not renew another node's."""
        first = self.successResultOf(self.enroll())
        self.fails(EnrolmentRefused, "not edge-2", self.renew(first, "edge-2"))

    def test_renewal_with_expired_certificate(self) -> None:
        """TLS rejects an expired certificate in a renewal."""
        self.fails(EnrolmentFailed, "has expired: compare", self.renew(self.issuer.expired_node()))

    def test_renewal_at_foreign_server(self) -> None:
        """A certificate is not presented to a server of another authority."""
        first = self.successResultOf(self.enroll())
        self.serve(Issuer.make(self).server())
        words = "server.test:10262: the server's certificate is not from the authority"
        self.fails(ServerNotTrusted, words, self.renew(first))


class MessageTests(TestCase):
    """The messages."""

    def test_requests(self) -> None:
        """Requests are decoded as encoded, with and without a token."""
        for request in (
            EnrolmentRequest("edge-1", "host=a", "csr\n"),
            EnrolmentRequest("edge-1", "host=a", "csr\n", "id", "secret"),
        ):
            self.assertEqual(EnrolmentRequest.decode(request.encode()), request)

    def test_responses(self) -> None:
        """Responses are decoded as encoded."""
        response = EnrolmentResponse("certificate\n", "authority\n")
        self.assertEqual(decode_response(response.encode()), response)
        refused = EnrolmentRefused(Refusal.REVOKED, "node edge-1 is revoked")
        error = self.assertRaises(EnrolmentRefused, decode_response, encode_refusal(refused))
        self.assertEqual(str(error), "node edge-1 is revoked (revoked)")
