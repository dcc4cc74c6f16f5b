"""A timeout for each test, and a log of test durations.

The timeout of trial for asynchronous tests relies on the reactor: a test that never returns to the
reactor blocks the whole run without a message. ``watch`` sets an alarm for every test. The alarm
raises in the running code, so the test fails with its name and stack, and the other tests run. If
the test hangs in C code, the process exits a little later and prints the stack to its standard
error, which is ``_trial_temp/N/err.log`` with ``-jN``.
"""

from __future__ import annotations

import faulthandler
import functools
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from tests.garbage import collect_if_due

MAX_SECONDS = 300.0
"""The timeout in seconds of a test without one by trial. The slowest takes 10 on two busy
processors, and 45 on slow ones with nine other processes."""

PARTS = 4
"""The number of times that trial's own timeout may apply: set-up, test, tear-down, cleanups."""

GRACE = 10.0
"""The seconds from the alarm to the exit of the process."""

TIMES = "YURTTUNNEL_TEST_TIMES"
"""The variable with the file to which each test appends its duration, CPU time and name."""

SECONDS_ELSEWHERE: list[Callable[[], float]] = []
"""Each returns the CPU seconds so far of ended programs that are not children of this process."""


class TestHungError(BaseException):
    """A test has exceeded its timeout.

    Not an `Exception`, which the code under test might catch, and Hypothesis would try to shrink.
    """


def watch() -> None:
    """Set the alarm for every test that runs from now on; idempotent."""
    run = SynchronousTestCase.run
    if not hasattr(run, "__wrapped__"):
        SynchronousTestCase.run = _watched(run)


def _watched(run: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(run)
    def watched(test: SynchronousTestCase, result: Any) -> None:
        bound = _bound(test)
        former = signal.signal(signal.SIGALRM, functools.partial(_hung, test.id(), bound))
        faulthandler.dump_traceback_later(bound + GRACE, exit=True)
        signal.setitimer(signal.ITIMER_REAL, bound)
        began, used = time.monotonic(), _processor()
        try:
            run(test, result)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            faulthandler.cancel_dump_traceback_later()
            signal.signal(signal.SIGALRM, former)
            _note(test.id(), time.monotonic() - began, _processor() - used)
            collect_if_due()

    return watched


def _bound(test: SynchronousTestCase) -> float:
    """Return the timeout of a test in seconds, including all of its parts."""
    timeout = getattr(test, "getTimeout", None)
    return MAX_SECONDS if timeout is None else PARTS * timeout()


def _hung(name: str, bound: float, _signal: int, _frame: FrameType | None) -> None:
    raise TestHungError(f"{name} was still running after {bound:g} s")


def _processor() -> float:
    """Return the CPU seconds so far of this process, and of the programs that have ended."""
    return sum(os.times()[:4]) + sum(seconds() for seconds in SECONDS_ELSEWHERE)


def _note(name: str, seconds: float, processor: float) -> None:
    path = os.environ.get(TIMES)
    if path:
        with Path(path).open("a") as times:
            times.write(f"{seconds:.3f} {processor:.3f} {name}\n")
