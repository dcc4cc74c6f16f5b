"""The page of one node: its identity, its connection, and recent failures."""

from __future__ import annotations

import datetime
from collections.abc import Sequence

from yurttunnel.ops.failures import Failures
from yurttunnel.ops.status import formatting
from yurttunnel.ops.status.certificates import certificate_left
from yurttunnel.ops.status.failures import failure_table
from yurttunnel.ops.status.formatting import PeerTerms
from yurttunnel.ops.status.markup import Column, Content, element, mark, pairs, table
from yurttunnel.ops.status.sections import PageContext, nothing
from yurttunnel.ops.status.session_rates import SessionRates
from yurttunnel.ops.status.sessions import session_table
from yurttunnel.ops.status.sparklines import Scale, captioned
from yurttunnel.server.node_history import Disconnection, NodeHistory
from yurttunnel.server.node_pages import NodePages
from yurttunnel.server.registry import SessionRegistry
from yurttunnel.tunnel.statistics import SessionSnapshot

_KINDS = {"connected": "ok", "waiting": "warn", "lost": "bad", "absent": "bad"}


class NodeView:
    """Creates the sections of the page; ``pages`` describe the node, ``history`` has its past."""

    def __init__(
        self,
        registry: SessionRegistry,
        history: NodeHistory,
        pages: NodePages,
        failures: Failures,
        peers: PeerTerms,
    ) -> None:
        self._registry = registry
        self._history = history
        self._pages = pages
        self._failures = failures
        self._peers = peers

    def sections(
        self, node: str, moment: PageContext, rates: SessionRates
    ) -> Sequence[tuple[str, Content]] | None:
        """Return the sections, each with its id; ``None`` for an unknown node."""
        known = self._pages.describe(node)
        if known is None:
            return None
        sessions = [each.snapshot() for each in self._registry.direct_sessions(node)]
        found: list[tuple[str, Content]] = [("node", self._facts(known, sessions, moment))]
        if sessions:
            found.append(("sessions", self._sessions(sessions, moment, rates)))
            found.append(("round-trip", _round_trip(sessions[-1], rates)))
        return [
            *found,
            ("failures", self._failed(node, moment)),
            ("disconnections", self._disconnections(node, moment)),
        ]

    def _facts(
        self, known: dict[str, object], sessions: Sequence[SessionSnapshot], moment: PageContext
    ) -> Content:
        state = str(known["state"])
        rows: list[tuple[str, Content]] = [("State", mark(_KINDS[state], state))]
        if known["since"] is not None:
            rows.append(("Since", _since(str(known["since"]), moment)))
        rows += [
            (name, str(known[field])) for name, field in _FIELDS if known[field] not in (None, "")
        ]
        if sessions and sessions[-1].certificate_not_after is not None:
            not_after = sessions[-1].certificate_not_after
            rows.append(("Certificate", certificate_left(not_after, moment.now)))
        return [element("h2", "Node"), pairs("Properties of the node", rows)]

    def _sessions(
        self, sessions: Sequence[SessionSnapshot], moment: PageContext, rates: SessionRates
    ) -> Content:
        return [
            element("h2", "Sessions"),
            session_table(sessions, rates.of, self._peers, moment.now),
        ]

    def _failed(self, node: str, moment: PageContext) -> Content:
        of_node = [each for each in self._failures.newest_first() if each.node == node]
        heading = element("h2", "Failed requests")
        if not of_node:
            return [heading, nothing(mark("ok", "No recent failure was for this node."))]
        return [heading, failure_table(of_node, moment)]

    def _disconnections(self, node: str, moment: PageContext) -> Content:
        past = self._history.get(node)
        heading = element("h2", "Disconnections")
        if past is None or not past.disconnections:
            return [heading, nothing(mark("ok", "None is recorded."))]
        columns: list[Column[Disconnection]] = [
            Column("Why", lambda one: one.reason, "name text"),
            Column("When", lambda one: formatting.ago(formatting.at(one.at), moment.now)),
        ]
        return [heading, table("The last disconnections", columns, past.disconnections)]


_FIELDS = (
    ("Why", "reason"),
    ("Reached through", "through"),
    ("Identifiers", "identifiers"),
    ("Address", "address"),
    ("Version", "version"),
)


def _since(timestamp: str, moment: PageContext) -> str:
    since = datetime.datetime.fromisoformat(timestamp)
    passed = formatting.duration((moment.now - since).total_seconds())
    return f"{since:%Y-%m-%d %H:%M:%S} UTC, {passed} ago"


def _round_trip(session: SessionSnapshot, rates: SessionRates) -> Content:
    measured = rates.round_trips(bytes.fromhex(session.session_id))
    scale = Scale(max(measured, default=0.0), "s")
    return [
        element(
            "h2",
            "Round trip ",
            element("span", formatting.round_trip(session.round_trip), class_="count"),
        ),
        captioned(measured, scale, "round trip,"),
    ]
