"""Cancellation of timers that may have fired already."""

from __future__ import annotations

from twisted.internet.interfaces import IDelayedCall


def cancel(timer: IDelayedCall | None) -> None:
    """Cancel ``timer``, unless it has fired, was cancelled before or was never set."""
    if timer is not None and timer.active():
        timer.cancel()
