"""A process that is out of file descriptors."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_descriptor_left() -> Iterator[None]:
    """Prevent this process from opening descriptors within the context, except those it closes.

    All descriptors below the highest one are occupied. Otherwise a closed one, such as the reserve
    of Twisted for accepting connections that it has to close, could be above the limit.
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
