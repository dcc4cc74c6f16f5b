"""How fast this machine is, so that a bound of seconds means the same on any."""

from __future__ import annotations

import os
import sys

_LIBRARIES = (
    "twisted.internet.epollreactor, twisted.application.service, OpenSSL.SSL, cryptography.x509"
)
"""What each of the programs stands on, and nothing of ours."""

_SECONDS = 0.2
"""Processor time of their loading on a machine for which bounds of seconds are right. An estimate:
on a slow one a first answer took 1.9 times as long as they did, and 0.31 to 0.42 s on that of the
figures in docs/performance.md, where they were not timed."""

_TIMES = 3


def slowness() -> float:
    """Return how many times as long something may take here, at least 1.

    It is told by what the libraries take that are not ours, at the best of some times, so that
    more that is loaded or waited for by a program is seen on a slow machine as well.
    """
    return max(1.0, min(_loading() for _ in range(_TIMES)) / _SECONDS)


def _loading() -> float:
    arguments = [sys.executable, "-c", f"import {_LIBRARIES}"]
    pid = os.posix_spawn(sys.executable, arguments, os.environ)
    _, status, usage = os.wait4(pid, 0)
    if status:
        raise AssertionError(f"{' '.join(arguments)} ended with {status}")
    return usage.ru_utime + usage.ru_stime
