"""TLS contexts whose certificates are rotated without a restart.

A context cannot be changed once it has made a connection, so a rotation builds a new one for later
connections; existing connections keep the old one. They also keep the old trust, which is why a
revocation closes sessions itself.

Both ends prefer TLS 1.3 and allow 1.2, with forward-secret AEAD ciphers only. There are no tickets
and no session cache (a resumed session would keep an identity that was verified earlier), no
renegotiation and no compression. Idle connections release their buffers.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from ipaddress import ip_address
from typing import NamedTuple, TypeVar

from cryptography import x509
from OpenSSL import SSL
from OpenSSL.crypto import X509
from service_identity import VerificationError
from service_identity.cryptography import verify_certificate_hostname, verify_certificate_ip_address
from service_identity.exceptions import CertificateError
from twisted.internet.interfaces import (
    IOpenSSLClientConnectionCreator,
    IOpenSSLServerConnectionCreator,
    IReactorTime,
    ISSLTransport,
)
from twisted.logger import Logger
from twisted.protocols.tls import TLSMemoryBIOProtocol
from twisted.python.failure import Failure
from zope.interface import implementer

from yurttunnel.ops.clocks import utc_now
from yurttunnel.pki.credentials import BadCredentials, Credentials, extension_of, is_issued_by
from yurttunnel.pki.names import host_is_address
from yurttunnel.pki.rejection import set_verification
from yurttunnel.pki.tls_errors import certificate_problem, rejection_error
from yurttunnel.tunnel.named_endpoint import to_ascii
from yurttunnel.tunnel.tls import ALPN as TUNNEL_PROTOCOL

ENROLMENT_PROTOCOL = b"yurttunnel-enroll/1"
"""ALPN for enrolments and renewals; a client certificate is optional, but verified if presented."""

# AES-128 first: as strong as the P-256 keys here, and cheaper per byte than AES-256.
_TLS12_CIPHERS = (
    b"ECDHE-ECDSA-AES128-GCM-SHA256:ECDHE-RSA-AES128-GCM-SHA256:ECDHE+AESGCM:ECDHE+CHACHA20"
)
_TLS13_CIPHERS = b"TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256"
_OPTIONS = (
    SSL.OP_NO_TICKET
    | SSL.OP_NO_COMPRESSION
    | SSL.OP_NO_RENEGOTIATION
    | SSL.OP_CIPHER_SERVER_PREFERENCE
)
PEER_MUST_PRESENT = SSL.VERIFY_PEER | SSL.VERIFY_FAIL_IF_NO_PEER_CERT
"""The verification mode that rejects peers without a certificate."""

SERVER_NAME_ADVICE = "or start the server with --cert-dns-names or --cert-ips"
"""The alternative fix if the certificate of one of our servers lacks the dialed name."""


class ExpectedServer(NamedTuple):
    """The expected authority and the advice in errors about a server's certificate.

    ``authority`` is the expected issuer. ``advice`` is an alternative to dialing a name in the
    certificate.
    """

    authority: str = "the authority that is trusted here"
    advice: str = SERVER_NAME_ADVICE


EXPECTED_SERVER = ExpectedServer()

_PARTIAL_WRITES = 0x1
"""SSL_MODE_ENABLE_PARTIAL_WRITE of OpenSSL's ssl.h, which pyOpenSSL sets but does not export."""

_NO_AUTO_CHAIN = 0x8
"""SSL_MODE_NO_AUTO_CHAIN of ssl.h: send none of the trusted certificates."""

_log = Logger()


class ServerNotTrusted(Exception):
    """The server's certificate was rejected; the text names the server and the reason."""


class RotatingContexts:
    """The context for new connections, whose ``credentials`` can be replaced.

    Each function in ``on_rotated`` is called after a replacement.
    """

    def __init__(self, credentials: Credentials) -> None:
        self.credentials = credentials
        self.on_rotated: list[Callable[[], object]] = []
        self._context = self._build(credentials)

    @property
    def generation(self) -> object:
        """A value that changes whenever the credentials do."""
        return self._context

    def prepare(self, credentials: Credentials, now: datetime.datetime) -> Callable[[], None]:
        """Do everything in a rotation that can fail; return a function that completes it.

        Raises :class:`BadCredentials` if ``credentials`` are unusable at ``now`` (UTC).
        """
        credentials.check(now)
        context = self._build(credentials)

        def swap() -> None:
            self._context = context
            self.credentials = credentials
            for callback in self.on_rotated:
                callback()

        return swap

    def _build(self, credentials: Credentials) -> SSL.Context:
        raise NotImplementedError


Contexts = TypeVar("Contexts", bound=RotatingContexts)


class LiveContexts:
    """Contexts, each with a function that returns its current credentials."""

    def __init__(self, clock: IReactorTime) -> None:
        self._clock = clock
        self._followers: list[tuple[RotatingContexts, Callable[[], Credentials]]] = []

    def follow(
        self, credentials: Callable[[], Credentials], make: Callable[[Credentials], Contexts]
    ) -> Contexts:
        """Return ``make(credentials())``, which :meth:`update` keeps current."""
        contexts = make(credentials())
        self._followers.append((contexts, credentials))
        return contexts

    def update(self) -> None:
        """Update the credentials of all contexts, or raise and change none.

        Contexts whose credentials are unchanged are not touched. An expired certificate does not
        prevent the removal of authorities that are no longer trusted: no peer accepts it, unless
        the clock is wrong and is set later.
        """
        now = utc_now(self._clock)
        swaps = []
        for contexts, desired in self._followers:
            credentials = desired()
            if credentials != contexts.credentials:
                last = credentials.certificate.not_valid_after_utc - datetime.timedelta(seconds=1)
                swaps.append(contexts.prepare(credentials, min(now, last)))
        for swap in swaps:
            swap()


@implementer(IOpenSSLServerConnectionCreator)
class ServerContexts(RotatingContexts):
    """Contexts for the agents' listener.

    ``required`` are the ALPN protocols that require a client certificate; for those in ``optional``
    it is verified if presented. The handshake fails for clients that offer none of them.

    The context requires a certificate of every client, and the selection of an optional protocol
    relaxes that for the one connection, so that mistakes fail closed.
    """

    def __init__(
        self,
        credentials: Credentials,
        required: Sequence[bytes] = (TUNNEL_PROTOCOL,),
        optional: Sequence[bytes] = (),
    ) -> None:
        self._required = tuple(required)
        self._optional = tuple(optional)
        super().__init__(credentials)

    def serverConnectionForTLS(self, tlsProtocol: TLSMemoryBIOProtocol) -> SSL.Connection:
        """Return the TLS state of a connection whose transport is ``tlsProtocol``."""
        return SSL.Connection(self._context, None)

    def _build(self, credentials: Credentials) -> SSL.Context:
        context = server_context(credentials)
        context.set_alpn_select_callback(self._select_protocol)
        set_verification(context, PEER_MUST_PRESENT, self._verify)
        return context

    def _select_protocol(self, connection: SSL.Connection, offered: list[bytes]) -> bytes:
        for protocol in self._required:
            if protocol in offered:
                return protocol
        for protocol in self._optional:
            if protocol in offered:
                connection.set_verify(SSL.VERIFY_PEER)
                return protocol
        # Only an exception ends the handshake with the right alert (RFC 7301 section 3.2).
        raise rejection_error("it offers no protocol that is served here (ALPN)")

    def _verify(
        self, connection: SSL.Connection, certificate: X509, error: int, depth: int, valid: int
    ) -> bool:
        # The selection above is not called for clients that send no ALPN.
        chosen = connection.get_alpn_proto_negotiated()
        if not valid:
            problem = certificate_problem(error, "this server's authority")
            raise rejection_error(f"its certificate {problem}")
        if chosen not in self._required and chosen not in self._optional:
            raise rejection_error("it does not say by ALPN that it is an agent")
        return True


class ClientContexts(RotatingContexts):
    """Contexts for connections to the servers.

    ``protocol`` is the only ALPN protocol that may be selected. Servers are verified by the
    credentials' authorities and by the dialed name or address; ``expected`` is for errors about
    servers that are not trusted. Without ``present_certificate``, the client presents no
    certificate.
    """

    def __init__(
        self,
        credentials: Credentials,
        protocol: bytes = TUNNEL_PROTOCOL,
        *,
        present_certificate: bool = True,
        expected: ExpectedServer = EXPECTED_SERVER,
    ) -> None:
        self._protocol = protocol
        self._presents = present_certificate
        self._expected = expected
        super().__init__(credentials)

    def creator(self, server_name: str, where: str = "") -> IOpenSSLClientConnectionCreator:
        """Return the creator that ``wrapClientTLS`` and ``TLSMemoryBIOFactory`` need for a server.

        The handshake fails with :class:`ServerNotTrusted` if the certificate of ``server_name`` is
        not acceptable; the error names ``where``, by default the server.
        """
        where = where or server_name
        return _ClientConnectionCreator(lambda: self._context, server_name, where, self._expected)

    def _build(self, credentials: Credentials) -> SSL.Context:
        context = client_context(credentials, self._protocol, present_certificate=self._presents)
        context.set_verify(PEER_MUST_PRESENT)
        return context


@implementer(IOpenSSLClientConnectionCreator)
class _ClientConnectionCreator:
    """Creates Twisted TLS connections to one server, always with the current context."""

    def __init__(
        self,
        current: Callable[[], SSL.Context],
        server_name: str,
        where: str,
        expected: ExpectedServer,
    ) -> None:
        self._current = current
        self._server_name = server_name
        self._where = where
        self._expected = expected

    def clientConnectionForTLS(self, tlsProtocol: TLSMemoryBIOProtocol) -> SSL.Connection:
        """Return the TLS state of a connection whose transport is ``tlsProtocol``."""

        def verify(
            connection: SSL.Connection, certificate: X509, error: int, depth: int, valid: int
        ) -> bool:
            # An exception that leaves this function would be lost inside OpenSSL.
            try:
                self._check(certificate, error, depth, bool(valid))
            except ServerNotTrusted as problem:
                tlsProtocol.failVerification(Failure(problem))
                return False
            except Exception:
                _log.failure("verifying the certificate of {name} failed", name=self._server_name)
                return False
            return True

        connection = client_connection(self._current(), self._server_name)
        set_verification(connection, PEER_MUST_PRESENT, verify)
        return connection

    def _check(self, certificate: X509, error: int, depth: int, valid: bool) -> None:
        if not valid:
            shown = certificate.to_cryptography()
            problem = certificate_problem(error, self._expected.authority, shown)
            raise ServerNotTrusted(f"{self._where}: the server's certificate {problem}")
        if depth == 0:
            check_server_name(
                certificate.to_cryptography(), self._server_name, self._expected.advice, self._where
            )


@implementer(IOpenSSLClientConnectionCreator)
class UnverifiedConnections:
    """Connections for the first contact with a server, whose authority is not known yet.

    They verify nothing. The caller verifies what the server has sent before it sends anything
    confidential.
    """

    def __init__(self, server_name: str, protocol: bytes) -> None:
        self._server_name = server_name
        self._protocol = protocol

    def clientConnectionForTLS(self, tlsProtocol: TLSMemoryBIOProtocol) -> SSL.Connection:
        """Return the TLS state of a connection whose transport is ``tlsProtocol``."""
        context = _new_context(SSL.TLS_CLIENT_METHOD, ())
        context.set_alpn_protos([self._protocol])
        # With VERIFY_NONE, OpenSSL would not build the chain that the caller verifies.
        context.set_verify(SSL.VERIFY_PEER, lambda *_: True)
        return client_connection(context, self._server_name)


def client_connection(context: SSL.Context, server_name: str) -> SSL.Connection:
    """Return the TLS state of a connection that requests ``server_name``.

    Addresses are not permitted in SNI (RFC 6066 section 3), so they are not sent.
    """
    connection = SSL.Connection(context, None)
    if not host_is_address(server_name):
        connection.set_tlsext_host_name(to_ascii(server_name))
    return connection


def peer_certificate(transport: ISSLTransport) -> x509.Certificate | None:
    """Return the verified certificate of the peer of a TLS transport, ``None`` without one.

    Valid only after the handshake.
    """
    certificate = transport.getPeerCertificate()
    return certificate.to_cryptography() if isinstance(certificate, X509) else None


def server_context(credentials: Credentials) -> SSL.Context:
    """Return a context that presents ``credentials``, without verification of clients."""
    context = _new_context(SSL.TLS_SERVER_METHOD, credentials.authorities)
    _present(context, credentials, credentials.chain)
    context.set_session_id(b"yurttunnel")
    return context


def client_context(
    credentials: Credentials, *protocols: bytes, present_certificate: bool = True
) -> SSL.Context:
    """Return a context that presents ``credentials``, offers ``protocols``, and verifies nothing.

    Without ``present_certificate``, only the authorities of the credentials are used. The caller
    configures the verification of servers by ``set_verify``.
    """
    context = _new_context(SSL.TLS_CLIENT_METHOD, credentials.authorities)
    if present_certificate:
        # The server has its authorities already, and would keep memory for those that each agent
        # sends.
        context.set_mode(_NO_AUTO_CHAIN)
        chain = [each for each in credentials.chain if not is_issued_by(each, each)]
        _present(context, credentials, chain)
    context.set_alpn_protos(list(protocols))
    return context


def _new_context(method: int, authorities: Sequence[x509.Certificate]) -> SSL.Context:
    context = SSL.Context(method)
    context.set_min_proto_version(SSL.TLS1_2_VERSION)
    context.set_options(_OPTIONS)
    context.set_mode(SSL.MODE_RELEASE_BUFFERS)
    # Memory BIOs accept all data, in one call for any number of records.
    context.clear_mode(_PARTIAL_WRITES)
    context.set_session_cache_mode(SSL.SESS_CACHE_OFF)
    context.set_cipher_list(_TLS12_CIPHERS)
    context.set_tls13_ciphersuites(_TLS13_CIPHERS)
    store = context.get_cert_store()
    assert store is not None  # every context has one
    for authority in authorities:
        store.add_cert(X509.from_cryptography(authority))
    return context


def _present(
    context: SSL.Context, credentials: Credentials, chain: Sequence[x509.Certificate]
) -> None:
    try:
        context.use_certificate(credentials.certificate)
        context.use_privatekey(credentials.key)
        for certificate in chain:
            context.add_extra_chain_cert(certificate)
        context.check_privatekey()
    except SSL.Error as error:
        raise BadCredentials("OpenSSL refuses the key or the certificate") from error


def check_server_name(
    certificate: x509.Certificate,
    server_name: str,
    advice: str = SERVER_NAME_ADVICE,
    where: str = "",
) -> None:
    """Raise :class:`ServerNotTrusted` unless the certificate is for the name or address.

    ``advice`` is an alternative to dialing a name in the certificate. ``where`` is what was dialed,
    if that is more than the name.
    """
    if not matches_host(certificate, server_name):
        names = ", ".join(names_in(certificate))
        raise ServerNotTrusted(
            f"{where or server_name}: the server's certificate is for {names}"
            f" and not for {server_name}: dial one of these, {advice}"
        )


def matches_host(certificate: x509.Certificate, host: str) -> bool:
    """Return whether a server's certificate is for the name or address ``host`` (RFC 9525).

    The zone of an address is ignored: it is only valid on this machine, and no certificate contains
    one.
    """
    try:
        if host_is_address(host):
            address = ip_address(host.partition("%")[0])
            verify_certificate_ip_address(certificate, str(address))
        else:
            verify_certificate_hostname(certificate, host)
    except (VerificationError, CertificateError, ValueError):
        # ValueError: a name that this library does not accept, such as 123.
        return False
    return True


def names_in(certificate: x509.Certificate) -> list[str]:
    """List a certificate's DNS names and IP addresses as text."""
    names = extension_of(certificate, x509.SubjectAlternativeName)
    if names is None:
        return []
    addresses = [str(address) for address in names.get_values_for_type(x509.IPAddress)]
    return names.get_values_for_type(x509.DNSName) + addresses
