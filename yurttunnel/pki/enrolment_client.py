"""The issuer that is a server to which a node enrols: the agent's end of the exchange."""

from __future__ import annotations

import datetime
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError
from OpenSSL import SSL
from twisted.internet.defer import CancelledError, Deferred, TimeoutError
from twisted.internet.error import ConnectingCancelledError, ConnectionDone
from twisted.internet.interfaces import (
    IAddress,
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

from yurttunnel.pki.authority import request_certificate, utc_now
from yurttunnel.pki.certificate_store import CertificateStore
from yurttunnel.pki.contexts import (
    ENROLMENT_PROTOCOL,
    ClientContexts,
    ServerNotTrusted,
    check_server_name,
    pinning_context,
)
from yurttunnel.pki.credentials import (
    BadCredentials,
    Credentials,
    PrivateKey,
    certificates_from_pem,
    is_issued_by,
    key_to_pem,
    load_key,
    new_key,
    pin_of,
)
from yurttunnel.pki.directory import StateDirectory, StateError
from yurttunnel.pki.enrolment_messages import (
    MAX_MESSAGE_LENGTH,
    BadMessage,
    EnrolmentRefused,
    EnrolmentRequest,
    EnrolmentResponse,
    Refusal,
    decode_response,
)
from yurttunnel.pki.identity import (
    BadIdentity,
    Identifiers,
    format_identifiers,
    host_is_address,
    identity_from_certificate,
    uncovered,
)
from yurttunnel.pki.issuer import Chain, IssuedCertificate, NotIssued, Template
from yurttunnel.pki.problems import problem_with_server
from yurttunnel.pki.token import JoinToken

NODE_FILE = "node.pem"
PENDING_KEY = "pending.key"

EXCHANGE_DEADLINE = 15.0
"""Seconds for one exchange, from dialing to the answer."""


class EnrolmentFailed(NotIssued):
    """No usable answer: the network, or a server that is not what it should be.

    Trying again may work, unlike after ``EnrolmentRefused`` and ``ServerNotTrusted``.
    """


class ClockSeemsWrong(EnrolmentFailed):
    """A certificate is not valid by the clock of this machine, and good but for that."""


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """Where to reach a server: the name or address to verify, and the endpoint to dial."""

    name: str
    endpoint: IStreamClientEndpoint


@dataclass(frozen=True, slots=True)
class EnrolledTemplate:
    """A node's certificate for what the node is called and has: names that servers vouch for."""

    node: str
    identifiers: Identifiers

    def request(self, key: PrivateKey) -> bytes:
        """Make the request, without any name: the enrolment has them."""
        return request_certificate(key).encode("ascii")

    def problem(self, certificate: x509.Certificate) -> str | None:
        """Complete "the certificate ..." when it is not the node's, or does not cover all."""
        try:
            identity = identity_from_certificate(certificate)
        except BadIdentity as error:
            return f"is no node's: {error}"
        if identity.node != self.node:
            return f"is that of node {identity.node}"
        missing = uncovered(identity, self.identifiers)
        return f"lacks {', '.join(missing)}" if missing else None

    def covers(self, other: Template) -> bool:
        """Return whether it is the same."""
        return self == other


class NodeStore(CertificateStore):
    """Keeps a node's certificate in ``node.pem``, and the key that it enrols with before that."""

    def __init__(self, directory: StateDirectory) -> None:
        super().__init__(directory, NODE_FILE)

    def save(self, issued: IssuedCertificate) -> None:
        """Keep it, and forget the key."""
        super().save(issued)
        self._directory.remove(PENDING_KEY)

    def pending_key(self) -> PrivateKey:
        """Return the key to enrol with, the same until there is a certificate.

        If the answer is lost, the server has enrolled this key, and only a request with the same
        one gets another answer.
        """
        key = load_key(self._directory, PENDING_KEY)
        if key is None:
            key = new_key()
            self._directory.write(PENDING_KEY, key_to_pem(key))
        return key


class EnrolmentIssuer:
    """The servers to which a node enrols, of which one after the other is asked.

    They share one authority, that of one state directory, and issue a certificate for a join
    token, or in exchange for the one before. ``read_token`` is called for each enrolment, so that
    a file's newest token is used; ``None`` when there is no token.
    """

    final: tuple[type[Exception], ...] = (
        *(EnrolmentRefused, ServerNotTrusted, StateError),
        ValueError,  # there is no token any more, or none that is one
    )

    def __init__(
        self,
        clock: IReactorTime,
        servers: Sequence[ServerAddress],
        template: EnrolledTemplate,
        store: NodeStore,
        read_token: Callable[[], JoinToken] | None,
    ) -> None:
        """Load what was stored; raises :class:`StateError`, also when it is another node's."""
        self._clock = clock
        self._servers = servers
        self._template = template
        self._store = store
        self._read_token = read_token
        self._current = store.load()
        self._key: PrivateKey | None = None
        if self._current is not None:
            self._check_owner(self._current.certificate)

    def key(self) -> PrivateKey:
        """Return a new key, or the one by which servers know the node if it has to enrol."""
        if self._renewed() is not None:
            self._key = new_key()
        elif self._current is not None:
            self._key = self._current.key
        else:
            self._key = self._store.pending_key()
        return self._key

    async def issue(self, request: bytes, waits: Callable[[str], object]) -> Chain:
        """Return the certificate for :meth:`key`, with the authority after it."""
        renewed = self._renewed()
        csr = request.decode("ascii")
        node, identifiers = self._template.node, self._template.identifiers
        token = None if renewed is not None else self._token()

        async def ask(server: ServerAddress) -> Chain:
            if renewed is not None:
                return await renew(self._clock, server, renewed, node, identifiers, csr)
            assert token is not None
            return await enroll(self._clock, server, token, node, identifiers, csr)

        try:
            chain = await _first_answer(self._servers, ask)
        except EnrolmentRefused as error:
            if error.code.is_temporary:
                raise EnrolmentFailed(str(error)) from error
            raise
        if self._key is not None:
            # It is what the next one is got with, also when it cannot be stored.
            self._current = IssuedCertificate(self._key, chain[0], chain[1:])
        return chain

    def _renewed(self) -> Credentials | None:
        """Return the certificate that can be exchanged; without one the node has to enrol."""
        current = self._current
        if (
            current is None
            or utc_now(self._clock) >= current.certificate.not_valid_after_utc
            or self._template.problem(current.certificate) is not None
        ):
            return None
        return current.credentials(current.chain)

    def _token(self) -> JoinToken:
        """Return the join token; raises :class:`StateError` with why there has to be one."""
        if self._read_token is not None:
            return self._read_token()
        node, path = self._template.node, self._store.path.parent
        current = self._current
        missing = (
            []
            if current is None
            else uncovered(
                identity_from_certificate(current.certificate), self._template.identifiers
            )
        )
        if missing:
            raise StateError(
                f"the certificate of {node} in {path} does not cover {', '.join(missing)}: start"
                " with --join-token-file or --join-token to enrol it anew"
            )
        raise StateError(
            f"{path} holds no certificate for {node} that is still good: start with"
            " --join-token-file or --join-token"
        )

    def _check_owner(self, certificate: x509.Certificate) -> None:
        try:
            owner = identity_from_certificate(certificate).node
        except BadIdentity as error:
            raise StateError(f"{self._store.path}: {error}: remove it") from error
        if owner != self._template.node:
            raise StateError(
                f"{self._store.path.parent} is the state of node {owner}:"
                f" choose another --state-dir for {self._template.node}"
            )


async def enroll(
    clock: IReactorTime,
    server: ServerAddress,
    token: JoinToken,
    node: str,
    identifiers: Identifiers,
    csr: str,
) -> Chain:
    """Exchange a join token for the certificate that ``csr`` asks for, and its authority's.

    The token's secret is sent only after the server has shown the authority that the token
    pins, and a certificate from it for the server's name that is valid now.

    Raises ``EnrolmentRefused``, :class:`ServerNotTrusted` and :class:`EnrolmentFailed`.
    """
    pinned = _PinnedServer(clock, server.name, token.pin)
    request = EnrolmentRequest(
        node=node,
        identifiers=format_identifiers(identifiers),
        csr=csr,
        token_id=token.token_id,
        token_secret=token.secret,
    )
    response = await _exchange(clock, server, pinned, pinned.check, request)
    if pinned.authority is None:
        raise EnrolmentFailed(f"{server.name}: the server answered before it was verified")
    return _checked(clock, server.name, response, request, identifiers, pinned.authority)


async def renew(
    clock: IReactorTime,
    server: ServerAddress,
    current: Credentials,
    node: str,
    identifiers: Identifiers,
    csr: str,
) -> Chain:
    """Exchange a certificate that is still good for the one that ``csr`` asks for.

    Raises as :func:`enroll` does.
    """
    contexts = ClientContexts(current, ENROLMENT_PROTOCOL)
    request = EnrolmentRequest(node=node, identifiers=format_identifiers(identifiers), csr=csr)
    creator = contexts.creator(server.name)
    response = await _exchange(clock, server, creator, lambda connection: None, request)
    return _checked(clock, server.name, response, request, identifiers, current.authorities[0])


@implementer(IOpenSSLClientConnectionCreator)
class _PinnedServer:
    """A server whose authority is only known by its pin, until :meth:`check` has found it."""

    def __init__(self, clock: IReactorTime, name: str, pin: str) -> None:
        self._clock = clock
        self._name = name
        self._pin = pin
        self.authority: x509.Certificate | None = None

    def clientConnectionForTLS(self, tlsProtocol: TLSMemoryBIOProtocol) -> SSL.Connection:
        """Make a connection that verifies nothing yet."""
        connection = SSL.Connection(pinning_context(ENROLMENT_PROTOCOL), None)
        if not host_is_address(self._name):
            connection.set_tlsext_host_name(self._name.encode("idna"))
        return connection

    def check(self, connection: SSL.Connection) -> None:
        """Verify the chain that the server sent; raises :class:`ServerNotTrusted`."""
        chain = connection.get_peer_cert_chain(as_cryptography=True) or []
        authority = next((c for c in chain[1:] if _has_pin(c, self._pin)), None)
        if authority is None:
            raise ServerNotTrusted(
                f"{self._name}: the server does not belong to the authority that the join token"
                " names: check the server's address, and that the token is this server's"
            )
        check_server_name(chain[0], self._name)
        self._check_chain(chain[0], authority)
        self.authority = authority

    def _check_chain(self, leaf: x509.Certificate, authority: x509.Certificate) -> None:
        subject = (
            x509.IPAddress(ip_address(self._name))
            if host_is_address(self._name)
            else x509.DNSName(self._name)
        )
        policy = PolicyBuilder().store(Store([authority]))

        def verify(time: datetime.datetime) -> None:
            policy.time(time).build_server_verifier(subject).verify(leaf, [])

        now = utc_now(self._clock)
        try:
            verify(now)
        except VerificationError as error:
            with suppress(VerificationError):
                verify(max(leaf.not_valid_before_utc, authority.not_valid_before_utc))
                problem = _problem_of_clock(now, "the server's certificate", leaf, authority)
                raise ClockSeemsWrong(f"{self._name}: {problem}") from None
            raise ServerNotTrusted(
                f"{self._name}: the server's certificate is not good: {error}"
            ) from None


def _problem_of_clock(now: datetime.datetime, name: str, *certificates: x509.Certificate) -> str:
    """Return by how much the clock is wrong, by which certificates are not good that else are."""
    begin = max(certificate.not_valid_before_utc for certificate in certificates)
    end = min(certificate.not_valid_after_utc for certificate in certificates)
    now = now.replace(microsecond=0)
    return (
        f"the clock of this machine seems wrong, by {max(begin - now, now - end)} at least: it says"
        f" {now:%F %T} UTC, and {name} is good from {begin:%F %T} to {end:%F %T} UTC. If the clock"
        " is wrong, set it: the agent waits for that. If it is right, look at the server's"
    )


def _has_pin(certificate: x509.Certificate, pin: str) -> bool:
    try:
        return pin_of(certificate) == pin
    except (ValueError, UnsupportedAlgorithm):
        # A stranger's certificate may have a key of any kind.
        return False


def _checked(
    clock: IReactorTime,
    server_name: str,
    response: EnrolmentResponse,
    request: EnrolmentRequest,
    identifiers: Identifiers,
    authority: x509.Certificate,
) -> Chain:
    """Return the certificate and its authority's, if it is what was asked for."""
    asked = x509.load_pem_x509_csr(request.csr.encode("ascii"))
    now = utc_now(clock)
    try:
        certificate = certificates_from_pem(response.certificate.encode())[0]
        if now >= certificate.not_valid_after_utc:
            # Where it has not begun yet the server, by whose clock it has, takes it all the same.
            problem = _problem_of_clock(now, "the certificate that the server sent", certificate)
            raise ClockSeemsWrong(f"{server_name}: {problem}")
        if asked.public_key() != certificate.public_key():
            raise BadCredentials("the key does not belong to the certificate")
        identity = identity_from_certificate(certificate)
    except (BadCredentials, BadIdentity) as error:
        raise EnrolmentFailed(
            f"{server_name}: the server sent a bad certificate: {error}"
        ) from error
    if not is_issued_by(certificate, authority):
        raise EnrolmentFailed(f"{server_name}: it sent a certificate from another authority")
    if identity.node != request.node or uncovered(identity, identifiers):
        raise EnrolmentFailed(f"{server_name}: it sent a certificate for other names")
    return (certificate, authority)


async def _first_answer(
    servers: Sequence[ServerAddress], ask: Callable[[ServerAddress], Awaitable[Chain]]
) -> Chain:
    """Ask one server after the other, whatever is wrong with those before.

    When none gives a certificate and one may do so later, :class:`EnrolmentFailed` says what is
    wrong with each; otherwise what says most is raised.
    """
    problems: list[Exception] = []
    for server in servers:
        try:
            return await ask(server)
        except (EnrolmentFailed, EnrolmentRefused, ServerNotTrusted) as error:
            problems.append(error)
    if not problems:
        raise EnrolmentFailed("no server is known")
    if len(problems) > 1 and any(_is_temporary(problem) for problem in problems):
        is_clock = any(isinstance(problem, ClockSeemsWrong) for problem in problems)
        failed = ClockSeemsWrong if is_clock else EnrolmentFailed
        raise failed("; ".join(map(_with_server, servers, problems)))
    raise max(problems, key=_how_telling)


def _is_temporary(problem: Exception) -> bool:
    if isinstance(problem, EnrolmentRefused):
        return problem.code.is_temporary
    return isinstance(problem, EnrolmentFailed)


def _with_server(server: ServerAddress, problem: Exception) -> str:
    # A refusal is the server's sentence; the others name it already.
    return f"{server.name}: {problem}" if isinstance(problem, EnrolmentRefused) else str(problem)


def _how_telling(problem: Exception) -> int:
    """Order problems: revoked, otherwise refused, not to be trusted."""
    if not isinstance(problem, EnrolmentRefused):
        return 0
    return 2 if problem.code is Refusal.REVOKED else 1


async def _exchange(
    clock: IReactorTime,
    server: ServerAddress,
    creator: IOpenSSLClientConnectionCreator,
    check: Callable[[SSL.Connection], None],
    request: EnrolmentRequest,
) -> EnrolmentResponse:
    conversation = Deferred.fromCoroutine(_converse(clock, server, creator, check, request))
    conversation = conversation.addTimeout(EXCHANGE_DEADLINE, clock)
    try:
        return decode_response(await conversation)
    except (EnrolmentRefused, EnrolmentFailed, ServerNotTrusted, CancelledError):
        raise
    except BadMessage as error:
        raise EnrolmentFailed(f"{server.name}: the server's answer is not valid: {error}") from None
    except TimeoutError:
        raise EnrolmentFailed(
            f"{server.name}: no answer within {EXCHANGE_DEADLINE:.0f} seconds"
        ) from None
    except SSL.Error as error:
        raise EnrolmentFailed(f"{server.name}: {problem_with_server(Failure(error))}") from error
    except ConnectionDone:
        raise EnrolmentFailed(f"{server.name}: the server closed without an answer") from None
    except Exception as error:
        # Endpoints fail with exceptions of many unrelated kinds.
        raise EnrolmentFailed(f"{server.name}: {error}") from error


async def _converse(
    clock: IReactorTime,
    server: ServerAddress,
    creator: IOpenSSLClientConnectionCreator,
    check: Callable[[SSL.Connection], None],
    request: EnrolmentRequest,
) -> bytes:
    protocol = _ExchangeProtocol(check, request.encode())
    factory = TLSMemoryBIOFactory(creator, True, _OneProtocolFactory(protocol), clock)
    try:
        await server.endpoint.connect(factory)
    except ConnectingCancelledError:
        # What Twisted's endpoints make of being cancelled; it is no CancelledError.
        raise CancelledError from None
    try:
        return await protocol.answer
    finally:
        protocol.close()


@implementer(IHandshakeListener)
class _ExchangeProtocol(Int32StringReceiver):
    """Sends the request once the server is verified; ``answer`` fires with the response."""

    transport: TLSMemoryBIOProtocol
    MAX_LENGTH = MAX_MESSAGE_LENGTH

    def __init__(self, check: Callable[[SSL.Connection], None], request: bytes) -> None:
        self._check = check
        self._request = request
        self._open = False
        self._done = False
        self.answer: Deferred[bytes] = Deferred()

    def connectionMade(self) -> None:
        """Remember that there is something to close."""
        self._open = True

    def handshakeCompleted(self) -> None:
        """Verify the server, and send the request."""
        try:
            self._check(self.transport.getHandle())
        except Exception:
            self._finish(Failure())
        else:
            self.sendString(self._request)

    def stringReceived(self, string: bytes) -> None:
        """Take the response."""
        self._finish(string)

    def lengthLimitExceeded(self, length: int) -> None:
        """Refuse a response that is too long."""
        self._finish(Failure(BadMessage(f"it has {length} bytes")))

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """Fail if there was no response."""
        self._open = False
        self._finish(reason)

    def close(self) -> None:
        """Close the connection; there is nothing left that it could carry."""
        self._done = True
        if self._open:
            self.transport.abortConnection()

    def _finish(self, result: bytes | Failure) -> None:
        if not self._done:
            self._done = True
            self.answer.callback(result)


class _OneProtocolFactory(Factory):
    """Gives the one protocol of one exchange."""

    noisy = False

    def __init__(self, protocol: _ExchangeProtocol) -> None:
        self._protocol = protocol

    def buildProtocol(self, addr: IAddress | None) -> _ExchangeProtocol:
        """Return the protocol."""
        return self._protocol
