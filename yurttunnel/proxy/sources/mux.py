"""Named sources, all of whose updates go to one place."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Generic

from yurttunnel.proxy.sources.store import Kept, Update

Channel = Callable[[Update[Kept]], None]
"""Takes the updates of one source."""


class Mux(Generic[Kept]):
    """Hands each update to ``merge(source, update)``."""

    def __init__(self, merge: Callable[[str, Update[Kept]], None]) -> None:
        self._merge = merge
        self._channels: dict[str, Channel[Kept]] = {}

    def channel(self, source: str) -> Channel[Kept]:
        """Return the channel of ``source``, the same one each time.

        Raises ``ValueError`` where the name is empty.
        """
        if not source:
            raise ValueError("a source has to have a name")
        return self._channels.setdefault(source, partial(self._merge, source))
