"""What processes and the machine use, as the kernel tells it (proc(5))."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")

# Fields of /proc/PID/stat, counted from the one behind the name.
_USER, _SYSTEM, _CHILDREN_USER, _CHILDREN_SYSTEM, _RESIDENT = 11, 12, 13, 14, 21

# The fields of the first line of /proc/stat in which somebody does something: user, nice, system,
# irq, softirq, steal.
_BUSY = (1, 2, 3, 6, 7, 8)


@dataclass(frozen=True, slots=True)
class Usage:
    """What some processes use.

    ``cpu_seconds`` is what they have used so far, with those of their children that have ended.
    ``memory_bytes`` is what is resident; what several share is counted several times.
    """

    processes: int = 0
    cpu_seconds: float = 0.0
    memory_bytes: int = 0


def usage_of(pids: Sequence[int]) -> Usage:
    """Add up what processes use; those that have ended meanwhile use nothing."""
    found = [fields for fields in map(_stat, pids) if fields is not None]
    times = (_USER, _SYSTEM, _CHILDREN_USER, _CHILDREN_SYSTEM)
    ticks = sum(int(fields[index]) for fields in found for index in times)
    pages = sum(int(fields[_RESIDENT]) for fields in found)
    return Usage(len(found), ticks / _TICKS, pages * _PAGE_BYTES)


@dataclass(frozen=True, slots=True)
class Machine:
    """What the machine has and uses: bytes, seconds of all processors, seconds since 1970."""

    cpu_seconds: float
    memory_total: int
    memory_available: int
    booted: float

    @classmethod
    def look(cls) -> Machine:
        """Find out."""
        with open("/proc/stat") as file:
            lines = file.read().splitlines()
        cpu = lines[0].split()
        booted = next(float(line.split()[1]) for line in lines if line.startswith("btime "))
        memory = _memory()
        return cls(
            cpu_seconds=sum(int(cpu[index]) for index in _BUSY) / _TICKS,
            memory_total=memory["MemTotal"],
            memory_available=memory["MemAvailable"],
            booted=booted,
        )

    @property
    def memory_used(self) -> int:
        """Bytes that could not be given to others."""
        return self.memory_total - self.memory_available


def _stat(pid: int) -> list[bytes] | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()
    except OSError:
        return None


def _memory() -> dict[str, int]:
    with open("/proc/meminfo") as file:
        entries = (line.split() for line in file)
        return {entry[0].rstrip(":"): int(entry[1]) * 1024 for entry in entries}
