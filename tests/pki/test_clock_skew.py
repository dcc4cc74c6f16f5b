"""Messages about a clock by which valid certificates are not valid."""

from __future__ import annotations

import datetime

from twisted.trial.unittest import SynchronousTestCase

from yurttunnel.pki.clock_skew import ClockSkew, format_duration

BEGIN = datetime.datetime(2026, 5, 1, 12, 0, 0, tzinfo=datetime.UTC)
END = BEGIN + datetime.timedelta(days=90)
DAY = datetime.timedelta(days=1)


class ClockSkewTests(SynchronousTestCase):
    """The messages, with the server's time and without."""

    def message(self, now: datetime.datetime, server_time: datetime.datetime | None = None) -> str:
        """Return the message for a time of this machine."""
        return ClockSkew(now, "the server's certificate", BEGIN, END).sentence(server_time)

    def test_behind_and_ahead(self) -> None:
        """The difference to the server's clock, which is right."""
        self.assertEqual(
            "this machine's clock is 20576 days behind the server's: it says 1970-01-01 00:00:00"
            " UTC. The agent waits until it is set",
            self.message(datetime.datetime.fromtimestamp(0, datetime.UTC), BEGIN + DAY),
        )
        self.assertEqual(
            "this machine's clock is 3 days ahead of the server's: it says 2026-08-02 12:00:00"
            " UTC. The agent waits until it is set",
            self.message(END + 3 * DAY, END),
        )

    def test_no_time_that_helps(self) -> None:
        """The least difference, if the server has sent no time or one that is as wrong."""
        words = "the clock of this machine seems wrong, by 1 day, 0:00:00 at least: it says"
        for server_time in (None, BEGIN - DAY, END + DAY):
            self.assertIn(words, self.message(BEGIN - DAY, server_time))
            self.assertIn(words, self.message(END + DAY, server_time))

    def test_spans(self) -> None:
        """Durations are in the largest unit of which there are at least two."""
        for seconds, message in {
            1: "1 seconds",
            119: "119 seconds",
            120: "2 minutes",
            7199: "120 minutes",
            7200: "2 hours",
            172800: "2 days",
        }.items():
            self.assertEqual(message, format_duration(seconds))
