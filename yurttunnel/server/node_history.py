"""What is remembered of nodes beyond their sessions: when they were here, and how those ended."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from twisted.internet.interfaces import IReactorTime

from yurttunnel.ops.clocks import time_of_day

MOST_REMEMBERED = 10_000
"""Nodes of which something is remembered."""

MOST_DISCONNECTIONS = 5
"""Of each node how many of the last disconnections are."""

LONGEST_REASON = 200
"""Characters of a reason that are kept; what peers say is in some."""


@dataclass(frozen=True, slots=True)
class Disconnection:
    """A connection or a session of a node that has ended, in seconds since the epoch, and why."""

    at: float
    why: str


@dataclass(frozen=True, slots=True)
class NodePast:
    """What is known of a node's past.

    ``last_seen`` is when it was connected last, in seconds since the epoch, ``None`` while it is.
    ``address`` and ``version`` are those of its last session, and ``disconnections`` begin with
    the last one.
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
    """The past of the nodes, in the order in which they have come or gone."""

    def __init__(self, clock: IReactorTime, most: int = MOST_REMEMBERED) -> None:
        self._clock = clock
        self._most = most
        self._nodes: dict[str, NodePast] = {}
        self.on_change: list[Callable[[], object]] = []
        """Who is told that there is something new to remember."""

    def __len__(self) -> int:
        return len(self._nodes)

    def get(self, node: str) -> NodePast | None:
        """Return what is known of ``node``."""
        return self._nodes.get(node)

    def newest_first(self) -> Iterator[NodePast]:
        """Go through all nodes, beginning with the one that has come or gone last."""
        return reversed(self._nodes.values())

    def all(self) -> list[NodePast]:
        """Return all nodes, the one that has come or gone last at the end."""
        return list(self._nodes.values())

    def connected(self, node: str, address: str, version: str) -> None:
        """Note that a node is here now."""
        past = self._nodes.get(node)
        here = replace(past or NodePast(node, None), last_seen=None)
        here = replace(here, address=address, version=version[:LONGEST_REASON])
        if here != past:
            self._keep(here)

    def interrupted(self, node: str, why: str) -> None:
        """Note why a connection of a node has ended, whose session may go on."""
        past = self._nodes.get(node)
        if past is not None:
            self._nodes[node] = self._with(past, why)
            self._changed()

    def gone(self, node: str, why: str) -> None:
        """Note that a node cannot be reached from now on, and why."""
        past = self._with(self._nodes.get(node, NodePast(node, None)), why)
        self._keep(replace(past, last_seen=time_of_day(self._clock)))

    def restore(self, nodes: list[NodePast]) -> None:
        """Take over what an earlier process has known, the last one at the end."""
        self._nodes = {each.node: each for each in nodes[-self._most :]}

    def _with(self, past: NodePast, why: str) -> NodePast:
        new = Disconnection(time_of_day(self._clock), why[:LONGEST_REASON])
        return replace(past, disconnections=(new, *past.disconnections)[:MOST_DISCONNECTIONS])

    def _keep(self, past: NodePast) -> None:
        # Taken out first, so that the order of the table is the order of time.
        self._nodes.pop(past.node, None)
        self._nodes[past.node] = past
        if len(self._nodes) > self._most:
            del self._nodes[next(iter(self._nodes))]
        self._changed()

    def _changed(self) -> None:
        for callback in self.on_change:
            callback()
