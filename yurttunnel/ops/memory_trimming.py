"""Returns memory that this process has freed to the system.

The allocator of glibc keeps free memory that lies below memory in use. Incomplete TLS handshakes
take 50 KiB each, so after 1,024 of them 50 MiB would stay in the process for good.
"""

from __future__ import annotations

import ctypes
import resource
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
