"""Many cases of one target, with their time and memory."""

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
"""The fraction of the cases that fills caches before memory is measured first."""

CASE_TIMEOUT = 10
"""The seconds after which a case counts as hung; usual ones take less than a millisecond."""


class CaseFailed(Exception):
    """A case failed a check; the text has its number and its bytes."""


@dataclass(frozen=True)
class Outcome:
    """The result of a campaign; memory is the resident memory in bytes."""

    target: str
    cases: int
    accepted: int
    seconds: float
    memory_before: int
    memory_after: int

    @property
    def growth(self) -> int:
        """The growth of memory since the warm-up, bytes."""
        return self.memory_after - self.memory_before

    def __str__(self) -> str:
        """Return a summary in one line."""
        return (
            f"{self.target}: {self.cases} cases in {self.seconds:.0f} s, "
            f"{self.cases / self.seconds:.0f} cases/s, "
            f"{100 * self.accepted / self.cases:.1f} % accepted, "
            f"resident {self.memory_before / 2**20:.1f} -> {self.memory_after / 2**20:.1f} MiB"
        )


def campaign(target: Target, count: int, seed: int) -> Outcome:
    """Check ``count`` cases. Raises :class:`CaseFailed` for the first one that fails."""
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
    """Check one case, and stop it when it hangs."""
    former = signal.signal(signal.SIGALRM, _hangs)
    signal.setitimer(signal.ITIMER_REAL, CASE_TIMEOUT)
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
    raise AssertionError(f"the case takes longer than {CASE_TIMEOUT} s")


def resident() -> int:
    """Return the resident memory of this process after a garbage collection, in bytes."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
