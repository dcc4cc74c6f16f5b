"""Trust without Kubernetes, ready to use: one facade for each command."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from twisted.application.service import MultiService
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import deferLater
from twisted.logger import Logger

from yurttunnel.ops.backoff import Backoff
from yurttunnel.pki.authority import (
    utc_now,
)
from yurttunnel.pki.contexts import (
    ClientContexts,
    ServerNotTrusted,
)
from yurttunnel.pki.credentials import (
    Credentials,
    PrivateKey,
    key_to_pem,
    load_credentials,
    load_key,
    new_key,
    save_credentials,
)
from yurttunnel.pki.directory import StateDirectory, StateError
from yurttunnel.pki.enrolment_client import (
    ClockSeemsWrong,
    EnrolmentFailed,
    ServerAddress,
    enroll,
    renew,
)
from yurttunnel.pki.enrolment_messages import EnrolmentRefused, Refusal
from yurttunnel.pki.identity import (
    BadIdentity,
    Identifiers,
    NodeIdentity,
    check_node_name,
    identity_from_certificate,
    uncovered,
)
from yurttunnel.pki.standalone_renewal import CertificateRenewal
from yurttunnel.pki.token import JoinToken

NODE_FILE = "node.pem"
PENDING_KEY = "pending.key"

_FIRST_PAUSE = 0.5
_LONGEST_PAUSE = 30.0
"""Seconds between an agent's attempts to enroll."""
_LOOK_AT_CLOCK = 1.0
"""Seconds after which a clock that was set is noticed in such a pause."""


class AgentTrust(MultiService):
    """Everything the agent needs to be known by its servers.

    ``ready`` gets a certificate, unless there is a good one from an earlier run, and gives the
    TLS contexts for sessions. From then on the certificate is renewed while the service runs.
    All servers share one authority, that of one state directory.

    ``read_token`` is called for each enrolment, so that a file's newest token is used; ``None``
    when there is no token.
    """

    _log = Logger()

    def __init__(
        self,
        clock: IReactorTime,
        directory: StateDirectory,
        node: str,
        identifiers: Identifiers,
        read_token: Callable[[], JoinToken] | None,
        credentials: Credentials | None,
    ) -> None:
        super().__init__()
        self._clock = clock
        self._directory = directory
        self._node = node
        self._identifiers = identifiers
        self._read_token = read_token
        self._credentials = credentials
        self.contexts: ClientContexts | None = None
        self.renewal: CertificateRenewal | None = None
        self.waits_for = ""
        """Why there is no certificate yet, where it may be the clock of this machine."""

    @classmethod
    def open(
        cls,
        clock: IReactorTime,
        state_dir: str | Path,
        node: str,
        identifiers: Identifiers,
        read_token: Callable[[], JoinToken] | None = None,
    ) -> AgentTrust:
        """Load what an earlier run left in ``state_dir``.

        Raises :class:`StateError`, also when it is another node's, and :class:`BadIdentity`
        for a name that no node can have.
        """
        check_node_name(node)
        directory = StateDirectory.open(state_dir)
        stored = load_credentials(directory, NODE_FILE)
        if stored is not None:
            owner = _owner(directory, stored).node
            if owner != node:
                raise StateError(
                    f"{directory.path} is the state of node {owner}:"
                    f" choose another --state-dir for {node}"
                )
        return cls(clock, directory, node, identifiers, read_token, stored)

    async def ready(self, servers: Sequence[ServerAddress]) -> ClientContexts:
        """Enroll if needed, and give the contexts for sessions.

        Servers are asked in turn until one gives a certificate; while none does and one may do
        so later, this goes on with growing pauses. Cancelling ends it. Raises
        ``EnrolmentRefused`` and ``ServerNotTrusted`` when trying again would change nothing,
        :class:`BadToken` and :class:`StateError`.

        A certificate that has expired by the clock of this machine may be good: many machines
        learn the time only when they are connected. So none of that is raised then, and the
        certificate is used as soon as the clock says that it is good. No more does it end when a
        server's certificate is not valid by that clock.
        """
        credentials = await self._enroll_patiently(servers)
        if credentials is not self._credentials:
            self._store(credentials)
        self.waits_for = ""

        async def obtain() -> Credentials:
            return await self._renew(servers)

        self.contexts = ClientContexts(credentials, node=self._node)
        self.renewal = CertificateRenewal(
            self._clock, f"node {self._node}", self.contexts, obtain, self._store
        )
        self.renewal.setServiceParent(self)
        return self.contexts

    def _has_expired(self) -> bool:
        """Return whether an otherwise good certificate has expired, by this machine's clock."""
        current = self._credentials
        return (
            current is not None
            and self._covers(current)
            and utc_now(self._clock) >= current.certificate.not_valid_after_utc
        )

    def _covers(self, credentials: Credentials) -> bool:
        return not self._uncovered(credentials)

    def _uncovered(self, credentials: Credentials) -> list[str]:
        return uncovered(_owner(self._directory, credentials), self._identifiers)

    async def _enroll_patiently(self, servers: Sequence[ServerAddress]) -> Credentials:
        """Return the certificate that is there as soon as it is good, or else a new one."""
        backoff = Backoff(_FIRST_PAUSE / 2, _LONGEST_PAUSE)
        while True:
            current = self._credentials
            if current is not None and self._covers(current) and not self._has_expired():
                return current
            try:
                return await self._enroll(servers)
            except (
                EnrolmentFailed,
                EnrolmentRefused,
                ServerNotTrusted,
                StateError,
                ValueError,  # there is no token any more, or none that is one
            ) as error:
                if not (_is_temporary(error) or self._has_expired()):
                    raise
                pause = backoff.next()
                self._tell_of_failure(error, pause)
            await self._wait(pause)

    def _tell_of_failure(self, error: Exception, pause: float) -> None:
        if self._credentials is not None and self._has_expired():
            end = self._credentials.certificate.not_valid_after_utc
            self.waits_for = (
                f"the clock of this machine says {utc_now(self._clock):%F %T} UTC, and the"
                f" certificate of {self._node} ended at {end:%F %T} UTC. If the clock is wrong, set"
                f" it: the agent waits for that. If it is right, the agent has to enrol: {error}"
            )
        else:
            self.waits_for = str(error) if isinstance(error, ClockSeemsWrong) else ""
        self._log.warn(
            "enrolling {node} failed, trying again in {pause:.1f} seconds: {error}",
            node=self._node,
            pause=pause,
            error=self.waits_for or error,
        )

    async def _wait(self, seconds: float) -> None:
        """Wait so long, or until the clock is set and a certificate that had expired is good."""
        end = self._clock.seconds() + seconds
        was_expired = self._has_expired()
        while self._clock.seconds() < end and self._has_expired() == was_expired:
            await deferLater(self._clock, min(_LOOK_AT_CLOCK, end - self._clock.seconds()))

    async def _enroll(self, servers: Sequence[ServerAddress]) -> Credentials:
        token = self._token()
        key = self._key_to_enroll()
        return await _first_answer(
            servers,
            lambda server: enroll(self._clock, server, token, self._node, self._identifiers, key),
        )

    def _token(self) -> JoinToken:
        """Return the join token; raises :class:`StateError` with why there has to be one."""
        if self._read_token is not None:
            return self._read_token()
        current = self._credentials
        missing = [] if current is None else self._uncovered(current)
        if missing:
            raise StateError(
                f"the certificate of {self._node} in {self._directory.path} does not cover"
                f" {', '.join(missing)}: start with --join-token-file or --join-token to enrol it"
                " anew"
            )
        raise StateError(
            f"{self._directory.path} holds no certificate for {self._node} that is still good:"
            " start with --join-token-file or --join-token"
        )

    def _key_to_enroll(self) -> PrivateKey:
        """Return the key by which the server knows the node, or a new one.

        It is kept before it is used. If the answer is lost, the server has enrolled this key,
        and only a request with the same one gets another answer.
        """
        if self._credentials is not None:
            return self._credentials.key
        key = load_key(self._directory, PENDING_KEY)
        if key is None:
            key = new_key()
            self._directory.write(PENDING_KEY, key_to_pem(key))
        return key

    async def _renew(self, servers: Sequence[ServerAddress]) -> Credentials:
        current = self._credentials
        if current is None or utc_now(self._clock) >= current.certificate.not_valid_after_utc:
            return await self._enroll(servers)
        return await _first_answer(
            servers,
            lambda server: renew(self._clock, server, current, self._node, self._identifiers),
        )

    def _store(self, credentials: Credentials) -> None:
        # First of all: it is in use, also when there is no room for it on the disk.
        self._credentials = credentials
        save_credentials(self._directory, NODE_FILE, credentials)
        self._directory.remove(PENDING_KEY)


def _owner(directory: StateDirectory, credentials: Credentials) -> NodeIdentity:
    try:
        return identity_from_certificate(credentials.certificate)
    except BadIdentity as error:
        raise StateError(f"{directory.path / NODE_FILE}: {error}: remove it") from error


async def _first_answer(
    servers: Sequence[ServerAddress], ask: Callable[[ServerAddress], Awaitable[Credentials]]
) -> Credentials:
    """Ask one server after the other, whatever is wrong with those before.

    When none gives credentials and one may do so later, :class:`EnrolmentFailed` says what is
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
