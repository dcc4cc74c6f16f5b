"""The command line and the output, without a run."""

import contextlib
import dataclasses
import io
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from benchmarks import report
from benchmarks.__main__ import FULL, LOST, QUICK, compare_with_baseline, parse, scale_of
from benchmarks.lines import Figure, IdleLine
from benchmarks.result import Result
from benchmarks.run import Unit
from benchmarks.summary import summarize
from tests.benchmarks.fakes import line, result, with_third


class CommandLineTests(SynchronousTestCase):
    """Flags."""

    def refused(self, *arguments):
        """Return the error about an invalid command line."""
        output = io.StringIO()
        with contextlib.redirect_stderr(output):
            self.assertRaises(SystemExit, parse, arguments)
        return output.getvalue()

    def test_a_run_is_long_unless_it_is_to_be_quick(self):
        """The scale follows --quick."""
        self.assertEqual(scale_of(parse([])), FULL)
        self.assertEqual(scale_of(parse(["--quick"])), QUICK)

    def test_single_lengths_can_be_chosen(self):
        """--seconds does not change --megabytes."""
        scale = scale_of(parse(["--quick", "--seconds", "2.5"]))
        self.assertEqual((scale.seconds, scale.megabytes), (2.5, QUICK.megabytes))

    def test_an_unknown_line_is_refused_with_the_known_ones(self):
        """The error lists the existing lines."""
        self.assertIn("requests-16", self.refused("--only", "nonsense"))

    def test_lengths_of_nothing_are_refused(self):
        """A run without duration has no figures."""
        for flag in ("--seconds", "--repeats", "--megabytes"):
            self.assertIn(f"{flag} must be more than 0", self.refused(flag, "0"))


class ComparisonTests(SynchronousTestCase):
    """Comparison with --baseline."""

    def compared(self, before, *now):
        """Return the exit status and the output for earlier and current figures of one line."""
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            status = compare_with_baseline(
                Path("earlier.json"), {"speed": summarize([before])}, [result(line(), now)]
            )
        return status, printed.getvalue()

    def test_a_loss_is_the_exit_status(self):
        """The output names the line with a loss, and its size."""
        status, printed = self.compared(1.0, 0.8)
        self.assertEqual(status, LOST)
        self.assertIn("speed", printed)
        self.assertIn("lost 20% beyond the spread", printed)

    def test_a_line_that_only_misses_what_is_demanded_is_no_loss(self):
        """A baseline that was not better causes no error."""
        status, printed = self.compared(0.1, 0.1)
        self.assertEqual(status, 0)
        self.assertIn("kept", printed)


class ReportTests(SynchronousTestCase):
    """The output."""

    def test_a_row_has_both_medians_the_ratio_and_the_verdict(self):
        """All figures of a benchmark are in one row."""
        row = report.row(result(line("requests-16"), [0.8, 0.95, 1.0])).split()
        self.assertEqual(
            row,
            ["requests-16", "100/s", "95/s", "0.95", "0.88", "..", "0.97", ">=", "0.9", "holds"],
        )

    def test_the_third_contestant_has_its_ratio_behind_the_verdict(self):
        """It runs in the same rounds, and its costs are shown as well."""
        third = with_third(line("requests-16"), [0.8, 0.95, 1.0], [0.5, 0.6, 0.7])
        self.assertEqual(report.row(third).split()[-2:], ["holds", "0.60"])
        _, costs = report.costs([third])
        self.assertTrue(costs.endswith(" 1000 us/request"))

    def test_a_row_without_a_peer_has_the_figure_in_its_unit(self):
        """Memory is shown in MiB."""
        memory = IdleLine("memory", "memory", 90, False, Unit.MEBIBYTES)
        row = report.row(Result(memory, [95.0], [], []))
        self.assertIn(" 95 MiB ", row)
        self.assertTrue(row.endswith("<= 90   misses"))

    def test_requests_cost_microseconds_and_bulk_seconds_for_a_gigabyte(self):
        """Costs are in the unit of their work."""
        requests = result(line(), [1.0], work=10_000)
        bulk = result(line(figure=Figure.THROUGHPUT), [1.0], work=500_000_000)
        _, first, second = report.costs([requests, bulk])
        self.assertIn(" 100 us/request ", first)
        self.assertIn(" 2.00 s/GB ", second)

    def test_costs_are_shown_with_their_requirement(self):
        """If a line has a requirement for them."""
        demanding = dataclasses.replace(line(), reach_cost=42e-6)
        _, costs = report.costs([result(demanding, [1.0])])
        self.assertIn(" <= 42 ", costs)

    def test_disturbed_lines_are_named(self):
        """The output shows which figures are noise."""
        lines = list(
            report.doubts([result(line("a"), [1.0], others=0.8), result(line("b"), [1.0])])
        )
        self.assertEqual(len(lines), 1)
        self.assertIn("up to 0.8 processors busy during a:", lines[0])
