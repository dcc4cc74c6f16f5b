"""A process that may open no more files."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_descriptor_left() -> Iterator[None]:
    """Have this process open no descriptor within, unless it closes one: then that one again.

    Those below the highest one are taken meanwhile. Else one that is closed, such as the one that
    Twisted keeps to accept what it has to refuse, could be beyond the limit.
    """
    highest = max(map(int, os.listdir("/proc/self/fd")))
    taken: list[int] = []
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        while not taken or taken[-1] < highest:
            taken.append(os.dup(0))
        resource.setrlimit(resource.RLIMIT_NOFILE, (taken[-1] + 1, before[1]))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        for each in taken:
            os.close(each)
