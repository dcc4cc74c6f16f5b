"""The server's end of the enrolment exchange."""

from __future__ import annotations

from twisted.internet.interfaces import IAddress, IDelayedCall, IReactorTime, ISSLTransport
from twisted.internet.protocol import Factory, connectionDone
from twisted.logger import Logger
from twisted.protocols.basic import Int32StringReceiver
from twisted.python.failure import Failure

from yurttunnel.http.authority import known_host
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
    asks_for_time,
    encode_refusal,
    encode_time,
)

REQUEST_DEADLINE = 10.0
"""Seconds in which the request must have arrived, however slowly it is sent."""
MAX_CONNECTIONS = 256
"""Connections at the same time, of which each may hold 64 KiB of a request; the oldest makes room.
"""
CLOSE_DEADLINE = 5.0
"""Seconds in which the agent must have taken the answer and closed."""
REMEMBERED = 900.0
"""Seconds for which a record that could not be written is told of; agents ask more often."""


class EnrolmentTroubles:
    """What the operator is told of requests that were refused, over all connections."""

    _log = Logger()

    def __init__(self, clock: IReactorTime) -> None:
        self._clock = clock
        self._limited = RateLimitedLog(clock, self._log)
        self._not_kept = ""
        self._since = 0.0

    def problem(self) -> str | None:
        """Return why nodes got no certificates lately though they may have them."""
        if not self._not_kept or self._clock.seconds() - self._since >= REMEMBERED:
            return None
        return f"nodes get no certificates: {self._not_kept}"

    def refused(self, address: str, refused: EnrolmentRefused) -> None:
        """Log a refusal."""
        # A format for each code: what strangers cause does not hide what a node is told.
        self._limited.warn(
            f"enrolment from {{address}}: {{text}} ({refused.code})",
            address=address,
            text=refused.text,
        )

    def not_kept(self, address: str, error: StateError) -> None:
        """Log that the record of a node cannot be written, and remember it for a while."""
        self._not_kept, self._since = str(error), self._clock.seconds()
        self._limited.error(
            "no certificate for a node at {address}, whose record cannot be stored: {error}",
            address=address,
            error=error,
        )

    def kept(self) -> None:
        """Take note that the record of a node has been written."""
        self._not_kept = ""


class EnrolmentProtocol(Int32StringReceiver):
    """Answers one request on a TLS connection that chose ``yurttunnel-enroll/1``."""

    transport: ISSLTransport
    MAX_LENGTH = MAX_MESSAGE_LENGTH
    _log = Logger()

    def __init__(
        self,
        clock: IReactorTime,
        admission: Admission,
        open_connections: EvictingSet[EnrolmentProtocol],
        troubles: EnrolmentTroubles,
    ) -> None:
        self._clock = clock
        self._admission = admission
        self._open = open_connections
        self._troubles = troubles
        self._deadline: IDelayedCall | None = None
        self._answered = False
        self._address = "an unknown address"

    def connectionMade(self) -> None:
        peer = self.transport.getPeer()
        self._address = known_host(getattr(peer, "host", str(peer)))
        self._open.begin(self)
        self._deadline = self._clock.callLater(REQUEST_DEADLINE, self._too_slow)

    def dataReceived(self, data: bytes) -> None:
        """Collect the request; what comes after it is dropped."""
        if not self._answered:
            super().dataReceived(data)

    def stringReceived(self, string: bytes) -> None:
        if self._answered:
            return
        try:
            if asks_for_time(string):
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
            self._troubles.not_kept(self._address, error)
            text = f"the server cannot keep this node's record: {error}"
            self._answer(encode_refusal(EnrolmentRefused(Refusal.UNAVAILABLE, text)))
        except Exception:
            self._log.failure("enrolling a node for {address} failed", address=self._address)
            self._refuse(EnrolmentRefused(Refusal.INTERNAL, "the server failed: see its log"))
        else:
            self._troubles.kept()
            self._answer(answer)

    def lengthLimitExceeded(self, length: int) -> None:
        """Refuse a request that is too long, from its length alone."""
        self._refuse(
            EnrolmentRefused(
                Refusal.BAD_REQUEST,
                f"the request has {length} bytes, more than {MAX_MESSAGE_LENGTH}",
            )
        )

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self._answered = True
        self._open.end(self)
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def evicted(self) -> None:
        """Hang up, so that there is room for a connection that is newer."""
        if not self._answered:
            text = f"no request had arrived when {MAX_CONNECTIONS} newer connections were there"
            self._troubles.refused(self._address, EnrolmentRefused(Refusal.TIMEOUT, text))
        self._answered = True
        self.transport.abortConnection()

    def _too_slow(self) -> None:
        self._deadline = None
        text = f"no request arrived within {REQUEST_DEADLINE:.0f} seconds"
        self._refuse(EnrolmentRefused(Refusal.TIMEOUT, text))

    def _refuse(self, refused: EnrolmentRefused) -> None:
        self._troubles.refused(self._address, refused)
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
    """Makes an :class:`EnrolmentProtocol` for each connection.

    There are at most :data:`MAX_CONNECTIONS` of them: whoever reaches the port can open them.
    """

    noisy = False

    def __init__(self, clock: IReactorTime, admission: Admission) -> None:
        self._clock = clock
        self._admission = admission
        self._open = EvictingSet(MAX_CONNECTIONS, EnrolmentProtocol.evicted)
        self._troubles = EnrolmentTroubles(clock)

    def problem(self) -> str | None:
        """Return, for ``/readyz``, why nodes got no certificates lately that they may have."""
        return self._troubles.problem()

    def buildProtocol(self, addr: IAddress | None) -> EnrolmentProtocol:
        protocol = EnrolmentProtocol(self._clock, self._admission, self._open, self._troubles)
        protocol.factory = self
        return protocol
