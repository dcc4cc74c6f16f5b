"""Files that decide whom to trust, and places in which others could replace what is ours."""

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
    """A directory to put things in."""

    def setUp(self):
        """Make it."""
        self.directory = Path(self.mktemp()).absolute()
        self.directory.mkdir(mode=0o755)
        self.path = self.directory / "file"

    def give_away(self, path):
        """Make something another user's."""
        if os.geteuid() != 0:
            raise SkipTest("only root can give a file away")
        os.chown(path, STRANGER, STRANGER, follow_symlinks=False)

    def refused(self, call, *words):
        """Check that a call is refused, in one line."""
        error = self.assertRaises(OSError, call)
        for word in words:
            self.assertIn(word, error.strerror)
        self.assertNotIn("\n", error.strerror)
        return error


class AboveTests(PathTestCase):
    """What is above a file."""

    def test_modes(self):
        """Everybody may write to a directory above only if it is sticky."""
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
        """The root of a pod's volume is open to all, of whom there are none; others are not."""
        self.directory.chmod(0o777)
        self.patch(os.path, "ismount", lambda path: path == self.directory)
        check_parents(self.path)
        (self.directory / "open").mkdir()
        (self.directory / "open").chmod(0o777)
        self.refused(lambda: check_parents(self.directory / "open" / "file"), "open (mode 0777)")
        self.give_away(self.directory)
        self.refused(lambda: check_parents(self.path), "another user")

    def test_owners(self):
        """Who owns a directory above can replace it, whatever its mode."""
        self.give_away(self.directory)
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
        """A path is looked at from the working directory."""
        self.directory.chmod(0o777)
        self.refused(lambda: check_parents(Path(os.path.relpath(self.path))), "0777")

    def test_links(self):
        """Both sides of a link count, and a link of another user does."""
        there = self.directory / "there"
        there.mkdir(mode=0o700)
        link = self.directory / "link"
        link.symlink_to(there)
        check_parents(link / "file")
        there.chmod(0o777)
        self.refused(lambda: check_parents(link / "file"), "link")
        there.chmod(0o700)
        self.give_away(link)
        self.refused(lambda: check_parents(link / "file"), "symbolic link of another user")


class EntryTests(PathTestCase):
    """Where files are named to the programs."""

    def token(self):
        """Read the token file of an agent."""
        return StandaloneSettings(Path("state"), None, self.path).read_join_token()

    def test_token(self):
        """A token tells whom to trust: nobody else may have written it."""
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
        self.give_away(self.path)
        self.assertIn("another user (id 12345)", str(self.assertRaises(ValueError, self.token)))

    def test_other_kinds(self):
        """Links are not followed, pipes not waited for, and long files not read whole."""
        victim = self.directory / "victim"
        victim.write_text("secret")
        self.path.symlink_to(victim)
        self.refused(lambda: read_trusted(self.path, 10), "symbolic links")
        self.path.unlink()
        os.mkfifo(self.path)
        self.refused(lambda: read_trusted(self.path, 10), "not a plain file")
        self.assertEqual(read_trusted(victim, 3), b"sec")

    def test_audit_log(self):
        """An audit log is not written where everybody could replace it."""
        settings = AuditSettings(self.path, 1000, 1)
        self.directory.chmod(0o777)
        self.refused(
            lambda: open_sink(settings), "everybody can replace the contents", "(mode 0777)"
        )
        self.assertFalse(self.path.exists())
        self.directory.chmod(0o1777)
        open_sink(settings).close()

    def test_diagnosis(self):
        """Nor is a bundle."""
        self.directory.chmod(0o777)
        self.refused(lambda: write_bundle(self.path, [], []), "everybody can replace the contents")
        self.assertFalse(self.path.exists())
        self.directory.chmod(0o1777)
        write_bundle(self.path, [], [])
