"""The destinations of the audit log: a real file, whatever happens to it, and standard output."""

from __future__ import annotations

import os
import resource
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from yurttunnel.server.audit_log import WriteResult
from yurttunnel.server.audit_sinks import AuditFile, AuditSettings, StandardOutput, open_sink

LINE = b"x" * 99 + b"\n"


class FileTestCase(SynchronousTestCase):
    """A directory for the file."""

    max_bytes = 1000
    max_backups = 2

    def setUp(self):
        """Set the paths of the directory and the file."""
        # Absolute, so that links to it have the expected target.
        self.directory = Path(self.mktemp()).absolute()
        self.directory.mkdir()
        self.path = self.directory / "audit.log"
        self.now = 1_769_860_800.5
        self.file = AuditFile(self.path, self.max_bytes, self.max_backups, lambda: self.now)
        self.addCleanup(self.file.close)

    def append(self, *lines):
        """Write lines without a problem."""
        self.assertEqual(self.file.append(list(lines)), WriteResult(len(lines)))

    def refused(self, *words):
        """Check that a line is rejected for a reason, and that the file is not left open."""
        written = self.file.append([LINE])
        self.assertEqual(written.lines, 0)
        for word in (f"{self.path} cannot be written: ", *words):
            self.assertIn(word, written.problem)
        self.assertNotIn("\n", written.problem)

    def backups(self):
        """Return the names beside the file."""
        return sorted(set(os.listdir(self.directory)) - {"audit.log"})


class FileTests(FileTestCase):
    """``AuditFile`` writes to the file at its path, if that is its own."""

    def test_private(self):
        """The file is created with mode 0600; an existing one gets that mode and is continued."""
        before = os.umask(0)
        self.addCleanup(os.umask, before)
        self.append(b"1\n")
        self.assertEqual(self.path.stat().st_mode & 0o7777, 0o600)
        self.file.close()
        self.path.chmod(0o644)
        self.append(b"2\n")
        self.assertEqual(self.path.stat().st_mode & 0o7777, 0o600)
        self.assertEqual(self.path.read_bytes(), b"1\n2\n")

    def test_removed_and_renamed(self):
        """As with logrotate: further lines are in a new file."""
        self.append(b"1\n")
        self.path.unlink()
        self.append(b"2\n")
        self.path.rename(self.directory / "audit.log.1")
        self.append(b"3\n")
        self.assertEqual(self.path.read_bytes(), b"3\n")
        self.assertEqual((self.directory / "audit.log.1").read_bytes(), b"2\n")

    def test_replaced_and_cut(self):
        """A file that somebody else put there is written, and so is a truncated one."""
        self.append(b"1\n")
        other = self.directory / "other"
        other.write_bytes(b"0\n")
        other.rename(self.path)
        self.append(b"2\n")
        self.assertEqual(self.path.read_bytes(), b"0\n2\n")
        os.truncate(self.path, 0)
        self.append(b"3\n")
        self.assertEqual(self.path.read_bytes(), b"3\n")

    def test_descriptors(self):
        """However often it was reopened, one descriptor is in use."""
        self.append(b"1\n")
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(5):
            self.path.unlink()
            self.append(b"1\n")
            self.path.unlink()
            self.path.mkdir()
            self.file.append([b"1\n"])
            self.path.rmdir()
            self.append(b"1\n")
        self.assertEqual(len(os.listdir("/proc/self/fd")), before)

    def test_symbolic_link(self):
        """A symbolic link is not followed, neither at first nor when it replaces the file."""
        victim = self.directory / "victim"
        victim.write_bytes(b"")
        self.path.symlink_to(victim)
        self.refused("symbolic links")
        self.path.unlink()
        self.append(b"1\n")
        self.path.unlink()
        self.path.symlink_to(victim)
        self.refused()
        self.assertEqual(victim.read_bytes(), b"")

    def test_symbolic_link_to_itself(self):
        """A link to the open file itself is not followed either."""
        self.append(b"1\n")
        elsewhere = self.directory / "elsewhere"
        self.path.rename(elsewhere)
        self.path.symlink_to(elsewhere)
        self.refused("symbolic links")
        self.assertEqual(elsewhere.read_bytes(), b"1\n")

    def test_hard_link(self):
        """A file with more than one name may belong to somebody else."""
        victim = self.directory / "victim"
        victim.write_bytes(b"secret")
        os.link(victim, self.path)
        self.refused("more than one name")
        self.assertEqual(victim.read_bytes(), b"secret")

    def test_other_kinds(self):
        """Directories are rejected, and so are FIFOs, with and without a reader."""
        self.path.mkdir()
        self.refused()
        self.path.rmdir()
        os.mkfifo(self.path)
        self.refused()
        reader = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK)
        self.addCleanup(os.close, reader)
        self.refused("not a regular file")

    def test_another_user(self):
        """The owner of a file could read it."""
        if os.geteuid() != 0:
            self.skipTest("only root can give a file away")
        self.path.write_bytes(b"")
        os.chown(self.path, 12345, 12345)
        self.refused("belongs to another user")

    def test_no_directory(self):
        """A missing directory is reported, and writing continues when it exists again."""
        self.append(b"1\n")
        self.directory.rename(f"{self.directory}-away")
        self.refused("No such file or directory")
        self.directory.mkdir()
        self.append(b"2\n")
        self.assertEqual(self.path.read_bytes(), b"2\n")

    def test_full(self):
        """Of a partial write the complete lines are kept, and later lines follow them."""
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (250, before[1]))
        try:
            written = self.file.append([LINE, LINE, LINE])
            again = self.file.append([LINE])
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        self.assertEqual((written.lines, again.lines), (2, 0))
        self.assertIn("File too large", written.problem)
        self.append(b"next\n")
        self.assertEqual(self.path.read_bytes(), 2 * LINE + b"next\n")


class RotationTests(FileTestCase):
    """Before it grows too large it is renamed, and old backups are removed."""

    def test_rotated(self):
        """The names have the time; the newest are kept, and nothing else is touched."""
        for name in ("audit-2026.log", "audit-other.log", "other-2026-01-31T12-00-00.500.log"):
            (self.directory / name).touch()
        strangers = self.backups()
        for number in range(4):
            self.append(*10 * [b"%d" % number + LINE[1:]])
            self.now += 60
        self.assertEqual(
            self.backups(),
            sorted(
                [
                    *strangers,
                    "audit-2026-01-31T12-02-00.500.log",
                    "audit-2026-01-31T12-03-00.500.log",
                ]
            ),
        )
        self.assertEqual(self.path.read_bytes()[:1], b"3")
        newest = self.directory / "audit-2026-01-31T12-03-00.500.log"
        self.assertEqual(newest.read_bytes()[:1], b"2")
        self.assertEqual(newest.stat().st_mode & 0o777, 0o600)
        self.assertLessEqual(self.path.stat().st_size, self.max_bytes)

    def test_two_rotations_in_a_millisecond(self):
        """An existing name is not overwritten."""
        for _ in range(3):
            self.append(*10 * [LINE])
        self.assertEqual(
            self.backups(),
            ["audit-2026-01-31T12-00-00.500.log", "audit-2026-01-31T12-00-00.501.log"],
        )

    def test_after_a_clock_that_was_ahead(self):
        """The newest backups are kept, not those with the latest time."""
        for number in range(6):
            self.append(*10 * [b"%d" % number + LINE[1:]])
            self.now += 86400 if number < 3 else 60
            if number == 3:
                self.now -= 86400 * 365
        kept = [(self.directory / name).read_bytes()[:1] for name in self.backups()]
        self.assertEqual((kept, self.path.read_bytes()[:1]), ([b"3", b"4"], b"5"))

    def test_foreign_names(self):
        """Files without a date in their name are foreign, and do not affect the order."""
        for name in ("audit-2026-13-31T12-00-00.500.log", "audit-9999-12-31T23-59-59.999.log"):
            (self.directory / name).touch()
        strangers = self.backups()
        for _ in range(4):
            self.append(*10 * [LINE])
            self.now += 60
        self.assertLess(set(strangers), set(self.backups()))
        self.assertIn("audit-2026-01-31T12-03-00.500.log", self.backups())

    def test_links_instead_of_backups(self):
        """A dangling link occupies a name, too; those that are too old are removed."""
        victim = self.directory / "victim"
        link = self.directory / "audit-2026-01-31T12-00-00.500.log"
        link.symlink_to(victim)
        self.append(*10 * [LINE])
        self.append(LINE)
        self.assertTrue(link.is_symlink())
        self.assertEqual(
            self.backups(),
            ["audit-2026-01-31T12-00-00.500.log", "audit-2026-01-31T12-00-00.501.log"],
        )
        victim.write_bytes(b"kept")
        self.append(*10 * [LINE])
        self.assertFalse(os.path.lexists(link))
        self.assertEqual(victim.read_bytes(), b"kept")

    def test_more_than_fits(self):
        """A batch of lines is divided among as many files as needed."""
        self.append(LINE)
        self.append(*23 * [LINE])
        first, second = self.backups()
        sizes = [(self.directory / name).stat().st_size for name in (first, second)]
        self.assertEqual((sizes, self.path.stat().st_size), ([1000, 1000], 400))

    def test_a_line_that_is_too_long(self):
        """A line above the file's limit gets a file of its own."""
        long = b"y" * 1500 + b"\n"
        self.append(LINE, long, LINE)
        first, second = self.backups()
        self.assertEqual((self.directory / first).read_bytes(), LINE)
        self.assertEqual((self.directory / second).read_bytes(), long)
        self.assertEqual(self.path.read_bytes(), LINE)

    def test_not_possible(self):
        """If rotation fails, the file is written further, and that is reported."""
        self.append(*10 * [LINE])
        self.patch(os, "rename", self._refuse)
        written = self.file.append([LINE, LINE])
        self.assertEqual(written.lines, 2)
        self.assertIn("cannot be rotated: Permission denied", written.problem)
        self.assertEqual(self.path.stat().st_size, 1200)

    def test_backups_that_cannot_be_removed(self):
        """Backups that cannot be removed are reported; the files do not grow because of them."""
        self.append(*30 * [LINE])
        self.patch(os, "unlink", self._refuse)
        written = self.file.append(20 * [LINE])
        self.assertEqual(written.lines, 20)
        self.assertIn("cannot be rotated: Permission denied", written.problem)
        self.assertEqual((len(self.backups()), self.path.stat().st_size), (4, 1000))

    def _refuse(self, *names):
        raise PermissionError(13, "Permission denied")


class KeepingTests(FileTestCase):
    """With 0 backups nothing is removed."""

    max_backups = 0

    def test_all_are_kept(self):
        """All backups are kept, as by kube-apiserver."""
        for _ in range(5):
            self.append(*10 * [LINE])
        self.assertEqual(len(self.backups()), 4)


class OpenTests(FileTestCase):
    """``open_sink`` is for the start, where errors are reported at once."""

    def test_file(self):
        """The file exists once ``open_sink`` has returned."""
        sink = open_sink(AuditSettings(self.path, 1000, 1))
        self.addCleanup(sink.close)
        self.assertTrue(self.path.exists())

    def test_unsuitable(self):
        """The error has the reason."""
        self.path.symlink_to("elsewhere")
        error = self.assertRaises(OSError, open_sink, AuditSettings(self.path, 1000, 1))
        self.assertIn("symbolic links", error.strerror)


class StandardOutputTests(SynchronousTestCase):
    """``StandardOutput`` writes lines one by one."""

    def test_lines(self):
        """Each line is one write, which is atomic on a pipe."""
        reader, writer = os.pipe()
        self.addCleanup(os.close, reader)
        sink = StandardOutput(writer)
        self.assertEqual(sink.append([b"1\n", b"2\n"]), WriteResult(2))
        sink.close()
        os.close(writer)
        self.assertEqual(os.read(reader, 100), b"1\n2\n")

    def test_no_reader(self):
        """A pipe without a reader is reported, and not fatal."""
        reader, writer = os.pipe()
        self.addCleanup(os.close, writer)
        os.close(reader)
        written = StandardOutput(writer).append([b"1\n"])
        self.assertEqual(written.lines, 0)
        self.assertIn("standard output cannot be written: Broken pipe", written.problem)

    def test_chosen(self):
        """Standard output is the sink if there is no path."""
        self.assertIsInstance(open_sink(AuditSettings(None, 0, 0)), StandardOutput)
