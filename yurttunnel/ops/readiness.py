"""The checks that determine whether a process is healthy and ready."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from twisted.logger import Logger

from yurttunnel.ops.printable import printable

Check = Callable[[], str | None]
"""Returns ``None`` if healthy, else a sentence about the problem; must not block."""

log = Logger()


class Finding(NamedTuple):
    """The result of a check; ``problem`` is ``None`` if it passed.

    A failed check that is not ``required`` is only a warning.
    """

    name: str
    problem: str | None
    required: bool = True


def is_ready(findings: Iterable[Finding]) -> bool:
    """Return whether every required check passed."""
    return all(each.problem is None for each in findings if each.required)


class Readiness:
    """The named checks of a process."""

    def __init__(self) -> None:
        self._checks: dict[str, tuple[Check, bool]] = {}

    def add(self, name: str, check: Check, required: bool = True) -> None:
        """Register ``check`` under ``name``, such as ``listeners`` or ``certificate``.

        A failed check that is not ``required`` is reported as a warning.
        Raises ``ValueError`` if the name is taken.
        """
        if name in self._checks:
            raise ValueError(f"there is already a readiness check named {name!r}")
        self._checks[name] = check, required

    def findings(self) -> list[Finding]:
        """Run every check, in the order in which they were added.

        A check that raises has failed; its traceback is logged.
        """
        return [
            Finding(name, _problem(name, check), required)
            for name, (check, required) in self._checks.items()
        ]


def _problem(name: str, check: Check) -> str | None:
    try:
        problem = check()
    except Exception as error:
        log.failure("The readiness check {name!r} raised an error", name=name)
        problem = f"the check itself failed: {error!r}"
    # It may quote what another machine has sent, such as the message of an API server.
    return problem and printable(problem)
