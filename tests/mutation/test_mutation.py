"""The mutants, and the campaigns that test them."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from tests.mutation.__main__ import EQUIVALENT, NAMED, ROOT, below, chosen
from tests.mutation.campaign import FOUND, SURVIVED, TYPES, Campaign, Results, TestsFail, stages_for
from tests.mutation.mutants import DoesNotApply, mutants_of, named_mutants

SOURCE = '''"""Words."""

def smallest(a: int = 1) -> int:
    """More words."""
    if a < 2 and not b:
        return min(a, 7)
    self.result = call(a, "x")
    self._log.info("called", a, 9)
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
    """The mutants of a module."""

    def test_changes(self) -> None:
        """There is one mutant of each kind, and none of texts, annotations and log calls."""
        mutants = mutants_of("yurttunnel/x.py", SOURCE.encode())
        self.assertEqual(
            [mutant.name.removeprefix("yurttunnel/x.py:smallest: ") for mutant in mutants],
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
                'statement: self.result = call(a, "x") => pass',
                """swapped: call(a, "x") => (call('x', a))""",
                "return: return True => return None",
                "truth: True => False",
            ],
        )

    def test_generated_mutants(self) -> None:
        """Each mutant is a module that differs from the program, and has a unique name."""
        for path in sorted((ROOT / "yurttunnel" / "wire").glob("*.py")):
            source = path.read_bytes()
            mutants = mutants_of(path.name, source)
            self.assertEqual(len({mutant.name for mutant in mutants}), len(mutants))
            for mutant in mutants[::20]:
                changed = mutant.applied_to(source)
                self.assertNotEqual(ast.dump(ast.parse(changed)), ast.dump(ast.parse(source)))

    def test_samples(self) -> None:
        """The same seed chooses the same mutants, another seed others."""
        one, again, other = (chosen(["wire"], 20, seed) for seed in (1, 1, 2))
        self.assertEqual(one, again)
        self.assertNotEqual(one, other)
        self.assertEqual(len(one), 20)

    def test_samples_are_stable(self) -> None:
        """A sample depends little on the other packages: an added package replaces few mutants."""
        alone, beside = (set(chosen(each, 20, 1)) for each in (["wire"], ["cluster", "wire"]))
        self.assertLess(beside - alone, set(chosen(["cluster"], 1000, 1)))
        self.assertTrue(beside & alone)

    def test_parts_of_a_sample(self) -> None:
        """A sample can be tested in parts, by packages; together the parts are the whole sample."""
        sample = chosen(["pki", "server", "wire"], 60, 1)
        parts = [below(sample, packages) for packages in (["pki", "wire"], ["server"])]
        self.assertEqual({mutant.path.split("/")[1] for mutant in parts[0]}, {"pki", "wire"})
        self.assertEqual(sorted([*parts[0], *parts[1]], key=sample.index), sample)
        siblings = below(sample, ["server/siblings"])
        self.assertTrue(siblings)
        self.assertTrue(all(one.path.startswith("yurttunnel/server/siblings/") for one in siblings))

    def test_a_module_beside_the_packages(self) -> None:
        """``metrics.py`` is sampled, too, and the tests of metrics run first."""
        sample = chosen(["metrics.py", "wire"], 400, 1)
        drawn = below(sample, ["metrics.py"])
        self.assertEqual({mutant.path for mutant in drawn}, {"yurttunnel/metrics.py"})
        first, *_ = stages_for("yurttunnel/metrics.py", ROOT)
        self.assertIn("tests.ops.test_metrics", first.split())

    def test_named(self) -> None:
        """The mutants that are written by hand apply to the current program, and can be parsed."""
        for mutant in named_mutants(NAMED, ROOT):
            ast.parse(mutant.applied_to((ROOT / mutant.path).read_bytes()))

    def test_equivalent(self) -> None:
        """The excluded equivalent mutants exist in the current program, and have a reason."""
        for name, reason in tomllib.loads(EQUIVALENT.read_text()).items():
            path = name.split(":")[0]
            names = [mutant.name for mutant in mutants_of(path, (ROOT / path).read_bytes())]
            self.assertIn(name, names)
            self.assertTrue(reason)

    def test_does_not_apply(self) -> None:
        """A named mutant whose text is not in the program is reported with its name."""
        root = Path(self.mktemp())
        root.mkdir()
        (root / "x.py").write_text("a = 1\n")
        (root / "named.toml").write_text('[gone]\npath = "x.py"\nold = "b"\nnew = "c"\n')
        error = self.assertRaises(DoesNotApply, named_mutants, root / "named.toml", root)
        self.assertIn("gone: x.py", str(error))


class CampaignTests(SynchronousTestCase):
    """A campaign on a small program with a test of one of its two functions."""

    def setUp(self) -> None:
        """Write the program."""
        self.directory = Path(self.mktemp()).absolute()
        self.root = self.directory / "root"
        for package in ("yurttunnel", "tests"):
            (self.root / package / "room").mkdir(parents=True)
            (self.root / package / "__init__.py").touch()
            (self.root / package / "room" / "__init__.py").touch()
        (self.root / "yurttunnel/room/program.py").write_text(PROGRAM)
        self.expect(4)

    def expect(self, number: int) -> None:
        """Write the test with an expected number."""
        text = TEST.format(expected=number)
        (self.root / "tests/room/test_program.py").write_text(text)

    def test_verdicts(self) -> None:
        """Tests find two mutants, mypy one, one survives; a second run knows the results."""
        path = "yurttunnel/room/program.py"
        mutants = mutants_of(path, PROGRAM.encode())
        results = Results(self.directory / "results", self.root)
        Campaign(self.root, self.directory / "copies", 1).run(mutants, results.add)
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

    def test_failing_tests(self) -> None:
        """A campaign whose tests fail without a mutant is an error."""
        self.expect(5)
        mutants = mutants_of("yurttunnel/room/program.py", PROGRAM.encode())
        campaign = Campaign(self.root, self.directory / "copies", 1)
        self.assertRaises(TestsFail, campaign.run, mutants, lambda verdict: None)

    def test_stages(self) -> None:
        """Importers of a module come first, direct ones before indirect ones, and then packages."""
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
