"""Errors of the firewall, its sets and the conntrack table."""

from __future__ import annotations


class SteeringFailed(Exception):
    """The kernel, or a program that changes its rules, has reported an error.

    The text is one line: what was attempted, the error, and how to fix it.
    """


class SetsRefused(SteeringFailed):
    """The firewall does not support rules that refer to sets of addresses.

    It is raised only if the program names that as the cause, never for temporary causes such as a
    lock.
    """
