"""All of ``/debug``, put together."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from twisted.application.service import MultiService

from yurttunnel.ops.debug.log_level import TemporaryLogLevel
from yurttunnel.ops.debug.memory import MemoryTrace
from yurttunnel.ops.debug.pages import (
    HTML,
    Answer,
    GuardedPages,
    IsTunnelled,
    Page,
    refusal,
)
from yurttunnel.ops.debug.reactor import reactor_page, stacks_page
from yurttunnel.ops.debug.sessions import sessions_page
from yurttunnel.ops.debug.workers import FindWorkers, with_workers
from yurttunnel.ops.lag import ReactorLag
from yurttunnel.ops.log_levels import ShownLevels
from yurttunnel.tunnel.reactor import IReactor
from yurttunnel.tunnel.session import TunnelSession

_PAGES = (
    ("sessions", "sessions and streams: credit, windows, what waits where; ?node=NAME for one"),
    ("reactor", "lag, delayed calls, descriptors, threads"),
    ("memory", "how much, and while it is traced (POST ?frames=N, 0 to end) what has taken it"),
    ("stacks", "stacks of all threads, and delayed calls by function"),
    ("log-level", "what is logged; POST ?level=debug|info|warn&amp;seconds=600 changes it"),
)


def _no_workers() -> None:
    """Find none: an agent, a worker, or a server that is one process."""


class ProcessPages(MultiService):
    """The pages of one process by their names, in ``pages``.

    As a service this ends tracing memory. ``workers`` are the further processes, if there are any.
    """

    def __init__(
        self,
        reactor: IReactor,
        sessions: Callable[[], Iterable[TunnelSession]],
        lag: ReactorLag,
        workers: FindWorkers = _no_workers,
    ) -> None:
        super().__init__()
        memory = MemoryTrace(reactor)
        memory.setServiceParent(self)
        self.pages = {
            "sessions": sessions_page(reactor, sessions, workers),
            "reactor": reactor_page(reactor, lag),
            "memory": memory.page(),
            "stacks": stacks_page(reactor),
        }


class Debug(MultiService):
    """The resource ``pages``: ``/debug`` and what is below it.

    As a service this ends what the pages have begun: tracing memory, another log level, of which
    ``level_changed`` is told. ``workers`` are the further processes of a server, which are asked
    for their pages.
    """

    def __init__(
        self,
        reactor: IReactor,
        sessions: Callable[[], Iterable[TunnelSession]],
        lag: ReactorLag,
        levels: ShownLevels,
        is_tunnelled: IsTunnelled = lambda client, listener: False,
        *,
        workers: FindWorkers = _no_workers,
        level_changed: Callable[[], object] = lambda: None,
    ) -> None:
        super().__init__()
        own = ProcessPages(reactor, sessions, lag, workers)
        log_level = TemporaryLogLevel(reactor, levels, level_changed)
        for service in (own, log_level):
            service.setServiceParent(self)
        first = Page(lambda parameters: Answer(HTML, _index(workers)))
        first.putChild(b"", first)
        for name, page in own.pages.items():
            first.putChild(name.encode(), with_workers(name, page, workers))
        first.putChild(b"log-level", log_level.page())
        self.pages = GuardedPages(first, partial(refusal, is_tunnelled=is_tunnelled))


def _index(find: FindWorkers) -> bytes:
    entries = "".join(
        f'<li><a href="/debug/{name}">/debug/{name}</a>: {description}</li>\n'
        for name, description in _PAGES
    )
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><title>/debug</title></head>\n'
        f"<body><h1>/debug</h1>\n<ul>\n{entries}</ul>\n{_of_workers(find)}</body></html>\n"
    ).encode()


def _of_workers(find: FindWorkers) -> str:
    workers = find()
    if workers is None:
        return ""
    known = ", ".join(f"{number} (pid {pid})" for number, pid in workers.pids().items())
    return (
        "<p>This is the first process of several (--workers). All pages but log-level, which is for"
        f" all of them, take ?worker=N to tell of another one: {known or 'none runs now'}.</p>\n"
    )
