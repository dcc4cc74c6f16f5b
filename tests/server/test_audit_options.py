"""The flags of the audit log, and their effect on the server."""

from __future__ import annotations

from pathlib import Path

from twisted.internet.testing import MemoryReactorClock
from twisted.python.usage import UsageError
from twisted.trial.unittest import SynchronousTestCase

from tests.server.expectations import nothing_expected
from tests.server.test_options import parse
from yurttunnel.ops.exposition import exposition
from yurttunnel.server.audit_sinks import AuditSettings
from yurttunnel.server.process import ServerProcess

LOST = b"yurttunnel_server_audit_lines_lost_total 0\n"


class OptionTests(SynchronousTestCase):
    """The names and defaults are those of kube-apiserver."""

    def test_settings(self):
        """There is no audit log unless a path is given."""
        for arguments, expected in (
            ([], None),
            (["--audit-log-path", "-"], AuditSettings(None, 0, 0)),
            (["--audit-log-path", "a.log"], AuditSettings(Path("a.log"), 100 << 20, 10)),
            (
                [
                    "--audit-log-path=/var/log/a",
                    "--audit-log-maxsize=1",
                    "--audit-log-maxbackup=0",
                ],
                AuditSettings(Path("/var/log/a"), 1 << 20, 0),
            ),
        ):
            self.assertEqual(parse(*arguments).audit, expected)

    def test_refused(self):
        """Invalid values are reported, with valid ones."""
        for arguments, words in (
            (["--audit-log-path", ""], "--audit-log-path: it is empty"),
            (["--audit-log-path", "/"], "--audit-log-path: '/' is a directory"),
            (["--audit-log-maxsize", "5"], "--audit-log-maxsize has no effect: it needs"),
            (
                ["--audit-log-path", "-", "--audit-log-maxbackup", "5"],
                "--audit-log-maxbackup has no effect: standard output is not rotated",
            ),
            (
                ["--audit-log-path", "a", "--audit-log-maxsize", "0"],
                "'0' is not a whole number from",
            ),
            (
                ["--audit-log-path", "a", "--audit-log-maxbackup", "-1"],
                "'-1' is not a whole",
            ),
        ):
            error = self.assertRaises(UsageError, parse, *arguments)
            self.assertIn(words, str(error))


class ProcessTests(SynchronousTestCase):
    """``ServerProcess`` opens the log."""

    def process(self, *arguments):
        """Create a process."""
        return ServerProcess(MemoryReactorClock(), parse(*arguments), dict, nothing_expected())

    def test_without(self):
        """Without the flag there is no audit log."""
        process = self.process()
        self.assertIsNone(process.audit)
        self.assertNotIn(b"audit", exposition(process.metrics))

    def test_with(self):
        """The file exists at once, and so do the metrics."""
        path = Path(self.mktemp())
        process = self.process("--audit-log-path", str(path))
        self.assertIsNotNone(process.audit)
        self.assertEqual(path.stat().st_mode & 0o777, 0o600)
        self.assertIn(LOST, exposition(process.metrics))

    def test_unusable(self):
        """The process ends with a message that names the flag."""
        path = Path(self.mktemp())
        path.symlink_to("elsewhere")
        error = self.assertRaises(SystemExit, self.process, "--audit-log-path", str(path))
        self.assertIn(f"--audit-log-path: {path} cannot be opened: ", str(error))
