"""The server's side of the enrolment protocol."""

from __future__ import annotations

from twisted.internet.interfaces import IAddress, IDelayedCall, IReactorTime, ISSLTransport
from twisted.internet.protocol import Factory, connectionDone
from twisted.logger import Logger
from twisted.protocols.basic import Int32StringReceiver
from twisted.python.failure import Failure

from yurttunnel.http.authority import display_host
from yurttunnel.http.evicting_set import EvictingSet
from yurttunnel.ops.clocks import utc_now
from yurttunnel.ops.log import RateLimitedLog
from yurttunnel.pki.admission import Admission
from yurttunnel.pki.contexts import peer_certificate
from yurttunnel.pki.directory import StateError
from yurttunnel.pki.enrolment_messages import (
    MAX_MESSAGE_LENGTH,
    BadMessage,
    EnrolmentRefused,
    EnrolmentRequest,
    Refusal,
    encode_refusal,
    encode_time,
    is_time_request,
)

REQUEST_DEADLINE = 10.0
"""Seconds until the request must be complete, however slowly it arrives."""
MAX_CONNECTIONS = 256
"""Concurrent connections, each of which may hold 64 KiB of a request; the oldest is evicted."""
CLOSE_DEADLINE = 5.0
"""Seconds for the agent to read the response and close."""
PROBLEM_SECONDS = 900.0
"""Seconds for which a failed write of a record is reported; agents retry more often."""


class EnrolmentFailures:
    """Logs and reports rejected enrolments, over all connections."""

    _log = Logger()

    def __init__(self, clock: IReactorTime) -> None:
        self._clock = clock
        self._limited = RateLimitedLog(clock, self._log)
        self._storage_problem = ""
        self._since = 0.0

    def problem(self) -> str | None:
        """Return why valid enrolments failed recently."""
        if not self._storage_problem or self._clock.seconds() - self._since >= PROBLEM_SECONDS:
            return None
        return f"nodes get no certificates: {self._storage_problem}"

    def refused(self, address: str, refused: EnrolmentRefused) -> None:
        """Log a rejection."""
        # Each code has its own format and rate limit, so strangers cannot suppress other messages.
        self._limited.warn(
            f"enrolment from {{address}}: {{text}} ({refused.code})",
            address=address,
            text=refused.text,
        )

    def not_stored(self, address: str, error: StateError) -> None:
        """Log that a node's record cannot be written, and report it for a while."""
        self._storage_problem, self._since = str(error), self._clock.seconds()
        self._limited.error(
            "no certificate for a node at {address}, whose record cannot be stored: {error}",
            address=address,
            error=error,
        )

    def stored(self) -> None:
        """Note that a node's record has been written."""
        self._storage_problem = ""


class EnrolmentProtocol(Int32StringReceiver):
    """Answers one request on a TLS connection with ALPN ``yurttunnel-enroll/1``."""

    transport: ISSLTransport
    MAX_LENGTH = MAX_MESSAGE_LENGTH
    _log = Logger()

    def __init__(
        self,
        clock: IReactorTime,
        admission: Admission,
        open_connections: EvictingSet[EnrolmentProtocol],
        failures: EnrolmentFailures,
    ) -> None:
        self._clock = clock
        self._admission = admission
        self._open = open_connections
        self._failures = failures
        self._deadline: IDelayedCall | None = None
        self._answered = False
        self._address = "an unknown address"

    def connectionMade(self) -> None:
        peer = self.transport.getPeer()
        self._address = display_host(getattr(peer, "host", str(peer)))
        self._open.add(self)
        self._deadline = self._clock.callLater(REQUEST_DEADLINE, self._request_timed_out)

    def dataReceived(self, data: bytes) -> None:
        """Collect the request; ignore data after it."""
        if not self._answered:
            super().dataReceived(data)

    def stringReceived(self, string: bytes) -> None:
        if self._answered:
            return
        try:
            if is_time_request(string):
                self._answer(encode_time(utc_now(self._clock)))
                return
            request = EnrolmentRequest.decode(string)
            presented = peer_certificate(self.transport)
            answer = self._admission.decide(request, presented, self._address).encode()
        except BadMessage as error:
            self._refuse(EnrolmentRefused(Refusal.BAD_REQUEST, str(error)))
        except EnrolmentRefused as error:
            self._refuse(error)
        except StateError as error:
            self._failures.not_stored(self._address, error)
            text = f"the server cannot store this node's record: {error}"
            self._answer(encode_refusal(EnrolmentRefused(Refusal.UNAVAILABLE, text)))
        except Exception:
            self._log.failure("enrolling a node for {address} failed", address=self._address)
            self._refuse(EnrolmentRefused(Refusal.INTERNAL, "the server failed: see its log"))
        else:
            self._failures.stored()
            self._answer(answer)

    def lengthLimitExceeded(self, length: int) -> None:
        """Reject a request that is too long, from its length alone."""
        self._refuse(
            EnrolmentRefused(
                Refusal.BAD_REQUEST,
                f"the request has {length} bytes, more than {MAX_MESSAGE_LENGTH}",
            )
        )

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self._answered = True
        self._open.discard(self)
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def evicted(self) -> None:
        """Abort the connection to make room for a newer one."""
        if not self._answered:
            text = f"no request had arrived when there were {MAX_CONNECTIONS} newer connections"
            self._failures.refused(self._address, EnrolmentRefused(Refusal.TIMEOUT, text))
        self._answered = True
        self.transport.abortConnection()

    def _request_timed_out(self) -> None:
        self._deadline = None
        text = f"no request arrived within {REQUEST_DEADLINE:.0f} seconds"
        self._refuse(EnrolmentRefused(Refusal.TIMEOUT, text))

    def _refuse(self, refused: EnrolmentRefused) -> None:
        self._failures.refused(self._address, refused)
        self._answer(encode_refusal(refused))

    def _answer(self, content: bytes) -> None:
        self._answered = True
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = self._clock.callLater(CLOSE_DEADLINE, self._abort)
        self.sendString(content)
        self.transport.loseConnection()

    def _abort(self) -> None:
        self._deadline = None
        self.transport.abortConnection()


class EnrolmentFactory(Factory):
    """Creates an :class:`EnrolmentProtocol` for each connection.

    There are at most :data:`MAX_CONNECTIONS`, because unauthenticated clients can open them.
    """

    noisy = False

    def __init__(self, clock: IReactorTime, admission: Admission) -> None:
        self._clock = clock
        self._admission = admission
        self._open = EvictingSet(MAX_CONNECTIONS, EnrolmentProtocol.evicted)
        self._failures = EnrolmentFailures(clock)

    def problem(self) -> str | None:
        """Return, for ``/readyz``, why valid enrolments failed recently."""
        return self._failures.problem()

    def buildProtocol(self, addr: IAddress | None) -> EnrolmentProtocol:
        protocol = EnrolmentProtocol(self._clock, self._admission, self._open, self._failures)
        protocol.factory = self
        return protocol
