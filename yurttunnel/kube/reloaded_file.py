"""Files that other programs replace."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from twisted.logger import Logger

from yurttunnel.ops.plain_files import read_plain

_State = tuple[int, int, int]


class EmptyFile(OSError):
    """A file is empty, or contains only white space."""


class ReloadedFile:
    """The content of a file, read again when the file has changed.

    If a file that was read before becomes unreadable or empty, this is logged, and its previous
    content stays in use.
    """

    _log = Logger()

    def __init__(self, path: Path) -> None:
        self.path = path
        self._state: _State | None = None
        self._content = b""
        self._logged_error = ""

    def read(self) -> bytes:
        """Return the content, which is never empty.

        Raises ``OSError`` if the file could never be read, and :class:`EmptyFile` if it has been
        empty so far.
        """
        try:
            status = os.stat(self.path)
            state = (status.st_mtime_ns, status.st_ino, status.st_size)
            if state != self._state:
                content = read_plain(self.path)
                if not content.strip():
                    # A writer that truncates the file first, or a power loss, leaves it empty.
                    raise EmptyFile(errno.ENODATA, "it is empty", str(self.path))
                self._content = content
                self._state = state
                self._logged_error = ""
        except OSError as error:
            if self._state is None:
                raise
            self._log_error(error)
        return self._content

    def _log_error(self, error: OSError) -> None:
        if str(error) != self._logged_error:
            self._logged_error = str(error)
            self._log.warn("the previous content stays in use: {error}", error=error)
