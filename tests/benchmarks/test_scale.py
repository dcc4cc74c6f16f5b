"""The benchmark of many agents: its command line and figures, and runs with few of them."""

from __future__ import annotations

import contextlib
import io
import tempfile
from collections.abc import Iterable
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from benchmarks import scale, scale_parts
from benchmarks.scale import parse, row, up_to
from benchmarks.scale_parts import MAX_MEMORY, Figure
from benchmarks.tunnel import Settings

AGENTS = 5


class CommandLineTests(SynchronousTestCase):
    """Flags."""

    def test_everything_is_measured_unless_parts_are_chosen(self) -> None:
        """--only can be given several times."""
        self.assertIsNone(parse([]).only)
        chosen = parse(["--only", "growth", "--only", "restarts"])
        self.assertEqual(chosen.only, ["growth", "restarts"])

    def test_one_agent_has_nothing_to_be_compared_with(self) -> None:
        """The error has the required minimum."""
        output = io.StringIO()
        with contextlib.redirect_stderr(output):
            self.assertRaises(SystemExit, parse, ["--agents", "1"])
        self.assertIn("--agents must be at least 2", output.getvalue())

    def test_the_last_step_has_the_requested_agents(self) -> None:
        """--agents removes larger steps, and is itself the last one."""
        self.assertEqual(up_to((1, 100, 1000), None), (1, 100, 1000))
        self.assertEqual(up_to((1, 100, 1000), 300), (1, 100, 300))
        self.assertEqual(up_to((1, 100), 5000), (1, 100, 5000))


class FigureTests(SynchronousTestCase):
    """Figures and their requirements."""

    def test_a_figure_holds_up_to_what_is_demanded(self) -> None:
        """The bound itself suffices, and some figures have no requirement."""
        self.assertEqual(Figure("memory", 2000, 100.0, "KiB", most=100.0).verdict, "holds")
        self.assertEqual(Figure("memory", 2000, 100.1, "KiB", most=100.0).verdict, "misses")
        self.assertEqual(Figure("CPU", 2000, 100.1, "us").verdict, "")

    def test_a_row_has_the_figure_in_its_unit_and_the_verdict(self) -> None:
        """All values of a figure are in one row."""
        shown = row(Figure("memory of an idle agent", 2000, 61.26, "KiB", MAX_MEMORY)).split()
        self.assertEqual(shown[-6:], ["2000", "61.3", "KiB", "<=", "100", "holds"])


class RunTests(SynchronousTestCase):
    """Parts with few agents and short waits: real servers, and real sessions."""

    def setUp(self) -> None:
        """Shorten the waits that thousands of agents need."""
        self.patch(scale_parts, "SETTLE_SECONDS", 0.1)
        self.patch(scale_parts, "PINGS", 0.5)
        self.patch(scale_parts, "ENROLLING", 2)
        directory = tempfile.TemporaryDirectory(prefix="yurttunnel-scale-")
        self.addCleanup(directory.cleanup)
        self.directory = Path(directory.name)

    def by_name(self, stats: Iterable[Figure]) -> dict[str, Figure]:
        """Return the last figure of each name, and print them all."""
        found: dict[str, Figure] = {}
        for figure in stats:
            print(row(figure))
            found[figure.name] = figure
        return found

    def test_growth(self) -> None:
        """Agents that enrol and agents that do not are connected, step by step."""
        found = self.by_name(scale_parts.growth(self.directory, Settings(), (1, AGENTS)))
        self.assertEqual(found["enrolments"].agents, 2)
        self.assertGreater(found["enrolments"].value, 0)
        self.assertEqual(found["CPU at idle"].agents, AGENTS)
        self.assertGreater(found["CPU of a new session"].value, 0)
        self.assertGreater(found["GET /agents"].value, 0)
        self.assertGreater(found["memory of the server"].value, 10)

    def test_restarts(self) -> None:
        """All agents reconnect to a server that was killed or stopped."""
        found = self.by_name(scale_parts.restarts(self.directory, Settings(), AGENTS))
        for name in ("SIGKILL", "SIGTERM"):
            back = found[f"{name}: all are back"]
            self.assertEqual(back.verdict, "holds")
            self.assertGreater(back.value, 0)
            self.assertGreaterEqual(found[f"{name}: most in one second"].value, 1)

    def test_every_part_has_a_name_on_the_command_line(self) -> None:
        """Each part can be measured alone."""
        self.assertEqual(set(scale.PARTS), {"growth", "restarts", "requests"})
