"""A limit that keeps the log readable, and the disk free, while something fails repeatedly."""

from __future__ import annotations

from dataclasses import dataclass

from twisted.logger import ILogObserver, LogEvent, LogLevel
from zope.interface import implementer

from yurttunnel.ops.bounded_dict import BoundedDict

MAX_SHOWN = 20
"""The maximum number of messages from one place in the code in a period."""

PERIOD = 60.0
"""The length of a period, in seconds."""

MAX_CALL_SITES = 1000
"""The maximum number of places to keep counts for; the least recent are forgotten first."""

_LIMITED = frozenset((LogLevel.warn, LogLevel.error, LogLevel.critical))


@dataclass(slots=True)
class _Period:
    since: float
    count: int = 0
    suppressed: int = 0


@implementer(ILogObserver)
class FloodLimit:
    """Forwards events to ``observer``, and limits floods of warnings and errors.

    What fails for every connection, request or node would otherwise fill the log with the same
    message, possibly each time with a traceback. From one place in the code, which is one
    namespace and format, :data:`MAX_SHOWN` messages are forwarded in a period; the first one after
    the period has the number of those suppressed. Messages at ``info`` about single requests are an
    access log, and always pass.
    """

    def __init__(self, observer: ILogObserver) -> None:
        self._observer = observer
        self._call_sites = BoundedDict[tuple[object, object], _Period](MAX_CALL_SITES)

    def __call__(self, event: LogEvent) -> None:
        # Lines written to sys.stderr, which have that field, count as one place.
        if event.get("log_level") not in _LIMITED or "log_io" in event:
            self._observer(event)
            return
        period = self._period_of(event)
        if period.count >= MAX_SHOWN:
            period.suppressed += 1
            return
        period.count += 1
        suppressed, period.suppressed = period.suppressed, 0
        if suppressed and event.get("log_format"):
            # The message may already have a count of suppressed ones; these came after it.
            text = event["log_format"] + " ({flood} more from this place were not shown)"
            event = {**event, "log_format": text, "flood": suppressed}
        self._observer(event)

    def _period_of(self, event: LogEvent) -> _Period:
        """Return the counts of the event's place in its period, which may begin now."""
        call_site = event.get("log_namespace"), event.get("log_format")
        now = float(event.get("log_time") or 0)
        period = self._call_sites.get(call_site)
        if period is None:
            period = _Period(now)
        # The machine's clock may have been set back.
        elif not 0 <= now - period.since < PERIOD:
            period.since, period.count = now, 0
        self._call_sites[call_site] = period
        return period
