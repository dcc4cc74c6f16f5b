"""What the processes of containers leave behind, found and killed.

Everything that a container starts inherits a variable of its environment, which names the node's
run and the container. That finds also what has left its process group and lost its parents. What
has cleared its environment (``env -i``) is found as long as something with the mark is in its
session or among its ancestors. Beyond that it is not found: it goes on when the node is killed and,
unless it is in the session of a container's own process, when its container ends.

As a program, ``python leftovers.py MARK``, it waits for the end of its standard input before.
Nothing but the standard library is imported: see :mod:`yurtlab.node.node`.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass

VARIABLE = "YURTTUNNEL_CONTAINER"
"""Its value, the mark, is ``RUN/POD-UID/CONTAINER/INSTANCE``."""

_PREFIX = f"{VARIABLE}=".encode()
_ROUNDS = 5

# PF_KTHREAD of the kernel's include/linux/sched.h.
_KERNEL_THREAD = 0x00200000


@dataclass(frozen=True, slots=True)
class Found:
    """A process that runs: its number, its parent's, its session's, and its mark ("" for none).

    ``unsettled``: its environment cannot be seen, most likely because it is just becoming another
    program. ``ticks`` is the processor time that it has used, with those of its children that have
    ended, ``pages`` what is resident of its memory.
    """

    pid: int
    parent: int
    session: int
    mark: str
    unsettled: bool
    ticks: int = 0
    pages: int = 0


def of_mark(processes: list[Found], mark: str, session: int | None = None) -> list[Found]:
    """Return those whose mark begins with ``mark``, and those in their sessions.

    The processes of ``session`` are added, and what descends from any of them.
    """
    sessions = {one.session for one in processes if one.mark.startswith(mark)} | {session}
    sessions.discard(os.getsid(0))
    chosen = {one.pid for one in processes if one.mark.startswith(mark) or one.session in sessions}
    children: dict[int, list[int]] = {}
    for one in processes:
        children.setdefault(one.parent, []).append(one.pid)
    pending = list(chosen)
    while pending:
        found = set(children.get(pending.pop(), ())) - chosen
        chosen |= found
        pending += found
    return [one for one in processes if one.pid in chosen]


def kill_all(mark: str, session: int | None = None) -> None:
    """Kill them (see :func:`of_mark`), and what they may have started meanwhile."""
    _kill(lambda found: of_mark(found, mark, session))


def kill_session(session: int) -> None:
    """Kill the processes of ``session``, and what they may have started meanwhile."""
    _kill(lambda found: [one for one in found if one.session == session])


def _kill(choose: Callable[[list[Found]], list[Found]]) -> None:
    known: set[int] = set()
    for _ in range(_ROUNDS):
        found = running()
        chosen = choose(found)
        # Most programs are there a moment later; one that has no environment never changes.
        unsettled = {one.pid for one in found if one.unsettled}
        if not chosen and unsettled <= known:
            return
        known |= unsettled
        for one in chosen:
            try:
                os.kill(one.pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                continue


def running() -> list[Found]:
    """Find all processes that run and whose environment may be seen, without this one."""
    found = []
    own = os.getpid()
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == own:
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                # The name of the program, in parentheses, may have parentheses and spaces.
                fields = file.read().rpartition(b")")[2].split()
            state, parent, _, session, _, _, flags = fields[:7]
            if state in (b"Z", b"X") or int(flags) & _KERNEL_THREAD:
                continue
            with open(f"/proc/{name}/environ", "rb") as file:
                environment = file.read()
        except OSError:
            # It has ended, or is another user's.
            continue
        mark = _mark(environment)
        # The times are utime, stime, cutime and cstime of proc(5), the pages are rss.
        ticks, pages = sum(map(int, fields[11:15])), int(fields[21])
        process = Found(int(name), int(parent), int(session), mark, not environment, ticks, pages)
        found.append(process)
    return found


def _mark(environment: bytes) -> str:
    for entry in environment.split(b"\0"):
        if entry.startswith(_PREFIX):
            return entry[len(_PREFIX) :].decode("utf-8", "replace")
    return ""


if __name__ == "__main__":
    sys.stdin.buffer.read()
    kill_all(sys.argv[1])
