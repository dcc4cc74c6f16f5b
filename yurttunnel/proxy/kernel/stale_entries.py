"""Conntrack entries that lead a client to an endpoint that no longer responds.

The kernel assigns a client's first packet to an earlier connection from the same port while that
has an entry: for 10 s after a reset, and for days if the reset was lost
(``nf_conntrack_tcp_timeout_close`` and ``_established``). If the endpoint of that connection does
not respond, the entry is deleted, and the client's next packet, after 1 s (RFC 6298), follows the
rules.
"""

from __future__ import annotations

from collections.abc import Callable

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from yurttunnel.ops.log import RateLimitedLog
from yurttunnel.proxy.kernel.failure_detector import RECENT_SECONDS, FailureDetector
from yurttunnel.proxy.kernel.prober import Outcome
from yurttunnel.proxy.kernel.targets import Attempt, Target
from yurttunnel.proxy.state.virtual_services import Endpoint
from yurttunnel.steering.failures import SteeringFailed

MAX_WAITING = 128
"""The maximum number of attempts by stale entries that wait for the probe of one endpoint."""


class StaleEntries:
    """Deletes stale entries by ``delete_entry``, once ``probe`` has found that nothing responds."""

    _log = Logger()

    def __init__(
        self,
        clock: IReactorTime,
        delete_entry: Callable[[Attempt], None],
        probe: Callable[[Endpoint], Deferred[Outcome]],
        detector: FailureDetector,
    ) -> None:
        self._delete_entry = delete_entry
        self._probe = probe
        self._detector = detector
        self._limited = RateLimitedLog(clock, self._log)
        self._waiting: dict[Target, list[Attempt]] = {}

    def refused(self, attempt: Attempt) -> None:
        """Handle a refusal of a client that such an entry has led to the endpoint.

        It may come from a firewall, and concern only that client.
        """
        self._delete_entries([attempt])
        self._detector.suspect(attempt.target)

    def attempted(self, attempt: Attempt) -> None:
        """Handle an attempt that follows such an entry.

        Whether it will be answered is not known: an endpoint that has been removed from its
        services may continue to serve.
        """
        waiting = self._waiting.setdefault(attempt.target, [])
        if len(waiting) < MAX_WAITING:
            waiting.append(attempt)
        if len(waiting) == 1:
            probing = self._probe(attempt.target.endpoint)
            _ = probing.addBoth(self._probed, attempt.target).addErrback(self._failed)

    def _probed(self, outcome: Outcome | Failure, target: Target) -> Failure | None:
        attempts = self._waiting.pop(target)
        if isinstance(outcome, Failure):
            return outcome
        # Something may block our probes to an endpoint that answers clients.
        is_silent = outcome is Outcome.SILENT and not self._detector.has_answered(
            target, RECENT_SECONDS
        )
        if outcome is Outcome.REFUSED:
            self._detector.refused(target)
        elif is_silent:
            self._detector.suspect(target)
        if outcome is Outcome.REFUSED or is_silent:
            self._delete_entries(attempts)
        return None

    def _delete_entries(self, attempts: list[Attempt]) -> None:
        for attempt in attempts:
            try:
                self._delete_entry(attempt)
            except SteeringFailed as error:
                self._limited.warn(
                    "A client of {target} keeps that endpoint, which does not respond: {error}",
                    target=attempt.target,
                    error=error,
                )

    def _failed(self, failure: Failure) -> None:
        # Probes are cancelled at the end of the process.
        if failure.check(CancelledError) is None:
            self._log.failure("An endpoint cannot be probed", failure)
