"""The evaluation of single runs."""

from twisted.trial.unittest import SynchronousTestCase

from benchmarks.lines import LINES, IdleLine
from benchmarks.result import Result, Verdict, compare
from benchmarks.run import Unit
from benchmarks.summary import Summary, summarize
from tests.benchmarks.fakes import line, result, run


class SummaryTests(SynchronousTestCase):
    """The median and the spread of several values."""

    def test_the_order_of_values_does_not_matter(self):
        """Median and quartiles are those of the sorted values."""
        self.assertEqual(summarize([5.0, 1.0, 3.0, 2.0, 4.0]), Summary(3.0, 2.0, 4.0))

    def test_one_value_has_no_spread(self):
        """A single value is median and both quartiles."""
        self.assertEqual(summarize([7.0]), Summary(7.0, 7.0, 7.0))


class RunTests(SynchronousTestCase):
    """One run."""

    def test_cost_is_the_time_of_all_tested_programs_for_one_piece_of_work(self):
        """Server and agent count together."""
        self.assertAlmostEqual(run(1.0, work=500, server=0.6, agent=0.4).cost, 0.002)

    def test_driver_share_is_of_the_time_of_load_and_tested_programs(self):
        """The CPU time of other programs does not count."""
        share = run(1.0, server=0.3, agent=0.3, driver=0.2, others=9.0).driver_share
        self.assertAlmostEqual(share, 0.25)

    def test_a_run_that_took_no_time_has_no_share(self):
        """The load's share is 0 if the clocks have measured no time."""
        self.assertEqual(run(1.0, server=0.0, agent=0.0, driver=0.0).driver_share, 0.0)


class ResultTests(SynchronousTestCase):
    """The results of the runs of a line."""

    def test_each_run_is_compared_with_the_peers_previous_run(self):
        """Ratios are those of neighboring runs, not of medians."""
        peer = [run(100.0), run(10.0)]
        ours = [run(50.0), run(10.0)]
        self.assertEqual(compare(line(), peer, ours).judged, [0.5, 1.0])

    def test_a_line_holds_from_its_reach_on(self):
        """The median is compared, and the required value itself suffices."""
        self.assertIs(result(line(reach=0.9), [0.1, 0.9, 2.0]).verdict, Verdict.HOLDS)
        self.assertIs(result(line(reach=0.9), [0.1, 0.89, 2.0]).verdict, Verdict.MISSES)

    def test_a_line_for_which_less_is_better_holds_up_to_its_reach(self):
        """The required value of a latency is a maximum."""
        latency = line(reach=1.15, higher_is_better=False)
        self.assertIs(result(latency, [1.15]).verdict, Verdict.HOLDS)
        self.assertIs(result(latency, [1.16]).verdict, Verdict.MISSES)

    def test_figures_of_a_load_that_worked_harder_than_the_tunnel_are_not_trusted(self):
        """Even if they are good."""
        self.assertIs(result(line(), [2.0], driver=1.1).verdict, Verdict.NOT_TRUSTED)
        self.assertIs(result(line(), [2.0], driver=0.9).verdict, Verdict.HOLDS)

    def test_a_load_that_is_mostly_idle_is_trusted(self):
        """A link or a timer is the limit then, not the load generator."""
        for driver, verdict in ((0.6, Verdict.NOT_TRUSTED), (0.4, Verdict.HOLDS)):
            little = result(line(), [2.0], server=0.1, agent=0.1, driver=driver)
            self.assertIs(little.verdict, verdict)

    def test_a_load_beside_no_tested_program_is_trusted(self):
        """If a link is the limit, all CPU time is the load generator's."""
        plain = [run(100.0, server=0.0, agent=0.0)]
        for each in plain:
            each.tested_cpu.clear()
        self.assertIs(compare(line(), plain, [run(95.0)]).verdict, Verdict.HOLDS)

    def test_the_worst_disturbance_counts(self):
        """One disturbed run makes the figure doubtful."""
        disturbed = compare(line(), [run(1.0), run(1.0, others=0.7)], [run(1.0), run(1.0)])
        self.assertEqual(disturbed.others_load, 0.7)

    def test_a_line_without_runs_is_judged_by_its_figures(self):
        """Memory is not compared with a peer."""
        memory = IdleLine("memory", "memory", 90, False, Unit.MEBIBYTES)
        self.assertIs(Result(memory, [80.0, 91.0, 85.0], [], []).verdict, Verdict.HOLDS)


class LinesTests(SynchronousTestCase):
    """The table."""

    def test_names_are_unique(self):
        """A name identifies one line, on the command line and in a baseline."""
        names = [each.name for each in LINES]
        self.assertEqual(len(names), len(set(names)))
