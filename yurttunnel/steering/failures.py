"""What goes wrong with the firewall, its sets and the kernel's connections."""

from __future__ import annotations


class SteeringFailed(Exception):
    """The kernel, or the program that speaks to it, has refused.

    The text says what was tried, what was said to that, and what to do; it is one line.
    """


class SetsRefused(SteeringFailed):
    """The firewall has no rules that refer to sets of addresses, now or ever.

    Only where its program names that as the cause: never for what may pass, such as a lock.
    """
