"""The state directory: access by others, and atomic writes."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from unittest import SkipTest, mock

from twisted.logger import LogLevel, capturedLogs, formatEvent
from twisted.trial.unittest import SynchronousTestCase

from tests.e2e.support import which
from yurttunnel.pki import directory
from yurttunnel.pki.directory import CHANGE_LOCK, RESERVE, USE_LOCK, StateDirectory, StateError


def mode(path: Path) -> int:
    """Return the permission bits of a path."""
    return stat.S_IMODE(path.stat().st_mode)


class StateDirectoryTests(SynchronousTestCase):
    """:class:`StateDirectory`."""

    def setUp(self) -> None:
        """Choose a path that does not exist."""
        self.path = Path(self.mktemp())

    def refused(self, path: Path | None = None) -> str:
        """Return the error of opening the directory."""
        error = self.assertRaises(StateError, StateDirectory.open, path or self.path)
        text = str(error)
        self.assertEqual(len(text.splitlines()), 1)
        return text

    def test_created(self) -> None:
        """A missing directory is created without access for others, whatever the umask."""
        former = os.umask(0)
        self.addCleanup(os.umask, former)
        StateDirectory.open(self.path / "deep")
        self.assertEqual(mode(self.path / "deep"), 0o700)

    def test_empty_one_is_closed(self) -> None:
        """An empty directory that is open to others is made private."""
        self.path.mkdir(mode=0o755)
        StateDirectory.open(self.path)
        self.assertEqual(mode(self.path), 0o700)

    def test_open_to_others(self) -> None:
        """A directory with content that others can enter is rejected, and not changed."""
        for bits in (0o755, 0o770, 0o701, 0o1777):
            path = Path(self.mktemp())
            path.mkdir()
            (path / "file").touch()
            path.chmod(bits)
            self.assertEqual(
                self.refused(path),
                f"{path} is open to other users (mode {bits:04o}): chmod 0700 it",
            )
            self.assertEqual(mode(path), bits)

    def test_group_may_list(self) -> None:
        """Group members may be allowed to reach a socket in the directory."""
        self.path.mkdir()
        (self.path / "file").touch()
        self.path.chmod(0o750)
        StateDirectory.open(self.path)
        self.assertEqual(mode(self.path), 0o750)

    def test_file_in_the_way(self) -> None:
        """A file in the place of the directory is an error that names it."""
        self.path.touch()
        self.assertEqual(
            self.refused(), f"{self.path} is not a directory: remove it or choose another"
        )
        self.assertIn("is not a directory, or lies below a file", self.refused(self.path / "below"))

    def test_system_errors(self) -> None:
        """Errors of the operating system become one line with the path and a fix."""
        for number, phrase in {
            errno.EACCES: "install -d -m 0700",
            errno.EROFS: "read-only",
            errno.ENOSPC: "disk is full",
            errno.ELOOP: "symbolic link",
            errno.ENAMETOOLONG: "too long",
            errno.EIO: "input/output error",
        }.items():
            with mock.patch.object(Path, "mkdir", side_effect=OSError(number, os.strerror(number))):
                text = self.refused()
            self.assertIn(str(self.path), text)
            self.assertIn(phrase, text)

    def test_unreadable(self) -> None:
        """A directory without permissions for its user is rejected before anything else."""
        self.path.mkdir()
        with mock.patch("os.access", return_value=False):
            self.assertIn("is not accessible to user id", self.refused())

    def test_an_unwritable_directory(self) -> None:
        """The error names the directory that this user may not write to, or not enter."""
        if os.geteuid() != 0:
            raise SkipTest("only root can become another user")
        above = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, above)
        wanted = above / "further" / "state"
        try:
            for mode, expected in (
                (
                    0o755,
                    f"{wanted} does not exist, and user id 65534 may not create it in {above}:"
                    f" make it as root, install -d -m 0700 -o 65534 {wanted}, or choose another"
                    " directory",
                ),
                (
                    0o700,
                    f"{wanted} is out of reach, since user id 65534 may not enter {above}: choose"
                    " another directory",
                ),
            ):
                above.chmod(mode)
                os.seteuid(65534)
                self.assertEqual(expected, self.refused(wanted))
                os.seteuid(0)
        finally:
            os.seteuid(0)

    def test_read_only(self) -> None:
        """On a read-only file system, the error does not suggest another owner or mode."""
        self.path.mkdir()
        status = mock.Mock(f_flag=os.ST_RDONLY)
        with (
            mock.patch("os.access", return_value=False),
            mock.patch("os.fstatvfs", lambda _: status),
        ):
            self.assertIn("is on a read-only file system", self.refused())

    def test_foreign_owner(self) -> None:
        """Another user's directory is rejected, since its owner could replace the keys."""
        self.path.mkdir(mode=0o700)
        with mock.patch("os.geteuid", return_value=os.stat(self.path).st_uid + 1):
            if os.stat(self.path).st_uid == 0:
                # Root's files are trusted, so a directory of root cannot test this.
                os.chown(self.path, 12345, -1)
            self.assertIn("belongs to another user", self.refused())

    def test_foreign_to_root(self) -> None:
        """Root does not use another user's directory, but a command may change one."""
        if os.geteuid() != 0:
            raise SkipTest("only root can give a directory away")
        for content in ((), ("ca.key",)):
            path = Path(self.mktemp())
            path.mkdir(mode=0o700)
            for name in content:
                (path / name).touch()
            os.chown(path, 12345, 12345)
            self.assertEqual(
                self.refused(path),
                f"{path} belongs to another user (id 12345): chown it to user id 0",
            )
            StateDirectory.open_existing(path)

    def test_symbolic_link(self) -> None:
        """A symbolic link is not followed, whoever created it and whatever its target."""
        there = Path(self.mktemp()).absolute()
        there.mkdir(mode=0o700)
        for target in (there, Path(self.mktemp()).absolute()):
            self.path.symlink_to(target)
            words = f"{self.path} is a symbolic link: name the directory that it leads to"
            self.assertEqual(self.refused(), words)
            error = self.assertRaises(StateError, StateDirectory.open_existing, self.path)
            self.assertEqual(str(error), words)
            self.path.unlink()
        self.assertEqual(os.listdir(there), [])

    def test_exposed(self) -> None:
        """A directory that others could replace is rejected."""
        above = self.path / "above"
        above.mkdir(parents=True)
        for bits, refused in ((0o777, True), (0o1777, False), (0o775, False), (0o703, True)):
            above.chmod(bits)
            for path in (above / "state", above / "deep" / "state"):
                if refused:
                    self.assertEqual(
                        self.refused(path),
                        f"everybody can replace the contents of {above.absolute()} (mode"
                        f" {bits:04o}): chmod o-w it, or choose another",
                    )
                    self.assertFalse(path.exists())
                else:
                    StateDirectory.open(path)
                    path.rmdir()

    def test_exposed_behind_a_link(self) -> None:
        """For a link in the path, its owner and its target are checked."""
        if os.geteuid() != 0:
            raise SkipTest("only root can make another user's link")
        (self.path / "real").mkdir(parents=True)
        link = self.path / "link"
        link.symlink_to("real")
        StateDirectory.open(link / "state")
        self.path.chmod(0o777)
        self.assertIn("everybody can replace", self.refused(link / "state"))
        self.path.chmod(0o755)
        (self.path / "real").chmod(0o777)
        self.assertIn(f"{link.absolute()} (mode 0777)", self.refused(link / "state"))
        (self.path / "real").chmod(0o755)
        os.chown(link, 12345, 12345, follow_symlinks=False)
        self.assertIn("is a symbolic link of another user (id 12345)", self.refused(link / "state"))

    def test_made_above(self) -> None:
        """Missing parent directories are created so that others cannot write to them."""
        former = os.umask(0)
        self.addCleanup(os.umask, former)
        StateDirectory.open(self.path / "one" / "two")
        self.assertEqual((mode(self.path), mode(self.path / "one")), (0o755, 0o755))

    def test_existing_is_demanded(self) -> None:
        """A command on another process's state does not create a directory."""
        error = self.assertRaises(StateError, StateDirectory.open_existing, self.path)
        self.assertEqual(str(error), f"{self.path} does not exist: check the path")
        self.assertFalse(self.path.exists())


class StateFileTests(SynchronousTestCase):
    """Files in the state directory."""

    def setUp(self) -> None:
        """Create an empty directory."""
        self.directory = StateDirectory.open(self.mktemp())
        self.path = self.directory.path

    def test_written_closed(self) -> None:
        """Files are 0600, and nothing else is left behind."""
        self.directory.write("key", b"one")
        self.directory.write("key", b"two")
        self.assertEqual(self.directory.read("key", secret=True), b"two")
        self.assertEqual(mode(self.path / "key"), 0o600)
        self.assertEqual(os.listdir(self.path), ["key"])

    def test_root_writes_for_the_owner(self) -> None:
        """A file that root writes into another user's directory is readable for that user."""
        if os.geteuid() != 0:
            raise SkipTest("only root can write for other users")
        os.chown(self.path, 12345, 12346)
        directory = StateDirectory.open_existing(self.path)
        directory.write("key", b"")
        directory.reserve(1)
        directory.acquire()()
        with directory.lock():
            pass
        for name in ("key", CHANGE_LOCK, USE_LOCK, RESERVE):
            status = (self.path / name).stat()
            self.assertEqual((status.st_uid, status.st_gid), (12345, 12346))

    def test_failed_write_keeps_the_old(self) -> None:
        """If writing fails, the old content remains and no temporary file does."""
        self.directory.write("key", b"old")
        with mock.patch("os.fsync", side_effect=OSError(errno.ENOSPC, "full")):
            error = self.assertRaises(StateError, self.directory.write, "key", b"new")
        self.assertIn("the disk is full", str(error))
        self.assertEqual(self.directory.read("key"), b"old")
        self.assertEqual(os.listdir(self.path), ["key"])

    def test_missing(self) -> None:
        """A missing file has no content and no fingerprint; removing it is no error."""
        self.assertIsNone(self.directory.read("key"))
        self.assertIsNone(self.directory.fingerprint("key"))
        self.directory.remove("key")

    def test_removed(self) -> None:
        """A removed file is gone."""
        self.directory.write("key", b"")
        self.directory.remove("key")
        self.assertEqual(self.directory.names(), [])

    def test_fingerprint(self) -> None:
        """Every write changes the fingerprint, even within one tick of the file system."""
        seen = set()
        for _ in range(5):
            self.directory.write("list", b"same length")
            seen.add(self.directory.fingerprint("list"))
        self.assertGreater(len(seen), 1)
        self.assertEqual(self.directory.fingerprint("list"), self.directory.fingerprint("list"))

    def test_symbolic_links(self) -> None:
        """Symbolic links are not read, and are replaced, not followed, by a write."""
        outside = Path(self.mktemp())
        outside.write_bytes(b"outside")
        (self.path / "key").symlink_to(outside.absolute())
        error = self.assertRaises(StateError, self.directory.read, "key")
        self.assertIn("is a symbolic link", str(error))
        self.directory.write("key", b"inside")
        self.assertEqual(outside.read_bytes(), b"outside")
        self.assertEqual(self.directory.read("key"), b"inside")

    def test_linked_subdirectory(self) -> None:
        """A symbolic link is not accepted as a subdirectory."""
        (self.path / "nodes").symlink_to(Path(self.mktemp()).absolute())
        error = self.assertRaises(StateError, self.directory.subdirectory, "nodes")
        self.assertIn("is a symbolic link", str(error))

    def test_root_does_not_chown_a_linked_file(self) -> None:
        """A file that the directory's owner has hard-linked to the lock keeps its owner."""
        if os.geteuid() != 0:
            raise SkipTest("only root can give files away")
        other = self.path.parent / f"{self.path.name}-other"
        other.touch(mode=0o600)
        os.link(other, self.path / CHANGE_LOCK)
        os.chown(self.path, 12345, 12346)
        with StateDirectory.open_existing(self.path).lock():
            pass
        self.assertEqual(other.stat().st_uid, 0)

    def test_directory_in_place_of_a_file(self) -> None:
        """A directory in the place of a file is an error that names it, for reads and writes."""
        (self.path / "key").mkdir()
        for attempt in (
            lambda: self.directory.read("key"),
            lambda: self.directory.write("key", b""),
        ):
            error = self.assertRaises(StateError, attempt)
            self.assertIn(f"{self.path / 'key'} is", str(error))
            self.assertIn("remove it", str(error))

    def test_pipe_in_place_of_a_file(self) -> None:
        """A named pipe is rejected at once, without blocking."""
        os.mkfifo(self.path / "key")
        error = self.assertRaises(StateError, self.directory.read, "key")
        self.assertIn("is not a plain file", str(error))

    def test_foreign_files(self) -> None:
        """Files that another user has written, or can change, are not read."""
        if os.geteuid() != 0:
            raise SkipTest("only root can give a file away")
        self.directory.write("ca.key", b"foreign")
        os.chown(self.path / "ca.key", 12345, 12345)
        for secret in (False, True):
            error = self.assertRaises(StateError, self.directory.read, "ca.key", secret)
            self.assertIn("ca.key belongs to another user (id 12345)", str(error))
        os.chown(self.path, 12345, 12345)
        another = StateDirectory.open_existing(self.path)
        self.assertEqual(another.read("ca.key", secret=True), b"foreign")
        another.write("list", b"open")
        for bits in (0o620, 0o602, 0o666):
            (self.path / "list").chmod(bits)
            error = self.assertRaises(StateError, another.read, "list")
            self.assertIn(f"list can be changed by other users (mode {bits:04o})", str(error))

    def test_open_secret(self) -> None:
        """A secret that others can read is rejected; other files may be readable for all."""
        self.directory.write("key", b"secret")
        (self.path / "key").chmod(0o640)
        error = self.assertRaises(StateError, self.directory.read, "key", secret=True)
        self.assertIn("chmod 0600 it", str(error))
        self.assertEqual(self.directory.read("key"), b"secret")

    def test_too_long(self) -> None:
        """A file far longer than any of ours is not read into memory."""
        with open(self.path / "key", "wb") as file:
            file.truncate(1 << 30)
        error = self.assertRaises(StateError, self.directory.read, "key")
        self.assertIn("is too long", str(error))

    def test_lock(self) -> None:
        """Two changes of the same state exclude each other."""
        with self.directory.lock():
            other = StateDirectory.open(self.path)
            with self.assertRaises(StateError) as caught, other.lock():
                self.fail("locked twice")
        self.assertIn("try again", str(caught.exception))
        with self.directory.lock():
            self.assertEqual(self.directory.names(), [])


class ReplacedPathTests(SynchronousTestCase):
    """A user's directory that root changes while the user moves it."""

    def setUp(self) -> None:
        """Create the user's directory, and one of root's."""
        if os.geteuid() != 0:
            raise SkipTest("only root can give a directory away")
        self.home = Path(self.mktemp()).absolute()
        self.state = self.home / "state"
        self.state.mkdir(parents=True, mode=0o700)
        for path in (self.home, self.state):
            os.chown(path, 12345, 12345)
        self.directory = StateDirectory.open_existing(self.state)
        self.directory.write("list", b"old")
        self.above = Path(self.mktemp()).absolute()
        self.roots = self.above / "state"
        self.roots.mkdir(parents=True, mode=0o711)
        (self.roots / "list").write_bytes(b"root's")

    def replace_directory(self) -> None:
        """Replace the directory by a link to root's."""
        self.state.rename(self.home / "moved")
        self.state.symlink_to(self.roots)

    def replace_parent(self) -> None:
        """Replace the parent directory by a link."""
        self.home.rename(f"{self.home}.moved")
        self.home.symlink_to(self.above)
        os.chown(self.home, 12345, 12345, follow_symlinks=False)

    def lock(self) -> None:
        """Acquire the lock."""
        with self.directory.lock():
            self.fail("it is locked elsewhere")

    def assert_untouched(self) -> None:
        """Assert that root's directory is unchanged."""
        self.assertEqual(os.listdir(self.roots), ["list"])
        self.assertEqual((self.roots / "list").read_bytes(), b"root's")
        self.assertEqual([path.stat().st_uid for path in (self.roots, self.roots / "list")], [0, 0])
        self.assertEqual(mode(self.roots), 0o711)

    def refuses(self, replace: Callable[[], None]) -> None:
        """Assert that all operations are rejected after the path was redirected."""
        replace()
        for access in (
            partial(self.directory.write, "list", b"new"),
            partial(self.directory.write, "other", b"new"),
            partial(self.directory.read, "list"),
            partial(self.directory.remove, "list"),
            self.directory.names,
            partial(self.directory.fingerprint, "list"),
            self.lock,
            self.directory.acquire,
            partial(self.directory.reserve, 1),
            self.directory.use_reserve,
        ):
            self.assertRaises(StateError, access)
        self.assertRaises(StateError, StateDirectory.open_existing, self.state)
        self.assert_untouched()

    def test_itself(self) -> None:
        """A link in its place is not followed."""
        self.refuses(self.replace_directory)

    def test_above(self) -> None:
        """The target of a link above it does not belong to the user, and is not used."""
        self.refuses(self.replace_parent)

    def test_while_it_is_written(self) -> None:
        """A write that has begun continues in the original directory."""
        leads = iter([self.replace_parent])

        def led(_: int) -> None:
            for replace in leads:
                replace()

        with mock.patch("os.fsync", led):
            self.directory.write("list", b"new")
        moved = Path(f"{self.home}.moved") / "state"
        self.assertEqual((moved / "list").read_bytes(), b"new")
        self.assertEqual(os.listdir(moved), ["list"])
        self.assert_untouched()


class AcquireTests(SynchronousTestCase):
    """Only one process at a time uses the directory."""

    def setUp(self) -> None:
        """Create a directory."""
        self.path = Path(self.mktemp()).absolute()
        self.directory = StateDirectory.open(self.path)

    def refused(self) -> str:
        """Return the error of a second holder."""
        error = self.assertRaises(StateError, StateDirectory.open(self.path).acquire)
        return str(error)

    def test_locked(self) -> None:
        """A second holder gets an error with the first one; files can still be read and written."""
        release = self.directory.acquire()
        for _ in range(2):
            self.assertEqual(
                self.refused(),
                f"{self.path} is in use by process {os.getpid()}, which has to be stopped first;"
                " or use another directory",
            )
        with StateDirectory.open_existing(self.path).lock():
            pass
        self.directory.write("key", b"")
        release()
        release()
        StateDirectory.open(self.path).acquire()()

    def test_the_end_of_a_process_releases_the_lock(self) -> None:
        """The lock ends with the process, and leftover files do not exclude others."""
        program = (
            "import sys\n"
            "from yurttunnel.pki.directory import StateDirectory\n"
            "directory = StateDirectory.open(sys.argv[1])\n"
            "release = directory.acquire()\n"
            "print('held', flush=True)\n"
            "sys.stdin.read()\n"
        )
        other = subprocess.Popen(
            [sys.executable, "-c", program, str(self.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        with other:
            assert other.stdout is not None
            self.assertEqual(other.stdout.readline(), b"held\n")
            self.assertIn(f"process {other.pid},", self.refused())
            other.kill()
        release = self.directory.acquire()
        release()
        self.assertEqual(self.directory.names(), [])

    def test_a_member_of_the_group(self) -> None:
        """A group member who may list the directory cannot lock files to exclude others."""
        if os.geteuid() != 0:
            raise SkipTest("only root can become a member of a group")
        os.chown(self.path, -1, 12346)
        self.path.chmod(0o750)
        self.directory.acquire()()
        with self.directory.lock():
            pass

        def locks(name: str, *program: str) -> subprocess.Popen[bytes]:
            return subprocess.Popen(
                [which("flock"), "--shared", "--nonblock", name, *program],
                cwd=self.path,
                user=12345,
                group=12346,
                extra_groups=(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )

        for name in os.listdir(self.path):
            self.assertIn(b"Permission denied", locks(name, "true").communicate()[1])
        with locks(".", "sh", "-c", "echo locked; cat") as member:
            assert member.stdout is not None
            self.assertEqual(member.stdout.readline(), b"locked\n")
            self.directory.acquire()()
            with self.directory.lock():
                pass
            member.communicate()

    def test_files_that_are_locked(self) -> None:
        """Lock files must be regular, private files of the owner; links are not followed."""

        def lock() -> None:
            with self.directory.lock():
                self.fail("locked")

        def make_link(path: Path) -> None:
            path.symlink_to(Path(self.mktemp()).absolute())

        def make_open(path: Path) -> None:
            path.touch()
            path.chmod(0o640)

        for name, access in ((USE_LOCK, self.directory.acquire), (CHANGE_LOCK, lock)):
            path = self.path / name
            for make, phrase in (
                (make_link, "is a symbolic link"),
                (make_open, "is open to other users (mode 0640): chmod 0600 it"),
                (lambda path: path.mkdir(), "is a directory, but has to be a file"),
            ):
                make(path)
                self.assertIn(f"{path} {phrase}", str(self.assertRaises(StateError, access)))
                path.rmdir() if path.is_dir() else path.unlink()

    def test_foreign_files_that_are_locked(self) -> None:
        """A lock file of another user is rejected, since that user could hold the lock."""
        if os.geteuid() != 0:
            raise SkipTest("only root can give a file away")
        path = self.path / USE_LOCK
        path.touch(mode=0o600)
        os.chown(path, 12345, 12345)
        self.assertIn("belongs to another user (id 12345)", self.refused())

    def test_unknown_owner(self) -> None:
        """A process in another container has the number 0."""
        release = self.directory.acquire()
        self.addCleanup(release)
        for content in ("", "1: FLOCK  ADVISORY  WRITE 7 00:00:1 0 EOF\n", "garbage\n"):
            listed = Path(self.mktemp())
            listed.write_text(content)
            self.patch(directory, "_LOCKS", listed)
            self.assertIn("in use by another process,", self.refused())

    def test_without_locks(self) -> None:
        """A file system without locks excludes nobody, which is logged, and permits a start."""
        for number in (errno.ENOLCK, errno.EOPNOTSUPP):
            with (
                capturedLogs() as events,
                mock.patch("fcntl.flock", side_effect=OSError(number, "none")),
            ):
                releases = [StateDirectory.open(self.path).acquire() for _ in range(2)]
                with self.directory.lock():
                    pass
            for release in releases:
                release()
            texts = [formatEvent(event) for event in events]
            self.assertEqual([LogLevel.warn] * 2, [event["log_level"] for event in events])
            self.assertIn(f"{self.path} is on a file system without locks: a second", texts[0])

    def test_locks_that_fail(self) -> None:
        """All other errors of locks prevent the start."""
        with mock.patch("fcntl.flock", side_effect=OSError(errno.EIO, "broken")):
            self.assertIn("(broken)", self.refused())
            error = self.assertRaises(StateError, self.directory.lock().__enter__)
        self.assertIn("(broken)", str(error))
        with capturedLogs() as events:
            self.directory.acquire()()
        self.assertEqual([], events)


class ReserveTests(SynchronousTestCase):
    """Disk space reserved for writes that must succeed."""

    def setUp(self) -> None:
        """Create a directory."""
        self.path = Path(self.mktemp())
        self.directory = StateDirectory.open(self.path)

    def test_reserved_and_used(self) -> None:
        """The reserve uses disk space, is created once, and is not listed as a file."""
        self.assertFalse(self.directory.use_reserve())
        self.directory.reserve(64 * 1024)
        status = (self.path / RESERVE).stat()
        self.assertGreaterEqual(status.st_blocks * 512, 64 * 1024)
        self.assertEqual(status.st_mode & 0o777, 0o600)
        for size in (64 * 1024, 1):
            self.directory.reserve(size)
            again = (self.path / RESERVE).stat()
            self.assertEqual((again.st_ino, again.st_size), (status.st_ino, 64 * 1024))
        self.assertEqual(self.directory.names(), [])
        self.assertTrue(self.directory.use_reserve())
        self.assertEqual(os.listdir(self.path), [CHANGE_LOCK])

    def test_more(self) -> None:
        """It grows on demand, and stays as it was if the disk is full."""
        for size in (64 * 1024, 256 * 1024):
            self.directory.reserve(size)
            self.assertGreaterEqual((self.path / RESERVE).stat().st_blocks * 512, size)
        with mock.patch("os.posix_fallocate", side_effect=OSError(errno.ENOSPC, "full")):
            error = self.assertRaises(StateError, self.directory.reserve, 512 * 1024)
        self.assertTrue(error.disk_is_full)
        self.assertEqual((self.path / RESERVE).stat().st_size, 256 * 1024)

    def test_no_space(self) -> None:
        """If the disk is full, no reserve is left behind."""
        with mock.patch("os.posix_fallocate", side_effect=OSError(errno.ENOSPC, "full")):
            error = self.assertRaises(StateError, self.directory.reserve, 1)
        self.assertTrue(error.disk_is_full)
        self.assertEqual(os.listdir(self.path), [CHANGE_LOCK])
