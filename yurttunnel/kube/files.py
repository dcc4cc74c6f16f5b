"""Files that others replace from time to time."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from twisted.logger import Logger

_State = tuple[int, int, int]


class EmptyFile(OSError):
    """A file has nothing in it, or white space only."""


class RereadFile:
    """The content of a file, read again when the file is another.

    A file that was there once and cannot be read, or is empty, is told in the log, and its last
    content stays in use.
    """

    _log = Logger()

    def __init__(self, path: Path) -> None:
        self.path = path
        self._state: _State | None = None
        self._content = b""
        self._told = ""

    def read(self) -> bytes:
        """Return the content, which is never empty.

        Raises ``OSError`` when it never could be read, and :class:`EmptyFile` when nothing has
        been in it yet.
        """
        try:
            status = os.stat(self.path)
            state = (status.st_mtime_ns, status.st_ino, status.st_size)
            if state != self._state:
                content = self.path.read_bytes()
                if not content.strip():
                    # Who writes in place truncates first, and a loss of power leaves such files.
                    raise EmptyFile(errno.ENODATA, "it is empty", str(self.path))
                self._content = content
                self._state = state
                self._told = ""
        except OSError as error:
            if self._state is None:
                raise
            self._tell(error)
        return self._content

    def _tell(self, error: OSError) -> None:
        if str(error) != self._told:
            self._told = str(error)
            self._log.warn("the previous content stays in use: {error}", error=error)
