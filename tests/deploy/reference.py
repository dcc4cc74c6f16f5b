"""Generates columns of the reference pages for metrics and messages, and the page of flags.

``python -m tests.deploy.reference`` writes ``docs/flags.md``, and the columns of
``docs/metrics.md`` and ``docs/messages.md`` that are generated from the code. Their rows, the order
of the rows and the last column are written by hand; ``test_operations`` fails if a row is missing.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

from tests.deploy.messages import Messages, key, messages_of, source_files
from tests.deploy.metrics import RULES, registries
from tests.deploy.rendering import REPOSITORY
from yurttunnel.agent.options import Options as AgentOptions
from yurttunnel.hub.options import Options as HubOptions
from yurttunnel.metrics import MetricFamily
from yurttunnel.ops.flag_table import Entry, Flag, Repeated, by_group, syntax
from yurttunnel.ops.options import CommandOptions
from yurttunnel.proxy.options import Options as ProxyOptions
from yurttunnel.quickstart.options import Options as QuickstartOptions
from yurttunnel.server.options import Options as ServerOptions

COMMANDS: dict[str, type[CommandOptions[Any]]] = {
    "yurttunnel-server": ServerOptions,
    "yurttunnel-agent": AgentOptions,
    "yurthub": HubOptions,
    "yurtproxy": ProxyOptions,
    "yurttunnel-quickstart": QuickstartOptions,
}

_FLAGS_HEADER = "| flag | default | what it does |\n|---|---|---|"
_FLAGS_BEGIN = """# Flags

Made from the code by `python -m tests.deploy.reference`. Each command shows Basics and In a cluster
by `--help`, and all by `--help-all`. Each can be said by a variable or in a file, too
([configuration.md](configuration.md)). What became of the flags of yurttunnel 1.2 is in
[migration.md](migration.md)."""

METRICS = REPOSITORY / "docs" / "metrics.md"
MESSAGES = REPOSITORY / "docs" / "messages.md"
FLAGS = REPOSITORY / "docs" / "flags.md"

CODE = re.compile(r"`([^`]+)`")
METRIC = re.compile(
    r"\b(?:yurttunnel|konnectivity|process|(?:node_)?yurthub|(?:kube|yurt)proxy)_\w+"
)
LEVELS = {"warn": "warn", "error": "error", "critical": "critical", "failure": "critical"}
"""Log levels by the logger's methods; a failure is a critical message with a traceback."""


def cells_of(row: str) -> list[str]:
    """Return the cells of a table row."""
    return [cell.strip() for cell in row.removeprefix("|").removesuffix("|").split(" | ")]


def rows_of(text: str) -> Iterator[list[str]]:
    """Return the cells of each row whose first cell starts with code."""
    return (cells_of(line) for line in text.splitlines() if line.startswith("| `"))


def named_in(cell: str) -> list[str]:
    """Return the code spans of a cell."""
    return CODE.findall(cell)


@functools.cache
def messages_by_file() -> dict[str, Messages]:
    """Return the messages of each source file by its name."""
    return {name: messages_of(path, name) for path, name in source_files(REPOSITORY)}


def uses_of_messages() -> dict[str, set[str]]:
    """Return the log level of each message, or its other use, by its key."""
    uses: dict[str, set[str]] = {}
    for messages in messages_by_file().values():
        for text, of_file in messages.uses.items():
            uses.setdefault(text, set()).update(LEVELS.get(use, use) for use in of_file)
    return uses


def families() -> dict[str, MetricFamily]:
    """Return the metrics of all programs by name."""
    return {family.name: family for registry in registries() for family in registry}


def alerts_by_metric() -> dict[str, list[str]]:
    """Return the alerts that use each metric, in the order of the rules."""
    alerts: dict[str, list[str]] = {}
    for group in yaml.safe_load(RULES.read_text())["groups"]:
        for rule in group["rules"]:
            for name in dict.fromkeys(METRIC.findall(rule["expr"])):
                name = re.sub(r"_(bucket|sum|count)$", "", name) if name not in known() else name
                alerts.setdefault(name, []).append(rule["alert"])
    return alerts


@functools.cache
def known() -> frozenset[str]:
    """Return the names of all metrics."""
    return frozenset(families())


def _rewritten(page: Path, middle: Callable[[list[str]], list[str]]) -> str:
    """Return a page with the middle columns of its tables replaced by ``middle``.

    ``middle`` is called with the code spans in the first cell of a row. A row whose names do not
    exist in the code is unchanged.
    """
    lines = []
    for line in page.read_text().splitlines():
        if line.startswith("| `"):
            first, *_, last = cells_of(line)
            line = " | ".join(("| " + first, *middle(named_in(first)), last)).rstrip() + " |"
        lines.append(line)
    return "\n".join(lines) + "\n"


def metrics_page() -> str:
    """Return ``docs/metrics.md`` with types, labels, texts and alerts from the code."""
    exist, alerts = families(), alerts_by_metric()

    def middle(names: list[str]) -> list[str]:
        found = [exist[name] for name in names if name in exist]
        labels = {label for family in found for each in family.samples for label in each.labels}
        kinds = dict.fromkeys(family.kind for family in found)
        by = ", ".join(f"`{label}`" for label in sorted(labels - {"le"}))
        texts = dict.fromkeys(family.documentation.replace("<", "&lt;") for family in found)
        used_by = dict.fromkeys(alert for name in names for alert in alerts.get(name, ()))
        return [
            ", ".join(kinds) + (f" by {by}" if by else ""),
            " / ".join(texts),
            ", ".join(f"`{alert}`" for alert in used_by),
        ]

    return _rewritten(METRICS, middle)


def messages_page() -> str:
    """Return ``docs/messages.md`` with the level of each message from the code."""
    uses = uses_of_messages()

    def middle(names: list[str]) -> list[str]:
        found = {use for name in names for use in uses.get(key(name), ())}
        order = (*dict.fromkeys(LEVELS.values()), "start", "reason")
        return [", ".join(use for use in order if use in found)]

    return _rewritten(MESSAGES, middle)


def default_values(options: type[CommandOptions[Any]]) -> dict[str, str | None]:
    """Return the defaults of the flags of a program, as texts."""
    return {entry.name: entry.default for entry in options.table if isinstance(entry, Flag)}


def flags_page() -> str:
    """Return ``docs/flags.md``: the flags of each command, as in its help."""
    parts = [_FLAGS_BEGIN]
    for name, options in COMMANDS.items():
        help = options().help()
        examples = "\n".join(
            f"- {each.purpose}: `{each.command(help.invocation)}`" for each in help.examples
        )
        same = f"`twist {name}` is the same, for [service managers](admin.md#the-programs)."
        parts += [f"## {help.invocation}", help.description, same, examples]
        for group, entries in by_group(options.table).items():
            rows = "\n".join(_flag_row(entry) for entry in entries)
            parts.append(f"### {group.value}\n\n{_FLAGS_HEADER}\n{rows}")
        if help.note:
            parts.append(help.note)
    return "\n\n".join(parts) + "\n"


def _flag_row(entry: Entry) -> str:
    text, default = entry.text, entry.default if isinstance(entry, Flag) else None
    if default_match := re.search(r" \[default: (.+)\]$", text):
        text, default = text[: default_match.start()], default_match[1]
    if isinstance(entry, Repeated):
        default = "repeatable"
    cells = (f"`{syntax(entry)}`", default or "", text)
    return "| " + " | ".join(cell.replace("|", "\\|").replace("*", "\\*") for cell in cells) + " |"


if __name__ == "__main__":
    FLAGS.write_text(flags_page())
    METRICS.write_text(metrics_page())
    MESSAGES.write_text(messages_page())
