"""The status page: server-rendered, one document with inline style and script."""

from __future__ import annotations

import base64
import hashlib
import platform
import socket
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from urllib.parse import quote

from twisted.application.service import MultiService
from twisted.internet.interfaces import IReactorTime

from yurttunnel import __version__
from yurttunnel.ops.clocks import time_of_day
from yurttunnel.ops.status import formatting
from yurttunnel.ops.status.events import RecentEvents
from yurttunnel.ops.status.markup import Markup, element
from yurttunnel.ops.status.sections import MAX_FILTER
from yurttunnel.ops.status.throughput import Throughput
from yurttunnel.ops.status.view import StatusSources, View


def _read(name: str) -> str:
    """Return the contents of a file that is installed beside this module."""
    return Path(__file__).with_name(name).read_text("utf-8").strip()


SCRIPT, STYLE = _read("page.js"), _read("page.css")
ICON = "data:image/svg+xml," + quote(_read("icon.svg"), safe=" '/:=")
"""The icon, a tunnel, as a data URL (RFC 2397)."""


def _source(text: str) -> str:
    """Return the hash of a script or style for a Content-Security-Policy (CSP 2, 4.2.5)."""
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


POLICY = (
    f"default-src 'none'; script-src {_source(SCRIPT)}; style-src {_source(STYLE)}; img-src data:;"
    " connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
).encode("ascii")
"""The Content-Security-Policy of the page: only this script and this style."""


class StatusPage(MultiService):
    """The page, and what is recorded for it while it runs: throughput, warnings and errors.

    The query parameter ``parameter`` selects the page of one peer; it is empty if peers have none.
    ``reactor_lag()`` is the worst of the last minute, in seconds.
    """

    def __init__(
        self, clock: IReactorTime, sources: StatusSources, reactor_lag: Callable[[], float]
    ) -> None:
        super().__init__()
        peers = sources.peers
        self.parameter = "" if peers is None else peers.terms.page
        self._clock = clock
        self._sources = sources
        self._reactor_lag = reactor_lag
        self._started = clock.seconds()
        self._throughput = Throughput(
            clock,
            sources.counted(),
            sources.durations,
            None if peers is None else peers.rates.sample,
        )
        self._events = RecentEvents()
        if peers is not None:
            peers.rates.setServiceParent(self)
        for part in (self._throughput, self._events):
            part.setServiceParent(self)

    def pieces(
        self, filter_text: str, pages: Iterable[tuple[str, str]], one: str = ""
    ) -> Iterator[str]:
        """Yield the page in pieces.

        ``filter_text`` is a filter: only sessions, nodes and streams whose text contains it are
        shown. With ``one`` it is the page of that peer, if peers have pages. ``pages`` are the
        names and descriptions of the other pages.
        """
        filter_text = filter_text[:MAX_FILTER].strip()
        one = one if self.parameter else ""
        view = View(
            self._sources,
            self._throughput,
            self._events,
            filter_text,
            formatting.at(time_of_day(self._clock)),
            self._clock.seconds() - self._started,
            self._reactor_lag(),
        )
        program = self._sources.program
        about = f"{one[:MAX_FILTER]}: " if one else ""
        title = f"{'' if view.ready else 'Not ready: '}{about}{program} on {socket.gethostname()}"
        again = "/"
        if one:
            again = f"/?{self.parameter}={quote(one, errors='replace')}"
        elif filter_text:
            again = f"/?q={quote(filter_text, errors='replace')}"
        yield '<!DOCTYPE html>\n<html lang="en">'
        yield _head(title)
        yield "<body>"
        yield _header(one[:MAX_FILTER], program, again)
        yield "<main>"
        yield from view.pieces_of(one) if one else view.pieces()
        yield "</main>"
        yield _footer(pages)
        yield element("script", Markup(SCRIPT))
        yield "</body></html>"


def _header(one: str, program: str, again: str) -> Markup:
    facts = (
        *((f"seen by {program}",) if one else ()),
        f"version {__version__}",
        f"Python {platform.python_version()}",
        socket.gethostname(),
    )
    return element(
        "header",
        element(
            "div", element("h1", one or program), element("p", " · ".join(facts), class_="facts")
        ),
        element(
            "div",
            element("p", "", id="live", role="status"),
            element("button", "Pause", type="button", id="pause", hidden=True),
            element("noscript", element("a", "Refresh", href=again)),
            class_="live",
        ),
    )


def _head(title: str) -> Markup:
    return element(
        "head",
        element("meta", charset="utf-8"),
        element("title", title),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("meta", name="robots", content="noindex"),
        element("link", rel="icon", href=ICON),
        element("style", Markup(STYLE)),
        # Long enough to read; the script refreshes without losing the scroll position.
        element("noscript", Markup('<meta http-equiv="refresh" content="30">')),
    )


def _footer(pages: Iterable[tuple[str, str]]) -> Markup:
    links = [
        element("li", element("a", f"/{name}", href=f"/{name}"), " ", description)
        for name, description in pages
    ]
    return element("footer", element("h2", "Other pages"), element("ul", links))
