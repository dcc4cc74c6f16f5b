"""Coordination of the processes of a test run: measuring tests run alone, or with each other."""

from __future__ import annotations

import enum
import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager


class Concurrency(enum.Enum):
    """Which other tests may run at the same time."""

    SHARED = "any number of these"
    MEASURING = "these too: they measure, and leave each other time, but bear no other tests"
    EXCLUSIVE = "nobody"


@contextmanager
def acquire_slot(kind: Concurrency) -> Iterator[None]:
    """Wait until this test may run, without a timeout: each running test has a deadline.

    A waiting test holds the lock "gate", so that an exclusive test is not starved.
    """
    with _lock("turn") as own:
        with _lock("gate") as gate:
            fcntl.flock(gate, fcntl.LOCK_EX)
            _take(own, kind)
        yield


def _take(own, kind: Concurrency) -> None:
    """Lock the byte of this process, or all bytes.

    These are POSIX locks, which belong to the process: it must not open the file a second time.
    """
    if kind is Concurrency.SHARED:
        fcntl.lockf(own, fcntl.LOCK_EX, 1, os.getpid())
    else:
        fcntl.lockf(own, fcntl.LOCK_SH if kind is Concurrency.MEASURING else fcntl.LOCK_EX)


def _lock(name: str):
    path = os.path.join(tempfile.gettempdir(), f"yurttunnel-tests-{os.getuid()}-{name}")
    return os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600), "r+b")
