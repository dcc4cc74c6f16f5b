"""TLS contexts whose certificates rotate live.

A context cannot be changed once it has made a connection, so rotation builds a new one and
connections made from then on use it; those that exist keep what they were made with. Old
sessions thereby keep old trust, too, which is why revocation closes sessions itself.

Common to both ends: TLS 1.3 preferred and 1.2 allowed, forward-secret AEAD ciphers only, no
tickets and no session cache (a resumed session would carry an identity that was checked
earlier), no renegotiation, no compression, and buffers that idle connections give back.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from ipaddress import ip_address
from typing import Generic, NamedTuple, TypeVar

from cryptography import x509
from OpenSSL import SSL
from OpenSSL.crypto import X509
from service_identity import VerificationError
from service_identity.cryptography import (
    verify_certificate_hostname,
    verify_certificate_ip_address,
)
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
from yurttunnel.pki.authorities import Authorities
from yurttunnel.pki.credentials import BadCredentials, Credentials, is_issued_by
from yurttunnel.pki.names import host_is_address
from yurttunnel.pki.problems import certificate_problem, refusal
from yurttunnel.pki.rejection import set_verification
from yurttunnel.tunnel.host_names import in_ascii
from yurttunnel.tunnel.tls import ALPN as TUNNEL_PROTOCOL

ENROLMENT_PROTOCOL = b"yurttunnel-enroll/1"
"""ALPN: an enrolment or a renewal; a certificate is not needed, but verified when presented."""

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
"""The mode of verification that refuses peers without a certificate."""

NAME_THE_SERVER = "or start the server with --cert-dns-names or --cert-ips"
"""What else can be done about a server of ours whose certificate has not the name dialed."""


class Expected(NamedTuple):
    """What is said to be expected of a server whose certificate is not acceptable.

    ``authority`` is from whom it should be, ``advice`` what else can be done about one that has
    another name than the one that was dialed.
    """

    authority: str = "the authority that is trusted here"
    advice: str = NAME_THE_SERVER


_EXPECTED = Expected()

_PARTIAL_WRITES = 0x1
"""SSL_MODE_ENABLE_PARTIAL_WRITE of OpenSSL's ssl.h, which pyOpenSSL sets and does not name."""

_NO_AUTO_CHAIN = 0x8
"""SSL_MODE_NO_AUTO_CHAIN of ssl.h: none of the trusted certificates is sent along."""

_log = Logger()


class ServerNotTrusted(Exception):
    """The server's certificate was refused; the text names the server and the reason."""


class RotatingContexts:
    """The context for the connections to come, whose ``credentials`` can be replaced.

    Each function in ``on_rotated`` is called when they have been.
    """

    def __init__(self, credentials: Credentials) -> None:
        self.credentials = credentials
        self.on_rotated: list[Callable[[], object]] = []
        self._context = self._build(credentials)

    @property
    def generation(self) -> object:
        """Something that is the same as long as the credentials are."""
        return self._context

    def prepare(self, credentials: Credentials, now: datetime.datetime) -> Callable[[], None]:
        """Do all of a rotation that can fail; the function that is returned does the rest.

        Raises :class:`BadCredentials` when ``credentials`` are unusable at ``now`` (UTC).
        """
        credentials.check(now)
        context = self._build(credentials)

        def swap() -> None:
            self._context = context
            self.credentials = credentials
            for callback in self.on_rotated:
                callback()

        return swap

    def rotate(self, credentials: Credentials, now: datetime.datetime) -> None:
        """Use ``credentials`` for the connections to come.

        Raises :class:`BadCredentials`, and everything stays as it was, when they are unusable
        at ``now`` (UTC).
        """
        self.prepare(credentials, now)()

    def _build(self, credentials: Credentials) -> SSL.Context:
        raise NotImplementedError


class LiveContexts:
    """Contexts, each with a function that gives the credentials it should have now."""

    def __init__(self, clock: IReactorTime) -> None:
        self._clock = clock
        self._followers: list[tuple[RotatingContexts, Callable[[], Credentials]]] = []

    def follow(self, contexts: RotatingContexts, credentials: Callable[[], Credentials]) -> None:
        """Have ``contexts`` use what ``credentials()`` gives from each update on."""
        self._followers.append((contexts, credentials))

    def update(self) -> None:
        """Have all of them use their credentials, or raise and leave all as they were.

        Contexts whose credentials are the same as before are not touched. A certificate that has
        expired is no reason to go on with authorities that are not believed any more: nobody
        accepts it, unless the clock is wrong, and is set right.
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


Trusted = TypeVar("Trusted", bound=Authorities | None)


class LiveAuthorities(Generic[Trusted]):
    """The authorities that the contexts of ``live`` trust, which may be changed."""

    def __init__(self, live: LiveContexts, authorities: Trusted) -> None:
        self._live = live
        self.current = authorities

    def use(self, authorities: Trusted) -> None:
        """Have the contexts trust these from now on, or raise and leave everything as it was."""
        former, self.current = self.current, authorities
        try:
            self._live.update()
        except Exception:
            # Put back, whatever it was; the caller tells.
            self.current = former
            raise


@implementer(IOpenSSLServerConnectionCreator)
class ServerContexts(RotatingContexts):
    """Contexts for the agents' listener.

    ``required`` are the ALPN protocols for which the client's certificate is demanded,
    ``optional`` those for which it is verified if there is one. Clients that offer none of
    them do not get through the handshake.

    The context demands a certificate of everybody, and the choice of an optional protocol
    relaxes that for the one connection: what is forgotten here fails closed.
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
        """Make the TLS state of a connection whose transport is ``tlsProtocol``."""
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
        # Only an exception ends the handshake with the alert for this (RFC 7301 section 3.2).
        raise refusal("it offers no protocol that is served here (ALPN)")

    def _verify(
        self, connection: SSL.Connection, certificate: X509, error: int, depth: int, valid: int
    ) -> bool:
        # The selection above is not called for clients that send no ALPN at all.
        chosen = connection.get_alpn_proto_negotiated()
        if not valid:
            problem = certificate_problem(error, "this server's authority")
            raise refusal(f"its certificate {problem}")
        if chosen not in self._required and chosen not in self._optional:
            raise refusal("it does not say by ALPN that it is an agent")
        return True


class ClientContexts(RotatingContexts):
    """Contexts for connections to the servers.

    ``protocol`` is the only ALPN protocol that may be selected. Servers are verified by the
    authorities of the credentials and by the name or address that was dialed; ``expected`` is said
    of those that are not trusted. Without ``presents`` the certificate is kept back.
    """

    def __init__(
        self,
        credentials: Credentials,
        protocol: bytes = TUNNEL_PROTOCOL,
        *,
        presents: bool = True,
        expected: Expected = _EXPECTED,
    ) -> None:
        self._protocol = protocol
        self._presents = presents
        self._expected = expected
        super().__init__(credentials)

    def creator(self, server_name: str, where: str = "") -> IOpenSSLClientConnectionCreator:
        """Return what ``wrapClientTLS`` and ``TLSMemoryBIOFactory`` need to dial ``server_name``.

        A server whose certificate is not acceptable fails the handshake with
        :class:`ServerNotTrusted`, which names ``where`` was dialed, or the server.
        """
        where = where or server_name
        return _ClientConnectionCreator(lambda: self._context, server_name, where, self._expected)

    def _build(self, credentials: Credentials) -> SSL.Context:
        context = client_context(credentials, self._protocol, presents=self._presents)
        context.set_verify(PEER_MUST_PRESENT)
        return context


@implementer(IOpenSSLClientConnectionCreator)
class _ClientConnectionCreator:
    """Connections of Twisted's TLS to one server, always with the current context."""

    def __init__(
        self,
        current: Callable[[], SSL.Context],
        server_name: str,
        where: str,
        expected: Expected,
    ) -> None:
        self._current = current
        self._server_name = server_name
        self._where = where
        self._expected = expected

    def clientConnectionForTLS(self, tlsProtocol: TLSMemoryBIOProtocol) -> SSL.Connection:
        """Make the TLS state of a connection whose transport is ``tlsProtocol``."""

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

    They verify nothing. Their user checks what the server has sent before sending anything of
    worth.
    """

    def __init__(self, server_name: str, protocol: bytes) -> None:
        self._server_name = server_name
        self._protocol = protocol

    def clientConnectionForTLS(self, tlsProtocol: TLSMemoryBIOProtocol) -> SSL.Connection:
        """Make the TLS state of a connection whose transport is ``tlsProtocol``."""
        context = _new_context(SSL.TLS_CLIENT_METHOD, ())
        context.set_alpn_protos([self._protocol])
        # With no verification at all OpenSSL would not build the chain that is to be checked.
        context.set_verify(SSL.VERIFY_PEER, lambda *_: True)
        return client_connection(context, self._server_name)


def client_connection(context: SSL.Context, server_name: str) -> SSL.Connection:
    """Make the TLS state of a connection that asks for ``server_name``.

    Addresses are not permitted as server names (RFC 6066 section 3), and are not told.
    """
    connection = SSL.Connection(context, None)
    if not host_is_address(server_name):
        connection.set_tlsext_host_name(in_ascii(server_name))
    return connection


def peer_certificate(transport: ISSLTransport) -> x509.Certificate | None:
    """Read the certificate that the peer of a TLS transport presented, once it is verified.

    That is when the handshake is over. ``None`` when the peer presented none.
    """
    certificate = transport.getPeerCertificate()
    return certificate.to_cryptography() if isinstance(certificate, X509) else None


def server_context(credentials: Credentials) -> SSL.Context:
    """Make a context that presents ``credentials``, without the rules for clients."""
    context = _new_context(SSL.TLS_SERVER_METHOD, credentials.authorities)
    _present(context, credentials, credentials.chain)
    context.set_session_id(b"yurttunnel")
    return context


def client_context(
    credentials: Credentials, *protocols: bytes, presents: bool = True
) -> SSL.Context:
    """Make a context that presents ``credentials``, offers ``protocols``, and verifies nothing.

    Without ``presents`` it only trusts by them. Its user says by ``set_verify`` what it demands of
    servers.
    """
    context = _new_context(SSL.TLS_CLIENT_METHOD, credentials.authorities)
    if presents:
        # A server has its authorities itself, and would keep what is sent of them for each agent.
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
    # Into memory everything can be written, and in one call however many records it makes.
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
    advice: str = NAME_THE_SERVER,
    where: str = "",
) -> None:
    """Raise :class:`ServerNotTrusted` unless the certificate is for the name or address.

    ``advice`` is what else can be done than to dial one that it is for, ``where`` what was dialed,
    when that is more than the name.
    """
    if not is_for(certificate, server_name):
        names = ", ".join(names_in(certificate))
        raise ServerNotTrusted(
            f"{where or server_name}: the server's certificate is for {names}"
            f" and not for {server_name}: dial one of these, {advice}"
        )


def is_for(certificate: x509.Certificate, host: str) -> bool:
    """Return whether a server's certificate is for the name or address ``host`` (RFC 9525).

    The zone of an address says where to dial, on this machine alone: no certificate has one.
    """
    try:
        if host_is_address(host):
            address = ip_address(host.partition("%")[0])
            verify_certificate_ip_address(certificate, str(address))
        else:
            verify_certificate_hostname(certificate, host)
    except (VerificationError, CertificateError, ValueError):
        # The last is for names that are none to this library, such as 123.
        return False
    return True


def names_in(certificate: x509.Certificate) -> list[str]:
    """List a certificate's DNS names and IP addresses as text."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    addresses = [str(address) for address in names.get_values_for_type(x509.IPAddress)]
    return names.get_values_for_type(x509.DNSName) + addresses
