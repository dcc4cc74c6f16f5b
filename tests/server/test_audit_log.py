"""The audit log: format, writing, and lost lines."""

from __future__ import annotations

import json
import os
import select
from pathlib import Path

from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from tests.logged import Logged
from yurttunnel.metrics import MetricRegistry
from yurttunnel.ops.exposition import exposition
from yurttunnel.server.audit_log import (
    CLOSE_TIMEOUT,
    FLUSH_DELAY,
    MAX_LINE,
    MAX_QUEUED_BYTES,
    METRICS,
    SLOW_WRITE,
    AuditLog,
    format_line,
)
from yurttunnel.server.audit_sinks import AuditFile


class LineTests(SynchronousTestCase):
    """``format_line`` returns one line of JSON for any input of callers."""

    def test_one_line(self):
        """A line has the record's fields, and one line end."""
        record = {"who": "alice", "status": 200, "code": None, "upgraded": False, "duration": 0.5}
        line = format_line(record)
        self.assertEqual(json.loads(line), record)
        self.assertEqual((line[-1:], line.count(b"\n")), (b"\n", 1))

    def test_nothing_breaks_the_line(self):
        """Line ends, control characters, quotes and other scripts are escaped."""
        text = 'a\r\nb\0\x1b[31m"\\\u2028\u202e\x85 é 🙂'
        line = format_line({"path": text})
        self.assertEqual(json.loads(line), {"path": text})
        self.assertTrue(line.isascii())
        self.assertEqual([byte for byte in line[:-1] if byte < 0x20], [])

    def test_length(self):
        """A record that is too long has all its texts truncated, whatever their characters."""
        for character in ("x", "\0", '"', "🙂"):
            record = {str(key): character * 5000 for key in range(14)}
            line = format_line({**record, "bytes": 7, "node": "edge-1"})
            self.assertLessEqual(len(line), MAX_LINE + 1)
            shown = json.loads(line)
            self.assertEqual((shown["bytes"], shown["node"]), (7, "edge-1"))
            self.assertTrue(shown["0"].endswith("..."))
            self.assertTrue(shown["0"].startswith(character))

    def test_limit(self):
        """A line that a pipe writes atomically is complete; a longer one has truncated texts."""
        self.assertEqual(MAX_LINE + 1, select.PIPE_BUF)
        around = len(format_line({"path": ""})) - 1
        for size in (MAX_LINE - 1, MAX_LINE):
            line = format_line({"path": (size - around) * "x"})
            self.assertEqual((len(line), line.count(b"...")), (size + 1, 0))
        line = format_line({"path": (MAX_LINE + 1 - around) * "x"})
        self.assertEqual(json.loads(line), {"path": 120 * "x" + "..."})

    def test_texts_that_are_short_enough(self):
        """In a line that is too long a text of 120 characters, with escapes, is kept."""
        texts = {"a": 120 * "x", "b": 121 * "x", "c": 60 * '"', "d": 61 * '"', "e": 5000 * "x"}
        shown = json.loads(format_line(texts))
        self.assertEqual(shown["a"], texts["a"])
        self.assertEqual(shown["b"], 120 * "x" + "...")
        self.assertEqual(shown["c"], texts["c"])
        self.assertEqual(shown["d"], 10 * '"' + "...")


class LogTests(SynchronousTestCase):
    """``AuditLog`` writes in a thread, which the test completes."""

    def setUp(self):
        """Open a file."""
        self.path = Path(self.mktemp())
        self.clock = Clock()
        self.file = AuditFile(self.path, 1 << 23, 1)
        self.slow = False
        self.calls = []
        self.log = AuditLog(self.clock, self.file, self.in_thread)
        self.log.startService()
        self.texts = Logged(self, "yurttunnel")
        self.addCleanup(self.file.close)

    def in_thread(self, function, lines):
        """Call it at once, or when the test says so."""
        if not self.slow:
            return maybeDeferred(function, lines)
        waiting = Deferred()
        self.calls.append(waiting)
        return waiting.addCallback(lambda _: function(lines))

    def written(self):
        """Return the contents of the file."""
        return self.path.read_bytes() if self.path.exists() else b""

    def stop(self):
        """Stop it."""
        stopped = self.log.stopService()
        self.clock.advance(0)
        return stopped

    def test_lines_are_collected(self):
        """Lines are written together after a moment, in order."""
        for line in (b"1\n", b"2\n"):
            self.log.write(line)
        self.assertEqual(self.written(), b"")
        self.clock.advance(FLUSH_DELAY)
        self.assertEqual(self.written(), b"1\n2\n")
        self.assertEqual((self.log.stats.written, self.log.stats.lost), (2, 0))
        self.assertEqual(self.clock.getDelayedCalls(), [])
        self.log.write(b"3\n")
        self.clock.advance(FLUSH_DELAY)
        self.assertEqual(self.written(), b"1\n2\n3\n")

    def test_a_slow_disk(self):
        """There is one call at a time; lines wait meanwhile, and are lost above the limit."""
        self.slow = True
        self.log.write(b"first\n")
        self.clock.advance(FLUSH_DELAY)
        line = b"x" * 1023 + b"\n"
        for _ in range(MAX_QUEUED_BYTES // 1024 + 3):
            self.log.write(line)
        self.clock.advance(1)
        self.assertEqual(len(self.calls), 1)
        self.assertEqual(self.log.stats.lost, 3)
        (warning,) = self.texts
        self.assertIn("lines come faster than they are written", warning)
        self.slow = False
        self.calls[0].callback(None)
        self.assertIn("lines come faster than they are written", self.log.problem)
        self.clock.advance(FLUSH_DELAY)
        self.assertIsNone(self.log.problem)
        self.assertEqual(
            self.texts[1:], ["The audit log is written again; 3 lines were lost meanwhile"]
        )
        self.assertEqual(len(self.written()), len(b"first\n") + MAX_QUEUED_BYTES)
        self.assertEqual(self.log.stats.written, 1 + MAX_QUEUED_BYTES // 1024)

    def test_a_write_that_hangs(self):
        """A write that hangs is reported before lines are lost; the problem ends with the write."""
        self.slow = True
        self.log.write(b"1\n")
        self.clock.advance(FLUSH_DELAY)
        self.clock.advance(SLOW_WRITE - 0.1)
        self.assertIsNone(self.log.problem)
        self.clock.advance(0.1)
        self.assertIn("a write takes more than 3 s: check", self.log.problem)
        self.calls[0].callback(None)
        self.assertIsNone(self.log.problem)
        self.assertEqual(len(self.texts), 2)
        self.assertEqual(self.log.stats.lost, 0)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_failed_writes_are_logged_once(self):
        """Lines are counted as lost while the file cannot be written, and no longer."""
        os.symlink("elsewhere", self.path)
        for _ in range(3):
            self.log.write(b"lost\n")
            self.clock.advance(FLUSH_DELAY)
        self.assertEqual((self.log.stats.written, self.log.stats.lost), (0, 3))
        self.assertIn(str(self.path), self.log.problem)
        (warning,) = self.texts
        self.assertIn(f"The audit log cannot be written: {self.path} cannot be written", warning)
        self.path.unlink()
        self.log.write(b"kept\n")
        self.clock.advance(FLUSH_DELAY)
        self.assertEqual((self.written(), self.log.problem), (b"kept\n", None))
        self.assertEqual(
            self.texts[1], "The audit log is written again; 3 lines were lost meanwhile"
        )

    def test_a_defect_ends_nothing(self):
        """An exception in a sink is logged, and further lines are written."""
        self.log._in_thread = lambda function, lines: maybeDeferred(lambda: 1 / 0)
        self.log.write(b"1\n")
        self.clock.advance(FLUSH_DELAY)
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)
        self.assertEqual(self.log.stats.lost, 1)
        self.log._in_thread = self.in_thread
        self.log.write(b"2\n")
        self.clock.advance(FLUSH_DELAY)
        self.assertEqual(self.written(), b"2\n")

    def test_stop(self):
        """Waiting lines are written first, and the file is closed; later lines are lost."""
        self.log.write(b"1\n")
        stopped = self.stop()
        self.log.write(b"2\n")
        self.assertNoResult(stopped)
        self.clock.advance(FLUSH_DELAY)
        self.clock.advance(0)
        self.successResultOf(stopped)
        self.assertEqual(self.written(), b"1\n2\n")
        self.assertIsNone(self.file._descriptor)
        self.log.write(b"3\n")
        self.assertEqual(self.log.stats.lost, 1)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_stop_does_not_wait_for_ever(self):
        """An unresponsive disk delays the shutdown for a limited time."""
        self.slow = True
        self.log.write(b"1\n")
        self.clock.advance(FLUSH_DELAY)
        stopped = self.stop()
        self.clock.advance(CLOSE_TIMEOUT)
        self.successResultOf(stopped)
        self.assertIn("were not written within 5 s", self.texts[-1])

    def test_metrics(self):
        """The metrics have both counters."""
        self.log.write(b"1\n")
        self.clock.advance(FLUSH_DELAY)
        registry = MetricRegistry()
        registry.add(METRICS, lambda: self.log.stats)
        text = exposition(registry).decode()
        self.assertIn("yurttunnel_server_audit_lines_total 1\n", text)
        self.assertIn("yurttunnel_server_audit_lines_lost_total 0\n", text)
