"""Times of day that a test sets, each for one program."""

from __future__ import annotations

from pathlib import Path

from tests.e2e.support import which

# The library for programs with threads, where the wrapper of the name has it; the dynamic linker
# puts in the folder of the architecture (ld.so(8)). The wrapper itself refuses to start where one
# of the same process ID was killed, as what that had in /dev/shm stays.
_LIBRARY = "/usr/$LIB/faketime/libfaketimeMT.so.1"


class WallClock:
    """What a program takes for the time of day: the machine's, put ``forward`` by some seconds."""

    def __init__(self, directory: str, name: str) -> None:
        self._path = Path(directory, f"{name}.time")
        self.advance(0)

    def advance(self, seconds: int) -> None:
        """Set it, from one moment to the next; negative is back."""
        new = self._path.with_suffix(".new")
        new.write_text(f"{seconds:+d}\n")
        new.rename(self._path)

    def prefix(self) -> tuple[str, ...]:
        """Return what a program is begun with that shall have this clock, and all that it starts.

        The kernel's monotonic clock stays as it is, as it does when somebody sets the time.
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
