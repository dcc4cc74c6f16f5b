"""Deliberate defects of a module: single changes of its source, found by :mod:`ast`."""

from __future__ import annotations

import ast
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
}
_EXTREMES = {"min": "max", "max": "min"}

_REPORTERS = ("_log", "log", "warnings")
"""Functions that only report something: mutants do not change texts."""

_TEXTS = ("__repr__", "__str__", "logPrefix")
"""Functions that only format texts."""


class DoesNotApply(Exception):
    """The text that a named mutant replaces is not in its file exactly once."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change: ``new`` in path of the bytes from ``start`` to ``end`` of a file.

    ``name`` says where and what it is without the number of a line, so that it stays the same
    when something else in the file changes. ``path`` is from the root of the repository.
    """

    name: str
    path: str
    line: int
    start: int
    end: int
    old: str
    new: str

    def applied_to(self, source: bytes) -> bytes:
        """Return the source with the change."""
        return source[: self.start] + self.new.encode() + source[self.end :]


def mutants_of(path: str, source: bytes) -> list[Mutant]:
    """Return all generated mutants of a module, in the order of its lines."""
    return _Generator(path, source).run()


def named_mutants(file: Path, root: Path) -> list[Mutant]:
    """Return the mutants of a file that are written by hand, each with its name, path, old and new.

    Raises `DoesNotApply` for one whose module has changed.
    """
    mutants = []
    for name, entry in tomllib.loads(file.read_text()).items():
        source = (root / entry["path"]).read_bytes()
        old = entry["old"].encode()
        if source.count(old) != 1:
            raise DoesNotApply(f"{name}: {entry['path']} has its text {source.count(old)} times")
        start = source.index(old)
        line = source.count(b"\n", 0, start) + 1
        end = start + len(old)
        mutants.append(Mutant(name, entry["path"], line, start, end, entry["old"], entry["new"]))
    return mutants


class _Generator:
    def __init__(self, path: str, source: bytes) -> None:
        self._path = path
        self._source = source
        self._starts = [0]
        for line in source.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))
        self._seen: Counter[str] = Counter()

    def run(self) -> list[Mutant]:
        found = [
            self._mutant(scope, node, kind, new)
            for scope, node in _nodes(ast.parse(self._source), "")
            for kind, new in _changes(node)
        ]
        return sorted(found, key=lambda mutant: (mutant.start, mutant.name))

    def _mutant(self, scope: str, node: ast.expr | ast.stmt, kind: str, new: str) -> Mutant:
        start = self._starts[node.lineno - 1] + node.col_offset
        assert node.end_lineno is not None and node.end_col_offset is not None
        end = self._starts[node.end_lineno - 1] + node.end_col_offset
        old = self._source[start:end].decode()
        short = " ".join(f"{old} => {new}".split())
        name = f"{self._path}:{scope}: {kind}: {short}"
        self._seen[name] += 1
        if self._seen[name] > 1:
            name += f" ({self._seen[name]})"
        return Mutant(name, self._path, node.lineno, start, end, old, new)


def _nodes(parent: ast.AST, scope: str) -> Iterator[tuple[str, ast.expr | ast.stmt]]:
    """Yield the executed nodes of a tree, with the qualified name of the function around them."""
    for field, value in ast.iter_fields(parent):
        if field in ("annotation", "returns", "decorator_list", "bases", "type_params"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or _is_text(child):
                continue
            inner = scope
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                inner = f"{scope}.{child.name}".lstrip(".")
            if isinstance(child, ast.expr | ast.stmt):
                yield inner, child
            yield from _nodes(child, inner)


def _is_text(node: ast.AST) -> bool:
    """Return whether a node affects nothing but texts."""
    match node:
        case ast.Expr(value=ast.Constant()) | ast.JoinedStr() | ast.Import() | ast.ImportFrom():
            return True
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=target))):
            name = target.attr if isinstance(target, ast.Attribute) else getattr(target, "id", "")
            return name in _REPORTERS
        case ast.FunctionDef(name=name):
            return name in _TEXTS
        case ast.Assign(targets=[ast.Name(id="noisy")]):
            # Whether Twisted's factories log that they start.
            return True
        case ast.keyword(arg="strict"):
            # ``strict`` only checks that the lengths are equal.
            return True
        case ast.If(test=ast.Name(id="TYPE_CHECKING")) | ast.Assert():
            return True
    return False


def _changes(node: ast.expr | ast.stmt) -> Iterator[tuple[str, str]]:
    """Yield kind and new text of each change of this node."""
    match node:
        case ast.Compare(left=left, ops=ops, comparators=others):
            for number, operator in enumerate(ops):
                changed = [*ops]
                changed[number] = _COMPARISONS[type(operator)]()
                yield "comparison", _text(ast.Compare(left, changed, others))
        case ast.BoolOp(op=operator, values=values):
            other = ast.Or() if isinstance(operator, ast.And) else ast.And()
            yield "and, or", _text(ast.BoolOp(other, values))
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield "not", _text(operand)
        case ast.BinOp(left=left, op=operator, right=right) if type(operator) in _ARITHMETIC:
            yield "arithmetic", _text(ast.BinOp(left, _ARITHMETIC[type(operator)](), right))
        case ast.Constant(value=bool(value)):
            yield "truth", str(not value)
        case ast.Constant(value=int(value)):
            yield "off by one", str(value + 1)
        case ast.Call(func=ast.Name(id=name), args=args, keywords=keywords) if name in _EXTREMES:
            yield "extreme", _text(ast.Call(ast.Name(_EXTREMES[name]), args, keywords))
        case ast.Call(func=func, args=[first, second, *rest], keywords=keywords) if not any(
            isinstance(each, ast.Starred) for each in (first, second)
        ):
            if ast.dump(first) != ast.dump(second):
                yield "swapped", _text(ast.Call(func, [second, first, *rest], keywords))
        case ast.If(body=[ast.Return() | ast.Raise() | ast.Continue() | ast.Break()], orelse=[]):
            yield "guard", "pass"
        case ast.Return(value=ast.expr() as value) if not _is_none(value):
            yield "return", "return None"
        case (
            ast.Expr(value=ast.Call() | ast.Await() | ast.Yield()) | ast.AugAssign() | ast.Delete()
        ):
            yield "statement", "pass"
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield "statement", "pass"


def _is_none(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and value.value is None


def _text(node: ast.expr) -> str:
    return f"({ast.unparse(ast.fix_missing_locations(node))})"
