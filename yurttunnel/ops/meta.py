"""The meta server: health, readiness, metrics and the list of sessions, for operators.

All programs serve the same pages, the server on port 10265, the agent on 10266, the hub on 10267
and the service proxy on 10249. ``/agents`` lists sessions: on the server those of its agents, on an
agent those to its servers; the others have none, and no such page.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, TypeAlias

from twisted.internet.interfaces import IReactorTime
from twisted.web.resource import Resource

from yurttunnel.metrics import MetricRegistry
from yurttunnel.ops.exposition import CONTENT_TYPE as METRICS_TYPE
from yurttunnel.ops.exposition import exposition_pieces
from yurttunnel.ops.http_site import LimitedSite, PageRequest
from yurttunnel.ops.readiness import Readiness
from yurttunnel.ops.rebinding import refusal
from yurttunnel.ops.slices import gather, json_pieces
from yurttunnel.ops.status.page import POLICY, StatusPage

if TYPE_CHECKING:
    from yurttunnel.tunnel.statistics import SessionSnapshot

_TEXT = b"text/plain; charset=utf-8"
_JSON = b"application/json"
_HTML = b"text/html; charset=utf-8"

_PAGES = (
    ("healthz", "the process runs"),
    ("readyz", "every part of it is healthy, or which one is not"),
    ("metrics", "figures for Prometheus"),
    ("debug", "what the process does inside, for this machine only"),
)
_AGENTS = ("agents", "the sessions of this process, as JSON")

Sessions: TypeAlias = "Callable[[], Iterable[SessionSnapshot]]"


@dataclass(frozen=True, slots=True)
class JsonPage:
    """The page ``/NAME`` of a feature; ``text`` says in the list of pages what it is.

    ``show()`` gives what is shown as JSON, ``None`` where there is nothing: then the page is not
    in the list, and answers with the sentence ``absent``. Iterators in it are arrays, which are
    written in slices. ``show_one`` is for pages ``/NAME/ONE`` and takes the last part of the path.
    """

    name: str
    text: str
    show: Callable[[], object | None]
    absent: str
    show_one: Callable[[str], object | None] | None = None


def meta_site(
    clock: IReactorTime,
    status: StatusPage,
    readiness: Readiness,
    metrics: MetricRegistry,
    sessions: Sessions,
    pages: Sequence[JsonPage] = (),
) -> LimitedSite:
    """Build the factory to listen with on the meta port.

    ``status`` makes the page at ``/``, ``metrics`` is a registry of :mod:`yurttunnel.metrics`,
    ``sessions`` gives the sessions of the moment, and ``pages`` are those of features.
    """
    return LimitedSite(meta_pages(status, readiness, metrics, sessions, pages), clock)


def meta_pages(
    status: StatusPage,
    readiness: Readiness,
    metrics: MetricRegistry,
    sessions: Sessions | None,
    pages: Sequence[JsonPage] = (),
) -> Resource:
    """Build the tree of pages that :func:`meta_site` serves; without ``sessions`` none of them."""
    root = _Root()
    own = _PAGES if sessions is None else (*_PAGES, _AGENTS)
    root.putChild(b"", _StatusPage(status, own, pages))
    root.putChild(b"healthz", health_page())
    root.putChild(b"readyz", readiness_page(readiness))
    root.putChild(
        b"metrics",
        _DetailedPage(lambda: _Answer(200, METRICS_TYPE, exposition_pieces(metrics.steps()))),
    )
    if sessions is not None:
        known = sessions
        root.putChild(b"agents", _DetailedPage(lambda: _Answer(200, _JSON, _session_list(known()))))
    for page in pages:
        root.putChild(page.name.encode(), _FeaturePage(page))
    return root


def health_page() -> Resource:
    """Make the page that says that the process runs."""
    return _Page(lambda: _Answer(200, _TEXT, b"ok\n"))


def readiness_page(readiness: Readiness) -> Resource:
    """Make the page that says whether every required check passes, and what each has found."""
    return _DetailedPage(lambda: _readiness_answer(readiness))


@dataclass(frozen=True, slots=True)
class _Answer:
    """What a page answers with; a ``body`` in pieces is made in slices."""

    status: int
    content_type: bytes
    body: bytes | Iterable[str]


class _Root(Resource):
    """Finds pages by their exact path; everything else is not there."""

    def getChild(self, path: bytes, request: PageRequest) -> Resource:
        return _Missing()


class _Page(_Root):
    """One page, made anew for every GET or HEAD."""

    def __init__(self, make: Callable[[], _Answer]) -> None:
        super().__init__()
        self._make = make

    def render(self, request: PageRequest) -> bytes | int:
        return _answer(request, self._make)


class _DetailedPage(_Page):
    """A page that tells more than that this program lives, and no foreign web page."""

    def render(self, request: PageRequest) -> bytes | int:
        return _refused(request) or super().render(request)


class _FeaturePage(_DetailedPage):
    """The page of a feature, and those of single things below it, if it has such."""

    def __init__(self, page: JsonPage) -> None:
        super().__init__(lambda: _feature_answer(page.show(), page.absent))
        self._page = page

    def getChild(self, path: bytes, request: PageRequest) -> Resource:
        show_one = self._page.show_one
        if show_one is None or request.postpath:
            return _Missing()
        name = path.decode("utf-8", "replace")
        absent = f"nothing is known of {name!r}: /{self._page.name} lists what is"
        return _DetailedPage(lambda: _feature_answer(show_one(name), absent))


class _StatusPage(_Root):
    """The page at ``/``; ``?q=`` filters what it shows, ``?node=`` is about one node."""

    def __init__(
        self,
        status: StatusPage,
        own: Sequence[tuple[str, str]],
        pages: Sequence[JsonPage],
    ) -> None:
        super().__init__()
        self._status = status
        self._own = own
        self._pages = pages

    def render(self, request: PageRequest) -> bytes | int:
        return _refused(request) or _answer(request, lambda: self._page(request))

    def _page(self, request: PageRequest) -> _Answer:
        request.setHeader(b"content-security-policy", POLICY)
        request.setHeader(b"referrer-policy", b"no-referrer")
        given = request.args or {}
        desired, one = (
            given.get(name.encode(), [b""])[0].decode("utf-8", "replace")
            for name in ("q", self._status.parameter)
        )
        shown = [(each.name, each.text) for each in self._pages if each.show() is not None]
        return _Answer(200, _HTML, self._status.pieces(desired, [*self._own, *shown], one))


class _Missing(_Root):
    def render(self, request: PageRequest) -> bytes:
        """Answer that there is no such page, and where to find those that there are."""
        return _send(request, 404, b"no such page; / lists those that exist\n")


def _refused(request: PageRequest) -> bytes | None:
    refused = refusal(request)
    return None if refused is None else _send(request, 403, f"{refused}\n".encode())


def _answer(request: PageRequest, make: Callable[[], _Answer]) -> bytes | int:
    """Send what ``make`` gives; twisted.web leaves the body out for HEAD."""
    if request.method not in (b"GET", b"HEAD"):
        request.setHeader(b"allow", b"GET, HEAD")
        return _send(request, 405, b"only GET and HEAD are answered here\n")
    answer = make()
    _set_head(request, answer.status, answer.content_type)
    if isinstance(answer.body, bytes):
        return answer.body
    return request.answer_in_slices(answer.body)


def _send(request: PageRequest, status: int, sentence: bytes) -> bytes:
    _set_head(request, status, _TEXT)
    return sentence


def _set_head(request: PageRequest, status: int, content_type: bytes) -> None:
    request.setResponseCode(status)
    request.setHeader(b"content-type", content_type)
    request.setHeader(b"cache-control", b"no-store")
    request.setHeader(b"x-content-type-options", b"nosniff")
    # twisted.web would name itself and its version.
    request.setHeader(b"server", b"yurttunnel")


def _feature_answer(shown: object | None, absent: str) -> _Answer:
    if shown is None:
        return _Answer(404, _TEXT, f"{absent}\n".encode())
    return _Answer(200, _JSON, chain(json_pieces(shown), "\n"))


def _readiness_answer(readiness: Readiness) -> _Answer:
    findings = readiness.findings()
    ready = all(finding.problem is None for finding in findings if finding.required)
    lines = [
        f"{finding.name}: {'ok' if finding.problem is None else finding.problem}\n"
        for finding in findings
    ]
    lines.append("ready\n" if ready else "not ready\n")
    # Problems may quote names of files, which need not be UTF-8.
    body = "".join(lines).encode("utf-8", "backslashreplace")
    return _Answer(200 if ready else 503, _TEXT, body)


def _session_list(sessions: Iterable[SessionSnapshot]) -> Iterator[str]:
    described = yield from gather(sessions)
    described.sort(key=lambda session: (session.node, session.since))
    yield from json_pieces(map(session_entry, described))
    yield "\n"


def session_entry(session: SessionSnapshot) -> dict[str, object]:
    """Return a session as an entry of ``/agents``: times in ISO 8601, durations in seconds."""
    not_after = session.certificate_not_after
    return {
        "node": session.node,
        "session": session.session_id,
        "since": _iso(session.since),
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
        "certificate_expiry": None if not_after is None else _iso(not_after),
    }


def _iso(moment: datetime.datetime) -> str:
    utc = moment.astimezone(datetime.UTC)
    return utc.isoformat(timespec="seconds").replace("+00:00", "Z")
