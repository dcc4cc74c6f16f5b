"""The history of nodes beyond their sessions: when they were connected, and why they were lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from twisted.internet.interfaces import IReactorTime

from yurttunnel.ops.bounded_dict import BoundedDict
from yurttunnel.ops.clocks import time_of_day

MAX_REMEMBERED = 10_000
"""The maximum number of nodes with a history."""

MAX_DISCONNECTIONS = 5
"""The number of disconnections kept for each node."""

MAX_REASON = 200
"""The maximum length of a reason in characters; some contain text from peers."""


class Disconnection(NamedTuple):
    """The end of a node's connection or session, in seconds since the epoch, and its reason."""

    at: float
    reason: str


@dataclass(frozen=True, slots=True)
class NodeHistoryEntry:
    """The known history of a node.

    ``last_seen`` is when it was last connected, in seconds since the epoch, ``None`` while it is.
    ``address`` and ``version`` are those of its last session, and ``disconnections`` start with the
    latest.
    """

    node: str
    last_seen: float | None
    address: str = ""
    version: str = ""
    disconnections: tuple[Disconnection, ...] = ()

    @property
    def reason(self) -> str:
        """How its last session ended."""
        return self.disconnections[0].reason if self.disconnections else ""


class NodeHistory:
    """The history of the nodes, in the order of their last change."""

    def __init__(self, clock: IReactorTime, max_nodes: int = MAX_REMEMBERED) -> None:
        self._clock = clock
        self._nodes = BoundedDict[str, NodeHistoryEntry](max_nodes)
        self.on_change: list[Callable[[], object]] = []
        """Callbacks for changes to be stored."""

    def __len__(self) -> int:
        return len(self._nodes)

    def get(self, node: str) -> NodeHistoryEntry | None:
        """Return the history of ``node``."""
        return self._nodes.get(node)

    def newest_first(self) -> Iterator[NodeHistoryEntry]:
        """Iterate over all nodes, the most recently changed first."""
        return reversed(self._nodes.values())

    def all(self) -> list[NodeHistoryEntry]:
        """Return all nodes, the most recently changed last."""
        return list(self._nodes.values())

    def connected(self, node: str, address: str, version: str) -> None:
        """Record that a node is connected now."""
        past = self._nodes.get(node)
        here = replace(past or NodeHistoryEntry(node, None), last_seen=None)
        here = replace(here, address=address, version=version[:MAX_REASON])
        if here != past:
            self._store(here)

    def interrupted(self, node: str, reason: str) -> None:
        """Record why a connection of a node has ended, whose session may continue."""
        past = self._nodes.get(node)
        if past is not None:
            self._store(self._with(past, reason))

    def lost(self, node: str, reason: str) -> None:
        """Record that a node is unreachable from now on, and why."""
        past = self._with(self._nodes.get(node, NodeHistoryEntry(node, None)), reason)
        self._store(replace(past, last_seen=time_of_day(self._clock)))

    def restore(self, nodes: list[NodeHistoryEntry]) -> None:
        """Take over the history of an earlier process, the most recently changed last."""
        self._nodes.clear()
        self._nodes.update((each.node, each) for each in nodes)

    def _with(self, past: NodeHistoryEntry, reason: str) -> NodeHistoryEntry:
        new = Disconnection(time_of_day(self._clock), reason[:MAX_REASON])
        return replace(past, disconnections=(new, *past.disconnections)[:MAX_DISCONNECTIONS])

    def _store(self, past: NodeHistoryEntry) -> None:
        self._nodes[past.node] = past
        for callback in self.on_change:
            callback()
