"""An interactive shell: commands are typed, and their output is read."""

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

    It runs in the network namespace in which it is created
    (:meth:`~tests.e2e.network.namespaces.Namespace.inside`).
    """

    def __init__(
        self, shell: str, directory: str, log: Path, environment: Mapping[str, str]
    ) -> None:
        self.log_path = log
        self._output = ""
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
        """Type a command, which is echoed to the screen."""
        os.write(self._own, f"{line}\n".encode())

    def screen(self) -> str:
        """Return everything that has been on the screen so far."""
        try:
            while data := os.read(self._own, _READ):
                self._output += data.decode("utf-8", "replace").replace("\r\n", "\n")
        except BlockingIOError:
            pass
        except OSError:
            pass  # EIO: the other end is closed.
        return self._output

    def find_line(self, pattern: str) -> str:
        """Return the first line that matches, without its indent; empty without a match."""
        found = re.search(rf"(?m)^ *({pattern})\n", self.screen())
        return "" if found is None else found[1]

    @property
    def log(self) -> str:
        """The content of standard error."""
        return self.log_path.read_text()

    def close(self) -> None:
        """Terminate the shell's programs, and hang up: an interactive shell ignores SIGTERM."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGTERM)
        os.close(self._own)
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
