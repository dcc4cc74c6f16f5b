"""HTML that is safe by construction, and the wording of the status page."""

from __future__ import annotations

import datetime

from twisted.trial.unittest import SynchronousTestCase

from yurttunnel.ops.status import formatting
from yurttunnel.ops.status.markup import Column, Markup, element, joined, pairs, table
from yurttunnel.ops.status.sparklines import Scale, captioned, sparkline
from yurttunnel.ops.status.throughput import MAX_KEPT

HOSTILE = """<script>alert("1")</script>'&"""
ESCAPED = "&lt;script&gt;alert(&quot;1&quot;)&lt;/script&gt;&#x27;&amp;"


class MarkupTests(SynchronousTestCase):
    """Text is always escaped."""

    def test_text_is_escaped(self) -> None:
        """Text is escaped in elements, attributes and tables, alone and in lists."""
        self.assertEqual(f"<p>{ESCAPED}</p>", element("p", HOSTILE))
        self.assertEqual(f"<p>{ESCAPED}{ESCAPED}</p>", element("p", [HOSTILE, HOSTILE]))
        self.assertEqual(f'<p title="{ESCAPED}"></p>', element("p", title=HOSTILE))
        self.assertEqual(f"{ESCAPED}<b></b>", joined(HOSTILE, element("b")))
        for made in (
            joined(table(HOSTILE, [Column(HOSTILE, str), Column("x", str)], [HOSTILE])),
            pairs(HOSTILE, [(HOSTILE, HOSTILE)]),
        ):
            self.assertNotIn("<script", made)
            self.assertIn(ESCAPED, made)

    def test_markup_is_not_escaped_again(self) -> None:
        """Markup is not escaped again."""
        self.assertEqual("<p><b>1 &lt; 2</b></p>", element("p", element("b", "1 < 2")))
        self.assertIsInstance(element("p"), Markup)

    def test_attributes(self) -> None:
        """Names get hyphens; a true attribute has no value; a false or empty one is left out."""
        made = element("input", for_="q", aria_label="x", hidden=True, disabled=False, class_="")
        self.assertEqual('<input for="q" aria-label="x" hidden>', made)

    def test_accessible_tables(self) -> None:
        """A table has a caption, headings for columns and rows, and cell labels."""
        columns = [
            Column("Node", lambda _: "edge-1"),
            Column("Age", lambda age: f"{age} s", "number", lambda age: age),
        ]
        made = joined(table("Nodes", columns, [3]))
        self.assertIn("<caption>Nodes</caption>", made)
        self.assertIn('<th scope="col" class="number">Age</th>', made)
        self.assertIn('<th scope="row">edge-1</th>', made)
        self.assertIn('<td class="number" data-label="Age" data-order="3">3 s</td>', made)


class SparklineTests(SynchronousTestCase):
    """Sparklines."""

    def test_bars(self) -> None:
        """The newest value is on the right, the highest has full height, and zero has no bar."""
        made = sparkline([5, 0, 10, 0.001], Scale(10, "B/s"), "it carries")
        self.assertIn(f'd="m{MAX_KEPT - 3.5} 24v-12m2 12v-24m1 24v-1"', made)
        self.assertIn(f'viewBox="0 0 {MAX_KEPT} 24"', made)
        label = "it carries now 0 B/s, at most 10 B/s in 5 minutes"
        self.assertIn(f'role="img" aria-label="{label}" data-most="10" data-unit="B/s"', made)

    def test_one_scale(self) -> None:
        """Charts to compare share a scale, which the axis shows."""
        scale = Scale(20, "/s")
        self.assertIn("v-12", sparkline([10], scale))
        self.assertIn("v-24", sparkline([20, 5], scale))
        self.assertIn("0 to 20/s, last 5 minutes", captioned([10], scale, "failures"))
        self.assertIn("now 0.25/s", sparkline([0.25], scale))
        self.assertIn("now 40 ms", sparkline([0.04], Scale(1, "s")))

    def test_more_than_the_scale(self) -> None:
        """A value over the scale has full height, also if the scale is 0."""
        for maximum in (0.0, 20.0):
            self.assertIn("v-24", sparkline([30], Scale(maximum, "/s")))

    def test_nothing(self) -> None:
        """Without values, or with zeros only, the chart is empty."""
        for values in ([], [0.0, 0.0]):
            self.assertNotIn("<path", sparkline(values, Scale(0.0, "B/s")))


class FormattingTests(SynchronousTestCase):
    """Amounts in a readable form."""

    def test_durations(self) -> None:
        """A duration has at most two units, without false precision."""
        for seconds, text in (
            (-1, "0 s"), (0.9, "0 s"), (59, "59 s"), (61, "1 min 1 s"), (3600, "1 h"),
            (3601, "1 h"), (90_000, "1 d 1 h"), (86_400 * 400, "400 d"),
        ):  # fmt: skip
            self.assertEqual(text, formatting.duration(seconds), seconds)

    def test_sizes(self) -> None:
        """A size has up to three digits, in units of 1024."""
        for amount, text in (
            (0, "0 B"), (999, "999 B"), (1000, "1.0 KiB"), (1024 * 100, "100 KiB"),
            (1_500_000, "1.4 MiB"), (2**50 * 5000, "5000 PiB"),
        ):  # fmt: skip
            self.assertEqual(text, formatting.size(amount), amount)
        self.assertEqual("1.4 MiB/s", formatting.rate(1_500_000))

    def test_round_trips(self) -> None:
        """Short round trips are in milliseconds; an unmeasured one is named so."""
        for seconds, text in (
            (None, "not measured yet"), (0.00042, "0.42 ms"), (0.0614, "61 ms"), (1.26, "1.3 s"),
        ):  # fmt: skip
            self.assertEqual(text, formatting.round_trip(seconds))

    def test_numbers_of_things(self) -> None:
        """Counts have singular and plural forms, and separators of thousands."""
        self.assertEqual("1 day", formatting.counted(1, "day"))
        self.assertEqual("2,000 days", formatting.counted(2000, "day"))

    def test_moments(self) -> None:
        """A relative time also has the exact time in UTC for programs."""
        zone = datetime.timezone(datetime.timedelta(hours=2))
        when = datetime.datetime(2026, 11, 22, 3, 4, 5, tzinfo=zone)
        exact = "2026-11-22T01:04:05Z"
        made = formatting.ago(when, when + datetime.timedelta(seconds=61))
        self.assertEqual(f'<time datetime="{exact}" title="{exact}">1 min 1 s ago</time>', made)
