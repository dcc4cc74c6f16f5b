"""A limit that keeps the log readable, and the disk free, while something fails repeatedly."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from twisted.logger import ILogObserver, LogEvent, LogLevel
from zope.interface import implementer

MOST_SHOWN = 20
"""The maximum number of messages from one place in the code in a period."""

PERIOD = 60.0
"""The length of a period, in seconds."""

MOST_PLACES = 1000
"""The maximum number of places to keep counts for; the least recent are forgotten first."""

_LIMITED = frozenset((LogLevel.warn, LogLevel.error, LogLevel.critical))


@dataclass(slots=True)
class _Shown:
    since: float
    count: int = 0
    suppressed: int = 0


@implementer(ILogObserver)
class FloodLimit:
    """Forwards events to ``observer``, and limits floods of warnings and errors.

    What fails for every connection, request or node would otherwise fill the log with the same
    message, possibly each time with a traceback. From one place in the code, which is one
    namespace and format, :data:`MOST_SHOWN` messages are forwarded in a period; the first one after
    the period has the number of those suppressed. Messages at ``info`` about single requests are an
    access log, and always pass.
    """

    def __init__(self, observer: ILogObserver) -> None:
        self._observer = observer
        self._places: OrderedDict[tuple[object, object], _Shown] = OrderedDict()

    def __call__(self, event: LogEvent) -> None:
        """See :class:`ILogObserver`."""
        # Lines written to sys.stderr, which have that field, count as one place.
        if event.get("log_level") not in _LIMITED or "log_io" in event:
            self._observer(event)
            return
        shown = self._shown_of(event)
        if shown.count >= MOST_SHOWN:
            shown.suppressed += 1
            return
        shown.count += 1
        suppressed, shown.suppressed = shown.suppressed, 0
        if suppressed and event.get("log_format"):
            # The message may already have a count of suppressed ones; these came after it.
            text = event["log_format"] + " ({flood} more from this place were not shown)"
            event = {**event, "log_format": text, "flood": suppressed}
        self._observer(event)

    def _shown_of(self, event: LogEvent) -> _Shown:
        """Return the counts of the event's place in its period, which may begin now."""
        place = event.get("log_namespace"), event.get("log_format")
        now = float(event.get("log_time") or 0)
        shown = self._places.get(place)
        if shown is None:
            shown = self._places[place] = _Shown(now)
            if len(self._places) > MOST_PLACES:
                self._places.popitem(last=False)
        # The machine's clock may have been set back.
        elif not 0 <= now - shown.since < PERIOD:
            shown.since, shown.count = now, 0
        self._places.move_to_end(place)
        return shown
