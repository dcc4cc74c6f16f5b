"""The table of attacks in docs/security.md names tests that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

ROOT = Path(__file__).parents[2]
SECURITY = ROOT / "docs" / "security.md"


def _is_test(name: str) -> bool:
    """Return whether ``name`` is a module, a class in one, or a method of such a class.

    Modules are parsed, not imported: imports would need the libraries of all tests.
    """
    parts = name.split(".")
    for size in range(len(parts), 1, -1):
        path = ROOT.joinpath(*parts[:size]).with_suffix(".py")
        if path.exists():
            return _has(ast.parse(path.read_text("utf-8")), parts[size:])
    return False


def _has(node: ast.AST, names: list[str]) -> bool:
    """Return whether ``node`` defines the first name, and that definition the next, recursively."""
    if not names:
        return True
    return any(
        _has(child, names[1:])
        for child in ast.iter_child_nodes(node)
        if getattr(child, "name", None) == names[0]
    )


class TableTests(SynchronousTestCase):
    """The test names in the table."""

    def test_every_test_exists(self) -> None:
        """Each name is a module, a class or a test."""
        names = re.findall(r"`(tests\.[\w.]+)`", SECURITY.read_text("utf-8"))
        self.assertGreater(len(names), 50)
        for name in names:
            self.assertTrue(_is_test(name), f"{name} is no test")

    def test_every_module_here_is_in_it(self) -> None:
        """The table contains every test module of this package."""
        text = SECURITY.read_text("utf-8")
        for path in Path(__file__).parent.glob("test_*.py"):
            if path.stem != Path(__file__).stem:
                self.assertIn(f"`tests.adversarial.{path.stem}", text)
