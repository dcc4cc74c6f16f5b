"""Memory that this process has freed, given back to the system.

The allocator of glibc keeps what is free below something that is still in use. TLS handshakes that
never end take 50 KiB each, so 1,024 of them would leave 50 MiB in the process for good.
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
"""Seconds between two looks at what is free."""

KEPT = 8 * 1024 * 1024
"""Bytes that may have been freed since the last time and are kept for what comes next."""


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
    """The heap of this process; raises ``AttributeError`` where the C library is another one.

    mallinfo2(3) is there since glibc 2.33.
    """

    def __init__(self) -> None:
        library = ctypes.CDLL(None)
        self._info = library.mallinfo2
        self._info.restype = _MallInfo2
        self._trim = library.malloc_trim

    def free(self) -> int:
        """Count the bytes that are free; it does not matter whether they have been given back."""
        free: int = self._info().fordblks
        return free

    def resident(self) -> int:
        """Count the bytes of the whole process that are in memory.

        It raises ``OSError`` when there is no descriptor to ask by.
        """
        return int(Path("/proc/self/statm").read_bytes().split()[1]) * resource.getpagesize()

    def give_back(self) -> None:
        """Return to the system the whole pages that are free."""
        self._trim(0)


@cache
def _heap() -> GlibcHeap | None:
    try:
        return GlibcHeap()
    except AttributeError:
        return None


class FreedMemory(Service):
    """Gives back what is free on ``heap``, each time that more than :data:`KEPT` may have come.

    That is when so much more is free than at some look since the last time, or, as what comes and
    goes between two looks shows, so much more is in memory. Without a heap that can it does
    nothing. It takes 7 ms for 50 MiB.
    """

    _log = Logger()

    def __init__(self, clock: IReactorTime, heap: GlibcHeap | None = None) -> None:
        self._heap = heap or _heap()
        self._least_free = 0
        self._resident = 0
        self._looks = LoopingCall(self._look)
        self._looks.clock = clock

    def startService(self) -> None:
        super().startService()
        if self._heap is not None:
            _ = self._looks.start(INTERVAL, now=False).addErrback(self._defect)

    def stopService(self) -> None:
        super().stopService()
        if self._looks.running:
            self._looks.stop()

    def _look(self) -> None:
        heap = self._heap
        assert heap is not None
        free = heap.free()
        self._least_free = min(self._least_free, free)
        try:
            if max(free - self._least_free, heap.resident() - self._resident) > KEPT:
                heap.give_back()
                self._least_free, self._resident = heap.free(), heap.resident()
        except OSError as error:
            # All descriptors are in use. The next look will do as well.
            self._log.debug("cannot tell what is in memory: {error}", error=error)

    def _defect(self, failure: Failure) -> None:
        self._log.failure("Defect: freed memory is not given back any longer", failure)
