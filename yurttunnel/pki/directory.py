"""The state directory, which stores keys, certificates, tokens and revocations.

It belongs to the user of the process or to root, and other users have no access. A new or empty
directory is made private; one that has content and is open to others is rejected, since its content
may be foreign and others could replace the keys. The same holds for files in it that belong to
another user, for a symbolic link in its place, and for parent directories in which others could
replace it. Only root may open a directory of another user, who could do all of this at any time;
each access therefore opens the directory, checks its owner, and continues with the descriptor,
whatever the path refers to by then. Group members may be allowed to enter and list it (0750), to
share a socket in it: files with secrets and lock files are 0600 whatever the directory's mode is.

Only one process at a time may use it (:meth:`StateDirectory.acquire`), because a process does not
notice changes that another one makes to what it has read.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import stat
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

from twisted.application.service import Service
from twisted.logger import Logger

from yurttunnel.ops.private_files import ExposedPath, check_parents

RESERVE = ".reserve"
"""The file that reserves disk space for writes that must succeed on a full disk."""

CHANGE_LOCK = ".lock"
"""The lock file for one change."""

USE_LOCK = ".held"
"""The lock file that a process holds as long as it uses the directory."""

_FULL = (errno.ENOSPC, errno.EDQUOT)

_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP)
"""The errors of flock(2) on file systems without locks."""

_LOCKS = Path("/proc/locks")

_FORBIDDEN_DIRECTORY_BITS = stat.S_IWGRP | stat.S_IRWXO
_DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE_FLAGS = os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
_MAX_FILE_SIZE = 16 * 1024 * 1024
"""Bytes; no file here becomes that large, so a larger one is foreign."""

log = Logger()


class StateError(Exception):
    """The state directory cannot be used; one line names the path and the fix."""

    @property
    def disk_is_full(self) -> bool:
        """Whether a write failed because the disk is full."""
        return isinstance(self.__cause__, OSError) and self.__cause__.errno in _FULL


class StateDirectory:
    """A directory that only its owner can use, with files that are replaced atomically.

    All methods raise :class:`StateError`. Names are plain file names without a slash.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._owners: tuple[int, ...] | None = None

    @classmethod
    def open(cls, path: str | Path) -> StateDirectory:
        """Open ``path``, and create it (0700) if it does not exist."""
        directory = cls(Path(path))
        with _explained(directory.path), _explained_above(directory.path):
            check_parents(directory.path)
            created = directory._create()
            directory._owners = (0, os.geteuid())
            directory._check(created)
        return directory

    @classmethod
    def open_existing(cls, path: str | Path) -> StateDirectory:
        """Open ``path``, which must exist: for commands that access another process's state.

        Root may open the directory of any user, who then owns the files that root writes there.
        """
        directory = cls(Path(path))
        with _explained(directory.path):
            directory._check_kind()
            directory._owners = (0, os.geteuid())
            if os.geteuid() == 0:
                # Only the owner of the state can redirect the path, and only to the owner's own
                # files.
                directory._owners = None
                with directory._opened() as descriptor:
                    directory._owners = (os.fstat(descriptor).st_uid,)
            check_parents(directory.path, directory._owners)
            directory._check(created=False)
        return directory

    def subdirectory(self, name: str) -> StateDirectory:
        """Open a subdirectory, and create it if it does not exist; links are not followed."""
        return StateDirectory.open(self.path / name)

    def read(self, name: str, secret: bool = False) -> bytes | None:
        """Return the content of a file, ``None`` if it does not exist.

        Only regular files are read, not symbolic links, and only files that no user other than
        root, this process's and the directory's owner owns or can change. A ``secret`` file must
        not be accessible to group and others.
        """
        path = self.path / name
        with _explained(path):
            try:
                with self._opened() as directory:
                    owner = os.fstat(directory).st_uid
                    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
                    descriptor = os.open(name, flags, dir_fd=directory)
            except FileNotFoundError:
                return None
            with os.fdopen(descriptor, "rb") as file:
                status = os.fstat(descriptor)
                if not stat.S_ISREG(status.st_mode):
                    raise StateError(f"{path} is not a plain file: remove it")
                _check_file(path, status, owner)
                if secret and status.st_mode & 0o077:
                    raise StateError(
                        f"{path} holds a secret but is open to other users"
                        f" (mode {stat.S_IMODE(status.st_mode):04o}): chmod 0600 it"
                    )
                content = file.read(_MAX_FILE_SIZE + 1)
        if len(content) > _MAX_FILE_SIZE:
            raise StateError(f"{path} is too long: remove it")
        return content

    def write(self, name: str, content: bytes) -> None:
        """Replace a file (0600) atomically and durably.

        Readers see the old or the new content, never a partially written file, also after a crash.
        """
        path = self.path / name
        with _explained(path), self._opened() as directory:
            temporary = f".new-{secrets.token_hex(8)}"
            descriptor = os.open(
                temporary, os.O_WRONLY | os.O_EXCL | _FILE_FLAGS, 0o600, dir_fd=directory
            )
            try:
                with os.fdopen(descriptor, "wb") as file:
                    _chown_to_owner(descriptor, directory)
                    file.write(content)
                    file.flush()
                    os.fsync(descriptor)
                os.replace(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
            except BaseException:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(temporary, dir_fd=directory)
                raise
            os.fsync(directory)

    def sync(self) -> None:
        """Make renames in the directory durable across a power loss."""
        with _explained(self.path), self._opened() as directory:
            os.fsync(directory)

    def remove(self, name: str) -> None:
        """Remove a file, if it exists."""
        with (
            _explained(self.path / name),
            contextlib.suppress(FileNotFoundError),
            self._opened() as directory,
        ):
            os.unlink(name, dir_fd=directory)

    def names(self) -> list[str]:
        """List the files, without temporary ones."""
        with _explained(self.path), self._opened() as directory:
            return sorted(name for name in os.listdir(directory) if not name.startswith("."))

    def fingerprint(self, name: str) -> tuple[int, int, int] | None:
        """Return a value that changes when :meth:`write` replaces a file; ``None`` without one."""
        with _explained(self.path / name):
            try:
                with self._opened() as directory:
                    status = os.stat(name, dir_fd=directory, follow_symlinks=False)
            except FileNotFoundError:
                return None
            return (status.st_ino, status.st_mtime_ns, status.st_size)

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Lock the directory against changes by other processes for a read-modify-write.

        Meant for the milliseconds of one change. If another process holds the lock, the call fails
        rather than waits. As with :meth:`acquire`, there is no exclusion on file systems without
        locks, since revoking a node has to work there, too.
        """
        descriptor = self._open_private(CHANGE_LOCK)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise StateError(
                    f"{self.path} is being changed by another process: try again"
                ) from None
            except OSError as error:
                if error.errno not in _NO_LOCKS:
                    raise StateError(f"{self.path} {_explanation(error)}") from error
            yield
        finally:
            os.close(descriptor)

    def acquire(self) -> Callable[[], object]:
        """Lock the directory against use by other processes, until the returned function is called.

        The lock also ends with this process, however that ends. Some network file systems have no
        locks: there is no exclusion there, and a warning is logged.
        """
        descriptor = self._open_private(USE_LOCK)
        release = weakref.finalize(self, os.close, descriptor)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _lock_holder(os.fstat(descriptor))
            release()
            raise StateError(
                f"{self.path} is in use by {holder}, which has to be stopped first; or use another"
                " directory"
            ) from None
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                release()
                raise StateError(f"{self.path} {_explanation(error)}") from error
            log.warn(
                "{path} is on a file system without locks: a second process on it would not be"
                " detected: make sure that there is none, or choose a local disk",
                path=self.path,
            )
        return release

    def reserve(self, size: int) -> None:
        """Reserve ``size`` bytes of disk space for :meth:`use_reserve`, if not reserved yet.

        The lock file is created here, too, so that the write after :meth:`use_reserve` needs
        nothing else that a full disk lacks.
        """
        os.close(self._open_private(CHANGE_LOCK))
        descriptor = self._open_private(RESERVE)
        try:
            reserved = os.fstat(descriptor).st_size
            if reserved >= size:
                return
            with _explained(self.path / RESERVE):
                try:
                    os.posix_fallocate(descriptor, 0, size)
                except OSError:
                    os.ftruncate(descriptor, reserved)
                    raise
        except StateError:
            if not reserved:
                self.remove(RESERVE)
            raise
        finally:
            os.close(descriptor)

    def use_reserve(self) -> bool:
        """Free the space of :meth:`reserve` for a later write; ``False`` if there is none."""
        with _explained(self.path / RESERVE), self._opened() as directory:
            try:
                os.unlink(RESERVE, dir_fd=directory)
            except FileNotFoundError:
                return False
        return True

    def _open_private(self, name: str) -> int:
        """Return a descriptor of a file that nobody else can open, and so nobody else can lock."""
        path = self.path / name
        with _explained(path), self._opened() as directory:
            descriptor = os.open(name, os.O_RDWR | _FILE_FLAGS, 0o600, dir_fd=directory)
            try:
                status = os.fstat(descriptor)
                _check_file(path, status, os.fstat(directory).st_uid)
                if status.st_mode & 0o077:
                    raise StateError(
                        f"{path} is open to other users"
                        f" (mode {stat.S_IMODE(status.st_mode):04o}): chmod 0600 it"
                    )
                _chown_to_owner(descriptor, directory)
            except BaseException:
                os.close(descriptor)
                raise
        return descriptor

    def _create(self) -> bool:
        # ``Path.mkdir(parents=True)`` would create the parents with permissions that depend on the
        # umask.
        for parent in reversed(self.path.parents):
            with contextlib.suppress(FileExistsError):
                parent.mkdir(mode=0o755)
        try:
            self.path.mkdir(mode=0o700)
        except FileExistsError:
            return False
        return True

    def _check_kind(self) -> None:
        """Raise unless the path is a directory; the error of ``open`` would not name the kind."""
        status = os.lstat(self.path)
        if stat.S_ISLNK(status.st_mode):
            raise StateError(f"{self.path} is a symbolic link: name the directory that it leads to")
        if not stat.S_ISDIR(status.st_mode):
            raise StateError(f"{self.path} is not a directory: remove it or choose another")

    def _check(self, created: bool) -> None:
        self._check_kind()
        with self._opened() as descriptor:
            status = os.fstat(descriptor)
            if status.st_mode & _FORBIDDEN_DIRECTORY_BITS:
                if not created and os.listdir(descriptor):
                    raise StateError(
                        f"{self.path} is open to other users"
                        f" (mode {stat.S_IMODE(status.st_mode):04o}): chmod 0700 it"
                    )
                os.fchmod(descriptor, 0o700)
            if not os.access(".", os.R_OK | os.W_OK | os.X_OK, dir_fd=descriptor):
                is_read_only = os.fstatvfs(descriptor).f_flag & os.ST_RDONLY
                number = errno.EROFS if is_read_only else errno.EACCES
                raise OSError(number, os.strerror(number))

    def _open(self) -> int:
        """Return a descriptor of the directory, after a check of its owner."""
        descriptor = os.open(self.path, _DIRECTORY_FLAGS)
        owner = os.fstat(descriptor).st_uid
        if self._owners is not None and owner not in self._owners:
            os.close(descriptor)
            raise StateError(
                f"{self.path} belongs to another user (id {owner}):"
                f" chown it to user id {os.geteuid()}"
            )
        return descriptor

    @contextlib.contextmanager
    def _opened(self) -> Iterator[int]:
        descriptor = self._open()
        try:
            yield descriptor
        finally:
            os.close(descriptor)


def make_private_directory(path: Path) -> None:
    """Create a directory (0700) and its parents, if they do not exist.

    Raises :class:`StateError`. The owner and mode of an existing directory are not checked.
    """
    with _explained(path), _explained_above(path):
        StateDirectory(path)._create()


class LockedDirectory(Service):
    """Holds the lock of a state directory from its creation on, before anything is read from it.

    Stop it as soon as the shutdown begins: the next process may use the directory while this one
    drains. Raises :class:`StateError`, also if another process holds the directory.
    """

    def __init__(self, path: Path) -> None:
        self._directory = StateDirectory.open(path)
        self._release = self._directory.acquire()

    def stopService(self) -> None:
        super().stopService()
        self._release()


def _check_file(path: Path, status: os.stat_result, owner: int) -> None:
    """Raise unless only root, this process and the directory's ``owner`` can write the file."""
    if status.st_uid not in {0, os.geteuid(), owner}:
        raise StateError(
            f"{path} belongs to another user (id {status.st_uid}): check where it came from, and"
            f" replace it, or chown it to user id {os.geteuid()}"
        )
    if status.st_mode & 0o022:
        raise StateError(
            f"{path} can be changed by other users (mode {stat.S_IMODE(status.st_mode):04o}):"
            " check its content, and chmod go-w it"
        )


def _chown_to_owner(descriptor: int, directory: int) -> None:
    """Make the directory's owner the owner of a file that root writes, as a command may do.

    A file with several hard links is not changed: the owner may have linked another user's file.
    """
    if os.geteuid() == 0 and os.fstat(descriptor).st_nlink == 1:
        status = os.fstat(directory)
        os.fchown(descriptor, status.st_uid, status.st_gid)


def _lock_holder(status: os.stat_result) -> str:
    """Return the process that has locked a file, from the kernel's list (proc_locks(5))."""
    device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    with contextlib.suppress(OSError):
        for line in _LOCKS.read_text("ascii").splitlines():
            words = line.split()
            # A process in another container has the number 0.
            if words[1:2] == ["FLOCK"] and words[5:6] == [device] and words[4] != "0":
                return f"process {words[4]}"
    return "another process"


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Convert errors of the operating system to sentences with the fix."""
    try:
        yield
    except ExposedPath as error:
        raise StateError(str(error.strerror)) from None
    except OSError as error:
        raise StateError(f"{path} {_explanation(error)}") from error


@contextlib.contextmanager
def _explained_above(path: Path) -> Iterator[None]:
    """Explain missing permissions above ``path``, if these are why it does not exist."""
    try:
        yield
    except PermissionError as error:
        above = next(each for each in path.absolute().parents if os.path.lexists(each))
        if os.path.lexists(path):
            raise
        user = os.geteuid()
        if not os.access(above, os.X_OK, effective_ids=True):
            raise StateError(
                f"{path} is out of reach, since user id {user} may not enter {above}:"
                " choose another directory"
            ) from error
        raise StateError(
            f"{path} does not exist, and user id {user} may not create it in {above}: make it as"
            f" root, install -d -m 0700 -o {user} {path}, or choose another directory"
        ) from error


def _explanation(error: OSError) -> str:
    match error.errno:
        case errno.EACCES | errno.EPERM:
            return f"is not accessible to user id {os.geteuid()}: chown it to this user, mode 0700"
        case errno.EROFS:
            return "is on a read-only file system: mount it writable or choose another"
        case errno.ENOTDIR | errno.EEXIST:
            return "is not a directory, or lies below a file: choose another path"
        case errno.EISDIR:
            return "is a directory, but has to be a file: remove it"
        case errno.ELOOP:
            return "is a symbolic link, which are not followed here: use the file itself"
        case errno.ENOENT:
            return "does not exist: check the path"
        case number if number in _FULL:
            return "cannot be written, the disk is full: make room"
        case errno.ENAMETOOLONG:
            return "is too long a path: choose a shorter one"
        case _:
            reason = (error.strerror or "failed").lower()
            return f"cannot be used ({reason}): check the path"
