"""The issuer that enrolls a node at its servers, and the node's stored certificate."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial

from cryptography import x509
from twisted.internet.interfaces import IReactorTime

from yurttunnel.ops.clocks import utc_now
from yurttunnel.pki.authority import request_certificate
from yurttunnel.pki.certificate_store import CertificateStore
from yurttunnel.pki.contexts import ServerNotTrusted
from yurttunnel.pki.credentials import Credentials, PrivateKey, key_to_pem, load_key, new_key
from yurttunnel.pki.directory import StateDirectory, StateError
from yurttunnel.pki.enrolment_client import (
    ClockSeemsWrong,
    EnrolmentFailed,
    ServerAddress,
    enroll,
    renew,
)
from yurttunnel.pki.enrolment_messages import EnrolmentRefused, Refusal
from yurttunnel.pki.identity import Identifiers, identity_from_certificate, uncovered_identifiers
from yurttunnel.pki.issuer import Chain, IssuedCertificate, Template
from yurttunnel.pki.names import BadIdentity
from yurttunnel.pki.token import JoinToken

NODE_FILE = "node.pem"
PENDING_KEY = "pending.key"


@dataclass(frozen=True, slots=True)
class EnrolledTemplate:
    """The template of a node's certificate: its name and identifiers, which servers verify."""

    node: str
    identifiers: Identifiers

    def request(self, key: PrivateKey) -> bytes:
        """Return a request without names, which the enrolment message contains."""
        return request_certificate(key).encode("ascii")

    def problem(self, certificate: x509.Certificate) -> str | None:
        """Complete "the certificate ..." if it is not the node's or lacks an identifier."""
        try:
            identity = identity_from_certificate(certificate)
        except BadIdentity as error:
            return f"is not a node's: {error}"
        if identity.node != self.node:
            return f"is that of node {identity.node}"
        missing = uncovered_identifiers(identity, self.identifiers)
        return f"lacks {', '.join(missing)}" if missing else None

    def covers(self, other: Template) -> bool:
        """Return whether the other template is the same."""
        return self == other


class NodeStore(CertificateStore):
    """Stores a node's certificate in ``node.pem``, and before that the key that it enrolls with."""

    def __init__(self, directory: StateDirectory) -> None:
        super().__init__(directory, NODE_FILE)

    def save(self, issued: IssuedCertificate) -> None:
        super().save(issued)
        self._directory.remove(PENDING_KEY)

    def pending_key(self) -> PrivateKey:
        """Return the key to enroll with, the same until there is a certificate.

        If the response is lost, the server has enrolled this key, and accepts another enrolment
        only with the same key.
        """
        key = load_key(self._directory, PENDING_KEY)
        if key is None:
            key = new_key()
            self._directory.write(PENDING_KEY, key_to_pem(key))
        return key


class EnrolmentIssuer:
    """The servers at which a node enrolls, tried in order.

    They share the authority of one state directory, and issue a certificate for a join token or in
    exchange for the previous certificate. ``read_token`` is called for each enrolment, so that the
    latest token in a file is used; it is ``None`` without a token.
    """

    final_errors: tuple[type[Exception], ...] = (
        *(EnrolmentRefused, ServerNotTrusted, StateError),
        ValueError,  # the token is missing or invalid
    )

    def __init__(
        self,
        clock: IReactorTime,
        servers: Sequence[ServerAddress],
        template: EnrolledTemplate,
        store: NodeStore,
        read_token: Callable[[], JoinToken] | None,
    ) -> None:
        """Load the stored certificate; raises :class:`StateError`, also if it is another node's."""
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
        """Return a new key, or for an enrolment the key by which servers know the node."""
        if self._renewed() is not None:
            self._key = new_key()
        elif self._current is not None:
            self._key = self._current.key
        else:
            self._key = self._store.pending_key()
        return self._key

    async def issue(self, request: bytes, on_waiting: Callable[[str], object]) -> Chain:
        """Return the certificate for :meth:`key`, followed by the authority's."""
        arguments = (self._template.node, self._template.identifiers, request.decode("ascii"))
        renewed = self._renewed()
        request_from: Callable[[ServerAddress], Awaitable[Chain]]
        if renewed is not None:
            request_from = partial(renew, self._clock, renewed, *arguments)
        else:
            request_from = partial(enroll, self._clock, self._token(), *arguments)
        try:
            chain = await _first_response(self._servers, request_from)
        except EnrolmentRefused as error:
            if error.code.is_temporary:
                raise EnrolmentFailed(str(error)) from error
            raise
        if self._key is not None:
            # The next renewal presents this one, even if it cannot be stored.
            self._current = IssuedCertificate(self._key, chain[0], chain[1:])
        return chain

    def _renewed(self) -> Credentials | None:
        """Return the certificate to exchange for a new one; without one the node has to enroll."""
        current = self._current
        if (
            current is None
            or utc_now(self._clock) >= current.certificate.not_valid_after_utc
            or self._template.problem(current.certificate) is not None
        ):
            return None
        return current.credentials(current.chain)

    def _token(self) -> JoinToken:
        """Return the join token; raises :class:`StateError` with the reason why one is needed."""
        if self._read_token is not None:
            return self._read_token()
        node, path = self._template.node, self._store.path.parent
        current = self._current
        missing = (
            []
            if current is None
            else uncovered_identifiers(
                identity_from_certificate(current.certificate), self._template.identifiers
            )
        )
        if missing:
            raise StateError(
                f"the certificate of {node} in {path} does not cover {', '.join(missing)}: start"
                " with --join-token-file or --join-token to enrol it anew"
            )
        raise StateError(
            f"{path} has no valid certificate for {node}, and there is no --join-token-file or"
            ' --join-token: "yurttunnel token create" on the server creates one, and prints the'
            " command to run here"
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


async def _first_response(
    servers: Sequence[ServerAddress], request_from: Callable[[ServerAddress], Awaitable[Chain]]
) -> Chain:
    """Try the servers in order, whatever errors the previous ones returned.

    If all fail and an error is temporary, :class:`EnrolmentFailed` lists the errors of all servers;
    otherwise the most informative error is raised.
    """
    problems: list[Exception] = []
    for server in servers:
        try:
            return await request_from(server)
        except (EnrolmentFailed, EnrolmentRefused, ServerNotTrusted) as error:
            problems.append(error)
    if not problems:
        raise EnrolmentFailed("no server address is known")
    if len(problems) > 1 and any(_is_temporary(problem) for problem in problems):
        is_clock = any(isinstance(problem, ClockSeemsWrong) for problem in problems)
        failed = ClockSeemsWrong if is_clock else EnrolmentFailed
        raise failed("; ".join(map(str, problems)))
    raise max(problems, key=_error_rank)


def _is_temporary(problem: Exception) -> bool:
    if isinstance(problem, EnrolmentRefused):
        return problem.code.is_temporary
    return isinstance(problem, EnrolmentFailed)


def _error_rank(problem: Exception) -> int:
    """Return the rank of an error: revoked, then otherwise refused, then not trusted."""
    if not isinstance(problem, EnrolmentRefused):
        return 0
    return 2 if problem.code is Refusal.REVOKED else 1
