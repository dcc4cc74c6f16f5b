"""Time that programs had: when others had the processors does not count.

A bound of a second holds for a program that runs; beside whatever else is on the machine it may
not have had any of that second.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol
from weakref import WeakSet

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime


class Measured(Protocol):
    """A program whose time is measured."""

    @property
    def running(self) -> bool:
        """Whether it runs."""
        ...

    @property
    def pid(self) -> int:
        """The id of its process."""
        ...


programs: WeakSet[Measured] = WeakSet()
"""Those that were started, beside the process of the tests."""


def waited(pid: int) -> float:
    """The seconds for which the threads of a process had no processor, as others had it.

    Those of threads that have ended are not known any more.
    """
    return sum(seconds for _, seconds in cpu_wait_by_thread(pid))


def cpu_wait_by_thread(pid: int) -> Iterator[tuple[str, float]]:
    """Yield for each thread of a process, by its id, how long it had no processor.

    The second field of ``schedstat`` (Documentation/scheduler/sched-stats.rst), in nanoseconds.
    """
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            # It may have ended meanwhile.
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                fields = Path(f"/proc/{pid}/task/{thread}/schedstat").read_text().split()
                yield thread, int(fields[1]) / 1e9


def stolen() -> float:
    """The seconds for which processors of this machine were others', all added up.

    ``steal`` of proc(5), of the first line of ``/proc/stat``.
    """
    fields = Path("/proc/stat").read_text().split(maxsplit=9)
    return int(fields[8]) / os.sysconf("SC_CLK_TCK")


class Stopwatch:
    """Runs from now on, but while this process or a program waits for a processor."""

    def __init__(self, clock: IReactorTime) -> None:
        self._clock = clock
        self._began = clock.seconds()
        self._before = dict(_all_waited())
        self._now = dict(self._before)
        self._stolen_before = stolen()

    def seconds(self) -> float:
        """The seconds since it was started."""
        return self._clock.seconds() - self._began - self.waited()

    def waited(self) -> float:
        """The seconds for which they have waited meanwhile, all added up, with what was stolen.

        What threads and programs that have ended waited counts up to when this was asked before.
        """
        self._now.update(_all_waited())
        waited = sum(now - self._before.get(thread, 0.0) for thread, now in self._now.items())
        return waited + stolen() - self._stolen_before


class Deadline:
    """A number of seconds from now on, in which this process and programs could run."""

    def __init__(self, clock: IReactorTime, seconds: float) -> None:
        self._clock = clock
        self._seconds = seconds
        self._began = clock.seconds()
        self._watch = Stopwatch(clock)

    @property
    def passed(self) -> bool:
        """Whether they are over; it is only looked at who has waited once they could be."""
        by_the_clock = self._clock.seconds() - self._began
        return by_the_clock > self._seconds and self._watch.seconds() > self._seconds


class Alarm:
    """Calls ``ring`` once programs could run for some seconds, unless it is cancelled before."""

    def __init__(self, clock: IReactorTime, seconds: float, ring: Callable[[], object]) -> None:
        self._clock = clock
        self._seconds = seconds
        self._ring = ring
        self._watch = Stopwatch(clock)
        self._timer = clock.callLater(seconds, self._look)
        self.has_rung = False

    def cancel(self) -> None:
        """Leave it; it may have rung already."""
        if self._timer.active():
            self._timer.cancel()

    def _look(self) -> None:
        left = self._seconds - self._watch.seconds()
        if left <= 0:
            self.has_rung = True
            self._ring()
        else:
            self._timer = self._clock.callLater(left, self._look)


class DeadlineExceeded(Exception):
    """Something took longer than it may."""


async def within(clock: IReactorTime, seconds: float, awaitable):
    """Return the result of ``awaitable``, which is cancelled after ``seconds`` in which programs
    could run; raises :class:`DeadlineExceeded` then.
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
