"""``/debug/reactor`` and ``/debug/stacks``: the reactor's load, and the stacks of threads."""

from __future__ import annotations

import sys
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, cast

from twisted.internet.base import DelayedCall
from twisted.internet.task import LoopingCall

from yurttunnel.ops.debug.pages import Page, Parameters, as_json
from yurttunnel.ops.http_site import PageResponse, text
from yurttunnel.ops.lag import ReactorLag
from yurttunnel.tunnel.reactor import IReactor

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
