"""Whether a process is healthy, and if not, what is not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from twisted.logger import Logger

Check = Callable[[], str | None]
"""Returns ``None`` when all is well, else a sentence that says what is not; must not block."""

log = Logger()


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found; ``problem`` is ``None`` when all is well.

    A problem that is not ``required`` to be absent is only told.
    """

    name: str
    problem: str | None
    required: bool = True


class Readiness:
    """The named checks of a process; it is ready when every required one passes."""

    def __init__(self) -> None:
        self._checks: dict[str, tuple[Check, bool]] = {}

    def add(self, name: str, check: Check, required: bool = True) -> None:
        """Have ``check`` asked under ``name``, such as ``listeners`` or ``certificate``.

        What a check finds that is not ``required`` to pass is told, as a warning.
        Raises ``ValueError`` when there is a check of that name.
        """
        if name in self._checks:
            raise ValueError(f"there is already a readiness check named {name!r}")
        self._checks[name] = check, required

    def findings(self) -> list[Finding]:
        """Ask every check, in the order in which they were added.

        A check that raises has failed, and its traceback is logged.
        """
        return [
            Finding(name, _problem(name, check), required)
            for name, (check, required) in self._checks.items()
        ]


def _problem(name: str, check: Check) -> str | None:
    try:
        return check()
    except Exception as error:
        log.failure("The readiness check {name!r} raised an error", name=name)
        return f"the check itself failed: {error!r}"
