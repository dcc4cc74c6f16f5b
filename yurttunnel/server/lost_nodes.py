"""The unreachable nodes, for the status page: since when, and why."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from typing import NamedTuple

from yurttunnel.ops.slices import ITEMS_PER_PIECE, gather
from yurttunnel.ops.status import formatting
from yurttunnel.ops.status.formatting import PeerTerms
from yurttunnel.ops.status.markup import Column, Content, mark, table
from yurttunnel.ops.status.sections import NO_MATCH, PageContext, Section, listing
from yurttunnel.ops.status.sessions import peer_link
from yurttunnel.server.expected_nodes import ExpectedNodes
from yurttunnel.server.node_history import MAX_REMEMBERED, NodeHistory, NodeHistoryEntry
from yurttunnel.server.registry import SessionRegistry

MAX_SHOWN = 50
"""The maximum number shown."""


class LostNode(NamedTuple):
    """An unreachable node: ``reason`` is how its last session ended.

    ``last_seen`` is in seconds since the epoch, ``None`` for a node without a known connection.
    """

    node: str
    last_seen: float | None
    reason: str


def lost_section(
    lost: Iterable[LostNode | None], moment: PageContext, peers: PeerTerms
) -> Generator[str, None, Section]:
    """Return the section of ``lost`` nodes, in their order; ``None`` is a pause."""
    every = []
    for found in lost:
        if found is None:
            yield ""
        else:
            every.append(found)
    matching = yield from gather(every, lambda each: moment.matches(each.node, each.reason))
    columns: list[Column[LostNode]] = [
        Column("Node", lambda each: peer_link(each.node, peers), "name"),
        Column("Last seen", lambda each: _last_seen(each, moment), "", lambda e: -_seen(e)),
        Column("Why", lambda each: each.reason, "text"),
    ]
    content = listing(
        "Lost nodes",
        matching[:MAX_SHOWN],
        len(matching),
        "the last first",
        lambda shown: table("Nodes that are not connected", columns, shown),
        NO_MATCH if every else mark("ok", "No node is lost."),
    )
    tile = ("nodes lost", f"{len(every):,}")
    return Section("lost", content, "sessions", tile, "bad" if every else "ok")


def _seen(lost: LostNode) -> float:
    return lost.last_seen or 0.0


def _last_seen(lost: LostNode, moment: PageContext) -> Content:
    if lost.last_seen is None:
        return "never"
    return formatting.ago(formatting.at(lost.last_seen), moment.now)


class LostNodes:
    """The nodes that are unreachable now: those lost from ``registry``, and the missing ones.

    ``history`` records why they were lost. A node that is not ``expected``, for example because it
    was deleted, is not lost. Neither is a node of a sibling.
    """

    def __init__(
        self, registry: SessionRegistry, history: NodeHistory, expected: ExpectedNodes
    ) -> None:
        self._registry = registry
        self._history = history
        self._expected = expected
        registry.on_direct_changed.append(self._changed)
        registry.on_remote_removed.append(self._remote_removed)

    def session_ended(self, node: str, reason: str) -> None:
        """Record why a session of ``node`` ended, if it was the last one."""
        if self._registry.direct(node) is None:
            self._history.lost(node, reason)

    def newest_first(self) -> Iterator[LostNode | None]:
        """Iterate over the unreachable nodes, the most recently lost first.

        Nodes that were never seen come last, by name. ``None`` marks points where the reactor may
        run, because most of the examined nodes are reachable.
        """
        for number, past in enumerate(list(self._history.newest_first())):
            if number % ITEMS_PER_PIECE == 0:
                yield None
            lost = self._lost(past)
            if lost is not None:
                yield lost
        missing = []
        for number, node in enumerate(self._expected.expected()):
            if number % ITEMS_PER_PIECE == 0:
                yield None
            if self._history.get(node) is None and not self._registry.is_reachable(node):
                missing.append(node)
        missing.sort()
        for node in missing[:MAX_REMEMBERED]:
            lost = self._never_seen(node)
            if lost is not None:
                yield lost

    def get(self, node: str) -> LostNode | None:
        """Return how ``node`` was lost, ``None`` if it is reachable or unknown."""
        past = self._history.get(node)
        if past is not None:
            return self._lost(past)
        return self._never_seen(node)

    def _remote_removed(self, node: str) -> None:
        if not self._registry.is_reachable(node):
            reason = "the last route to it, through another server, is lost"
            self._history.lost(node, reason)

    def _changed(self, node: str) -> None:
        session = self._registry.direct(node)
        if session is None:
            return
        if session.connected:
            snapshot = session.snapshot()
            self._history.connected(node, snapshot.address, snapshot.version)

    def _lost(self, past: NodeHistoryEntry) -> LostNode | None:
        if self._registry.is_reachable(past.node) or not self._expected.is_member(past.node):
            return None
        return LostNode(past.node, past.last_seen, past.reason)

    def _never_seen(self, node: str) -> LostNode | None:
        reason = self._expected.reason(node)
        if reason is None or self._registry.is_reachable(node):
            return None
        return LostNode(node, None, reason)
