"""Time for which programs could run: waiting for processors does not count.

A limit of a second is meant for a program that runs. On a busy machine it may not get a processor
within that second.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Protocol
from weakref import WeakSet

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime

_LINE_BYTES = 256
"""At least the length of the first lines of files in /proc that are read here."""


class Measured(Protocol):
    """A program whose waiting time is measured."""

    @property
    def running(self) -> bool:
        """Whether it runs."""
        ...

    @property
    def pid(self) -> int:
        """The id of its process."""
        ...


programs: WeakSet[Measured] = WeakSet()
"""The started programs, in addition to the process of the tests."""


def waited(pid: int) -> float:
    """Return the seconds for which the threads of a process waited for a processor.

    Threads that have ended are not included.
    """
    return sum(seconds for _, seconds in cpu_wait_by_thread(pid))


def cpu_wait_by_thread(pid: int) -> Iterator[tuple[str, float]]:
    """Yield the id of each thread of a process, and how long it waited for a processor.

    The second field of ``schedstat`` (Documentation/scheduler/sched-stats.rst), in nanoseconds.
    """
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            # The thread may have ended meanwhile.
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                yield thread, int(_first_line(f"/proc/{pid}/task/{thread}/schedstat")[1]) / 1e9


def stolen() -> float:
    """Return the total seconds for which the hypervisor ran others on this machine's processors.

    This is ``steal`` in the first line of ``/proc/stat`` (proc(5)).
    """
    return int(_first_line("/proc/stat")[8]) / os.sysconf("SC_CLK_TCK")


def _first_line(path: str) -> list[bytes]:
    """Return the fields of a file's first line, cheaply: each wait for a program does this."""
    with open(path, "rb", buffering=0) as file:
        return file.read(_LINE_BYTES).partition(b"\n")[0].split()


class Stopwatch:
    """A stopwatch that stops while this process or a program waits for a processor."""

    def __init__(self, clock: IReactorTime) -> None:
        self._clock = clock
        self._began = clock.seconds()
        self._before = dict(_all_waited())
        self._now = dict(self._before)
        self._stolen_before = stolen()

    def seconds(self) -> float:
        """Return the seconds since its creation."""
        return self._clock.seconds() - self._began - self.waited()

    def waited(self) -> float:
        """Return the total seconds for which they have waited since then, plus stolen time.

        Threads and programs that have ended count up to the previous call.
        """
        self._now.update(_all_waited())
        waited = sum(now - self._before.get(thread, 0.0) for thread, now in self._now.items())
        return waited + stolen() - self._stolen_before


class Deadline:
    """A deadline in seconds from now, not counting time in which the programs could not run."""

    def __init__(self, clock: IReactorTime, seconds: float) -> None:
        self._clock = clock
        self._seconds = seconds
        self._began = clock.seconds()
        self._watch = Stopwatch(clock)

    @property
    def passed(self) -> bool:
        """Whether the deadline has passed; waiting times are read only once it may have."""
        by_the_clock = self._clock.seconds() - self._began
        return by_the_clock > self._seconds and self._watch.seconds() > self._seconds


class Alarm:
    """Calls ``ring`` once programs could run for some seconds, unless it is canceled before."""

    def __init__(self, clock: IReactorTime, seconds: float, ring: Callable[[], object]) -> None:
        self._clock = clock
        self._seconds = seconds
        self._ring = ring
        self._watch = Stopwatch(clock)
        self._timer = clock.callLater(seconds, self._poll)
        self.has_rung = False

    def cancel(self) -> None:
        """Cancel it; it may have rung already."""
        if self._timer.active():
            self._timer.cancel()

    def _poll(self) -> None:
        left = self._seconds - self._watch.seconds()
        if left <= 0:
            self.has_rung = True
            self._ring()
        else:
            self._timer = self._clock.callLater(left, self._poll)


class DeadlineExceeded(Exception):
    """Something exceeded its deadline."""


async def within(clock: IReactorTime, seconds: float, awaitable):
    """Return the result of ``awaitable``.

    After ``seconds`` in which programs could run, cancel it and raise :class:`DeadlineExceeded`.
    """
    if hasattr(awaitable, "send"):
        awaitable = Deferred.fromCoroutine(awaitable)
    alarm = Alarm(clock, seconds, awaitable.cancel)
    try:
        return await awaitable
    finally:
        alarm.cancel()
        if alarm.has_rung:
            raise DeadlineExceeded(f"not within {seconds} s")


def _all_waited() -> Iterator[tuple[str, float]]:
    for pid in (os.getpid(), *(each.pid for each in programs if each.running)):
        yield from cpu_wait_by_thread(pid)
