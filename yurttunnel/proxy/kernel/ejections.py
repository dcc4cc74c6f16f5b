"""Endpoints that do not respond, and are ejected until they do."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from yurttunnel.ops.backoff import exponential
from yurttunnel.ops.log import RateLimitedLog
from yurttunnel.proxy.interfaces import EndpointStats
from yurttunnel.proxy.kernel.prober import Outcome
from yurttunnel.proxy.kernel.targets import Target
from yurttunnel.proxy.state.virtual_services import Endpoint, Protocol

FIRST_SECONDS, MAX_SECONDS = 1.0, 30.0
"""The first and the longest time in seconds until an ejected endpoint is probed. UDP endpoints
cannot be probed: they return after :data:`UDP_FACTOR` times as long."""

UDP_FACTOR = 10.0

TRIAL_SECONDS = 60.0
"""Seconds after which an endpoint that does not respond to probes returns all the same: a network
policy may block this machine, and not the clients. If it is really dead, one client waits for a
second."""


@dataclass(slots=True)
class _Health:
    """The state of an endpoint that has failed; ``since`` and ``until`` limit an ejection.

    ``consecutive`` is the number of ejections, and of probes during one, since a client was last
    answered. ``in_doubt`` is whether it is being probed earlier than scheduled, ``returned`` when
    it was last used again.
    """

    failures: int = 0
    consecutive: int = 0
    why: str = ""
    since: float = 0.0
    until: float | None = None
    returned: float = 0.0
    in_doubt: bool = False


class Ejections:
    """Records which endpoints are ejected.

    ``probe`` probes an endpoint. The callbacks in ``on_changed`` are called with a target that is
    ejected, returns, or is no longer in doubt; afterwards those in ``on_ejected`` with one that is
    ejected.
    """

    _log = Logger()

    def __init__(self, clock: IReactorTime, probe: Callable[[Endpoint], Deferred[Outcome]]) -> None:
        self._clock = clock
        self._probe = probe
        self._limited = RateLimitedLog(clock, self._log)
        self._known: dict[Target, _Health] = {}
        self._scheduled: dict[Target, IDelayedCall] = {}
        self.on_changed: list[Callable[[Target], object]] = []
        self.on_ejected: list[Callable[[Target], object]] = []

    def is_ejected(self, protocol: Protocol, endpoint: Endpoint) -> bool:
        """Return whether an endpoint is left out if there are others."""
        if not self._scheduled:
            return False
        health = self._known.get(Target(protocol, endpoint))
        return health is not None and health.until is not None

    def is_in_doubt(self, protocol: Protocol, endpoint: Endpoint) -> bool:
        """Return whether an ejected endpoint is being probed, and may be back."""
        health = self._known.get(Target(protocol, endpoint))
        return health is not None and health.in_doubt

    def reconsider(self, targets: Collection[Target]) -> None:
        """Probe ejected endpoints at once, because their services have no others.

        UDP endpoints cannot be probed.
        """
        for target in targets:
            health, scheduled = self._known.get(target), self._scheduled.get(target)
            if health is None or scheduled is None or target.protocol is Protocol.UDP:
                continue
            health.in_doubt = True
            if scheduled.active():
                scheduled.cancel()
                # It replaces the scheduled probe, so the interval stays the same.
                health.consecutive -= 1
                self._probe_due(target, health)

    def eject(self, target: Target, outcome: Outcome) -> None:
        """Eject an endpoint; an ejection in progress stays as it is."""
        health = self._known.setdefault(target, _Health())
        health.failures += 1
        health.why = outcome.value
        if health.until is not None:
            return
        health.since = self._clock.seconds()
        if target.protocol is Protocol.UDP and health.since - health.returned >= MAX_SECONDS:
            # UDP answers are not reported, but refusals would have been.
            health.consecutive = 0
        self._schedule_probe(target, health)
        self._limited.warn(
            "Endpoint {target} is excluded where its Services have others: {why}; it is probed"
            " until it responds",
            target=target,
            why=outcome.value,
        )
        self._changed(target)
        for callback in self.on_ejected:
            callback(target)

    def answered(self, target: Target) -> None:
        """Record that a client was answered, so that the next failure counts as the first."""
        health = self._known.get(target)
        if health is not None:
            health.consecutive = 0

    def retain(self, targets: Callable[[Target], bool]) -> None:
        """Drop endpoints for which ``targets`` is false, because no service has them any more."""
        for target in [each for each in self._known if not targets(each)]:
            del self._known[target]
            self._cancel_probe(target)

    def endpoints(self, protocol: Protocol, endpoints: Collection[Endpoint]) -> list[EndpointStats]:
        """Return the state of endpoints; without their connections, which only the kernel knows."""
        stats = []
        for each in endpoints:
            health = self._known.get(Target(protocol, each)) or _Health()
            stats.append(EndpointStats(each, 0, health.failures, health.why, health.until))
        return stats

    def stop(self) -> None:
        """Stop probing."""
        for target in list(self._scheduled):
            self._cancel_probe(target)

    def _schedule_probe(self, target: Target, health: _Health) -> None:
        seconds = exponential(health.consecutive, FIRST_SECONDS, MAX_SECONDS)
        if target.protocol is Protocol.UDP:
            seconds *= UDP_FACTOR
        health.consecutive += 1
        health.until = self._clock.seconds() + seconds
        self._scheduled[target] = self._clock.callLater(seconds, self._probe_due, target, health)

    def _cancel_probe(self, target: Target) -> None:
        scheduled = self._scheduled.pop(target, None)
        if scheduled is not None and scheduled.active():
            scheduled.cancel()

    def _probe_due(self, target: Target, health: _Health) -> None:
        if target.protocol is Protocol.UDP:
            self._readmit(target, health)
            return
        probing = self._probe(target.endpoint)
        _ = probing.addCallback(self._probed, target, health).addErrback(self._failed)

    def _probed(self, outcome: Outcome, target: Target, health: _Health) -> None:
        if self._known.get(target) is not health or target not in self._scheduled:
            # The endpoint was dropped, or the ejection has ended.
            return
        was_in_doubt, health.in_doubt = health.in_doubt, False
        elapsed = self._clock.seconds() - health.since
        if outcome is Outcome.ANSWERED or (outcome is Outcome.SILENT and elapsed >= TRIAL_SECONDS):
            self._readmit(target, health)
        else:
            health.why = outcome.value
            self._schedule_probe(target, health)
            if was_in_doubt:
                self._changed(target)

    def _readmit(self, target: Target, health: _Health) -> None:
        health.until = None
        health.returned = self._clock.seconds()
        self._cancel_probe(target)
        self._log.info("Endpoint {target} is used again", target=target)
        self._changed(target)

    def _changed(self, target: Target) -> None:
        for callback in self.on_changed:
            callback(target)

    def _failed(self, failure: Failure) -> None:
        # Probes are cancelled at the end of the process.
        if failure.check(CancelledError) is None:
            self._log.failure("An ejected endpoint cannot be probed", failure)
