"""Keeping the log readable, and the disk free, while something fails again and again."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from twisted.logger import ILogObserver, LogEvent, LogLevel
from zope.interface import implementer

MOST_SHOWN = 20
"""How many messages of one place in the code are shown in a period."""

PERIOD = 60.0
"""Seconds."""

MOST_PLACES = 1000
"""Of how many places is known what they have shown; those that are quiet are forgotten first."""

_LIMITED = frozenset((LogLevel.warn, LogLevel.error, LogLevel.critical))


@dataclass(slots=True)
class _Shown:
    since: float
    count: int = 0
    suppressed: int = 0


@implementer(ILogObserver)
class FloodLimit:
    """Passes events on to ``observer``, but no floods of warnings and errors.

    Whatever breaks for each connection, each request or each node would otherwise fill the log
    with the same, each time perhaps with a traceback. Of those from one place, which is to say
    with one namespace and one format, :data:`MOST_SHOWN` are passed on in a period, and the first
    one after it says how many were not. What is said of single requests (``info``) is the record
    of what went on, and passes.
    """

    def __init__(self, observer: ILogObserver) -> None:
        self._observer = observer
        self._places: OrderedDict[tuple[object, object], _Shown] = OrderedDict()

    def __call__(self, event: LogEvent) -> None:
        """See :class:`ILogObserver`."""
        # Lines that go to sys.stderr, which have that field, belong together.
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
            # A message may say already how many others like it there were; these came after it.
            text = event["log_format"] + " ({flood} more from this place were not shown)"
            event = {**event, "log_format": text, "flood": suppressed}
        self._observer(event)

    def _shown_of(self, event: LogEvent) -> _Shown:
        """Find what the event's place has shown in its period, which may begin now."""
        place = event.get("log_namespace"), event.get("log_format")
        now = float(event.get("log_time") or 0)
        shown = self._places.get(place)
        if shown is None:
            shown = self._places[place] = _Shown(now)
            if len(self._places) > MOST_PLACES:
                self._places.popitem(last=False)
        # The clock of the machine may have been set back.
        elif not 0 <= now - shown.since < PERIOD:
            shown.since, shown.count = now, 0
        self._places.move_to_end(place)
        return shown
