"""Many cases of one target, with what they cost."""

from __future__ import annotations

import gc
import itertools
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz.cases import Target, cases

WARM_UP = 0.1
"""Which part of the cases fills caches, before memory is measured first."""

LONGEST_CASE = 10
"""Seconds after which a case hangs; usual ones take less than a millisecond."""


class CaseFailed(Exception):
    """A case broke a promise; the text has its number and its bytes."""


@dataclass(frozen=True)
class Outcome:
    """What a campaign came to; memory is what is resident, in bytes."""

    target: str
    cases: int
    accepted: int
    seconds: float
    memory_before: int
    memory_after: int

    @property
    def growth(self) -> int:
        """How much memory has grown since the warm-up, bytes."""
        return self.memory_after - self.memory_before

    def __str__(self) -> str:
        """Return one line for people."""
        return (
            f"{self.target}: {self.cases} cases in {self.seconds:.0f} s, "
            f"{self.cases / self.seconds:.0f} cases/s, "
            f"{100 * self.accepted / self.cases:.1f} % accepted, "
            f"resident {self.memory_before / 2**20:.1f} -> {self.memory_after / 2**20:.1f} MiB"
        )


def campaign(target: Target, count: int, seed: int) -> Outcome:
    """Check ``count`` cases. Raises :class:`CaseFailed` for the first that breaks a promise."""
    accepted = 0
    begun = time.monotonic()
    memory = 0
    warm = int(count * WARM_UP)
    for number, case in enumerate(itertools.islice(cases(target, seed), count)):
        if number == warm:
            memory = resident()
        accepted += check(target, number, case)
    seconds = time.monotonic() - begun
    return Outcome(target.name, count, accepted, seconds, memory, resident())


def check(target: Target, number: int, case: bytes) -> bool:
    """Check one case, and give it up when it hangs."""
    former = signal.signal(signal.SIGALRM, _hangs)
    signal.setitimer(signal.ITIMER_REAL, LONGEST_CASE)
    try:
        return target.check(case)
    except Exception as error:
        raise CaseFailed(
            f"{target.name}, case {number}: {type(error).__name__}: {error}; bytes: {case.hex()}"
        ) from error
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, former)


def _hangs(*_: object) -> None:
    raise AssertionError(f"the case takes longer than {LONGEST_CASE} s")


def resident() -> int:
    """Return the resident memory of this process after a collection, in bytes."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
