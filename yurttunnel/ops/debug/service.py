"""All pages of ``/debug``, among them those of the reactor and of the stacks of threads."""

from __future__ import annotations

import sys
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from twisted.application.service import MultiService
from twisted.internet.base import DelayedCall
from twisted.internet.task import LoopingCall

from yurttunnel.ops.debug.log_level import TemporaryLogLevel
from yurttunnel.ops.debug.memory import MemoryTrace
from yurttunnel.ops.debug.pages import HTML, IsTunnelled, Page, Parameters, as_json, refusal
from yurttunnel.ops.debug.sessions import sessions_page
from yurttunnel.ops.http_site import PageResponse, Pages, not_found, text, with_access_control
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


_MAX_FRAMES = 100
"""The maximum number of frames of each thread's stack."""


def reactor_page(reactor: IReactor, lag: ReactorLag) -> Page:
    """Return the page of the reactor's figures, as JSON."""

    def get(parameters: Parameters) -> PageResponse:
        return as_json(
            {
                "lag_seconds": {"latest": lag.latest(), "worst_of_last_minute": lag.worst()},
                "delayed_calls": len(reactor.getDelayedCalls()),
                "readers": _by_type(reactor.getReaders()),
                "writers": _by_type(reactor.getWriters()),
                "threads": sorted(thread.name for thread in threading.enumerate()),
            }
        )

    return Page(get)


def stacks_page(reactor: IReactor) -> Page:
    """Return the page of the stacks and the pending calls, as text.

    It shows names of functions and lines of source, never values.
    """

    def get(parameters: Parameters) -> PageResponse:
        return text("".join([*_thread_stacks(), *_delayed_calls(reactor)]))

    return Page(get)


def _by_type(descriptors: Iterable[object]) -> dict[str, int]:
    return dict(sorted(Counter(type(each).__name__ for each in descriptors).items()))


def _thread_stacks() -> Iterable[str]:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for identity, frame in sys._current_frames().items():
        yield f"thread {names.get(identity, 'unknown')}\n"
        yield from traceback.format_stack(frame, _MAX_FRAMES)
        yield "\n"


def _delayed_calls(reactor: IReactor) -> Iterable[str]:
    """Return the pending calls by function: their number, and when the next is due."""
    now = reactor.seconds()
    due: dict[str, list[float]] = {}
    for call in reactor.getDelayedCalls():
        due.setdefault(_name(cast(DelayedCall, call).func), []).append(call.getTime() - now)
    yield f"delayed calls: {sum(map(len, due.values()))}\n"
    for name, times in sorted(due.items(), key=lambda item: (-len(item[1]), item[0])):
        yield f"{len(times):6}  next in {min(times):9.3f} s  {name}\n"


def _name(function: Callable[..., object]) -> str:
    """Return the qualified name of a function, without any values that it holds."""
    while isinstance(function, partial | LoopingCall):
        function = function.func if isinstance(function, partial) else function.f
    named: Any = function if hasattr(function, "__qualname__") else type(function)
    return f"{named.__module__}.{named.__qualname__}"
