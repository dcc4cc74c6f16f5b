"""A shell at which somebody sits: commands are typed, and what they print is read."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from tests.e2e.programs import STOP_SECONDS

_READ = 65536


class Terminal:
    """A shell whose standard input and output are a terminal; its standard error is a log.

    It lives where it is made (:meth:`~tests.e2e.network.namespaces.Namespace.inside`).
    """

    def __init__(
        self, shell: str, directory: str, log: Path, environment: Mapping[str, str]
    ) -> None:
        self.log_path = log
        self._said = ""
        self._own, theirs = os.openpty()
        os.set_blocking(self._own, False)
        try:
            with open(log, "ab") as errors:
                self._process = subprocess.Popen(
                    [shell],
                    stdin=theirs,
                    stdout=theirs,
                    stderr=errors,
                    cwd=directory,
                    env={**environment},
                    start_new_session=True,
                )
        finally:
            os.close(theirs)

    def type(self, line: str) -> None:
        """Type a command; what is typed is on the screen, too."""
        os.write(self._own, f"{line}\n".encode())

    def screen(self) -> str:
        """Return all that was on the screen up to now."""
        try:
            while data := os.read(self._own, _READ):
                self._said += data.decode("utf-8", "replace").replace("\r\n", "\n")
        except BlockingIOError:
            pass
        except OSError:
            pass  # EIO: nobody has the other end any more.
        return self._said

    def find_line(self, pattern: str) -> str:
        """Return the first line on the screen that matches, as it is copied; empty without one."""
        found = re.search(rf"(?m)^ *({pattern})\n", self.screen())
        return "" if found is None else found[1]

    @property
    def log(self) -> str:
        """What went to standard error."""
        return self.log_path.read_text()

    def close(self) -> None:
        """End what runs in the shell, and hang up: a shell at a terminal takes no SIGTERM."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGTERM)
        os.close(self._own)
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
