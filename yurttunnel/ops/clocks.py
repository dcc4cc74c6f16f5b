"""Two clocks: a steady (monotonic) one for timers, and the time of day for dates.

Twisted's reactor uses the machine's time of day for both, and that clock jumps: when a machine
without a battery for its clock starts and gets the time from the network, or when somebody sets it.
A jump forward by an hour makes every timer fire at once, so that peers that have recently sent
something seem silent; a jump back by an hour stops every timer for that long. Programs therefore
give the reactor a steady clock, and use the time of day explicitly, for the validity of
certificates and for what people read.
"""

from __future__ import annotations

import datetime
import time
from typing import Any

from twisted.internet.interfaces import IReactorTime


def make_steady(reactor: Any) -> None:
    """Make the timers of ``reactor`` use a monotonic clock; it must have no timer yet."""
    reactor.seconds = time.monotonic
    reactor.time_of_day = time.time


def time_of_day(clock: IReactorTime) -> float:
    """Return the seconds since 1970, in UTC, by the clock of the machine, which may jump.

    A clock that has not been made steady has one time only, which is returned.
    """
    tell = getattr(clock, "time_of_day", clock.seconds)
    return float(tell())


def utc_now(clock: IReactorTime) -> datetime.datetime:
    """Return the date and the time of day of ``clock``."""
    return datetime.datetime.fromtimestamp(time_of_day(clock), datetime.UTC)


def timestamp(seconds: float) -> str:
    """Format a time, in seconds since 1970, as ``metav1.Time``: RFC 3339, in UTC."""
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def millisecond_time(seconds: float) -> str:
    """Format a time, in seconds since 1970, for a line of a log, as RFC 3339."""
    moment = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def micro_time(seconds: float) -> str:
    """Format a time, in seconds since 1970, as ``metav1.MicroTime``."""
    moment = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
