"""Objects that are there for long, which the collector of garbage need not look at again and again.

A full collection looks at all there are, and stops the process meanwhile: for 50 ms where that
serves 1,000 Services with 10,000 endpoints. What a scrape makes of so many brings one about.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping

from twisted.application.service import Service

LONGEST = 0.01
"""Seconds that a full collection may take before what it has left is set aside: as long as some
pieces of a page (:data:`yurttunnel.ops.slices.SLICE_SECONDS`)."""

GROWTH = 2
"""How many times as much may have been set aside as when all had been looked at."""

_FULL = 2
"""The generation of a full collection."""


class LongLived(Service):
    """Sets aside what a full collection has left that took long, so that the next ones do not.

    What is set aside goes when nobody refers to it any more; only what refers to itself, in a
    circle, stays until all is looked at again. That comes when :data:`GROWTH` times as much has
    been set aside, what has gone since included, as there was the last time. ``elapsed()`` is a
    clock in seconds. Of several in a process, as in the quickstart, the first one sees to that.
    """

    def __init__(self, elapsed: Callable[[], float] = time.perf_counter) -> None:
        self._elapsed = elapsed
        self._began: float | None = None
        # How much has been set aside; 0 where the next full collection looks at all.
        self._aside = self._most = 0

    def startService(self) -> None:
        super().startService()
        gc.callbacks.append(self._told)

    def stopService(self) -> None:
        """Have all looked at, as before."""
        super().stopService()
        if self._told in gc.callbacks:
            gc.callbacks.remove(self._told)
        self._began = None
        self._look_at_all()

    def _told(self, phase: str, about: Mapping[str, int]) -> None:
        """Take what the collector tells, which works in any thread."""
        if about["generation"] != _FULL or not self._is_first:
            return
        if phase == "start":
            self._began = self._elapsed()
        elif self._began is not None:
            took, self._began = self._elapsed() - self._began, None
            if took > LONGEST:
                self._set_aside()

    @property
    def _is_first(self) -> bool:
        ours = (each for each in gc.callbacks if getattr(each, "__func__", None) is LongLived._told)
        return next(ours, None) == self._told

    def _set_aside(self) -> None:
        # What the collection has looked at; to count all that is set aside would take longer.
        self._aside += len(gc.get_objects())
        gc.freeze()
        if not self._most:
            self._most = GROWTH * self._aside
        elif self._aside > self._most:
            self._look_at_all()

    def _look_at_all(self) -> None:
        gc.unfreeze()
        self._aside = self._most = 0
