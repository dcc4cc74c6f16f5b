"""All pages of ``/debug``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING

from twisted.application.service import MultiService

from yurttunnel.ops.debug.log_level import TemporaryLogLevel
from yurttunnel.ops.debug.memory import MemoryTrace
from yurttunnel.ops.debug.pages import HTML, IsTunnelled, Page, refusal
from yurttunnel.ops.debug.reactor import reactor_page, stacks_page
from yurttunnel.ops.debug.sessions import sessions_page
from yurttunnel.ops.http_site import PageResponse, Pages, not_found, with_access_control
from yurttunnel.ops.lag import ReactorLag
from yurttunnel.ops.log_levels import LogLevelFilter
from yurttunnel.tunnel.reactor import IReactor

if TYPE_CHECKING:
    from yurttunnel.tunnel.session import TunnelSession

_PAGES = (
    ("sessions", "sessions and streams: credit, windows, what waits where; ?node=NAME for one"),
    ("reactor", "lag, delayed calls, descriptors, threads"),
    ("memory", "how much, and while it is traced (POST ?frames=N, 0 to end) what has taken it"),
    ("stacks", "stacks of all threads, and delayed calls by function"),
    ("log-level", "what is logged; POST ?level=debug|info|warn&amp;seconds=600 changes it"),
)


class Debug(MultiService):
    """The ``pages``: ``/debug`` and those below it.

    When the service stops, it ends what the pages started: memory tracing, a temporary log level.
    """

    def __init__(
        self,
        reactor: IReactor,
        sessions: Callable[[], Iterable[TunnelSession]],
        lag: ReactorLag,
        levels: LogLevelFilter,
        is_tunnelled: IsTunnelled = lambda client, listener: False,
    ) -> None:
        super().__init__()
        memory = MemoryTrace(reactor)
        log_level = TemporaryLogLevel(reactor, levels)
        for service in (memory, log_level):
            service.setServiceParent(self)
        first = Page(lambda parameters: PageResponse(HTML, _index()))
        self.pages: Pages = {
            "/debug": first,
            "/debug/": first,
            "/debug/sessions": sessions_page(reactor, sessions),
            "/debug/reactor": reactor_page(reactor, lag),
            "/debug/memory": memory.page(),
            "/debug/stacks": stacks_page(reactor),
            "/debug/log-level": log_level.page(),
            "/debug/*": not_found,
        }
        self.protected_pages = with_access_control(
            self.pages, partial(refusal, is_tunnelled=is_tunnelled)
        )
        """The same pages for the meta port, with access control."""


def _index() -> bytes:
    entries = "".join(
        f'<li><a href="/debug/{name}">/debug/{name}</a>: {description}</li>\n'
        for name, description in _PAGES
    )
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><title>/debug</title></head>\n'
        f"<body><h1>/debug</h1>\n<ul>\n{entries}</ul>\n</body></html>\n"
    ).encode()
