"""Finds, in the source, the messages that an operator of server and agent can meet.

What counts:

- what is logged as a warning or worse: the first argument of ``warn``, ``error``, ``critical`` and
  ``failure``;
- what ends a start: the text of each exception in :data:`START_ERRORS`, and of ``exit_with_error``;
- what is told as the reason of one of these: the text of each exception in :data:`REASONS`, and of
  the calls and attributes in :data:`HANDED_ON`, which make the sentences that a message without
  words of its own passes on.

What does not count: defects of the program (``Defect: ...``), which all have one cure; the
quickstart, which nobody operates; and the sentences behind ``--flag: `` about a value that cannot
be parsed, which quote it and say what is expected.
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

HANDED_ON = {
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
"""What makes the sentences that messages without words of their own pass on: calls, attributes,
names, and functions by what they return, by file."""

_PLACEHOLDER = re.compile(r"\{[^{}]*\}")
_HOLE = "…"


def key(message: str) -> str:
    """Return what a message is known by: its literal words, whatever is filled in between."""
    joined = _PLACEHOLDER.sub(_HOLE, message)
    return re.sub(rf"{_HOLE}+", _HOLE, " ".join(joined.split()))


def has_words(message: str) -> bool:
    """Return whether a message can be searched for, by at least one word of its own."""
    return re.search(r"[A-Za-z]{2}", key(message)) is not None


class Messages(ast.NodeVisitor):
    """The messages of one file: ``found`` by their keys, each with the number of its line.

    ``uses`` says for each whether it is logged, by the method of the logger, or ``start`` where it
    ends a start, or ``reason`` where it is a part of others.
    """

    def __init__(self, handed_on: set[str]) -> None:
        self.found: dict[str, int] = {}
        self.uses: dict[str, set[str]] = {}
        self.wordless = False
        self._handed_on = handed_on
        self._locals: dict[str, ast.expr] = {}
        self._function = ""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        """Note in which function what follows is."""
        outer, self._function = self._function, node.name
        self.generic_visit(node)
        self._function = outer

    def visit_Return(self, node: ast.Return) -> None:
        """Take sentences that a function gives."""
        if self._function in self._handed_on and node.value is not None:
            self._take(node.value)
        self.generic_visit(node)

    def visit_Yield(self, node: ast.Yield) -> None:
        """Take sentences that a function gives one by one."""
        if self._function in self._handed_on and node.value is not None:
            self._take(node.value)
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        """Note what a name stands for, and take sentences that are kept under a name."""
        for target in node.targets:
            if isinstance(target, ast.Name):
                self._locals[target.id] = node.value
            holder = target.value if isinstance(target, ast.Subscript) else target
            if _name(holder) in self._handed_on:
                self._take(node.value)
        self.generic_visit(node)

    def visit_Raise(self, node: ast.Raise) -> None:
        """Take the text of an exception that is told to the operator."""
        if isinstance(node.exc, ast.Call) and _name(node.exc.func) in START_ERRORS | REASONS:
            use = "start" if _name(node.exc.func) in START_ERRORS else "reason"
            for argument in node.exc.args:
                self._take(argument, use)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        """Take what is logged, passed on or printed at the end."""
        name = _name(node.func)
        if name in LOG_METHODS and isinstance(node.func, ast.Attribute) and node.args:
            self._take(node.args[0], name)
        elif name == "exit_with_error" or name in self._handed_on:
            for argument in node.args:
                self._take(argument, "start" if name == "exit_with_error" else "reason")
        self.generic_visit(node)

    def _take(self, node: ast.expr, use: str = "reason") -> None:
        if isinstance(node, ast.Name):
            node = self._locals.get(node.id, node)
        if isinstance(node, ast.IfExp):
            self._take(node.body, use)
            self._take(node.orelse, use)
            return
        text = "".join(_parts(node))
        if isinstance(node, ast.Dict | ast.Tuple):
            for value in node.values if isinstance(node, ast.Dict) else node.elts:
                self._take(value, use)
        elif isinstance(node, ast.Call) and _name(node.func) == "fromkeys":
            self._take(node.args[-1], use)
        elif has_words(text):
            self.found[key(text)] = node.lineno
            self.uses.setdefault(key(text), set()).add(use)
        elif use in LOG_METHODS:
            self.wordless = True


def _name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _parts(node: ast.expr) -> Iterator[str]:
    """Yield the text of an expression, with a hole for each part that only a run knows."""
    match node:
        case ast.Constant(value=str(text)):
            yield text
        case ast.JoinedStr(values=values):
            for value in values:
                # Braces of the text itself are doubled in a format, and there are none.
                yield from _parts(value)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            yield from _parts(left)
            yield from _parts(right)
        case _:
            yield _HOLE


def messages_of(path: Path, name: str) -> Messages:
    """Collect the messages of a file; ``name`` is its path in the repository."""
    messages = Messages(HANDED_ON.get(name, set()))
    messages.visit(ast.parse(path.read_text()))
    return messages


def source_files(repository: Path) -> Iterator[tuple[Path, str]]:
    """Yield the files of the programs that an operator runs, each with its name."""
    for path in sorted(repository.glob("yurttunnel/**/*.py")):
        name = str(path.relative_to(repository))
        if not name.startswith("yurttunnel/quickstart/"):
            yield path, name
