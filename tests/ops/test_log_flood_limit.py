"""Limits for repeated warnings."""

from __future__ import annotations

from twisted.logger import LogEvent, Logger, formatEvent
from twisted.trial.unittest import SynchronousTestCase

from yurttunnel.ops.log_flood_limit import MAX_CALL_SITES, MAX_SHOWN, PERIOD, FloodLimit


class FloodLimitTests(SynchronousTestCase):
    """Each warning is shown only a few times a minute."""

    def setUp(self) -> None:
        """Make a limit and a clock."""
        self.now = 1_000_000.0
        self.shown: list[str] = []
        self.limit = FloodLimit(lambda event: self.shown.append(formatEvent(event)))
        self.log = Logger(namespace="part", observer=self.observe)

    def observe(self, event: LogEvent) -> None:
        """Set the event's time and pass it on."""
        event["log_time"] = self.now
        self.limit(event)

    def flood(self, count: int) -> None:
        """Log the same warning ``count`` times."""
        for number in range(count):
            self.log.warn("{number} failed", number=number)

    def test_few(self) -> None:
        """Warnings up to the limit are shown unchanged."""
        self.flood(MAX_SHOWN)
        self.assertEqual([f"{number} failed" for number in range(MAX_SHOWN)], self.shown)

    def test_many(self) -> None:
        """Warnings over the limit are dropped; the first of the next period has their number."""
        self.flood(MAX_SHOWN + 5)
        self.now += PERIOD - 0.1
        self.flood(1)
        self.assertEqual(MAX_SHOWN, len(self.shown))
        self.now += 0.1
        self.shown.clear()
        self.flood(2)
        self.assertEqual(
            ["0 failed (6 more from this place were not shown)", "1 failed"],
            self.shown,
        )

    def test_messages_that_count(self) -> None:
        """A message with a suppression count of its own keeps it."""
        for _ in range(MAX_SHOWN + 2):
            self.log.warn("refused ({suppressed} more)", suppressed=3)
        self.now += PERIOD
        self.shown.clear()
        self.log.warn("refused ({suppressed} more)", suppressed=4)
        self.assertEqual(["refused (4 more) (2 more from this place were not shown)"], self.shown)

    def test_errors(self) -> None:
        """Errors are limited like warnings, with and without a traceback."""
        for _ in range(MAX_SHOWN + 5):
            self.log.error("error")
            self.log.critical("defect")
        self.assertEqual(2 * MAX_SHOWN, len(self.shown))

    def test_call_sites(self) -> None:
        """A flood at one call site hides no message of another."""
        self.flood(MAX_SHOWN + 5)
        self.log.warn("something else")
        Logger(namespace="elsewhere", observer=self.observe).warn("{number} failed", number=1)
        self.assertEqual(["something else", "1 failed"], self.shown[MAX_SHOWN:])

    def test_records(self) -> None:
        """Requests, debug messages and lines from stderr are not limited."""
        for _ in range(MAX_SHOWN + 5):
            self.log.info("request")
            self.log.debug("detail")
            self.log.error("{log_io}", log_io="a line of a program")
        self.assertEqual(3 * (MAX_SHOWN + 5), len(self.shown))

    def test_clock_set_back(self) -> None:
        """A clock that is set back silences no warning for longer than the period."""
        self.flood(MAX_SHOWN + 5)
        self.now -= 10 * PERIOD
        self.shown.clear()
        self.flood(1)
        self.assertEqual(["0 failed (5 more from this place were not shown)"], self.shown)

    def test_memory(self) -> None:
        """When there are too many call sites, those that have been silent longest are forgotten."""
        self.flood(MAX_SHOWN + 5)
        for number in range(MAX_CALL_SITES - 1):
            self.log.warn(f"place {number}")
        self.flood(1)
        self.log.warn("one more place")
        # The flood is the most recent call site, so it is not forgotten.
        self.flood(1)
        self.assertEqual(MAX_SHOWN + MAX_CALL_SITES, len(self.shown))
        for number in range(MAX_CALL_SITES):
            self.log.warn(f"new place {number}")
        self.shown.clear()
        self.flood(1)
        self.assertEqual(["0 failed"], self.shown)

    def test_event_without_a_message(self) -> None:
        """An event without a message passes."""
        events: list[LogEvent] = []
        FloodLimit(events.append)({})
        self.assertEqual([{}], events)
