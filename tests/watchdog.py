"""A bound on how long one test may hang, and what each test took.

trial ends an asynchronous test that takes too long, by the reactor: a test that never returns to
the reactor hangs with the whole run, which does not say where. ``watch`` puts an alarm on every
test. The alarm raises in whatever is running, so the test fails with its name and its stack, and
the others run. Where Python is never reached, in C, the process ends a little later and says
where on its standard error, which is ``_trial_temp/N/err.log`` with ``-jN``.
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

LONGEST = 300.0
"""Seconds for a test that trial does not bound. The slowest takes 10 on two busy processors, and 45
on slow ones with nine other processes beside it."""

PARTS = 4
"""How often trial's own bound applies to one test: set-up, test, tear-down, and its cleanups."""

GRACE = 10.0
"""Seconds after the alarm until the process is ended."""

TIMES = "YURTTUNNEL_TEST_TIMES"
"""Names the file to which each test appends a line: seconds, those on the processor, its name."""


class TestHungError(BaseException):
    """A test was still running when it should long have ended.

    No `Exception`, which the code under test would catch, and Hypothesis would try to shrink.
    """


def watch() -> None:
    """Put the alarm on every test that runs from now on; once is enough."""
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
    """Return the seconds that a test may take, with all of its parts."""
    timeout = getattr(test, "getTimeout", None)
    return LONGEST if timeout is None else PARTS * timeout()


def _hung(name: str, bound: float, _signal: int, _frame: FrameType | None) -> None:
    raise TestHungError(f"{name} was still running after {bound:g} s")


def _processor() -> float:
    """Seconds on the processor until now: this process, and the programs that ended before now."""
    return sum(os.times()[:4])


def _note(name: str, seconds: float, processor: float) -> None:
    path = os.environ.get(TIMES)
    if path:
        with Path(path).open("a") as times:
            times.write(f"{seconds:.3f} {processor:.3f} {name}\n")
