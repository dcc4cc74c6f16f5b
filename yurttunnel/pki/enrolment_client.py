"""The agent's side of the enrolment protocol, for the first certificate and for renewals."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError
from OpenSSL import SSL
from twisted.internet.defer import CancelledError, Deferred, TimeoutError
from twisted.internet.error import ConnectingCancelledError, ConnectionDone
from twisted.internet.interfaces import (
    IHandshakeListener,
    IOpenSSLClientConnectionCreator,
    IReactorTime,
    IStreamClientEndpoint,
)
from twisted.internet.protocol import Factory, connectionDone
from twisted.protocols.basic import Int32StringReceiver
from twisted.protocols.tls import TLSMemoryBIOFactory, TLSMemoryBIOProtocol
from twisted.python.failure import Failure
from zope.interface import implementer

from yurttunnel.http.authority import join_authority
from yurttunnel.ops.clocks import utc_now
from yurttunnel.pki.clock_skew import ClockSkew
from yurttunnel.pki.contexts import (
    ENROLMENT_PROTOCOL,
    ClientContexts,
    ExpectedServer,
    ServerNotTrusted,
    UnverifiedConnections,
    check_server_name,
)
from yurttunnel.pki.credentials import (
    BACKDATE,
    BadCredentials,
    Credentials,
    certificates_from_pem,
    is_issued_by,
    pin_of,
)
from yurttunnel.pki.enrolment_messages import (
    MAX_MESSAGE_LENGTH,
    TIME_REQUEST,
    BadMessage,
    EnrolmentRefused,
    EnrolmentRequest,
    decode_response,
    decode_time,
)
from yurttunnel.pki.identity import (
    Identifiers,
    format_identifiers,
    identity_from_certificate,
    uncovered_identifiers,
)
from yurttunnel.pki.issuer import Chain, NotIssued
from yurttunnel.pki.names import BadIdentity
from yurttunnel.pki.tls_errors import problem_with_server
from yurttunnel.pki.token import JoinToken

EXCHANGE_DEADLINE = 15.0
"""Seconds for one exchange, from dialing to the response."""

ENROLLED_AT = ExpectedServer(
    authority="the authority that issued this node's certificate: check the server's address; if"
    " the server has a new authority, remove node.pem from the agent's --state-dir and start it"
    " with a new join token"
)
"""The servers of a node that is enrolled at them."""


class EnrolmentFailed(NotIssued):
    """No usable response: a network error, or a server that behaves incorrectly.

    A retry may succeed, unlike after ``EnrolmentRefused`` and ``ServerNotTrusted``.
    """


class ClockSeemsWrong(EnrolmentFailed):
    """A certificate is not valid by this machine's clock, but otherwise correct."""


class ServerAddress(NamedTuple):
    """The name or address of a server to verify, its port, and the endpoint to dial."""

    name: str
    port: int
    endpoint: IStreamClientEndpoint

    @property
    def where(self) -> str:
        """Name and port, for people."""
        return join_authority(self.name, self.port)


async def enroll(
    clock: IReactorTime,
    token: JoinToken,
    node: str,
    identifiers: Identifiers,
    csr: str,
    server: ServerAddress,
) -> Chain:
    """Exchange a join token for the certificate that ``csr`` requests, and return its chain.

    The token's secret is sent only after the server has presented the authority that the token
    pins, and a currently valid certificate of it for the server's name. A server whose certificate
    is correct except for its validity period is asked for its time instead.

    Raises ``EnrolmentRefused``, :class:`ServerNotTrusted` and :class:`EnrolmentFailed`.
    """
    pinned = _PinnedServer(clock, server, token.pin)
    request = EnrolmentRequest(
        node=node,
        identifiers=format_identifiers(identifiers),
        csr=csr,
        token_id=token.token_id,
        token_secret=token.secret,
    )

    def make_request(connection: SSL.Connection) -> bytes:
        pinned.check(connection)
        return request.encode() if pinned.clock_skew is None else TIME_REQUEST

    try:
        answer = await _exchange(clock, server, pinned, make_request)
    except EnrolmentFailed:
        if pinned.clock_skew is None:
            raise
        answer = b""
    if pinned.clock_skew is not None:
        raise ClockSeemsWrong(f"{server.where}: {pinned.clock_skew.sentence(decode_time(answer))}")
    if pinned.authority is None:
        raise EnrolmentFailed(f"{server.where}: the server answered before it was verified")
    return _check_response(clock, server.where, answer, request, identifiers, pinned.authority)


async def renew(
    clock: IReactorTime,
    current: Credentials,
    node: str,
    identifiers: Identifiers,
    csr: str,
    server: ServerAddress,
) -> Chain:
    """Exchange a certificate that is still valid for the one that ``csr`` requests.

    Raises the same errors as :func:`enroll`.
    """
    contexts = ClientContexts(current, ENROLMENT_PROTOCOL, expected=ENROLLED_AT)
    request = EnrolmentRequest(node=node, identifiers=format_identifiers(identifiers), csr=csr)
    creator = contexts.creator(server.name, server.where)
    answer = await _exchange(clock, server, creator, lambda connection: request.encode())
    return _check_response(
        clock, server.where, answer, request, identifiers, current.authorities[0]
    )


class _PinnedServer(UnverifiedConnections):
    """A server whose authority is known only by its pin, until :meth:`check` has found it.

    ``clock_skew`` is set if the server is correct except for its certificate's validity period.
    """

    def __init__(self, clock: IReactorTime, server: ServerAddress, pin: str) -> None:
        super().__init__(server.name, ENROLMENT_PROTOCOL)
        self._clock = clock
        self._where = server.where
        self._pin = pin
        self.authority: x509.Certificate | None = None
        self.clock_skew: ClockSkew | None = None

    def check(self, connection: SSL.Connection) -> None:
        """Verify the chain that the server sent; raises :class:`ServerNotTrusted`."""
        chain = connection.get_peer_cert_chain(as_cryptography=True) or []
        authority = next((c for c in chain[1:] if _has_pin(c, self._pin)), None)
        if authority is None:
            raise ServerNotTrusted(
                f"{self._where}: the server does not belong to the authority that the join token"
                " names: check the server's address, and that the token is this server's"
            )
        check_server_name(chain[0], self._server_name, where=self._where)
        self._check_chain(chain[0], authority)
        self.authority = authority

    def _check_chain(self, leaf: x509.Certificate, authority: x509.Certificate) -> None:
        policy = PolicyBuilder().store(Store([authority]))
        subject = _verifiable_name(policy, leaf)
        if subject is None:
            raise ServerNotTrusted(
                f"{self._where}: the server's certificate has no name that can be verified"
            )

        def verify(time: datetime.datetime) -> None:
            policy.time(time).build_server_verifier(subject).verify(leaf, [])

        now = utc_now(self._clock)
        try:
            verify(now)
        except VerificationError as error:
            with suppress(VerificationError):
                verify(max(leaf.not_valid_before_utc, authority.not_valid_before_utc))
                self.clock_skew = ClockSkew.from_certificates(
                    now, "the server's certificate", leaf, authority
                )
                return
            raise ServerNotTrusted(
                f"{self._where}: the server's certificate is not valid: {error}"
            ) from None


def _verifiable_name(
    policy: PolicyBuilder, leaf: x509.Certificate
) -> x509.DNSName | x509.IPAddress | None:
    """Return one of a certificate's names by which its chain can be verified.

    Any of them gives the same result for the chain. The dialed name has been checked before, and
    this library may not accept it although TLS does: one with an underscore, as containers have.
    """
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    for name in names:
        if isinstance(name, x509.DNSName | x509.IPAddress):
            with suppress(ValueError):
                policy.build_server_verifier(name)
                return name
    return None


def _has_pin(certificate: x509.Certificate, pin: str) -> bool:
    try:
        return pin_of(certificate) == pin
    except (ValueError, UnsupportedAlgorithm):
        # A foreign certificate may have a key of any type.
        return False


def _check_response(
    clock: IReactorTime,
    where: str,
    answer: bytes,
    request: EnrolmentRequest,
    identifiers: Identifiers,
    authority: x509.Certificate,
) -> Chain:
    """Return the certificate and its authority's, if ``answer`` contains what was requested."""
    try:
        response = decode_response(answer)
    except EnrolmentRefused as error:
        raise EnrolmentRefused(error.code, f"{where}: {error.text}") from None
    except BadMessage as error:
        raise EnrolmentFailed(f"{where}: the server's response is not valid: {error}") from None
    csr = x509.load_pem_x509_csr(request.csr.encode("ascii"))
    now = utc_now(clock)
    try:
        certificate = certificates_from_pem(response.certificate.encode())[0]
        if now >= certificate.not_valid_after_utc:
            # A certificate that is not valid here yet is accepted: it is valid by the server's
            # clock.
            clock_skew = ClockSkew.from_certificates(
                now, "the certificate that the server sent", certificate
            )
            # The certificate was just issued, so it shows the server's clock.
            server_time = certificate.not_valid_before_utc + BACKDATE
            raise ClockSeemsWrong(f"{where}: {clock_skew.sentence(server_time)}")
        if csr.public_key() != certificate.public_key():
            raise BadCredentials("the key does not belong to the certificate")
        identity = identity_from_certificate(certificate)
    except (BadCredentials, BadIdentity) as error:
        raise EnrolmentFailed(f"{where}: the server sent a bad certificate: {error}") from error
    if not is_issued_by(certificate, authority):
        raise EnrolmentFailed(f"{where}: it sent a certificate from another authority")
    if identity.node != request.node or uncovered_identifiers(identity, identifiers):
        raise EnrolmentFailed(f"{where}: it sent a certificate for other names")
    return (certificate, authority)


async def _exchange(
    clock: IReactorTime,
    server: ServerAddress,
    creator: IOpenSSLClientConnectionCreator,
    make_request: Callable[[SSL.Connection], bytes],
) -> bytes:
    """Return the server's response to ``make_request(connection)``, which verifies it first."""
    exchange = Deferred.fromCoroutine(_connect_and_exchange(clock, server, creator, make_request))
    exchange = exchange.addTimeout(EXCHANGE_DEADLINE, clock)
    where = server.where
    try:
        return await exchange
    except (ServerNotTrusted, CancelledError):
        raise
    except BadMessage as error:
        raise EnrolmentFailed(f"{where}: the server's response is not valid: {error}") from None
    except TimeoutError:
        raise EnrolmentFailed(
            f"{where}: no answer within {EXCHANGE_DEADLINE:.0f} seconds"
        ) from None
    except SSL.Error as error:
        raise EnrolmentFailed(f"{where}: {problem_with_server(Failure(error))}") from error
    except ConnectionDone:
        raise EnrolmentFailed(
            f"{where}: the server closed the connection without a response"
        ) from None
    except Exception as error:
        # Endpoints raise exceptions of many unrelated types.
        raise EnrolmentFailed(f"{where}: {error}") from error


async def _connect_and_exchange(
    clock: IReactorTime,
    server: ServerAddress,
    creator: IOpenSSLClientConnectionCreator,
    make_request: Callable[[SSL.Connection], bytes],
) -> bytes:
    protocol = _ExchangeProtocol(make_request)
    factory = Factory.forProtocol(lambda: protocol)
    factory.noisy = False
    try:
        await server.endpoint.connect(TLSMemoryBIOFactory(creator, True, factory, clock))
    except ConnectingCancelledError:
        # Twisted's endpoints convert a cancellation to this, which is not a CancelledError.
        raise CancelledError from None
    try:
        return await protocol.answer
    finally:
        protocol.close()


@implementer(IHandshakeListener)
class _ExchangeProtocol(Int32StringReceiver):
    """Sends the request after the server is verified; ``answer`` fires with the response."""

    transport: TLSMemoryBIOProtocol
    MAX_LENGTH = MAX_MESSAGE_LENGTH

    def __init__(self, make_request: Callable[[SSL.Connection], bytes]) -> None:
        self._make_request = make_request
        self._open = False
        self._is_finished = False
        self.answer: Deferred[bytes] = Deferred()

    def connectionMade(self) -> None:
        """Note that there is a connection to close."""
        self._open = True

    def handshakeCompleted(self) -> None:
        """Verify the server, and send the request."""
        try:
            request = self._make_request(self.transport.getHandle())
        except Exception:
            self._finish(Failure())
        else:
            self.sendString(request)

    def stringReceived(self, string: bytes) -> None:
        self._finish(string)

    def lengthLimitExceeded(self, length: int) -> None:
        self._finish(Failure(BadMessage(f"it has {length} bytes")))

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self._open = False
        self._finish(reason)

    def close(self) -> None:
        """Abort the connection, which has no more data to transfer."""
        self._is_finished = True
        if self._open:
            self.transport.abortConnection()

    def _finish(self, result: bytes | Failure) -> None:
        if not self._is_finished:
            self._is_finished = True
            self.answer.callback(result)
