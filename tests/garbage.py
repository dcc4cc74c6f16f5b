"""When Python looks for garbage among all there is, where tests run: after a test, if it is due.

It looks at what the modules of all tests have, too, which lives as long as the process. On a slow
machine and beside nine other processes that takes seconds, in which whatever part a test has (a
client, an endpoint, an API server) says nothing, so that whoever is tested gives it up. What tests
have left is mostly found among the young objects, which are looked at as often as ever.
"""

from __future__ import annotations

import gc
from typing import Final

USUAL: Final = gc.get_threshold()
"""As Python has it, which is how programs have it."""

BETWEEN_TESTS: Final = 100
"""How many collections of the middle generation make one of all due; usually it is 10."""

WITHIN_A_TEST: Final = 1000
"""After how many it is not put off any longer, as one test would fill the memory."""


def collect_between_tests() -> None:
    """Have all there is looked at by :func:`collect_if_due` from now on."""
    gc.set_threshold(*USUAL[:2], WITHIN_A_TEST)


def collect_if_due() -> None:
    """Look at all there is, if the last time is a while ago; nobody must wait meanwhile."""
    if gc.get_count()[2] >= BETWEEN_TESTS:
        gc.collect()


def collect_as_usual() -> None:
    """Look at it as often as without tests."""
    gc.set_threshold(*USUAL)
