"""``/v1/process``: which process this is, and what it finds wrong with itself."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from twisted.internet.interfaces import IReactorTime

from yurttunnel import __version__
from yurttunnel.ops.clocks import time_of_day, timestamp
from yurttunnel.ops.debug.pages import Answer, Page, Parameters, as_json
from yurttunnel.ops.readiness import Finding, Readiness


def process_page(
    clock: IReactorTime,
    program: str,
    readiness: Readiness,
    details: Callable[[], Mapping[str, object]],
) -> Page:
    """Make the page; ``details()`` gives what the program has to say besides."""
    since = timestamp(time_of_day(clock))

    def show(parameters: Parameters) -> Answer:
        findings = readiness.findings()
        return as_json(
            {
                "program": program,
                "version": __version__,
                "pid": os.getpid(),
                "since": since,
                "ready": all(each.problem is None for each in findings if each.required),
                "checks": [_check(each) for each in findings],
                **details(),
            }
        )

    return Page(show)


def _check(finding: Finding) -> dict[str, object]:
    return {"name": finding.name, "problem": finding.problem, "required": finding.required}
