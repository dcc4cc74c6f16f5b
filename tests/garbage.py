"""Full garbage collections in test processes: they run between tests, when they are due.

A full collection within a test also traverses the modules that have been imported since the last
one. On a slow machine with nine other processes it takes seconds, in which the parts of a test (a
client, an endpoint, an API server) do not respond, so the code under test would time out. Most
garbage of tests is found among young objects, which are collected as often as usual.

What is alive between tests, such as the modules of all tests, lives as long as the process. So it
is frozen: later collections, including those that a test requests, skip it.
"""

from __future__ import annotations

import gc
from typing import Final

USUAL: Final = gc.get_threshold()
"""The default thresholds of Python, which programs use."""

BETWEEN_TESTS: Final = 100
"""The number of collections of the middle generation after which a full one is due; normally 10."""

WITHIN_A_TEST: Final = 1000
"""The number after which a full collection runs even within a test, to limit memory."""


def collect_between_tests() -> None:
    """Leave full collections to :func:`collect_if_due` from now on."""
    gc.set_threshold(*USUAL[:2], WITHIN_A_TEST)


def collect_if_due() -> None:
    """Run a full collection if it is due, and freeze the survivors; nothing may be waiting for a
    response meanwhile.
    """
    if gc.get_count()[2] >= BETWEEN_TESTS:
        gc.collect()
        gc.freeze()


def collect_as_usual() -> None:
    """Restore the default thresholds."""
    gc.set_threshold(*USUAL)
