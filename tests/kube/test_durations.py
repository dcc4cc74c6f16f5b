"""Durations in the format of kubectl."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from yurttunnel.kube.durations import duration, since

MINUTE, HOUR, DAY, YEAR = 60, 3600, 86400, 365 * 86400


class DurationTests(SynchronousTestCase):
    """The format of durations."""

    def test_precision(self):
        """Short durations are exact, long ones are not."""
        for seconds, text in (
            (-5, "<invalid>"),
            (-2, "<invalid>"),
            (-1, "0s"),
            (0, "0s"),
            (119.9, "119s"),
            (2 * MINUTE, "2m"),
            (2 * MINUTE + 5, "2m5s"),
            (10 * MINUTE - 1, "9m59s"),
            (10 * MINUTE + 5, "10m"),
            (3 * HOUR - 1, "179m"),
            (3 * HOUR, "3h"),
            (3 * HOUR + 20 * MINUTE, "3h20m"),
            (8 * HOUR - MINUTE, "7h59m"),
            (8 * HOUR + 20 * MINUTE, "8h"),
            (2 * DAY - 1, "47h"),
            (2 * DAY, "2d"),
            (3 * DAY + 4 * HOUR, "3d4h"),
            (8 * DAY - HOUR, "7d23h"),
            (8 * DAY + 4 * HOUR, "8d"),
            (2 * YEAR - DAY, "729d"),
            (2 * YEAR, "2y"),
            (3 * YEAR + 4 * DAY, "3y4d"),
            (8 * YEAR - DAY, "7y364d"),
            (8 * YEAR + 4 * DAY, "8y"),
            (9 * YEAR + 4 * DAY, "9y"),
        ):
            self.assertEqual(text, duration(seconds), seconds)

    def test_since(self):
        """Times are those of the API; an invalid one is unknown."""
        self.assertEqual("90s", since("1970-01-01T00:01:00Z", 150))
        self.assertEqual("90s", since("1970-01-01T01:01:00.000000+01:00", 150))
        for moment in (None, "", "yesterday", 7):
            self.assertEqual("<unknown>", since(moment, 150))
