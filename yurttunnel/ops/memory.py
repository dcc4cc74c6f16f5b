"""Memory that this process has freed, and objects that garbage collections need not visit.

The allocator of glibc keeps free memory that lies below memory in use. Incomplete TLS handshakes
take 50 KiB each, so after 1,024 of them 50 MiB would stay in the process for good.

A full garbage collection visits all objects, and stops the process meanwhile: for 50 ms in a
process that serves 1,000 Services with 10,000 endpoints. A scrape of so many allocates enough to
trigger one.
"""

from __future__ import annotations

import ctypes
import gc
import resource
import time
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

from twisted.application.service import Service
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import LoopingCall
from twisted.logger import Logger
from twisted.python.failure import Failure

INTERVAL = 15
"""The interval between two checks, in seconds."""

MAX_FREED = 8 * 1024 * 1024
"""The number of freed bytes that may be kept for reuse."""


class _MallInfo2(ctypes.Structure):
    """``struct mallinfo2`` of mallinfo(3)."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    )


class GlibcHeap:
    """The heap of this process; raises ``AttributeError`` with a C library other than glibc.

    It needs mallinfo2(3), which glibc has since 2.33.
    """

    def __init__(self) -> None:
        library = ctypes.CDLL(None)
        self._info = library.mallinfo2
        self._info.restype = _MallInfo2
        self._trim = library.malloc_trim

    def free(self) -> int:
        """Return the number of free bytes, whether or not they were returned to the system."""
        free: int = self._info().fordblks
        return free

    def resident(self) -> int:
        """Return the resident memory of the whole process, in bytes.

        Raises ``OSError`` when no file descriptor is free to read it.
        """
        return int(Path("/proc/self/statm").read_bytes().split()[1]) * resource.getpagesize()

    def trim(self) -> None:
        """Return whole free pages to the system."""
        self._trim(0)


@cache
def _heap() -> GlibcHeap | None:
    try:
        return GlibcHeap()
    except AttributeError:
        return None


class MemoryTrimmer(Service):
    """Returns free memory of ``heap`` to the system when more than :data:`MAX_FREED` was freed.

    That is the growth of the free memory over its minimum since the last return. Growth of the
    resident memory since then counts, too: it shows what was allocated and freed between two
    checks. Without a supported heap it does nothing. Returning 50 MiB takes 7 ms.
    """

    _log = Logger()

    def __init__(self, clock: IReactorTime, heap: GlibcHeap | None = None) -> None:
        self._heap = heap or _heap()
        self._min_free = 0
        self._resident = 0
        self._loop = LoopingCall(self._check)
        self._loop.clock = clock

    def startService(self) -> None:
        super().startService()
        if self._heap is not None:
            _ = self._loop.start(INTERVAL, now=False).addErrback(self._defect)

    def stopService(self) -> None:
        super().stopService()
        if self._loop.running:
            self._loop.stop()

    def _check(self) -> None:
        heap = self._heap
        assert heap is not None
        free = heap.free()
        self._min_free = min(self._min_free, free)
        try:
            if max(free - self._min_free, heap.resident() - self._resident) > MAX_FREED:
                heap.trim()
                self._min_free, self._resident = heap.free(), heap.resident()
        except OSError as error:
            # No file descriptor is free. The next check will do as well.
            self._log.debug("the resident memory cannot be read: {error}", error=error)

    def _defect(self, failure: Failure) -> None:
        self._log.failure("Defect: freed memory is no longer returned to the system", failure)


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
    those freed since, is :data:`MAX_GROWTH` times what it was the last time; those that were frozen
    at the start of the program (program.py) are not counted. ``elapsed()`` is a
    clock in seconds. If a process has several of these, as the quickstart does, only the first one
    works.
    """

    def __init__(self, elapsed: Callable[[], float] = time.perf_counter) -> None:
        self._elapsed = elapsed
        self._began_at: float | None = None
        # The number of objects frozen here; 0 when the next full collection visits all others.
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
