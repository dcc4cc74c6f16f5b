"""The speed of this machine, by which tests scale limits in seconds."""

from __future__ import annotations

import os
import sys

_LIBRARIES = (
    "twisted.internet.epollreactor, twisted.application.service, OpenSSL.SSL, cryptography.x509"
)
"""Libraries that all programs import, without modules of this project."""

_SECONDS = 0.2
"""The CPU time of importing them on a machine to which limits in seconds apply unchanged. An
estimate: on a slow machine a first answer took 1.9 times as long as the imports, and 0.31 to
0.42 s on the machine of docs/performance.md, where the imports were not timed."""

_TIMES = 3


def slowness() -> float:
    """Return the factor by which limits in seconds are extended here, at least 1.

    It is derived from the best of several import times of third-party libraries only, so that
    a program that itself imports or waits more fails its test on a slow machine as well.
    """
    return max(1.0, min(_loading() for _ in range(_TIMES)) / _SECONDS)


def _loading() -> float:
    arguments = [sys.executable, "-c", f"import {_LIBRARIES}"]
    pid = os.posix_spawn(sys.executable, arguments, os.environ)
    _, status, usage = os.wait4(pid, 0)
    if status:
        raise AssertionError(f"{' '.join(arguments)} ended with {status}")
    return usage.ru_utime + usage.ru_stime
