"""Turns between the processes of one test run: what measures runs alone."""

from __future__ import annotations

import fcntl
import os
import tempfile
from typing import IO

from twisted.internet.task import deferLater

POLL = 0.05
"""Seconds between two looks at a lock; waiting in the kernel would stop the reactor."""


async def take_turn(reactor, alone: bool) -> IO[bytes]:
    """Wait until this test may run; closing what is returned ends its turn.

    Any number of tests run at a time, or one that runs alone. Whoever waits holds the gate, so
    that a test that wants to be alone is not overtaken for ever.
    """
    with await _locked(reactor, "gate", fcntl.LOCK_EX):
        return await _locked(reactor, "turn", fcntl.LOCK_EX if alone else fcntl.LOCK_SH)


async def _locked(reactor, name: str, kind: int) -> IO[bytes]:
    path = os.path.join(tempfile.gettempdir(), f"yurttunnel-tests-{os.getuid()}-{name}")
    lock = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600), "r+b")
    while True:
        try:
            fcntl.flock(lock, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            await deferLater(reactor, POLL)
        else:
            return lock
