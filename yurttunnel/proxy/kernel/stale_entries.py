"""Entries of the kernel's table by which a client is led where nobody answers.

The kernel leads a client's first packet by an entry of an earlier connection from the same port
while it has one: for 10 s after a reset, and for days where that was lost
(``nf_conntrack_tcp_timeout_close`` and ``_established``). Where the endpoint of then does not
answer, the entry is forgotten, and the client's next packet, after 1 s (RFC 6298), goes by the
rules.
"""

from __future__ import annotations

from collections.abc import Callable

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from yurttunnel.ops.log import RateLimitedLog
from yurttunnel.proxy.kernel.prober import Outcome
from yurttunnel.proxy.kernel.suspicion import RECENT, Suspicion
from yurttunnel.proxy.kernel.targets import Attempt, Target
from yurttunnel.proxy.state.virtual_services import Endpoint
from yurttunnel.steering.failures import SteeringFailed

MOST_WAITING = 128
"""Attempts at one endpoint that wait for its probe, whose clients are led by stale entries."""


class StaleEntries:
    """Has stale entries forgotten by ``forget``, once ``probe`` has found that nobody answers."""

    _log = Logger()

    def __init__(
        self,
        clock: IReactorTime,
        forget: Callable[[Attempt], None],
        probe: Callable[[Endpoint], Deferred[Outcome]],
        suspicion: Suspicion,
    ) -> None:
        self._forget = forget
        self._probe = probe
        self._suspicion = suspicion
        self._limited = RateLimitedLog(clock, self._log)
        self._waiting: dict[Target, list[Attempt]] = {}

    def refused(self, attempt: Attempt) -> None:
        """Learn that a client was refused where such an entry has led it.

        That may have been a firewall, of that client alone.
        """
        self._forget_all([attempt])
        self._suspicion.suspect(attempt.target)

    def tried(self, attempt: Attempt) -> None:
        """Take an attempt that such an entry leads.

        It is not known whether there will be an answer: an endpoint that has left its services may
        go on to serve.
        """
        waiting = self._waiting.setdefault(attempt.target, [])
        if len(waiting) < MOST_WAITING:
            waiting.append(attempt)
        if len(waiting) == 1:
            probing = self._probe(attempt.target.endpoint)
            _ = probing.addBoth(self._probed, attempt.target).addErrback(self._failed)

    def _probed(self, outcome: Outcome | Failure, target: Target) -> Failure | None:
        attempts = self._waiting.pop(target)
        if isinstance(outcome, Failure):
            return outcome
        # Something may keep our probes from an endpoint that answers clients.
        is_silent = outcome is Outcome.SILENT and not self._suspicion.has_answered(target, RECENT)
        if outcome is Outcome.REFUSED:
            self._suspicion.refused(target)
        elif is_silent:
            self._suspicion.suspect(target)
        if outcome is Outcome.REFUSED or is_silent:
            self._forget_all(attempts)
        return None

    def _forget_all(self, attempts: list[Attempt]) -> None:
        for attempt in attempts:
            try:
                self._forget(attempt)
            except SteeringFailed as error:
                self._limited.warn(
                    "A client of {target} keeps that endpoint, which does not respond: {error}",
                    target=attempt.target,
                    error=error,
                )

    def _failed(self, failure: Failure) -> None:
        # It is cancelled at the end of the process.
        if failure.check(CancelledError) is None:
            self._log.failure("An endpoint cannot be probed", failure)
