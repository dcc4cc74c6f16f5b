"""Information about the processes that tests have started (Linux)."""

from __future__ import annotations

import os
from contextlib import suppress


def children_of(pid: int) -> set[int]:
    """Return the ids of the running child processes of ``pid``.

    They are listed for each thread (proc_pid_task(5)); the children of a thread that ends meanwhile
    are passed on to another one.
    """
    children = set()
    for thread in os.listdir(f"/proc/{pid}/task"):
        with (
            suppress(FileNotFoundError, ProcessLookupError),
            open(f"/proc/{pid}/task/{thread}/children") as file,
        ):
            children.update(map(int, file.read().split()))
    return children
