"""Turns between the processes of one test run: what measures runs alone."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def turn(alone: bool) -> Iterator[None]:
    """Wait until this test may run, without an end: whoever has its turn has a deadline.

    Any number of tests run at a time, or one that runs alone. Whoever waits holds the gate, so
    that a test that wants to be alone is not overtaken for ever.
    """
    with _lock("turn") as own:
        with _lock("gate") as gate:
            fcntl.flock(gate, fcntl.LOCK_EX)
            fcntl.flock(own, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        yield


def _lock(name: str):
    path = os.path.join(tempfile.gettempdir(), f"yurttunnel-tests-{os.getuid()}-{name}")
    return os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600), "r+b")
