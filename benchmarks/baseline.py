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
"""The loss beyond the spread that is not yet one."""


@dataclass(frozen=True)
class Change:
    """One line, then and now.

    ``loss`` is the part of the earlier figure that is gone, between the ends of both spreads that
    face each other: the worse quartile then, the better quartile now. It is 0 where they overlap.
    """

    name: str
    before: Summary
    now: Summary
    loss: float

    @property
    def is_loss(self) -> bool:
        """Whether the line has lost more than noise explains."""
        return self.loss > TOLERATED


def read_baseline(path: Path) -> dict[str, Summary]:
    """Read what was judged, by the names of the lines; raises :class:`BenchmarkFailed`."""
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
    """Compare the lines that both runs have, and that can be trusted now."""
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
    # Memory that did not grow at all, as it may in few runs, leaves nothing to lose a part of.
    loss = lost / worst if worst > 0 else 0.0
    return Change(result.line.name, before, now, max(0.0, loss))
