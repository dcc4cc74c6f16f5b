"""Detecting endpoints that do not respond, from the attempts of clients that the kernel logs.

A client whose first packet is not answered retransmits it after 1 s (RFC 6298). By then the
endpoint must be detected and ejected, and the entry of the attempt deleted: detection takes
:data:`ANSWER_TIMEOUT` and the time of a probe. All endpoints to which the client might be sent
instead are probed as well.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from yurttunnel.ops.bounded_dict import BoundedDict
from yurttunnel.ops.log import RateLimitedLog
from yurttunnel.proxy.kernel.ejections import Ejections
from yurttunnel.proxy.kernel.prober import Outcome
from yurttunnel.proxy.kernel.targets import Attempt, Target
from yurttunnel.proxy.state.virtual_services import Endpoint, Protocol
from yurttunnel.steering.failures import SteeringFailed

ANSWER_TIMEOUT = 0.15
"""Seconds after which an attempt without an answer is suspicious."""

MAX_ATTEMPTS = 4096
"""The maximum number of attempts that wait for their check; the rules log 500 in a second."""

RECENT_SECONDS = 1.0
"""Seconds for which an endpoint that has answered is not probed when a neighbor is suspected."""

MAX_SIBLINGS = 63
"""The maximum number of an endpoint's neighbors that are probed with it."""


class FailureDetector:
    """Probes suspected endpoints, and ejects them.

    ``is_answered`` looks up an attempt in the conntrack table. ``siblings`` returns the other
    endpoints of a target's services, ``None`` if it belongs to none.
    """

    _log = Logger()

    def __init__(
        self,
        clock: IReactorTime,
        is_answered: Callable[[Attempt], bool | None],
        probe: Callable[[Endpoint], Deferred[Outcome]],
        siblings: Callable[[Target], Collection[Endpoint] | None],
        ejections: Ejections,
    ) -> None:
        self._clock = clock
        self._is_answered = is_answered
        self._probe = probe
        self._siblings = siblings
        self._ejections = ejections
        self._limited = RateLimitedLog(clock, self._log)
        self._attempts: deque[tuple[float, Attempt]] = deque(maxlen=MAX_ATTEMPTS)
        self._next_check: IDelayedCall | None = None
        self._answered = BoundedDict[Target, float](MAX_ATTEMPTS)
        self._probing: set[Target] = set()

    def attempted(self, attempt: Attempt) -> None:
        """Handle a client's attempt."""
        self._attempts.append((self._clock.seconds() + ANSWER_TIMEOUT, attempt))
        if self._next_check is None:
            self._next_check = self._clock.callLater(ANSWER_TIMEOUT, self._check_attempts)

    def refused(self, target: Target) -> None:
        """Handle a refusal by an endpoint."""
        siblings = self._siblings(target)
        if siblings is None:
            return
        self._ejections.eject(target, Outcome.REFUSED)
        if target.protocol is Protocol.TCP:
            self._examine(target, siblings, suspected=False)

    def stop(self) -> None:
        """Stop checking attempts."""
        self._attempts.clear()
        if self._next_check is not None:
            self._next_check.cancel()
            self._next_check = None

    def _check_attempts(self) -> None:
        now = self._clock.seconds()
        self._next_check = None
        while self._attempts and self._attempts[0][0] <= now:
            _, attempt = self._attempts.popleft()
            try:
                answered = self._is_answered(attempt)
            except SteeringFailed as error:
                self._limited.warn("{error}", error=error)
                continue
            if answered:
                self._note_answer(attempt.target)
            elif answered is not None:
                self.suspect(attempt.target)
        if self._attempts:
            self._next_check = self._clock.callLater(
                self._attempts[0][0] - now, self._check_attempts
            )

    def _note_answer(self, target: Target) -> None:
        self._answered[target] = self._clock.seconds()
        self._ejections.answered(target)

    def suspect(self, target: Target) -> None:
        """Probe an endpoint that may be dead, and others to which a client may be sent instead."""
        siblings = self._siblings(target)
        if siblings is not None and not self._ejections.is_ejected(*target):
            self._examine(target, siblings, suspected=True)

    def _examine(self, target: Target, siblings: Collection[Endpoint], *, suspected: bool) -> None:
        """Probe the target if it is suspected, and siblings that may be dead as well."""
        others = [Target(target.protocol, each) for each in siblings]
        others = [each for each in others if not self._ejections.is_ejected(*each)]
        doubtful = [each for each in others if not self.has_answered(each, RECENT_SECONDS)]
        examined = [*([target] if suspected else []), *doubtful[:MAX_SIBLINGS]]
        examined = [each for each in examined if each not in self._probing]
        if not examined:
            return
        self._probing.update(examined)
        some_answer = len(doubtful) < len(others)
        examination = _Examination(self._clock.seconds(), target, some_answer, len(examined))
        for each in examined:
            probing = self._probe(each.endpoint)
            _ = probing.addCallback(self._probed, each, examination)
            _ = probing.addErrback(self._failed).addBoth(self._probe_ended, each, examination)

    def _probed(self, outcome: Outcome, target: Target, examination: _Examination) -> None:
        if outcome is Outcome.ANSWERED:
            examination.some_answer = True
            self._answered[target] = self._clock.seconds()
        elif outcome is Outcome.REFUSED:
            self._eject(target, outcome)
        elif outcome is Outcome.SILENT:
            examination.silent.append(target)

    def _probe_ended(self, _: object, target: Target, examination: _Examination) -> None:
        self._probing.discard(target)
        examination.left -= 1
        self._conclude(examination)

    def _conclude(self, examination: _Examination) -> None:
        """Eject the silent endpoints, once all probes have ended.

        If no endpoint responds, something may block our probes to all of them: then only the one
        that has not answered a client either is ejected.
        """
        if examination.left:
            return
        for each in examination.silent:
            if self.has_answered(each, self._clock.seconds() - examination.since):
                continue
            if examination.some_answer or each == examination.suspected:
                self._eject(each, Outcome.SILENT)

    def _eject(self, target: Target, outcome: Outcome) -> None:
        if self._siblings(target) is not None:
            self._ejections.eject(target, outcome)

    def has_answered(self, target: Target, seconds: float) -> bool:
        """Return whether a target has answered within the last ``seconds``."""
        at = self._answered.get(target)
        return at is not None and self._clock.seconds() - at <= seconds

    def _failed(self, failure: Failure) -> None:
        # Probes are cancelled at the end of the process.
        if failure.check(CancelledError) is None:
            self._log.failure("An endpoint cannot be probed", failure)


class _Examination:
    """Probes that were started together; ``left`` is the number in progress."""

    def __init__(self, since: float, suspected: Target, some_answer: bool, left: int) -> None:
        self.since = since
        self.suspected = suspected
        self.some_answer = some_answer
        self.left = left
        self.silent: list[Target] = []
