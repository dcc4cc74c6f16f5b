"""When the rules of the firewall have to be read: that costs more, the more of them others have."""

from __future__ import annotations

from collections.abc import Mapping

from twisted.internet.interfaces import IReactorTime

LEAST_PAUSE = 5.0
"""Seconds between two looks at the rules. Others, such as kube-proxy, change theirs often."""

MOST_SHARE = 20
"""The pause after a look is at least so many times the processor time that its programs have taken:
on a node with 22,000 rules of kube-proxy that is a second. How long a look waits does not count, so
that a machine that is busy is not left without rules for longer than another."""

BLIND_PAUSE = 10.0
"""Seconds after which sets are looked at, and rules too where the kernel does not count changes. A
flush by others, as by a reload of firewalld, is repaired after so long at the latest."""

OVERDUE_SECONDS = 10.0
"""How long a look may fail to come, after its time, before that is a problem to tell of."""

Generations = Mapping[int, int | None]
"""What :meth:`IFirewall.generation` gives, by the version of IP."""


class ProbeSchedule:
    """Knows what the rules were at the last look, and says when there has to be another.

    ``longest_pause`` is in seconds: whatever a look costs, the pause after it is no longer, unless
    that is less than :data:`LEAST_PAUSE`.
    """

    def __init__(self, clock: IReactorTime, longest_pause: float) -> None:
        self._clock = clock
        self._longest_pause = max(LEAST_PAUSE, longest_pause)
        self._found: Generations | None = None
        self._ended_at = 0.0
        self._saw_sets_at = 0.0
        self._pause = LEAST_PAUSE
        self._again = False

    def ended(self, cost: float, before: Generations, after: Generations, changed: bool) -> None:
        """A look has ended well whose programs have taken ``cost`` seconds of a processor.

        ``before`` and ``after`` it the generations were these; ``changed`` says that it has made
        changes. Then there is another look, since others may have made some between the reading
        and the writing. What is changed without a look is none, and is not told here: where the
        generation shows it, a look comes after the pause.
        """
        self._ended_at = self._clock.seconds()
        self._pause = min(max(LEAST_PAUSE, MOST_SHARE * cost), self._longest_pause)
        self._found = after if changed else before
        self._again = changed

    def saw_sets(self) -> None:
        """Sets have been looked at, as each sync does, with rules or without."""
        self._saw_sets_at = self._clock.seconds()

    def failed(self) -> None:
        """What the rules are is not known."""
        self._found = None

    def is_due(self, generations: Generations) -> bool:
        """Whether rules have to be read, since somebody may have changed them."""
        if self._found is None:
            return True
        return self._has_paused(self._pause) and self._may_differ(generations)

    def wants_sync(self, generations: Generations) -> bool:
        """Whether there should be a sync before the period is over."""
        if self._found is None or not self._has_paused(self._pause):
            return False
        if self._again or self._is_past(self._saw_sets_at, BLIND_PAUSE):
            return True
        if None in generations.values():
            return self._has_paused(BLIND_PAUSE)
        return generations != self._found

    def is_overdue(self, generations: Generations) -> bool:
        """Whether somebody may have changed the rules, and the look at them does not come."""
        latest = max(self._pause, BLIND_PAUSE) + OVERDUE_SECONDS
        return (
            self._found is not None and self._may_differ(generations) and self._has_paused(latest)
        )

    def _may_differ(self, generations: Generations) -> bool:
        return self._again or generations != self._found or None in generations.values()

    def _has_paused(self, seconds: float) -> bool:
        """Whether the last look is so long ago."""
        return self._is_past(self._ended_at, seconds)

    def _is_past(self, since: float, seconds: float) -> bool:
        """Whether so many seconds are over; a clock that was set back does not prolong them."""
        return not 0 <= self._clock.seconds() - since < seconds
