"""What Linux tells about processes that tests have started."""

from __future__ import annotations

import os
from contextlib import suppress


def children_of(pid: int) -> set[int]:
    """The ids of the processes that ``pid`` has started and that run.

    They are listed for each thread (proc_pid_task(5)); a thread that ends meanwhile has left its
    own to another one.
    """
    children = set()
    for thread in os.listdir(f"/proc/{pid}/task"):
        with (
            suppress(FileNotFoundError, ProcessLookupError),
            open(f"/proc/{pid}/task/{thread}/children") as file,
        ):
            children.update(map(int, file.read().split()))
    return children
