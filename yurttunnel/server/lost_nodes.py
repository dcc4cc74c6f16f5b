"""The nodes that cannot be reached, for the status page: since when, and how it came."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from twisted.internet.interfaces import IReactorTime

from yurttunnel.cluster.nodes import Nodes
from yurttunnel.ops.clocks import time_of_day
from yurttunnel.ops.status import words
from yurttunnel.ops.status.markup import Column, Content, table
from yurttunnel.ops.status.sections import NO_MATCH, Moment, Section, listing
from yurttunnel.server.registry import SessionRegistry

MOST_REMEMBERED = 10_000
"""Nodes that have gone, and of which the reason is kept."""

MOST_SHOWN = 50
"""How many are shown at once."""


@dataclass(frozen=True, slots=True)
class LostNode:
    """A node that cannot be reached: ``why`` is how its last session ended.

    ``last_seen`` is in seconds since the epoch, ``None`` for a node that has not been connected
    since this process started.
    """

    node: str
    last_seen: float | None
    why: str


def lost_section(lost: Sequence[LostNode], moment: Moment) -> Section:
    """Make the section of ``lost`` nodes, in their order."""
    matching = [each for each in lost if moment.matches(each.node, each.why)]
    columns: list[Column[LostNode]] = [
        Column("Node", lambda each: each.node, "name"),
        Column("Last seen", lambda each: _last_seen(each, moment)),
        Column("Why", lambda each: each.why, "text"),
    ]
    content = listing(
        "Lost nodes",
        matching[:MOST_SHOWN],
        len(matching),
        "the last first",
        lambda shown: table("Nodes that are not connected", columns, shown),
        NO_MATCH if lost else "No node has been lost.",
    )
    return Section("lost", content, "sessions", ("nodes lost", f"{len(lost):,}"))


def _last_seen(lost: LostNode, moment: Moment) -> Content:
    if lost.last_seen is None:
        return "not since this server started"
    return words.ago(words.at(lost.last_seen), moment.now)


class LostNodes:
    """Remembers why nodes have gone from ``registry``, until they are back.

    ``nodes`` are those of the cluster, if there is one: what was deleted there is not lost, and
    edge nodes that have not been seen yet are. A node that a sibling has is not lost either.
    """

    def __init__(
        self,
        clock: IReactorTime,
        registry: SessionRegistry,
        nodes: Nodes | None = None,
        most_remembered: int = MOST_REMEMBERED,
    ) -> None:
        self._clock = clock
        self._registry = registry
        self._nodes = nodes
        self._most_remembered = most_remembered
        self._lost: dict[str, LostNode] = {}
        registry.on_direct_changed.append(self._changed)
        registry.on_remote_gone.append(self._remote_gone)

    def ended(self, node: str, why: str) -> None:
        """Note why the session of ``node`` has ended, if that was its last one."""
        if self._registry.direct(node) is None:
            self._note(node, why)

    def _remote_gone(self, node: str) -> None:
        if not self._registry.reaches(node):
            self._note(node, "the way to it by another server, which was the last one, has gone")

    def _note(self, node: str, why: str) -> None:
        # Taken out first, so that the order of the table is the order of time.
        self._lost.pop(node, None)
        self._lost[node] = LostNode(node, time_of_day(self._clock), why)
        if len(self._lost) > self._most_remembered:
            del self._lost[next(iter(self._lost))]

    def newest_first(self) -> list[LostNode]:
        """Return the nodes that cannot be reached, those that were lost last before the others.

        Those that have not been seen yet come last, by their names.
        """
        return [*filter(self._is_lost, reversed(self._lost.values())), *self._never_seen()]

    def _changed(self, node: str) -> None:
        if self._registry.direct(node) is not None:
            self._lost.pop(node, None)

    def _is_lost(self, lost: LostNode) -> bool:
        nodes = self._nodes
        if nodes is not None and nodes.synced and nodes.get(lost.node) is None:
            return False
        return not self._registry.reaches(lost.node)

    def _never_seen(self) -> Iterator[LostNode]:
        nodes = self._nodes
        if nodes is None or not nodes.synced:
            return
        missing = sorted(
            node.name
            for node in nodes.all()
            if node.edge and node.name not in self._lost and not self._registry.reaches(node.name)
        )
        for name in islice(missing, self._most_remembered):
            yield LostNode(name, None, "labelled as an edge node, but no agent of it has connected")
