"""Keeps the history of the nodes in a file of the state directory, across restarts.

Each line is a node, as JSON; the first one has the time of writing. Nothing depends on the file: an
unreadable one is replaced, and a failure to write it is logged.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from functools import partial

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from yurttunnel.ops.clocks import time_of_day
from yurttunnel.ops.reconciler import Reconciler
from yurttunnel.ops.timeouts import fired_within
from yurttunnel.pki.directory import StateDirectory, StateError
from yurttunnel.server.node_history import (
    MAX_DISCONNECTIONS,
    MAX_REASON,
    Disconnection,
    NodeHistory,
    NodeHistoryEntry,
)

FILE = "node-history.jsonl"

MIN_INTERVAL = 10.0
"""The shortest time in seconds between two writes, and the most that a killed process forgets."""

MAX_INTERVAL = 300.0
"""The longest time in seconds between two writes, even without a change: connected nodes were
present when the file was written."""

STOP_TIMEOUT = 2.0
"""The timeout in seconds for the last write when the process ends."""

MAX_BYTES = 12 * 1024 * 1024
"""The maximum size of the nodes in the file; the latest ones are kept. Up to 16 MiB can be read."""

STOPPED = "it was connected when this server stopped, and has not reconnected since"

InThread = Callable[
    [Callable[[list[NodeHistoryEntry]], None], list[NodeHistoryEntry]], Deferred[None]
]
"""Calls a function with its argument in a thread."""

_log = Logger()


class HistoryFile(Reconciler):
    """Keeps ``history`` in ``directory``, while it runs and when it stops.

    Files are written ``in_thread``, so that a slow disk blocks nothing. An existing file is read by
    the constructor.
    """

    def __init__(
        self,
        clock: IReactorTime,
        directory: StateDirectory,
        history: NodeHistory,
        in_thread: InThread,
    ) -> None:
        self._clock = clock
        self._directory = directory
        self._history = history
        self._in_thread = in_thread
        self.problem: str | None = None
        """Why the next start will not know recent events, ``None`` if it will."""
        self._read()
        history.on_change.append(self.trigger)
        super().__init__(
            clock,
            MAX_INTERVAL,
            "writing the history of the nodes",
            self._write,
            spacing=MIN_INTERVAL,
            finish=STOP_TIMEOUT,
        )

    def stopService(self) -> Deferred[bool]:
        return Deferred.fromCoroutine(self._stop(super().stopService()))

    async def _stop(self, stopped: Deferred[bool]) -> bool:
        ended = await stopped
        last = Deferred.fromCoroutine(self._write())
        return await fired_within(self._clock, STOP_TIMEOUT, last) and ended

    def _read(self) -> None:
        try:
            content = self._directory.read(FILE)
            if content is not None:
                self._history.restore(_decoded(content))
        except (StateError, ValueError, KeyError, TypeError) as error:
            path = self._directory.path / FILE
            _log.warn(
                "{path} cannot be read, and is started empty: {error}", path=path, error=error
            )

    async def _write(self) -> bool:
        save = partial(_save, self._directory, time_of_day(self._clock))
        try:
            await self._in_thread(save, self._history.all())
        except (StateError, RuntimeError) as error:
            if self.problem is None:
                _log.warn("the history of the nodes cannot be written: {error}", error=error)
            self.problem = f"the next start will not know why nodes were lost: {error}"
            return False
        self.problem = None
        return True


def _save(directory: StateDirectory, now: float, nodes: Iterable[NodeHistoryEntry]) -> None:
    directory.write(FILE, _encoded(now, nodes))


def _encoded(now: float, nodes: Iterable[NodeHistoryEntry]) -> bytes:
    # Line by line, so that the reactor's thread can run in between.
    lines = [_line(each) for each in nodes]
    room, first = MAX_BYTES, len(lines)
    while first and (room := room - len(lines[first - 1])) >= 0:
        first -= 1
    return b"".join([json.dumps({"written": now}).encode() + b"\n", *lines[first:]])


def _line(past: NodeHistoryEntry) -> bytes:
    text = json.dumps(
        {
            "node": past.node,
            "last_seen": past.last_seen,
            "address": past.address,
            "version": past.version,
            "disconnections": [[one.at, one.reason] for one in past.disconnections],
        },
        # Text in other scripts must not take three times the space.
        ensure_ascii=False,
    )
    return text.encode("utf-8", "backslashreplace") + b"\n"


def _decoded(content: bytes) -> list[NodeHistoryEntry]:
    """Parse the lines; nodes that were connected then are lost now."""
    head, *lines = content.splitlines()
    written = float(json.loads(head)["written"])
    return [_node(json.loads(line), written) for line in lines]


def _node(line: dict[str, object], written: float) -> NodeHistoryEntry:
    stored, last_seen = line["disconnections"], line["last_seen"]
    if not isinstance(stored, list):
        raise TypeError("disconnections is not a list")
    past = [Disconnection(float(at), str(reason)[:MAX_REASON]) for at, reason in stored]
    if last_seen is None:
        past.insert(0, Disconnection(written, STOPPED))
    return NodeHistoryEntry(
        node=str(line["node"]),
        last_seen=written if last_seen is None else float(str(last_seen)),
        address=str(line["address"]),
        version=str(line["version"]),
        disconnections=tuple(past[:MAX_DISCONNECTIONS]),
    )
