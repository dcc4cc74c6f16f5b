"""The benchmark of steering: the evaluation of its figures, and a run with few nodes."""

from __future__ import annotations

import contextlib
import io
from contextlib import closing

from twisted.internet.threads import deferToThread
from twisted.trial.unittest import SynchronousTestCase, TestCase

from benchmarks.steering import Figure, connection_figures, parse, sync_figures
from benchmarks.steering_connections import Case, measure
from benchmarks.steering_manager import run_manager
from tests.e2e.network.namespaces import Namespace
from tests.e2e.support import which
from yurttunnel.steering.interception import Match


def sync(seconds, own=0.0, children=0.0, processes=1):
    """Return the output for a sync."""
    cost = {"own_cpu": own, "child_cpu": children, "processes": processes}
    return {"seconds": seconds, "cost": cost}


def printed(seconds):
    """Return the output of a run."""
    names = ("first", "unchanged", "changed", "removed")
    return {name: sync(seconds, own=0.25, children=0.5) for name in names}


class FigureTests(SynchronousTestCase):
    """Figures and their requirements."""

    def test_verdicts(self):
        """The bound itself suffices, as maximum and minimum; some figures have no requirement."""
        self.assertTrue(Figure("nft", "edge-set", "x", 1.0, most=1.0).holds)
        self.assertFalse(Figure("nft", "edge-set", "x", 1.1, most=1.0).holds)
        self.assertTrue(Figure("nft", "edge-set", "x", 0.9, least=0.9).holds)
        self.assertFalse(Figure("nft", "edge-set", "x", 0.89, least=0.9).holds)
        self.assertTrue(Figure("nft", "edge-set", "x", 9.0).holds)

    def test_rows(self):
        """A row has the requirement, and whether it is met."""
        row = Figure("nft", "edge-set", "first sync, s", 1.234, most=1.0).row()
        self.assertEqual(row.split()[-4:], ["1.23", "<=", "1", "misses"])
        row = Figure("nft", "edge-set", "first sync, s", 1.234).row()
        self.assertEqual(row.split()[-1], "1.23")

    def test_figures_of_syncs_are_medians(self):
        """One slow run does not matter; CPU time is that of the process and its children."""
        runs = [printed(0.5), printed(9.0), printed(0.4)]
        stats = {each.name: each for each in sync_figures("nft", Match.EDGE_SET, runs)}
        self.assertEqual(stats["first sync, s"].value, 0.5)
        self.assertTrue(stats["first sync, s"].holds)
        self.assertEqual(stats["unchanged sync, CPU s"].value, 0.75)
        self.assertFalse(stats["unchanged sync, CPU s"].holds)

    def test_the_growth_with_the_number_of_nodes(self):
        """The growth of ``edge-set`` is judged, from the fewest nodes to the most."""
        ratios = {
            Case(Match.EDGE_SET, 100): 0.8,
            Case(Match.EDGE_SET, 5000): 0.4,
            Case(Match.CLOUD_RETURN, 5000): 0.1,
        }
        *_, growth = connection_figures("legacy", ratios, 5000)
        self.assertEqual((growth.value, growth.holds), (0.5, False))

    def test_too_few_nodes(self):
        """Fewer nodes than the reference are rejected."""
        output = io.StringIO()
        with contextlib.redirect_stderr(output):
            self.assertRaises(SystemExit, parse, ["--nodes", "99"])
        self.assertIn("at least 100", output.getvalue())


class RunTests(TestCase):
    """The real manager writes real rules, in separate network namespaces."""

    timeout = 120

    def setUp(self):
        """Skip without iptables, or without permission to create namespaces."""
        which("iptables-nft")
        Namespace(current=True).close()

    async def test_syncs(self):
        """All syncs are measured, and one without a change runs only a check."""
        namespace = Namespace()

        def work():
            with closing(namespace), namespace.inside():
                return run_manager("nft", Match.EDGE_SET, 3)

        stats = await deferToThread(work)
        self.assertEqual(set(stats), {"first", "unchanged", "changed", "removed"})
        self.assertLessEqual(stats["unchanged"]["cost"]["processes"], 2)
        for each in stats.values():
            self.assertGreater(each["seconds"], 0)

    async def test_connections(self):
        """Connections to edge nodes arrive with either kind of rules."""
        cases = [Case(match, 3) for match in Match]
        rates = await deferToThread(measure, "nft", cases, 1, 3)
        self.assertEqual([each.case for each in rates], cases)
        for each in rates:
            self.assertGreater(each.ratio, 0)
