"""Checks that other users cannot replace our private files.

The owner and mode of a file do not protect it if another user can rename a directory above it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection
from pathlib import Path


class ExposedPath(OSError):
    """A path that others could redirect; ``strerror`` names the place and the fix."""


def check_parents(path: Path, owners: Collection[int] = ()) -> None:
    """Raise :class:`ExposedPath` if others may replace one of the directories above ``path``.

    Root, the user of the process, and ``owners`` may. Others may in a directory that they own, in
    a world-writable one unless it is sticky as /tmp is (inode(7)), and behind a symbolic link that
    they own. Parts of the path that do not exist are skipped, and so is the root of a volume that
    root owns: kubelet makes each emptyDir of a pod with mode 0777 (pkg/volume/emptydir of
    Kubernetes), and only the pod uses it.
    """
    absolute = Path(os.path.abspath(path))
    trusted = {0, os.geteuid(), *owners}
    for directory in dict.fromkeys([*absolute.parents, *Path(os.path.realpath(path)).parents]):
        try:
            itself, status = os.lstat(directory), os.stat(directory)
        except FileNotFoundError:
            continue
        if itself.st_uid not in trusted and stat.S_ISLNK(itself.st_mode):
            raise ExposedPath(
                0,
                f"{directory} is a symbolic link of another user (id {itself.st_uid}):"
                " name the directory that it leads to",
            )
        if status.st_uid not in trusted:
            raise ExposedPath(
                0,
                f"{directory} belongs to another user (id {status.st_uid}), who can replace its"
                " contents: chown it to root, or choose another",
            )
        is_open = status.st_mode & stat.S_IWOTH and not status.st_mode & stat.S_ISVTX
        if is_open and not (status.st_uid == 0 and os.path.ismount(directory)):
            raise ExposedPath(
                0,
                f"everybody can replace the contents of {directory} (mode"
                f" {stat.S_IMODE(status.st_mode):04o}): chmod o-w it, or choose another",
            )


def read_trusted(path: Path, max_bytes: int) -> bytes:
    """Read a file of at most ``max_bytes`` bytes that determines which peers are trusted.

    Raises ``OSError``; an :class:`ExposedPath` if a user other than root could have put it there,
    or if it is a symbolic link.
    """
    check_parents(path)
    if path.is_symlink():
        raise ExposedPath(0, "it is a symbolic link, or a pipe: name a file")
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise ExposedPath(0, "it is not a plain file")
        if status.st_uid not in (0, os.geteuid()):
            raise ExposedPath(
                0,
                f"it belongs to another user (id {status.st_uid}): check its content, and chown"
                f" it to user id {os.geteuid()}",
            )
        if status.st_mode & 0o022:
            raise ExposedPath(
                0,
                f"it can be changed by other users (mode {stat.S_IMODE(status.st_mode):04o}):"
                " check its content, and chmod go-w it",
            )
        return file.read(max_bytes)
