"""The mutants, and that tests find those that they can find."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from tests.mutation.__main__ import EQUIVALENT, NAMED, ROOT, below, chosen
from tests.mutation.campaign import FOUND, SURVIVED, TYPES, Campaign, Results, TestsFail, stages_for
from tests.mutation.mutants import DoesNotApply, mutants_of, named_mutants

SOURCE = '''"""Words."""

def least(a: int = 1) -> int:
    """More words."""
    if a < 2 and not b:
        return min(a, 7)
    self.kept = call(a, "x")
    self._log.info("told", a, 9)
    return True

def logPrefix(self):
    return list(zip(a, b, strict=True))[3]
'''

PROGRAM = """def twice(number: int) -> int:
    return number + number


def unused() -> int:
    return 1
"""
TEST = """
from twisted.trial.unittest import SynchronousTestCase
from yurttunnel.room.program import twice

class TwiceTests(SynchronousTestCase):
    def test_twice(self):
        self.assertEqual(twice(2), {expected})
"""


class MutantTests(SynchronousTestCase):
    """What is made of a module."""

    def test_changes(self) -> None:
        """One of each kind, and none of words, annotations and what is only told."""
        mutants = mutants_of("yurttunnel/x.py", SOURCE.encode())
        self.assertEqual(
            [mutant.name.removeprefix("yurttunnel/x.py:least: ") for mutant in mutants],
            [
                "off by one: 1 => 2",
                "guard: if a < 2 and not b: return min(a, 7) => pass",
                "and, or: a < 2 and not b => (a < 2 or not b)",
                "comparison: a < 2 => (a <= 2)",
                "off by one: 2 => 3",
                "not: not b => (b)",
                "return: return min(a, 7) => return None",
                "extreme: min(a, 7) => (max(a, 7))",
                "off by one: 7 => 8",
                'statement: self.kept = call(a, "x") => pass',
                """swapped: call(a, "x") => (call('x', a))""",
                "return: return True => return None",
                "truth: True => False",
            ],
        )

    def test_the_whole_program(self) -> None:
        """Each mutant is a module that differs, and has a name of its own."""
        for path in sorted((ROOT / "yurttunnel" / "wire").glob("*.py")):
            source = path.read_bytes()
            mutants = mutants_of(path.name, source)
            self.assertEqual(len({mutant.name for mutant in mutants}), len(mutants))
            for mutant in mutants[::20]:
                changed = mutant.applied_to(source)
                self.assertNotEqual(ast.dump(ast.parse(changed)), ast.dump(ast.parse(source)))

    def test_samples(self) -> None:
        """The same seed chooses the same ones, another one others."""
        one, again, other = (chosen(["wire"], 20, seed) for seed in (1, 1, 2))
        self.assertEqual(one, again)
        self.assertNotEqual(one, other)
        self.assertEqual(len(one), 20)

    def test_samples_stay(self) -> None:
        """What else there is does not matter to what is drawn: a module more costs few others."""
        alone, beside = (set(chosen(each, 20, 1)) for each in (["wire"], ["cluster", "wire"]))
        self.assertLess(beside - alone, set(chosen(["cluster"], 1000, 1)))
        self.assertTrue(beside & alone)

    def test_parts_of_a_sample(self) -> None:
        """A sample can be tried in parts, each by packages; together they are the whole."""
        sample = chosen(["pki", "server", "wire"], 60, 1)
        parts = [below(sample, packages) for packages in (["pki", "wire"], ["server"])]
        self.assertEqual({mutant.path.split("/")[1] for mutant in parts[0]}, {"pki", "wire"})
        self.assertEqual(sorted([*parts[0], *parts[1]], key=sample.index), sample)
        siblings = below(sample, ["server/siblings"])
        self.assertTrue(siblings)
        self.assertTrue(all(one.path.startswith("yurttunnel/server/siblings/") for one in siblings))

    def test_a_module_beside_the_packages(self) -> None:
        """What declares metrics is drawn from, too, and the tests of metrics are asked first."""
        sample = chosen(["metrics.py", "wire"], 400, 1)
        drawn = below(sample, ["metrics.py"])
        self.assertEqual({mutant.path for mutant in drawn}, {"yurttunnel/metrics.py"})
        first, *_ = stages_for("yurttunnel/metrics.py", ROOT)
        self.assertIn("tests.ops.test_metrics", first.split())

    def test_named(self) -> None:
        """Those that were written by hand fit the program as it is, and are programs."""
        for mutant in named_mutants(NAMED, ROOT):
            ast.parse(mutant.applied_to((ROOT / mutant.path).read_bytes()))

    def test_equivalent(self) -> None:
        """Those that are left out are of the program as it is, and have a reason."""
        for name, reason in tomllib.loads(EQUIVALENT.read_text()).items():
            path = name.split(":")[0]
            names = [mutant.name for mutant in mutants_of(path, (ROOT / path).read_bytes())]
            self.assertIn(name, names)
            self.assertTrue(reason)

    def test_does_not_apply(self) -> None:
        """A named one whose text has gone is told with its name."""
        root = Path(self.mktemp())
        root.mkdir()
        (root / "x.py").write_text("a = 1\n")
        (root / "named.toml").write_text('[gone]\npath = "x.py"\nold = "b"\nnew = "c"\n')
        error = self.assertRaises(DoesNotApply, named_mutants, root / "named.toml", root)
        self.assertIn("gone: x.py", str(error))


class CampaignTests(SynchronousTestCase):
    """A small program with a test of one of its functions."""

    def setUp(self) -> None:
        """Make it."""
        self.directory = Path(self.mktemp()).absolute()
        self.root = self.directory / "root"
        for package in ("yurttunnel", "tests"):
            (self.root / package / "room").mkdir(parents=True)
            (self.root / package / "__init__.py").touch()
            (self.root / package / "room" / "__init__.py").touch()
        (self.root / "yurttunnel/room/program.py").write_text(PROGRAM)
        self.expect(4)

    def expect(self, number: int) -> None:
        """Write the test."""
        text = TEST.format(expected=number)
        (self.root / "tests/room/test_program.py").write_text(text)

    def test_verdicts(self) -> None:
        """Tests find some, their types others, and others survive; all are known afterwards."""
        path = "yurttunnel/room/program.py"
        mutants = mutants_of(path, PROGRAM.encode())
        results = Results(self.directory / "results", self.root)
        Campaign(self.root, self.directory / "copies", 1).run(mutants, results.keep)
        again = Results(self.directory / "results", self.root)
        verdicts = [again.known(mutant) for mutant in mutants]
        self.assertEqual(
            [(verdict.mutant.line, verdict.result, verdict.by) for verdict in verdicts if verdict],
            [
                (2, FOUND, "tests.room.test_program"),
                (2, FOUND, "tests.room.test_program"),
                (6, FOUND, TYPES),
                (6, SURVIVED, ""),
            ],
        )
        self.expect(5)
        self.assertIsNone(Results(self.directory / "results", self.root).known(mutants[0]))

    def test_tests_that_fail_anyway(self) -> None:
        """They would find everything."""
        self.expect(5)
        mutants = mutants_of("yurttunnel/room/program.py", PROGRAM.encode())
        campaign = Campaign(self.root, self.directory / "copies", 1)
        self.assertRaises(TestsFail, campaign.run, mutants, lambda verdict: None)

    def test_stages(self) -> None:
        """Test modules that import a module come first, its own before others, and last those that
        do by what they share; then packages.
        """
        for package in ("yurttunnel", "tests"):
            (self.root / package / "room/deep").mkdir()
        (self.root / "tests/room/test_another.py").write_text("from yurttunnel.room import program")
        (self.root / "tests/room/test_others.py").write_text("import yurttunnel.room.programs")
        (self.root / "tests/room/programs.py").write_text("from yurttunnel.room import program")
        (self.root / "tests/room/test_about.py").write_text("from tests.room.programs import all")
        for path, stages in {
            "yurttunnel/room/program.py": [
                "tests.room.test_program tests.room.test_another tests.room.test_about",
                "tests.room",
            ],
            "yurttunnel/room/other.py": ["tests.room"],
            "yurttunnel/room/deep/program.py": ["tests.room.deep", "tests.room"],
            "yurttunnel/room/untested/program.py": ["tests.room"],
            "yurttunnel/nowhere.py": ["tests"],
        }.items():
            self.assertEqual(stages_for(path, self.root), stages, path)
