"""Two clocks: a steady one for all that lasts, and the time of day for what has a date.

Twisted's reactor has one for both, the machine's time of day, which jumps: when the machine is
started without a battery and asks the network for the time, or when somebody sets it. An hour
forward then makes every timer fire at once, so that peers that have just been heard look silent;
an hour back stops every timer for that long. So the programs give the reactor a steady clock, and
ask for the time of day where they mean it: validity of certificates, and what people read.
"""

from __future__ import annotations

import datetime
import time
from typing import Any

from twisted.internet.interfaces import IReactorTime


def make_steady(reactor: Any) -> None:
    """Have the timers of ``reactor`` follow a clock that nobody sets; no timer may exist yet."""
    reactor.seconds = time.monotonic
    reactor.time_of_day = time.time


def time_of_day(clock: IReactorTime) -> float:
    """Return the seconds since 1970, in UTC, by the clock of the machine, which may jump.

    A clock that has not been made steady has only this one: its seconds are taken.
    """
    tell = getattr(clock, "time_of_day", clock.seconds)
    return float(tell())


def utc_now(clock: IReactorTime) -> datetime.datetime:
    """Return the date and the time of day, as ``clock`` tells it."""
    return datetime.datetime.fromtimestamp(time_of_day(clock), datetime.UTC)


def timestamp(seconds: float) -> str:
    """Return a time, in seconds since 1970, as ``metav1.Time`` has it: RFC 3339, in UTC."""
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def micro_time(seconds: float) -> str:
    """Return a time, in seconds since 1970, as ``metav1.MicroTime`` has it."""
    moment = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
