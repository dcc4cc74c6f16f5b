"""Files that are read without waiting, and into bounded memory."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

MAX_BYTES = 4 * 1024 * 1024
"""The default maximum; a bundle of all public authorities has 220 KB."""


def read_plain(path: Path, max_bytes: int = MAX_BYTES) -> bytes:
    """Return the content of a file of at most ``max_bytes`` bytes.

    Raises ``OSError``, also for a pipe or a device, whose content may never come or never end.
    """
    with open(path, "rb", opener=_opened) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "it is not a plain file", str(path))
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise OSError(errno.EFBIG, f"it is longer than {max_bytes} bytes", str(path))
    return content


def _opened(path: str, flags: int) -> int:
    # A pipe is otherwise opened only once another process writes to it.
    return os.open(path, flags | os.O_NONBLOCK)
