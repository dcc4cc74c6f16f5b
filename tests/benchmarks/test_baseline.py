"""Comparison with an earlier run."""

import json
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from benchmarks import record
from benchmarks.baseline import changes, read_baseline
from benchmarks.processes import BenchmarkFailed
from benchmarks.summary import summarize
from tests.benchmarks.fakes import line, result


class ChangesTests(SynchronousTestCase):
    """The definition of a loss."""

    def change(self, before, now, **options):
        """Compare earlier and current ratios of one line."""
        found = changes({"speed": summarize(before)}, [result(line(**options), now)])
        self.assertEqual(len(found), 1)
        return found[0]

    def test_a_tenth_beyond_the_spread_is_no_loss_yet(self):
        """Up to 10 % is tolerated, more is not."""
        self.assertFalse(self.change([1.0], [0.901]).is_loss)
        self.assertTrue(self.change([1.0], [0.899]).is_loss)

    def test_a_loss_within_the_spread_is_none(self):
        """A difference between the facing quartiles is noise."""
        before = [0.8, 0.8, 1.0, 1.2, 1.2]
        change = self.change(before, [0.75] * 3)
        self.assertFalse(change.is_loss)
        self.assertAlmostEqual(change.loss, 0.0625)

    def test_the_spread_of_the_new_run_counts_too(self):
        """A much worse median may be noise if the runs differ much."""
        self.assertFalse(self.change([1.0], [0.5, 0.6, 0.7, 0.95, 1.0]).is_loss)

    def test_more_is_a_loss_where_less_is_better(self):
        """An increase of latency or memory is a loss."""
        self.assertTrue(self.change([1.0], [1.2], higher_is_better=False).is_loss)
        self.assertFalse(self.change([1.0], [0.5], higher_is_better=False).is_loss)

    def test_a_gain_is_no_loss(self):
        """An improvement is not a loss."""
        self.assertEqual(self.change([1.0], [1.5]).loss, 0.0)

    def test_growth_from_nothing_is_no_part_of_it(self):
        """An earlier figure of 0 has no relative change."""
        self.assertEqual(self.change([0.0], [1.0], higher_is_better=False).loss, 0.0)

    def test_lines_that_only_one_run_has_are_left_out(self):
        """A baseline may be older than a line, and a run may measure one line only."""
        baseline = {"other": summarize([1.0])}
        self.assertEqual(changes(baseline, [result(line(), [0.1])]), [])

    def test_figures_that_are_not_trusted_are_left_out(self):
        """A loss that the load generator causes is not the tunnel's."""
        baseline = {"speed": summarize([1.0])}
        self.assertEqual(changes(baseline, [result(line(), [0.1], driver=5.0)]), [])


class FileTests(SynchronousTestCase):
    """The file of results as a baseline."""

    def setUp(self):
        """Choose a file that does not exist."""
        self.path = Path(self.mktemp())

    def write(self, content):
        """Write a JSON document to the file."""
        self.path.write_text(json.dumps(content))

    def refusal(self):
        """Return the error about the file."""
        return str(self.assertRaises(BenchmarkFailed, read_baseline, self.path))

    def test_what_one_run_has_written_the_next_one_reads(self):
        """All judged figures are restored."""
        written = result(line(), [0.9, 1.0, 1.3])
        record.write(self.path, record.document([written], {"commit": "abc"}, {"repeats": 3}))
        self.assertEqual(read_baseline(self.path), {"speed": written.summary})

    def test_the_directory_of_the_file_is_made(self):
        """The default directory does not exist in a fresh checkout."""
        path = self.path / "build" / "benchmark.json"
        record.write(path, record.document([], {}, {}))
        self.assertEqual(read_baseline(path), {})

    def test_a_file_that_cannot_be_read_is_named(self):
        """The error names the flag, the file and the reason."""
        self.assertIn(f"--baseline {self.path}: No such file", self.refusal())

    def test_a_file_of_another_format_is_refused(self):
        """The file of a later version is not misread."""
        self.write({"format": record.FORMAT + 1, "lines": []})
        self.assertIn("format", self.refusal())

    def test_a_file_that_lacks_something_is_refused(self):
        """The error names the missing part."""
        self.write({"format": record.FORMAT})
        self.assertIn("'lines'", self.refusal())

    def test_a_file_that_is_something_else_is_refused(self):
        """Any content causes an error without a traceback."""
        for content in ([], {"format": 1, "lines": [{"name": "a", "judged": ["x"]}]}, "text"):
            self.write(content)
            self.assertIn("not a result of this command", self.refusal())
        self.path.write_text("{")
        self.assertIn("not a result of this command", self.refusal())
