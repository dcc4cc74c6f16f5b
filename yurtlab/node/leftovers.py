"""Finds and kills the processes that containers leave behind.

Every process of a container inherits an environment variable that names the node's run and the
container. This also finds processes that left the process group and lost their parents. A process
with a cleared environment (``env -i``) is found as long as a marked process is in its session or
among its ancestors. Otherwise it is not found: it survives the killing of the node and, unless it
is in the session of a container's own process, the end of its container.

As a program, ``python leftovers.py MARK``, it first waits for the end of its standard input.
It imports only the standard library: see :mod:`yurtlab.node.node`.
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
    """A running process: its ID, its parent's, its session's, and its mark (empty for none).

    ``unsettled``: its environment is not visible, most likely because it is in the middle of an
    exec. ``ticks`` is the processor time that it has used, including that of its ended
    children; ``pages`` is its resident memory.
    """

    pid: int
    parent: int
    session: int
    mark: str
    unsettled: bool
    ticks: int = 0
    pages: int = 0


def marked_processes(processes: list[Found], mark: str, session: int | None = None) -> list[Found]:
    """Return the processes whose mark begins with ``mark``, and those in their sessions.

    The processes of ``session`` are added, and the descendants of all these.
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
    """Kill the processes of :func:`marked_processes`, and what they may have started meanwhile."""
    _kill(lambda found: marked_processes(found, mark, session))


def kill_session(session: int) -> None:
    """Kill the processes of ``session``, and what they may have started meanwhile."""
    _kill(lambda found: [one for one in found if one.session == session])


def _kill(choose: Callable[[list[Found]], list[Found]]) -> None:
    known: set[int] = set()
    for _ in range(_ROUNDS):
        found = running()
        chosen = choose(found)
        # Most programs are running a moment later; some have no environment for good.
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
    """Return all running processes whose environment is readable, without this one."""
    found = []
    own = os.getpid()
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == own:
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                # The name of the program, in parentheses, may contain parentheses and spaces.
                fields = file.read().rpartition(b")")[2].split()
            state, parent, _, session, _, _, flags = fields[:7]
            if state in (b"Z", b"X") or int(flags) & _KERNEL_THREAD:
                continue
            with open(f"/proc/{name}/environ", "rb") as file:
                environment = file.read()
        except OSError:
            # It has ended, or belongs to another user.
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
