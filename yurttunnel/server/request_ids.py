"""Request ids, which connect the logs of both ends."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Sequence

_SANE = re.compile(rb"[A-Za-z0-9._:/+=@-]{1,128}")


class RequestIds:
    """Creates request ids: a random prefix of the process, and a counter."""

    def __init__(self, prefix: str | None = None) -> None:
        self._prefix = os.urandom(4).hex() if prefix is None else prefix
        self._numbers = itertools.count(1)

    def make(self) -> str:
        """Return an id that this process has not used yet."""
        return f"{self._prefix}-{next(self._numbers)}"

    def from_caller(self, proposed: Sequence[bytes]) -> str:
        """Return the caller's id if it proposes one that is fit for a log, else a new one."""
        if len(proposed) == 1 and _SANE.fullmatch(proposed[0]):
            return proposed[0].decode("ascii")
        return self.make()
