"""When the rules of the firewall have to be read: that costs more, the more of them others have."""

from __future__ import annotations

from collections.abc import Mapping

from twisted.internet.interfaces import IReactorTime

LEAST_PAUSE = 5.0
"""Seconds between two looks at the rules. Others, such as kube-proxy, change theirs often."""

MOST_SHARE = 20
"""A look begins no sooner than so many times its duration after the one before: a node with
22,000 rules of kube-proxy takes a second for each."""

BLIND_PAUSE = 10.0
"""Seconds after which sets are looked at, and rules too where the kernel does not count changes. A
flush by others, as by a reload of firewalld, is repaired after so long at the latest."""

Generations = Mapping[int, int | None]
"""What :meth:`IFirewall.generation` gives, by the version of IP."""


class Looks:
    """Knows what the rules were at the last look, and says when there has to be another."""

    def __init__(self, clock: IReactorTime) -> None:
        self._clock = clock
        self._found: Generations | None = None
        self._began_at = 0.0
        self._ended_at = 0.0
        self._pause = LEAST_PAUSE
        self._again = False

    def began(self) -> None:
        """A look begins."""
        self._began_at = self._clock.seconds()

    def ended(self, before: Generations, after: Generations, changed: bool) -> None:
        """A look has ended well.

        ``before`` and ``after`` it the generations were these; ``changed`` says that it has made
        changes. Then there is another look, since others may have made some between the reading
        and the writing.
        """
        self._ended_at = self._clock.seconds()
        self._pause = max(LEAST_PAUSE, MOST_SHARE * (self._ended_at - self._began_at))
        self._found = after if changed else before
        self._again = changed

    def failed(self) -> None:
        """What the rules are is not known."""
        self._found = None

    def is_due(self, generations: Generations) -> bool:
        """Say whether rules have to be read, since somebody may have changed them."""
        if self._found is None:
            return True
        if not self._has_paused():
            return False
        return self._again or generations != self._found or None in generations.values()

    def wants_sync(self, generations: Generations) -> bool:
        """Say whether there should be a sync before the period is over."""
        if self._found is None or not self._has_paused():
            return False
        blind = self._clock.seconds() - self._ended_at >= BLIND_PAUSE
        return (
            blind or self._again or (None not in generations.values() and self.is_due(generations))
        )

    def _has_paused(self) -> bool:
        return self._clock.seconds() - self._ended_at >= self._pause
