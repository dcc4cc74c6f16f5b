"""Finding out which endpoints do not answer, from what the kernel tells of clients' attempts.

A client whose first packet gets no answer sends it again after 1 s (RFC 6298). Until then the
endpoint is found out, ejected, and the attempt forgotten: that takes :data:`ANSWER` and the time of
a probe. All endpoints that the client might be led to instead are probed with it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from yurttunnel.ops.log import RateLimitedLog
from yurttunnel.proxy.kernel.ejections import Ejections
from yurttunnel.proxy.kernel.prober import Outcome
from yurttunnel.proxy.kernel.targets import Attempt, Target
from yurttunnel.proxy.state.virtual_services import Endpoint, Protocol
from yurttunnel.steering.failures import SteeringFailed

ANSWER = 0.15
"""Seconds after which an attempt that has no answer is suspicious."""

MOST_ATTEMPTS = 4096
"""That wait to be looked at; the rules tell of 500 in a second."""

RECENT = 1.0
"""Seconds for which an endpoint that has answered is not probed for its neighbors' sake."""

MOST_SIBLINGS = 63
"""Of an endpoint's neighbors that are probed with it."""


class Suspicion:
    """Suspects endpoints, probes and ejects them.

    ``is_answered`` is asked for the kernel's view of an attempt, ``siblings`` for the other
    endpoints of a target's services: ``None`` where it belongs to none.
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
        self._attempts: deque[tuple[float, Attempt]] = deque(maxlen=MOST_ATTEMPTS)
        self._looking: IDelayedCall | None = None
        self._answered: dict[Target, float] = {}
        self._probing: set[Target] = set()

    def tried(self, attempt: Attempt) -> None:
        """Take a client's attempt."""
        self._attempts.append((self._clock.seconds() + ANSWER, attempt))
        if self._looking is None:
            self._looking = self._clock.callLater(ANSWER, self._look)

    def refused(self, target: Target) -> None:
        """Learn that nobody serves at an endpoint."""
        siblings = self._siblings(target)
        if siblings is None:
            return
        self._ejections.eject(target, Outcome.REFUSED)
        if target.protocol is Protocol.TCP:
            self._examine(target, siblings, suspected=False)

    def stop(self) -> None:
        """Look at no more attempts."""
        self._attempts.clear()
        if self._looking is not None:
            self._looking.cancel()
            self._looking = None

    def _look(self) -> None:
        now = self._clock.seconds()
        self._looking = None
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
            self._looking = self._clock.callLater(self._attempts[0][0] - now, self._look)

    def _note_answer(self, target: Target) -> None:
        self._answered.pop(target, None)
        self._answered[target] = self._clock.seconds()
        self._ejections.answered(target)
        while len(self._answered) > MOST_ATTEMPTS:
            del self._answered[next(iter(self._answered))]

    def suspect(self, target: Target) -> None:
        """Find out whether an endpoint is dead, and others that a client may be led to instead."""
        siblings = self._siblings(target)
        if siblings is not None and not self._ejections.is_ejected(*target):
            self._examine(target, siblings, suspected=True)

    def _examine(self, target: Target, siblings: Collection[Endpoint], *, suspected: bool) -> None:
        """Probe a target that is suspected, and its siblings that may be dead as well."""
        others = [Target(target.protocol, each) for each in siblings]
        others = [each for each in others if not self._ejections.is_ejected(*each)]
        doubtful = [each for each in others if not self.has_answered(each, RECENT)]
        examined = [*([target] if suspected else []), *doubtful[:MOST_SIBLINGS]]
        examined = [each for each in examined if each not in self._probing]
        if not examined:
            return
        self._probing.update(examined)
        some_answer = len(doubtful) < len(others)
        examination = _Examination(self._clock.seconds(), target, some_answer, len(examined))
        for each in examined:
            probing = self._probe(each.endpoint)
            _ = probing.addCallback(self._probed, each, examination)
            _ = probing.addErrback(self._failed).addBoth(self._end, each, examination)

    def _probed(self, outcome: Outcome, target: Target, examination: _Examination) -> None:
        if outcome is Outcome.ANSWERED:
            examination.some_answer = True
            self._answered[target] = self._clock.seconds()
        elif outcome is Outcome.REFUSED:
            self._eject(target, outcome)
        elif outcome is Outcome.SILENT:
            examination.silent.append(target)

    def _end(self, _: object, target: Target, examination: _Examination) -> None:
        self._probing.discard(target)
        examination.left -= 1
        self._conclude(examination)

    def _conclude(self, examination: _Examination) -> None:
        """Eject those that are silent, once all has been heard.

        Where no endpoint answers our probes, something may keep those from all of them: then only
        the one is ejected that has not answered a client either.
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
        """Return whether a target has answered within the last seconds."""
        at = self._answered.get(target)
        return at is not None and self._clock.seconds() - at <= seconds

    def _failed(self, failure: Failure) -> None:
        # It is cancelled at the end of the process.
        if failure.check(CancelledError) is None:
            self._log.failure("An endpoint cannot be probed", failure)


class _Examination:
    """Probes that were begun together; ``left`` are those that are under way."""

    def __init__(self, since: float, suspected: Target, some_answer: bool, left: int) -> None:
        self.since = since
        self.suspected = suspected
        self.some_answer = some_answer
        self.left = left
        self.silent: list[Target] = []
