"""The meta server for operators: health, readiness, metrics and the list of sessions.

All programs serve the same pages: the server on port 10265, the agent on 10266, the hub on 10267
and the service proxy on 10249. ``/agents`` lists sessions: on the server those of its agents, on an
agent those to its servers. The other programs have no sessions, and no such page.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias
from urllib.parse import unquote

from yurttunnel.http.authority import join_authority
from yurttunnel.metrics import MetricRegistry
from yurttunnel.ops.admin_socket import AdminSocket, admin_pages, process_page
from yurttunnel.ops.clocks import timestamp
from yurttunnel.ops.debug.pages import HTML, JSON, IsTunnelled, Page
from yurttunnel.ops.debug.service import Debug
from yurttunnel.ops.exposition import CONTENT_TYPE as METRICS_TYPE
from yurttunnel.ops.exposition import exposition_pieces
from yurttunnel.ops.host_check import refusal
from yurttunnel.ops.http_site import (
    AnyPage,
    LimitedSite,
    PageRequest,
    PageResponse,
    Pages,
    allowed_methods,
    not_found,
    text,
    with_access_control,
)
from yurttunnel.ops.lag import ReactorLag
from yurttunnel.ops.listen import listen_tcp
from yurttunnel.ops.log_levels import log_level_filter
from yurttunnel.ops.memory import GCFreezer, MemoryTrimmer
from yurttunnel.ops.process_stats import add_process_metrics
from yurttunnel.ops.readiness import Readiness, is_ready
from yurttunnel.ops.services import PortService, StoppedInReverse
from yurttunnel.ops.slices import gather, json_pieces
from yurttunnel.ops.status.page import POLICY, StatusPage
from yurttunnel.ops.status.view import StatusSources
from yurttunnel.tunnel.reactor import IReactor

if TYPE_CHECKING:
    from yurttunnel.tunnel.statistics import SessionSnapshot

_READ_METHODS = (b"GET", b"HEAD")

_PAGES = (
    ("healthz", "the process runs"),
    ("readyz", "every part of it is healthy, or which one is not"),
    ("metrics", "figures for Prometheus"),
    ("debug", "what the process does inside, for this machine only"),
)
_AGENTS = ("agents", "the sessions of this process, as JSON")

Sessions: TypeAlias = "Callable[[], Iterable[SessionSnapshot]]"


class JsonPage(NamedTuple):
    """The page ``/NAME`` of a feature; ``text`` describes it in the list of pages.

    ``show()`` returns what is rendered as JSON, or ``None`` if there is nothing: then the page is
    not listed, and responds with the message ``absent``. Iterators are rendered as arrays, in
    slices. ``show_one`` serves pages ``/NAME/ONE``, and gets the last segment of the path.
    """

    name: str
    text: str
    show: Callable[[], object | None]
    absent: str
    show_one: Callable[[str], object | None] | None = None


def meta_pages(
    status: StatusPage,
    readiness: Readiness,
    metrics: MetricRegistry,
    sessions: Sessions | None,
    pages: Sequence[JsonPage] = (),
) -> dict[str, AnyPage]:
    """Return the pages of the meta port; without ``sessions`` there is no page for them.

    ``status`` makes the page at ``/``, ``metrics`` is a registry of :mod:`yurttunnel.metrics`,
    ``sessions`` returns the current sessions, and ``pages`` are those of features.
    """
    own = _PAGES if sessions is None else (*_PAGES, _AGENTS)
    detailed: dict[str, AnyPage] = {
        "/": lambda request: _status_response(request, status, own, pages),
        "/readyz": lambda request: _readiness_response(readiness),
        "/metrics": lambda request: PageResponse(METRICS_TYPE, exposition_pieces(metrics.steps())),
    }
    if sessions is not None:
        known = sessions
        detailed["/agents"] = lambda request: PageResponse(JSON, _session_list(known()))
    for page in pages:
        detailed |= _feature_pages(page)
    # The other pages reveal more than that the process is alive, and are not for foreign web pages.
    return {
        "/healthz": _read_only(lambda request: text("ok\n")),
        **with_access_control({path: _read_only(page) for path, page in detailed.items()}, refusal),
    }


class MetaPort(StoppedInReverse):
    """The port of a process for operators, as a service; its admin socket has the same pages.

    The service includes what is measured for the pages, and the memory management of the process.
    ``address`` is the port's flag, host and port. The metrics of the process, whose names begin
    with ``prefix``, are added to ``metrics``. ``features`` are pages of features, and
    ``further(pages)`` returns pages of the program, given the others. ``is_tunnelled`` is that of
    :class:`Debug`.
    """

    def __init__(
        self,
        reactor: IReactor,
        address: tuple[str, str, int],
        sources: StatusSources,
        metrics: MetricRegistry,
        prefix: str,
        *,
        features: Sequence[JsonPage] = (),
        further: Callable[[Pages], Pages] = lambda pages: {},
        is_tunnelled: IsTunnelled = lambda client, listener: False,
    ) -> None:
        self._reactor = reactor
        self._sources = sources
        flag, host, port = address
        self.url = f"http://{join_authority(host, port)}/"
        """The URL of the status page, for a browser on this machine."""
        peers = sources.peers
        sessions = tuple if peers is None else peers.sessions
        snapshots = None if peers is None else peers.snapshots
        lag = ReactorLag(reactor)
        add_process_metrics(metrics, prefix, sources.certificates, lag.worst)
        status = StatusPage(reactor, sources, lag.worst)
        debug = Debug(reactor, sessions, lag, log_level_filter, is_tunnelled)
        own = meta_pages(status, sources.readiness, metrics, snapshots, features)
        self._pages = {**own, **further(own), **debug.protected_pages}
        self._debug_pages = debug.pages
        site = LimitedSite(self._pages, reactor)
        listener = PortService(partial(listen_tcp, reactor, flag, host, port, site), site.close)
        super().__init__(status, listener, debug, MemoryTrimmer(reactor), GCFreezer(), lag)

    def admin_socket(
        self, directory: Path, node: str | None, own: Mapping[str, Page] | None = None
    ) -> AdminSocket:
        """Return the socket in ``directory`` through which commands reach this process.

        ``node`` is the node that the process runs on, if it is a program of a node. The socket has
        the page ``/v1/process``, and the program's ``own`` pages below ``/v1``.
        """
        readiness = self._sources.readiness
        details = {} if node is None else {"node": node}
        details["status_page"] = self.url
        process = process_page(self._reactor, self._sources.program, readiness, details)
        pages = admin_pages(self._pages, self._debug_pages, {"process": process, **(own or {})})
        socket = AdminSocket(self._reactor, directory, pages)
        readiness.add("commands", lambda: socket.problem, required=False)
        return socket


def _read_only(page: AnyPage) -> AnyPage:
    """Wrap ``page`` so that it accepts only GET and HEAD."""

    def respond(request: PageRequest) -> PageResponse | Awaitable[PageResponse]:
        if request.head.method in _READ_METHODS:
            return page(request)
        sentence, fields = allowed_methods(_READ_METHODS)
        return text(f"{sentence}\n", 405, fields)

    return respond


def _feature_pages(page: JsonPage) -> Pages:
    """Return the page of a feature, and that of its single items, if it has one."""
    path, show_one = f"/{page.name}", page.show_one
    first: Pages = {path: lambda request: _feature_response(page.show(), page.absent)}
    if show_one is None:
        return first

    def one(request: PageRequest) -> PageResponse:
        quoted = request.path.removeprefix(f"{path}/")
        if "/" in quoted:
            return not_found(request)
        name = unquote(quoted)
        absent = f"unknown name {name!r}: {path} lists the known ones"
        return _feature_response(show_one(name), absent)

    return {**first, f"{path}/*": one}


def _status_response(
    request: PageRequest,
    status: StatusPage,
    own: Sequence[tuple[str, str]],
    pages: Sequence[JsonPage],
) -> PageResponse:
    """Return the page at ``/``; ``?q=`` filters it, ``?node=`` shows one node."""
    parameters = request.parameters
    filter_text, one = (parameters.get(name, [""])[0] for name in ("q", status.parameter))
    shown = [(each.name, each.text) for each in pages if each.show() is not None]
    body = status.pieces(filter_text, [*own, *shown], one)
    fields = ((b"Content-Security-Policy", POLICY), (b"Referrer-Policy", b"no-referrer"))
    return PageResponse(HTML, body, fields=fields)


def _feature_response(shown: object | None, absent: str) -> PageResponse:
    if shown is None:
        return text(f"{absent}\n", 404)
    return PageResponse(JSON, chain(json_pieces(shown), "\n"))


def _readiness_response(readiness: Readiness) -> PageResponse:
    """Respond with whether every required check passes, and with the result of each check."""
    findings = readiness.findings()
    ready = is_ready(findings)
    lines = [
        f"{finding.name}: {'ok' if finding.problem is None else finding.problem}\n"
        for finding in findings
    ]
    lines.append("ready\n" if ready else "not ready\n")
    return text("".join(lines), 200 if ready else 503)


def _session_list(sessions: Iterable[SessionSnapshot]) -> Iterator[str]:
    described = yield from gather(sessions)
    described.sort(key=lambda session: (session.node, session.since))
    yield from json_pieces(map(session_entry, described))
    yield "\n"


def session_entry(session: SessionSnapshot) -> dict[str, object]:
    """Return the entry of a session in ``/agents``: times in ISO 8601, durations in seconds."""
    not_after = session.certificate_not_after
    return {
        "node": session.node,
        "session": session.session_id,
        "since": timestamp(session.since.timestamp()),
        "connected": session.connected,
        "waits_for_seconds": session.waits_for,
        "rtt_seconds": session.round_trip,
        "streams": session.streams,
        "streams_by_entry": dict(session.streams_by_entry),
        "bytes_received": session.bytes_received,
        "bytes_sent": session.bytes_sent,
        "unacknowledged_bytes": session.unacknowledged,
        "resumptions": session.resumptions,
        "version": session.version,
        "address": session.address,
        "certificate_expiry": not_after and timestamp(not_after.timestamp()),
    }
