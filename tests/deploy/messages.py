"""Finds the messages that an operator of the programs may see in their source.

Included are:

- warnings and more severe log messages: the first argument of ``warn``, ``error``, ``critical`` and
  ``failure``;
- errors that end a start: the text of each exception in :data:`START_ERRORS`, and of
  ``exit_with_error``;
- reasons in these: the text of each exception in :data:`REASONS`, and of the calls and attributes
  in :data:`TEXT_SOURCES`, which produce the text of messages that have no literal words.

Excluded are defects of the program (``Defect: ...``), which share one remedy; the quickstart, which
has no operator; and the errors after ``--flag: `` about a value that cannot be parsed, which quote
the value and say what is expected.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

LOG_METHODS = {"warn", "error", "critical", "failure"}

START_ERRORS = {"SystemExit", "UsageError", "CannotListen", "BadConfiguration", "FlagMissing"}

REASONS = {
    "StateError",
    "BadBundle",
    "BadKubeConfiguration",
    "BadMiddleware",
    "NoAddresses",
    "SteeringFailed",
    "TooManyRecords",
    "UnsuitableFile",
    "ExposedPath",
    "EnrolmentRefused",
    "EnrolmentFailed",
    "AuthorityExpired",
    "ServerNotTrusted",
    "ClockSeemsWrong",
    "TokenRefused",
    "BadToken",
    "NotIssued",
    "RequestFailed",
    "ForwardRefused",
    "ChangeRejected",
}

TEXT_SOURCES = {
    "yurttunnel/cluster/serving_names.py": {"append"},
    "yurttunnel/hub/identity/authorities.py": {"_not_stored"},
    "yurttunnel/hub/network/interface.py": set(),
    "yurttunnel/hub/upstream/health.py": set(),
    "yurttunnel/pki/stored_certificate.py": {"_not_stored_text"},
    "yurttunnel/pki/renewal.py": {"_with_clock_hint", "_FOREIGN"},
    "yurttunnel/pki/directory.py": {"_explanation"},
    "yurttunnel/pki/tls_errors.py": {
        *("_ERRORS", "_SERVER_ERRORS", "_AGENT_ALERTS", "_SERVER_ALERTS", "_ADVICE_BY_CODE"),
        *("_REJECTED_BY_KUBELET", "certificate_problem", "_validity_period"),
    },
    "yurttunnel/pki/authorities.py": {"expiry_problem"},
    "yurttunnel/pki/revocation.py": {"problem", "warning"},
    "yurttunnel/pki/clock_skew.py": {"sentence"},
    "yurttunnel/proxy/kernel/failure_detector.py": set(),
    "yurttunnel/proxy/proxier.py": {"_unclaimed"},
    "yurttunnel/proxy/sources/sources.py": set(),
    "yurttunnel/server/frontends/passthrough/listener.py": {"_alert", "_reset"},
    "yurttunnel/server/handshake_failures.py": set(),
    "yurttunnel/steering/dns/controller.py": {"_report_problem"},
    "yurttunnel/steering/dns/records.py": {"append"},
    "yurttunnel/steering/dns/writer.py": {"_problem"},
    "yurttunnel/steering/families.py": set(),
    "yurttunnel/steering/firewall/detection.py": {"missing"},
    "yurttunnel/steering/record.py": {"without_sets", "_flows_problem"},
    "yurttunnel/steering/desired_state.py": {
        "_shared",
        "_with_too_many_addresses",
        "_without_listener",
    },
}
"""The sources of text for messages without literal words, by file: calls, attributes, names, and
functions with their return values."""

_PLACEHOLDER = re.compile(r"\{[^{}]*\}")
_HOLE = "…"


def key(message: str) -> str:
    """Return the key of a message: its literal words, without the values of placeholders."""
    joined = _PLACEHOLDER.sub(_HOLE, message)
    return re.sub(rf"{_HOLE}+", _HOLE, " ".join(joined.split()))


def has_words(message: str) -> bool:
    """Return whether a message has a literal word to search for."""
    return re.search(r"[A-Za-z]{2}", key(message)) is not None


class Messages(ast.NodeVisitor):
    """The messages of a file: ``found`` maps their keys to line numbers.

    ``uses`` maps each key to its uses: the logger's method, ``start`` if the message ends a start,
    or ``reason`` if it is part of other messages.
    """

    def __init__(self, text_sources: set[str]) -> None:
        self.found: dict[str, int] = {}
        self.uses: dict[str, set[str]] = {}
        self.wordless = False
        self._text_sources = text_sources
        self._locals: dict[str, ast.expr] = {}
        self._function = ""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        """Record the current function."""
        outer, self._function = self._function, node.name
        self.generic_visit(node)
        self._function = outer

    def visit_Return(self, node: ast.Return) -> None:
        """Collect the text that a listed function returns."""
        if self._function in self._text_sources and node.value is not None:
            self._collect(node.value)
        self.generic_visit(node)

    def visit_Yield(self, node: ast.Yield) -> None:
        """Collect the texts that a listed function yields."""
        if self._function in self._text_sources and node.value is not None:
            self._collect(node.value)
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        """Record what a name is bound to, and collect the text that is bound to a listed name."""
        for target in node.targets:
            if isinstance(target, ast.Name):
                self._locals[target.id] = node.value
            holder = target.value if isinstance(target, ast.Subscript) else target
            if _name(holder) in self._text_sources:
                self._collect(node.value)
        self.generic_visit(node)

    def visit_Raise(self, node: ast.Raise) -> None:
        """Collect the text of an exception that is reported to the operator."""
        if isinstance(node.exc, ast.Call) and _name(node.exc.func) in START_ERRORS | REASONS:
            use = "start" if _name(node.exc.func) in START_ERRORS else "reason"
            for argument in node.exc.args:
                self._collect(argument, use)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        """Collect text that is logged, passed on or printed at the exit."""
        name = _name(node.func)
        if name in LOG_METHODS and isinstance(node.func, ast.Attribute) and node.args:
            self._collect(node.args[0], name)
        elif name == "exit_with_error" or name in self._text_sources:
            for argument in node.args:
                self._collect(argument, "start" if name == "exit_with_error" else "reason")
        self.generic_visit(node)

    def _collect(self, node: ast.expr, use: str = "reason") -> None:
        if isinstance(node, ast.Name):
            node = self._locals.get(node.id, node)
        if isinstance(node, ast.IfExp):
            self._collect(node.body, use)
            self._collect(node.orelse, use)
            return
        text = "".join(_parts(node))
        if isinstance(node, ast.Dict | ast.Tuple):
            for value in node.values if isinstance(node, ast.Dict) else node.elts:
                self._collect(value, use)
        elif isinstance(node, ast.Call) and _name(node.func) == "fromkeys":
            self._collect(node.args[-1], use)
        elif has_words(text):
            self.found[key(text)] = node.lineno
            self.uses.setdefault(key(text), set()).add(use)
        elif use in LOG_METHODS:
            self.wordless = True


def _name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _parts(node: ast.expr) -> Iterator[str]:
    """Yield the text of an expression, with a hole for each part that is known only at run time."""
    match node:
        case ast.Constant(value=str(text)):
            yield text
        case ast.JoinedStr(values=values):
            for value in values:
                # In a format braces of the text would be doubled, but there are none.
                yield from _parts(value)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            yield from _parts(left)
            yield from _parts(right)
        case _:
            yield _HOLE


def messages_of(path: Path, name: str) -> Messages:
    """Collect the messages of a file; ``name`` is its path in the repository."""
    messages = Messages(TEXT_SOURCES.get(name, set()))
    messages.visit(ast.parse(path.read_text()))
    return messages


def source_files(repository: Path) -> Iterator[tuple[Path, str]]:
    """Yield the files of the programs that an operator runs, each with its name."""
    for path in sorted(repository.glob("yurttunnel/**/*.py")):
        name = str(path.relative_to(repository))
        if not name.startswith("yurttunnel/quickstart/"):
            yield path, name
