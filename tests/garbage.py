"""How often Python looks for garbage among all there is, where tests run.

It looks at what the modules of all tests have, too, which lives as long as the process: for a tenth
of a second each time, and for an eighth of what the tests of a room take of the processors. What
tests have left is mostly found among the young objects, which are looked at as often as ever.
"""

from __future__ import annotations

import gc

USUAL = gc.get_threshold()
"""As Python has it, which is how programs have it."""

FULL = 50
"""How many collections of the middle generation come before one of all; usually it is 10."""


def collect_seldom() -> None:
    """Look at all there is less often from now on."""
    gc.set_threshold(*USUAL[:2], FULL)


def collect_as_usual() -> None:
    """Look at it as often as without tests."""
    gc.set_threshold(*USUAL)
