"""The constants of a package, recorded next to its tests; ``python -m tests.bounds`` updates them.

These are limits, timeouts, defaults of parameters, and numbers of formats and of the kernel. A test
that takes a limit from the program itself passes with any value.
"""

from __future__ import annotations

import ast
import dataclasses
import datetime
import enum
import importlib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
WRITTEN = sorted(ROOT.glob("tests/*/bounds.txt"))
"""The files that record the constants, each next to the tests of its package."""

_ELSEWHERE = {"apiserver": ROOT / "tests" / "apiserver", "yurtlab": ROOT / "yurtlab"}
"""Packages that are not in ``yurttunnel``."""

_NUMBERS = {bool, int, float, datetime.timedelta}
_OF_THE_MACHINE = {"mmap", "os", "resource", "select", "sys"}
"""Modules whose constants differ between machines."""


def bounds_of(package: str) -> str:
    """Return a line for each constant with a name in a module, a class or a signature."""
    top = _ELSEWHERE.get(package, ROOT / "yurttunnel" / package)
    return "".join(
        f"{path.relative_to(top).with_suffix('')}: {line}\n"
        for path in sorted(top.rglob("*.py"))
        if path.stem != "__main__" and not path.stem.startswith("test_")
        for line in _lines(path)
    )


def _lines(path: Path) -> Iterator[str]:
    tree = ast.parse(path.read_bytes())
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    module = importlib.import_module(name)
    yield from _values(tree, vars(module), "")
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and hasattr(module, node.name):
            owner = getattr(module, node.name)
            fields = dataclasses.fields(owner) if dataclasses.is_dataclass(owner) else ()
            defaults = {field.name: field.default for field in fields}
            # Those of a named tuple, if it is one.
            defaults |= getattr(owner, "_field_defaults", {})
            yield from _values(node, {**vars(owner), **defaults}, f"{node.name}.")
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _defaults(node)


def _values(
    node: ast.Module | ast.ClassDef, values: dict[str, object], prefix: str
) -> Iterator[str]:
    for statement in node.body:
        if isinstance(statement, ast.Assign):
            targets = statement.targets
        elif isinstance(statement, ast.AnnAssign):
            targets = [statement.target]
        else:
            continue
        if statement.value is None or _is_of_the_machine(statement.value):
            continue
        for name in (name for target in targets for name in _names(target)):
            value = values.get(name)
            # Members that a module unpacks from an enum are listed with the enum.
            if prefix and isinstance(value, enum.Enum):
                value = value.value
            parts = value if isinstance(value, tuple) else (value,)
            if parts and all(type(one) in _NUMBERS for one in parts):
                yield f"{prefix}{name} = {value}"


def _names(target: ast.expr) -> list[str]:
    """Return the names that are assigned to, one or several."""
    parts = target.elts if isinstance(target, ast.Tuple) else [target]
    return [part.id for part in parts if isinstance(part, ast.Name)]


def _is_of_the_machine(value: ast.expr) -> bool:
    return any(
        isinstance(node, ast.Name) and node.id in _OF_THE_MACHINE for node in ast.walk(value)
    )


def _defaults(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    given = function.args
    positional = [*given.posonlyargs, *given.args]
    pairs = [
        *zip(positional[::-1], given.defaults[::-1], strict=False),
        *zip(given.kwonlyargs, given.kw_defaults, strict=True),
    ]
    for parameter, default in pairs:
        if isinstance(default, ast.Constant) and isinstance(default.value, int | float):
            yield f"{function.name}({parameter.arg}={default.value})"


if __name__ == "__main__":
    for written in WRITTEN:
        written.write_text(bounds_of(written.parent.name))
