"""``/nodes`` and ``/nodes/NAME``: every node that a server knows, connected, lost, or missing."""

from __future__ import annotations

from collections.abc import Iterator

from yurttunnel.ops.clocks import timestamp
from yurttunnel.ops.failures import Failures
from yurttunnel.ops.meta import JsonPage, session_entry
from yurttunnel.pki.identity import format_identifiers
from yurttunnel.server.lost_nodes import LostNode, LostNodes
from yurttunnel.server.node_history import NodeHistory, NodeHistoryEntry
from yurttunnel.server.registry import INodeSession, SessionRegistry

_UNKNOWN: dict[str, object] = {
    "since": None,
    "reason": None,
    "through": None,
    "address": None,
    "version": None,
    "rtt_seconds": None,
    "streams": None,
    "certificate_expiry": None,
}
"""The fields of a node besides its name and state, in this order, with their values if unknown."""


class NodePages:
    """Describes the nodes; ``lost`` has the reasons of those that are gone."""

    def __init__(
        self, registry: SessionRegistry, history: NodeHistory, lost: LostNodes, failures: Failures
    ) -> None:
        self._registry = registry
        self._history = history
        self._lost = lost
        self._failures = failures

    def page(self) -> JsonPage:
        """Return the pages."""
        return JsonPage(
            "nodes",
            "the nodes that are connected, lost or missing, as JSON",
            lambda: {"nodes": self._all()},
            "",
            self.describe,
        )

    def _all(self) -> Iterator[dict[str, object] | None]:
        for node in self._registry.reachable_nodes():
            route = self._registry.route(node)
            # It may have gone meanwhile.
            if route is not None:
                yield self._present(route)
        for lost in self._lost.newest_first():
            yield None if lost is None else self._absent(lost)

    def describe(self, node: str) -> dict[str, object] | None:
        """Return everything known about ``node``, ``None`` if it is unknown."""
        route, lost = self._registry.route(node), self._lost.get(node)
        if route is not None:
            entry = self._present(route)
        elif lost is not None:
            entry = self._absent(lost)
        else:
            return None
        past = self._history.get(node) or NodeHistoryEntry(node, None)
        sessions = self._registry.direct_sessions(node)
        return {
            **entry,
            "identifiers": None if route is None else format_identifiers(route.identifiers),
            "sessions": [session_entry(each.snapshot()) for each in sessions],
            "disconnections": [
                {"at": timestamp(each.at), "reason": each.reason} for each in past.disconnections
            ],
            "failures": [
                {
                    "at": timestamp(each.at),
                    "kind": each.kind,
                    "who": each.who,
                    "request_id": each.request_id,
                    "status": each.status,
                    "text": each.text,
                }
                for each in self._failures.newest_first()
                if each.node == node
            ],
        }

    def _present(self, route: INodeSession) -> dict[str, object]:
        snapshot = route.snapshot()
        state = "connected" if route.connected else "waiting"
        known = {"node": route.node, "state": state, **_UNKNOWN}
        if self._registry.direct(route.node) is None:
            # A node of another server: only the session with that server is known.
            return {**known, "through": snapshot.address}
        entry = session_entry(snapshot)
        return {
            **known,
            "since": entry["since"],
            "address": snapshot.address,
            "version": snapshot.version,
            "rtt_seconds": snapshot.round_trip,
            "streams": snapshot.streams,
            "certificate_expiry": entry["certificate_expiry"],
        }

    def _absent(self, lost: LostNode) -> dict[str, object]:
        past = self._history.get(lost.node) or NodeHistoryEntry(lost.node, None)
        seen = lost.last_seen
        return {
            "node": lost.node,
            "state": "absent" if seen is None else "lost",
            **_UNKNOWN,
            "since": None if seen is None else timestamp(seen),
            "reason": lost.reason,
            "address": past.address or None,
            "version": past.version or None,
            "streams": 0,
        }
