"""When the firewall rules have to be read, which costs more the more rules other programs have."""

from __future__ import annotations

from collections.abc import Mapping

from twisted.internet.interfaces import IReactorTime

MIN_PAUSE = 5.0
"""The minimum pause in seconds between two checks of the rules. Other programs, such as kube-proxy,
change theirs often."""

PAUSE_FACTOR = 20
"""The pause after a check is at least this multiple of the processor time that its programs used:
on a node with 22,000 rules of kube-proxy that is a second. The time that a check waits does not
count, so that a busy machine is not left without rules for longer than another."""

RECHECK_SECONDS = 10.0
"""Seconds until sets are checked again, and rules if the kernel does not count changes. A flush by
another program, such as a reload of firewalld, is repaired after this time at the latest."""

OVERDUE_SECONDS = 10.0
"""How many seconds a check may be late before it is reported as a problem."""

Generations = Mapping[int, int | None]
"""The values of :meth:`IFirewall.generation`, by the version of IP."""


class ProbeSchedule:
    """Records the generation of the rules at the last check, and decides when the next is due.

    ``max_pause`` is in seconds: whatever a check costs, the pause after it is not longer,
    except that it is never less than :data:`MIN_PAUSE`.
    """

    def __init__(self, clock: IReactorTime, max_pause: float) -> None:
        self._clock = clock
        self._max_pause = max(MIN_PAUSE, max_pause)
        self._generations: Generations | None = None
        self._ended_at = 0.0
        self._sets_checked_at = 0.0
        self._pause = MIN_PAUSE
        self._recheck = False

    def succeeded(
        self, cost: float, before: Generations, after: Generations, changed: bool
    ) -> None:
        """Record a successful check whose programs used ``cost`` seconds of processor time.

        ``before`` and ``after`` are the generations around the check; ``changed`` means that it
        made changes. Then there is another check, because other programs may have made changes
        between the reading and the writing. Changes without a check are not recorded here: if they
        change the generation, a check follows after the pause.
        """
        self._ended_at = self._clock.seconds()
        self._pause = min(max(MIN_PAUSE, PAUSE_FACTOR * cost), self._max_pause)
        self._generations = after if changed else before
        self._recheck = changed

    def sets_checked(self) -> None:
        """Record a check of the sets, which each sync does, with or without reading rules."""
        self._sets_checked_at = self._clock.seconds()

    def failed(self) -> None:
        """Record that the state of the rules is unknown."""
        self._generations = None

    def is_due(self, generations: Generations) -> bool:
        """Return whether rules have to be read, as another program may have changed them."""
        if self._generations is None:
            return True
        return self._has_paused(self._pause) and self._may_differ(generations)

    def wants_sync(self, generations: Generations) -> bool:
        """Return whether a sync is needed before the period is over."""
        if self._generations is None or not self._has_paused(self._pause):
            return False
        if self._recheck or self._is_past(self._sets_checked_at, RECHECK_SECONDS):
            return True
        if None in generations.values():
            return self._has_paused(RECHECK_SECONDS)
        return generations != self._generations

    def is_overdue(self, generations: Generations) -> bool:
        """Return whether another program may have changed the rules, and the check is late."""
        latest = max(self._pause, RECHECK_SECONDS) + OVERDUE_SECONDS
        return (
            self._generations is not None
            and self._may_differ(generations)
            and self._has_paused(latest)
        )

    def _may_differ(self, generations: Generations) -> bool:
        return self._recheck or generations != self._generations or None in generations.values()

    def _has_paused(self, seconds: float) -> bool:
        """Return whether the last check was at least this many seconds ago."""
        return self._is_past(self._ended_at, seconds)

    def _is_past(self, since: float, seconds: float) -> bool:
        """Return whether this time has passed; a clock that is set back does not extend it."""
        return not 0 <= self._clock.seconds() - since < seconds
