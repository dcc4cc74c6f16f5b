"""Files that establish trust, and directories in which other users could replace files."""

from __future__ import annotations

import os
from pathlib import Path

from twisted.trial.unittest import SkipTest, SynchronousTestCase

from yurttunnel.agent.settings import StandaloneSettings
from yurttunnel.ops.diagnose.bundle import write_bundle
from yurttunnel.ops.private_files import ExposedPath, check_parents, read_trusted
from yurttunnel.server.audit_sinks import AuditSettings, open_sink

STRANGER = 12345


class PathTestCase(SynchronousTestCase):
    """A directory for files."""

    def setUp(self):
        """Make the directory."""
        self.directory = Path(self.mktemp()).absolute()
        self.directory.mkdir(mode=0o755)
        self.path = self.directory / "file"

    def change_owner(self, path):
        """Give a file or directory to another user."""
        if os.geteuid() != 0:
            raise SkipTest("only root can give a file away")
        os.chown(path, STRANGER, STRANGER, follow_symlinks=False)

    def refused(self, call, *words):
        """Check that a call fails with an error of one line that has ``words``."""
        error = self.assertRaises(OSError, call)
        for word in words:
            self.assertIn(word, error.strerror)
        self.assertNotIn("\n", error.strerror)
        return error


class AboveTests(PathTestCase):
    """Checks of a file's parent directories."""

    def test_modes(self):
        """A parent directory that is writable for everybody needs the sticky bit."""
        for bits in (0o755, 0o1777, 0o775, 0o1757):
            self.directory.chmod(bits)
            check_parents(self.path)
            check_parents(self.directory / "not" / "there")
        for bits in (0o777, 0o757, 0o702):
            self.directory.chmod(bits)
            for path in (self.path, self.directory / "not" / "there"):
                error = self.refused(lambda path=path: check_parents(path), str(self.directory))
                self.assertIsInstance(error, ExposedPath)
            check_parents(self.directory)

    def test_volumes(self):
        """The root of a pod's volume may be writable for everybody; other directories may not."""
        self.directory.chmod(0o777)
        self.patch(os.path, "ismount", lambda path: path == self.directory)
        check_parents(self.path)
        (self.directory / "open").mkdir()
        (self.directory / "open").chmod(0o777)
        self.refused(lambda: check_parents(self.directory / "open" / "file"), "open (mode 0777)")
        self.change_owner(self.directory)
        self.refused(lambda: check_parents(self.path), "another user")

    def test_owners(self):
        """A parent directory of another user is rejected, whatever its mode."""
        self.change_owner(self.directory)
        for bits in (0o755, 0o700, 0o1777):
            self.directory.chmod(bits)
            for path in (self.path, self.directory / "not" / "there"):
                self.refused(
                    lambda path=path: check_parents(path),
                    f"{self.directory} belongs to another user (id {STRANGER})",
                )
            check_parents(self.directory)
            check_parents(self.path, (STRANGER,))

    def test_relative(self):
        """A relative path is resolved in the working directory."""
        self.directory.chmod(0o777)
        self.refused(lambda: check_parents(Path(os.path.relpath(self.path))), "0777")

    def test_links(self):
        """A symbolic link's own parents, its target and its owner are checked."""
        there = self.directory / "there"
        there.mkdir(mode=0o700)
        link = self.directory / "link"
        link.symlink_to(there)
        check_parents(link / "file")
        there.chmod(0o777)
        self.refused(lambda: check_parents(link / "file"), "link")
        there.chmod(0o700)
        self.change_owner(link)
        self.refused(lambda: check_parents(link / "file"), "symbolic link of another user")


class EntryTests(PathTestCase):
    """The checks where the programs use files."""

    def token(self):
        """Read the token file of an agent."""
        return StandaloneSettings(Path("state"), None, self.path).read_join_token()

    def test_token(self):
        """A join token that other users can change is rejected, since it establishes trust."""
        token = f"{'a' * 16}.{'b' * 32}.sha256:{'c' * 64}"
        self.path.write_text(f"{token}\n")
        self.path.chmod(0o644)
        self.assertEqual(str(self.token()), token)
        for bits in (0o666, 0o602, 0o620):
            self.path.chmod(bits)
            error = self.assertRaises(ValueError, self.token)
            self.assertIn(f"can be changed by other users (mode {bits:04o})", str(error))
            self.assertIn(f"--join-token-file {self.path}: ", str(error))
        self.path.chmod(0o600)
        self.directory.chmod(0o777)
        self.assertIn("replace", str(self.assertRaises(ValueError, self.token)))
        self.directory.chmod(0o755)
        self.change_owner(self.path)
        self.assertIn("another user (id 12345)", str(self.assertRaises(ValueError, self.token)))

    def test_other_kinds(self):
        """Links are not followed, pipes are rejected, and reads have a size limit."""
        victim = self.directory / "victim"
        victim.write_text("secret")
        self.path.symlink_to(victim)
        self.refused(lambda: read_trusted(self.path, 10), "it is a symbolic link, or a pipe")
        self.path.unlink()
        os.mkfifo(self.path)
        self.refused(lambda: read_trusted(self.path, 10), "not a plain file")
        self.assertEqual(read_trusted(victim, 3), b"sec")

    def test_audit_log(self):
        """An audit log is not written to a directory where everybody could replace it."""
        settings = AuditSettings(self.path, 1000, 1)
        self.directory.chmod(0o777)
        self.refused(
            lambda: open_sink(settings), "everybody can replace the contents", "(mode 0777)"
        )
        self.assertFalse(self.path.exists())
        self.directory.chmod(0o1777)
        open_sink(settings).close()

    def test_diagnosis(self):
        """A bundle is not written to a directory where everybody could replace it."""
        self.directory.chmod(0o777)
        self.refused(lambda: write_bundle(self.path, [], []), "everybody can replace the contents")
        self.assertFalse(self.path.exists())
        self.directory.chmod(0o1777)
        write_bundle(self.path, [], [])
