"""The start of a command."""

from __future__ import annotations

import resource
import signal
from typing import cast

from twisted.internet.testing import MemoryReactorClock
from twisted.logger import capturedLogs, formatEvent
from twisted.trial.unittest import SynchronousTestCase

from yurttunnel.ops import startup
from yurttunnel.ops.options import CommandOptions
from yurttunnel.ops.startup import initialize, raise_open_files_limit


class ParsedOptions(dict[str, int]):
    """A parsed command line."""

    settings = "settings"


class InitializeTests(SynchronousTestCase):
    """The common initialization of programs."""

    def test_a_terminal_that_closes_ends_it_in_good_order(self) -> None:
        """A program handles SIGHUP, since closing a terminal should shut it down gracefully."""
        handlers: dict[int, object] = {}
        self.patch(signal, "signal", handlers.__setitem__)
        self.patch(signal, "getsignal", lambda number: signal.SIG_DFL)
        self.patch(startup, "installed_reactor", MemoryReactorClock)
        self.patch(startup, "raise_open_files_limit", lambda: None)
        options = cast(CommandOptions[str], ParsedOptions(diagnose=0))
        _, settings = initialize(options, lambda settings: self.fail(settings))
        self.assertEqual(("settings", [signal.SIGHUP]), (settings, list(handlers)))


class OpenFilesLimitTests(SynchronousTestCase):
    """The soft limit of open files, which only protects select(2), is raised to the hard limit."""

    def raised(self, soft: int, hard: int, refusal: Exception | None = None) -> list[object]:
        """Return the limits that are set, unless the system refuses with ``refusal``."""
        found: list[object] = []

        def set_limit(which: int, limits: tuple[int, int]) -> None:
            if refusal is not None:
                raise refusal
            found.append((which, limits))

        self.patch(resource, "getrlimit", lambda which: (soft, hard))
        self.patch(resource, "setrlimit", set_limit)
        raise_open_files_limit()
        return found

    def test_raised(self) -> None:
        """The soft limit is raised to the hard limit."""
        limit = resource.RLIMIT_NOFILE
        self.assertEqual([(limit, (524288, 524288))], self.raised(1024, 524288))

    def test_nothing_to_raise(self) -> None:
        """Nothing is set if both limits are equal, since a sandbox may forbid it."""
        self.assertEqual([], self.raised(65536, 65536))

    def test_refused(self) -> None:
        """A limit that cannot be raised is logged, and the program continues."""
        for refusal in (PermissionError(1, "not permitted"), ValueError("not allowed")):
            with capturedLogs() as events:
                self.assertEqual([], self.raised(1024, 4096, refusal))
            self.assertEqual(
                [f"The limit of open files stays at 1024: {refusal}"],
                list(map(formatEvent, events)),
            )
