"""A status page without a process, and a parser of its HTML, for the tests of this package."""

from __future__ import annotations

import datetime
from html.parser import HTMLParser
from typing import TypeVar

from twisted.internet.task import Clock

from yurttunnel.ops.failures import Failures
from yurttunnel.ops.readiness import Readiness
from yurttunnel.ops.status.page import StatusPage
from yurttunnel.ops.status.peers import Peers
from yurttunnel.ops.status.view import StatusSources
from yurttunnel.server.lost_nodes import LostNode, lost_section
from yurttunnel.server.process import NODES
from yurttunnel.steering.page import steering_section
from yurttunnel.steering.report import SteeringReport
from yurttunnel.tunnel.session import TunnelSession
from yurttunnel.tunnel.statistics import SessionSnapshot, TunnelCounters

NOW = datetime.datetime(2026, 11, 22, 3, 4, 5, tzinfo=datetime.UTC)

_VOID = ("input", "link", "meta")


Result = TypeVar("Result")


class ParsedPage(HTMLParser):
    """The parsed content of a page.

    ``sections`` maps the id of each section to its text, and ``rows`` to the cells of its table's
    rows, without the head. Elements that are not closed in their order raise an AssertionError.
    """

    def __init__(self, page: bytes) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.sections: dict[str, str] = {}
        self.rows: dict[str, list[list[str]]] = {}
        self.text = ""
        self._open: list[str] = []
        self._section = ""
        self.feed(page.decode("utf-8"))
        self.close()
        if self._open:
            raise AssertionError(f"not closed: {self._open}")

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Record the element."""
        self.elements.append((tag, dict(attrs)))
        if tag not in _VOID:
            self._open.append(tag)
        if tag == "section":
            self._section = dict(attrs)["id"] or ""
            self.sections[self._section] = ""
            self.rows[self._section] = []
        elif tag == "tr":
            self.rows[self._section].append([])
        elif tag in ("td", "th"):
            self.rows[self._section][-1].append("")

    def handle_endtag(self, tag: str) -> None:
        """Record the end of the element."""
        if self._open.pop() != tag:
            raise AssertionError(f"</{tag}> closes another element")
        if tag == "section":
            self._section = ""
        elif tag == "thead":
            self.rows[self._section].clear()

    def handle_data(self, data: str) -> None:
        """Record visible text."""
        if not self._open or self._open[-1] in ("script", "style"):
            return
        self.text += data
        if self._section:
            self.sections[self._section] += data
        if "td" in self._open or "th" in self._open:
            cells = self.rows[self._section][-1]
            cells[-1] += data if not cells[-1] else f" {data}"

    def names(self) -> set[str]:
        """Return the names of all elements."""
        return {name for name, _ in self.elements}


class Carrying:
    """The part of a session that throughput is measured from; it has no streams."""

    clock = Clock()
    streams: dict[int, object] = {}

    def __init__(self, received: int = 0, sent: int = 0, session_id: bytes = b"a") -> None:
        self.session_id = session_id
        self.wire = self
        self.bytes_received = received
        self.bytes_sent = sent
        self.round_trip = 0.25


class PageUnderTest:
    """A page whose sources can be set; the clock stands at :data:`NOW`."""

    def __init__(self, program: str = "yurttunnel-server", **sources: object) -> None:
        self.clock = Clock()
        self.clock.advance(NOW.timestamp())
        self.readiness = Readiness()
        self.counters = TunnelCounters()
        self.snapshots: list[SessionSnapshot] = []
        self.sessions: list[TunnelSession | Carrying] = []
        self.lost: list[LostNode] = []
        self.certificates: dict[str, datetime.datetime] = {}
        self.steering: SteeringReport | None = None
        given: dict[str, object] = {
            "sections": [
                lambda moment: lost_section(self.lost, moment, NODES),
                lambda _: steering_section(self.steering),
            ],
            **sources,
        }
        peers = Peers(
            self.clock,
            counters=self.counters,
            sessions=lambda: self.sessions,
            snapshots=lambda: self.snapshots,
            terms=given.pop("terms", NODES),
            **{name: given.pop(name) for name in ("pooled_streams", "one") if name in given},
        )
        self.failures = Failures(self.clock)
        self.page = StatusPage(
            self.clock,
            StatusSources(
                program=program,
                readiness=self.readiness,
                peers=peers,
                certificates=lambda: self.certificates,
                failures=self.failures,
                **given,
            ),
            lambda: 0.0012,
        )

    def render(self, desired: str = "", one: str = "") -> ParsedPage:
        """Render the page, or the page of one node, and parse it."""
        pieces = self.page.pieces(desired, [("healthz", "the process runs")], one)
        return ParsedPage("".join(pieces).encode("utf-8", "replace"))
