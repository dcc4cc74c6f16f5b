"""Wall clocks that a test sets, each for one program."""

from __future__ import annotations

from pathlib import Path

from tests.e2e.support import which

# The library for programs with threads, where the wrapper of the same name has it; the dynamic
# linker inserts the directory of the architecture (ld.so(8)). The wrapper itself does not start
# if one with the same process ID was killed, because the files of that one stay in /dev/shm.
_LIBRARY = "/usr/$LIB/faketime/libfaketimeMT.so.1"


class WallClock:
    """A program's wall clock: that of the machine, ``forward`` by some seconds."""

    def __init__(self, directory: str, name: str) -> None:
        self._path = Path(directory, f"{name}.time")
        self.advance(0)

    def advance(self, seconds: int) -> None:
        """Step the clock by some seconds; a negative number steps it back."""
        new = self._path.with_suffix(".new")
        new.write_text(f"{seconds:+d}\n")
        new.rename(self._path)

    def prefix(self) -> tuple[str, ...]:
        """Return the command prefix that starts a program, and its children, with this clock.

        The monotonic clock is not affected, as when the real time is set.
        """
        which("faketime")
        return (
            which("env"),
            f"LD_PRELOAD={_LIBRARY}",
            f"FAKETIME_TIMESTAMP_FILE={self._path}",
            "FAKETIME_NO_CACHE=1",
            "FAKETIME_DONT_FAKE_MONOTONIC=1",
            "DONT_FAKE_MONOTONIC=1",
        )
