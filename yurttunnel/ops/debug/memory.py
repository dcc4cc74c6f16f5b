"""``/debug/memory``: memory use and, while it is traced, the lines that allocated the most."""

from __future__ import annotations

import gc
import linecache
import tracemalloc
from typing import Any

from twisted.application.service import Service
from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IDelayedCall
from twisted.internet.threads import deferToThreadPool
from twisted.logger import Logger

from yurttunnel.ops.debug.pages import Page, Parameters, number
from yurttunnel.ops.http_site import PageResponse, text
from yurttunnel.ops.process_stats import ProcessStats
from yurttunnel.tunnel.reactor import IReactor

TRACED_SECONDS = 900.0
"""The time after which tracing ends: it costs memory and time in everything that runs."""

MAX_FRAMES = 25
"""The maximum number of frames to record for each allocation."""

_LINES_SHOWN = 40

_IGNORED = (
    tracemalloc.Filter(False, tracemalloc.__file__),
    tracemalloc.Filter(False, linecache.__file__),
)


class MemoryTrace(Service):
    """Traces allocations for a limited time, at most until the service stops."""

    _log = Logger()

    def __init__(self, reactor: IReactor) -> None:
        self._reactor = reactor
        self._end: IDelayedCall | None = None
        self._reading = False

    def page(self) -> Page:
        """Return the page: GET shows, POST with ``?frames=N`` starts tracing; 0 stops it."""
        return Page(lambda parameters: self._show(), self._change, ("frames",))

    def stopService(self) -> None:
        super().stopService()
        self._stop()

    def _change(self, parameters: Parameters) -> PageResponse:
        frames = number(parameters, "frames", 0, MAX_FRAMES, None)
        self._stop()
        if frames == 0:
            self._log.info("memory is no longer traced")
            return text("memory is no longer traced\n")
        tracemalloc.start(frames)
        self._end = self._reactor.callLater(TRACED_SECONDS, self._stop)
        self._log.info("memory is traced, by a request to /debug/memory")
        return text(
            f"memory is traced from now on, for {TRACED_SECONDS:.0f} s or until"
            " POST /debug/memory?frames=0; GET shows what was allocated since\n"
        )

    def _stop(self) -> None:
        end, self._end = self._end, None
        if end is not None:
            if end.active():
                end.cancel()
            tracemalloc.stop()

    def _show(self) -> Deferred[PageResponse]:
        if not tracemalloc.is_tracing() or self._reading:
            why = "is being read by another request" if self._reading else "is off"
            hint = f"tracing {why}: POST /debug/memory?frames=1 begins it\n"
            return succeed(text("".join([*_stats(), hint])))
        self._reading = True
        # With half a million traces the snapshot takes 0.3 s, which blocks the reactor; sorting it
        # takes 2.6 s, in a thread.
        shown = deferToThreadPool(self._reactor, self._reactor.getThreadPool(), _top_lines)
        return shown.addBoth(self._read).addCallback(
            lambda lines: text("".join([*_stats(), *lines]))
        )

    def _read(self, result: Any) -> Any:
        self._reading = False
        return result


def _stats() -> list[str]:
    """Return the resident memory and the garbage collector's counts, a line each."""
    resident = ProcessStats().resident
    lines = [f"resident: {'unknown' if resident is None else f'{resident / 2**20:.1f} MiB'}\n"]
    for generation, (count, stats) in enumerate(zip(gc.get_count(), gc.get_stats(), strict=True)):
        lines.append(
            f"gc generation {generation}: {count} counted, {stats['collections']} collections,"
            f" {stats['collected']} collected, {stats['uncollectable']} uncollectable\n"
        )
    return lines


def _top_lines() -> list[str]:
    current, peak = tracemalloc.get_traced_memory()
    try:
        snapshot = tracemalloc.take_snapshot().filter_traces(_IGNORED)
    except RuntimeError:
        # tracemalloc raises this when tracing is off, or has just ended.
        return ["tracing has ended\n"]
    statistics = snapshot.statistics("traceback")
    lines = [
        f"traced: {current / 2**20:.1f} MiB now, {peak / 2**20:.1f} MiB at most,"
        f" {tracemalloc.get_tracemalloc_memory() / 2**20:.1f} MiB for tracing itself\n"
    ]
    for each in statistics[:_LINES_SHOWN]:
        lines.append(f"\n{each.size / 1024:.1f} KiB in {each.count} blocks\n")
        lines += (f"{line}\n" for line in each.traceback.format(most_recent_first=True))
    return lines
