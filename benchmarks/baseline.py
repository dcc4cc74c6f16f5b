"""Comparison with the results of an earlier run, from its JSON file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.processes import BenchmarkFailed
from benchmarks.record import FORMAT
from benchmarks.result import Result, Verdict
from benchmarks.summary import Summary, summarize

TOLERATED = 0.10
"""The fraction by which a line may be worse, beyond the spread."""


@dataclass(frozen=True)
class Change:
    """One line in the earlier run and now.

    ``loss`` is the loss as a fraction of the earlier figure, measured between the nearest ends of
    both spreads: the worse quartile of the earlier run, and the better quartile of this one. It is
    0 if the spreads overlap.
    """

    name: str
    before: Summary
    now: Summary
    loss: float

    @property
    def is_loss(self) -> bool:
        """Whether the loss is more than noise."""
        return self.loss > TOLERATED


def read_baseline(path: Path) -> dict[str, Summary]:
    """Read the judged values by the names of the lines; raises :class:`BenchmarkFailed`."""
    try:
        document = json.loads(path.read_text("utf-8"))
        if document["format"] != FORMAT:
            raise ValueError(f"its format is {document['format']}, not {FORMAT}")
        return {
            line["name"]: summarize([float(value) for value in line["judged"]])
            for line in document["lines"]
        }
    except OSError as error:
        raise BenchmarkFailed(f"--baseline {path}: {error.strerror}") from None
    except KeyError as error:
        raise BenchmarkFailed(f"--baseline {path}: it lacks {error}") from None
    except (ValueError, TypeError) as error:
        raise BenchmarkFailed(f"--baseline {path}: not a result of this command: {error}") from None


def changes(baseline: Mapping[str, Summary], results: Sequence[Result]) -> list[Change]:
    """Compare the lines that are in both runs, and trusted in this one."""
    return [
        _change(result, baseline[result.line.name])
        for result in results
        if result.line.name in baseline and result.verdict is not Verdict.NOT_TRUSTED
    ]


def _change(result: Result, before: Summary) -> Change:
    now = result.summary
    if result.line.higher_is_better:
        worst, lost = before.low, before.low - now.high
    else:
        worst, lost = before.high, now.low - before.high
    # Memory may not have grown at all in a few runs, which leaves no value to divide by.
    loss = lost / worst if worst > 0 else 0.0
    return Change(result.line.name, before, now, max(0.0, loss))
