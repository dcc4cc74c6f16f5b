"""All of ``/debug``, put together."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from twisted.application.service import MultiService

from yurttunnel.ops.debug.log_level import TemporaryLogLevel
from yurttunnel.ops.debug.memory import MemoryTrace
from yurttunnel.ops.debug.pages import HTML, Answer, Page
from yurttunnel.ops.debug.reactor import reactor_page, stacks_page
from yurttunnel.ops.debug.sessions import sessions_page
from yurttunnel.ops.lag import ReactorLag
from yurttunnel.ops.log_levels import ShownLevels
from yurttunnel.tunnel.session import TunnelSession

_PAGES = (
    ("sessions", "sessions and streams: credit, windows, what waits where; ?node=NAME for one"),
    ("reactor", "lag, delayed calls, descriptors, threads"),
    ("memory", "how much, and while it is traced (POST ?frames=N, 0 to end) what has taken it"),
    ("stacks", "stacks of all threads, and delayed calls by function"),
    ("log-level", "what is logged; POST ?level=debug|info|warn&amp;seconds=600 changes it"),
)


class Debug(MultiService):
    """The pages below ``/debug``; ``page`` is the first of them.

    As a service it ends what they have begun: tracing memory, another log level.
    """

    def __init__(
        self,
        reactor: Any,
        sessions: Callable[[], Iterable[TunnelSession]],
        lag: ReactorLag,
        levels: ShownLevels,
    ) -> None:
        super().__init__()
        memory = MemoryTrace(reactor)
        log_level = TemporaryLogLevel(reactor, levels)
        for service in (memory, log_level):
            service.setServiceParent(self)
        self.page = Page(lambda parameters: Answer(HTML, _index()))
        self.page.putChild(b"", self.page)
        self.page.putChild(b"sessions", sessions_page(reactor, sessions))
        self.page.putChild(b"reactor", reactor_page(reactor, lag))
        self.page.putChild(b"memory", memory.page())
        self.page.putChild(b"stacks", stacks_page(reactor))
        self.page.putChild(b"log-level", log_level.page())


def _index() -> bytes:
    entries = "".join(
        f'<li><a href="/debug/{name}">/debug/{name}</a>: {description}</li>\n'
        for name, description in _PAGES
    )
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><title>/debug</title></head>\n'
        f"<body><h1>/debug</h1>\n<ul>\n{entries}</ul></body></html>\n"
    ).encode()
