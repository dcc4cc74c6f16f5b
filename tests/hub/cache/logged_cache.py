"""A cache whose log is checked, and connections to a failing disk, for tests."""

from __future__ import annotations

import sqlite3

from twisted.internet.defer import Deferred

from tests.hub.cache.test_store import CacheTestCase
from tests.logged import Logged
from yurttunnel.hub.cache.interfaces import CacheFailed

BODY = b"x" * 5_700


class LoggedCacheTestCase(CacheTestCase):
    """A cache whose log is checked."""

    def setUp(self) -> None:
        """Observe the log."""
        self.lines = Logged(self, "yurttunnel.hub.cache")
        super().setUp()

    def count_logs(self, words: str) -> int:
        """Return the number of log lines with these words."""
        return sum(words in line for line in self.lines)

    def failure(self, deferred: Deferred) -> str:
        """Return the message of a failed read."""
        self.clock.advance(0)
        return str(self.failureResultOf(deferred, CacheFailed).value)

    def pass_time(self, seconds: int) -> None:
        """Advance the clock."""
        for _ in range(seconds):
            self.clock.advance(1)


class FailingConnection(sqlite3.Connection):
    """A connection whose transactions fail with ``code``, if it is set."""

    code: int | None = None

    def execute(self, statement, *values):
        """Execute a statement, or fail."""
        if self.code is not None and statement == "COMMIT":
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorcode = self.code
            raise error
        return super().execute(statement, *values)


def connect_failing(uri: str) -> sqlite3.Connection:
    """Return such a connection."""
    return sqlite3.connect(uri, isolation_level=None, factory=FailingConnection, uri=True)
