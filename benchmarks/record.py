"""The JSON file of a benchmark: machine, versions, settings, and each run of each line."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.lines import Line, RatioLine
from benchmarks.result import Result
from benchmarks.run import Run

FORMAT = 1
"""The version of the format; incremented on incompatible changes."""


def document(
    results: Sequence[Result], facts: Mapping[str, Any], settings: Mapping[str, Any]
) -> dict[str, Any]:
    """Return everything as a dictionary for :mod:`json`."""
    return {
        "format": FORMAT,
        **facts,
        "settings": dict(settings),
        "lines": [_result(result) for result in results],
    }


def write(path: Path, text: Mapping[str, Any]) -> None:
    """Write the file; create its directory if necessary."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(text, indent=1) + "\n", "utf-8")


def _result(result: Result) -> dict[str, Any]:
    summary = result.summary
    return {
        **_line(result.line),
        "median": summary.median,
        "low_quartile": summary.low,
        "high_quartile": summary.high,
        "verdict": result.verdict.value,
        "driver_share": result.driver_share,
        "others_load": result.others_load,
        "judged": result.judged,
        "peer": [_run(run) for run in result.peer],
        "ours": [_run(run) for run in result.ours],
        "other": [_run(run) for run in result.other],
    }


def _line(line: Line) -> dict[str, Any]:
    contestants = {}
    if isinstance(line, RatioLine):
        contestants = {"peer_name": line.peer.name, "ours_name": line.ours.name}
        if line.other is not None:
            contestants["other_name"] = line.other.name
    return {
        "name": line.name,
        "title": line.title,
        "unit": line.unit.value,
        "reach": line.reach,
        "higher_is_better": line.higher_is_better,
        **contestants,
    }


def _run(run: Run) -> dict[str, Any]:
    return dataclasses.asdict(run)
