"""The history of nodes beyond their sessions: when they were connected, and why they were lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from twisted.internet.interfaces import IReactorTime

from yurttunnel.ops.clocks import time_of_day

MOST_REMEMBERED = 10_000
"""The maximum number of nodes with a history."""

MOST_DISCONNECTIONS = 5
"""The number of disconnections kept for each node."""

LONGEST_REASON = 200
"""The maximum length of a reason in characters; some contain text from peers."""


@dataclass(frozen=True, slots=True)
class Disconnection:
    """The end of a node's connection or session, in seconds since the epoch, and its reason."""

    at: float
    why: str


@dataclass(frozen=True, slots=True)
class NodePast:
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
    def why(self) -> str:
        """How its last session ended."""
        return self.disconnections[0].why if self.disconnections else ""


class NodeHistory:
    """The history of the nodes, in the order of their last change."""

    def __init__(self, clock: IReactorTime, most: int = MOST_REMEMBERED) -> None:
        self._clock = clock
        self._most = most
        self._nodes: dict[str, NodePast] = {}
        self.on_change: list[Callable[[], object]] = []
        """Callbacks for changes to be stored."""

    def __len__(self) -> int:
        return len(self._nodes)

    def get(self, node: str) -> NodePast | None:
        """Return the history of ``node``."""
        return self._nodes.get(node)

    def newest_first(self) -> Iterator[NodePast]:
        """Iterate over all nodes, the most recently changed first."""
        return reversed(self._nodes.values())

    def all(self) -> list[NodePast]:
        """Return all nodes, the most recently changed last."""
        return list(self._nodes.values())

    def connected(self, node: str, address: str, version: str) -> None:
        """Record that a node is connected now."""
        past = self._nodes.get(node)
        here = replace(past or NodePast(node, None), last_seen=None)
        here = replace(here, address=address, version=version[:LONGEST_REASON])
        if here != past:
            self._keep(here)

    def interrupted(self, node: str, why: str) -> None:
        """Record why a connection of a node has ended, whose session may continue."""
        past = self._nodes.get(node)
        if past is not None:
            self._nodes[node] = self._with(past, why)
            self._changed()

    def gone(self, node: str, why: str) -> None:
        """Record that a node is unreachable from now on, and why."""
        past = self._with(self._nodes.get(node, NodePast(node, None)), why)
        self._keep(replace(past, last_seen=time_of_day(self._clock)))

    def restore(self, nodes: list[NodePast]) -> None:
        """Take over the history of an earlier process, the most recently changed last."""
        self._nodes = {each.node: each for each in nodes[-self._most :]}

    def _with(self, past: NodePast, why: str) -> NodePast:
        new = Disconnection(time_of_day(self._clock), why[:LONGEST_REASON])
        return replace(past, disconnections=(new, *past.disconnections)[:MOST_DISCONNECTIONS])

    def _keep(self, past: NodePast) -> None:
        # Removed first, so that the order of the dictionary is chronological.
        self._nodes.pop(past.node, None)
        self._nodes[past.node] = past
        if len(self._nodes) > self._most:
            del self._nodes[next(iter(self._nodes))]
        self._changed()

    def _changed(self) -> None:
        for callback in self.on_change:
            callback()
