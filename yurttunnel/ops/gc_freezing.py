"""Excludes long-lived objects from repeated garbage collection.

A full collection visits all objects, and stops the process meanwhile: for 50 ms in a process that
serves 1,000 Services with 10,000 endpoints. A scrape of so many allocates enough to trigger one.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping

from twisted.application.service import Service

MIN_COLLECTION_SECONDS = 0.01
"""The duration in seconds of a full collection after which the surviving objects are frozen: as
long as some pieces of a page (:data:`yurttunnel.ops.slices.SLICE_SECONDS`)."""

MAX_GROWTH = 2
"""The growth of the number of frozen objects after which all are collected again."""

_FULL_GENERATION = 2
"""The generation of a full collection."""


class GCFreezer(Service):
    """Freezes the objects that survive a long full collection, so that later ones are short.

    A frozen object is freed when it is no longer referenced; only reference cycles stay until all
    objects are unfrozen and collected. That happens when the number of frozen objects, counting
    those freed since, is :data:`MAX_GROWTH` times what it was the last time. ``elapsed()`` is a
    clock in seconds. If a process has several of these, as the quickstart does, only the first one
    works.
    """

    def __init__(self, elapsed: Callable[[], float] = time.perf_counter) -> None:
        self._elapsed = elapsed
        self._began_at: float | None = None
        # The number of frozen objects; 0 when the next full collection visits all.
        self._frozen = self._max_frozen = 0

    def startService(self) -> None:
        super().startService()
        gc.callbacks.append(self._collected)

    def stopService(self) -> None:
        """Unfreeze all objects."""
        super().stopService()
        if self._collected in gc.callbacks:
            gc.callbacks.remove(self._collected)
        self._began_at = None
        self._unfreeze()

    def _collected(self, phase: str, info: Mapping[str, int]) -> None:
        """Handle a callback of the garbage collector, which may run in any thread."""
        if info["generation"] != _FULL_GENERATION or not self._is_first:
            return
        if phase == "start":
            self._began_at = self._elapsed()
        elif self._began_at is not None:
            took, self._began_at = self._elapsed() - self._began_at, None
            if took > MIN_COLLECTION_SECONDS:
                self._freeze()

    @property
    def _is_first(self) -> bool:
        ours = (
            each for each in gc.callbacks if getattr(each, "__func__", None) is GCFreezer._collected
        )
        return next(ours, None) == self._collected

    def _freeze(self) -> None:
        # The number of objects visited; counting all that are frozen would take longer.
        self._frozen += len(gc.get_objects())
        gc.freeze()
        if not self._max_frozen:
            self._max_frozen = MAX_GROWTH * self._frozen
        elif self._frozen > self._max_frozen:
            self._unfreeze()

    def _unfreeze(self) -> None:
        gc.unfreeze()
        self._frozen = self._max_frozen = 0
