"""The workers of a server as a service: started, started again, drained, and told of trust."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from twisted.application.service import Service
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall
from twisted.logger import Logger

from yurttunnel.metrics import Metric, counter, gauge
from yurttunnel.ops.backoff import doubled
from yurttunnel.ops.debug.pages import Answer, Parameters
from yurttunnel.ops.status.streams import StreamReport
from yurttunnel.ops.waiting import within
from yurttunnel.pki.contexts import ServerContexts
from yurttunnel.server.service import PORT_CLOSE_TIMEOUT
from yurttunnel.server.workers.running import FirstProcess, RunningWorker, Spawn, spawn_worker
from yurttunnel.server.workers.settings import WorkerSettings
from yurttunnel.tunnel.direct.reactor import DirectReactor
from yurttunnel.tunnel.session import TunnelSession
from yurttunnel.tunnel.statistics import SessionSnapshot
from yurttunnel.wire.codes import Code

FIRST_DELAY = 0.1
"""Seconds until a worker is started again that has ended; each time twice as many."""

LONGEST_DELAY = 10.0
"""Seconds, however often it has ended."""

SETTLED = 30.0
"""Seconds after which a worker that ends has not ended because it cannot start."""

EXIT_TIMEOUT = PORT_CLOSE_TIMEOUT + 7.0
"""Seconds beyond the drain timeout in which workers have to have ended: for their ports to be
closed, and for what they say last on a busy machine."""

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Resources:
    """What a process has used: CPU seconds, and resident bytes now."""

    cpu_seconds: float
    resident_bytes: int


@dataclass(frozen=True, slots=True)
class WorkerStats:
    """How many workers are ``ready``, what they use by their numbers, and ``restarts``."""

    ready: int
    restarts: int
    resources: Mapping[int, Resources | None]


METRICS: tuple[Metric[WorkerStats], ...] = (
    gauge(
        "yurttunnel_server_workers_ready",
        "Further processes of this server (--workers) that take connections. Fewer than one less "
        "than --workers means that the nodes of one cannot be reached: the log says why it ended.",
        lambda stats: stats.ready,
    ),
    counter(
        "yurttunnel_server_worker_restarts",
        "Workers that have ended by themselves and were started again. Each took the streams of "
        "its nodes with it; please report what the log says of it.",
        lambda stats: stats.restarts,
    ),
    counter(
        "yurttunnel_server_worker_cpu_seconds",
        "CPU time of each worker since it was started. Near one second a second it is what limits "
        "its nodes; process_cpu_seconds_total is the same of the first process.",
        lambda stats: (
            (str(number), used.cpu_seconds)
            for number, used in stats.resources.items()
            if used is not None
        ),
        "worker",
    ),
    gauge(
        "yurttunnel_server_worker_resident_memory_bytes",
        "Resident memory of each worker; process_resident_memory_bytes is the same of the first "
        "process.",
        lambda stats: (
            (str(number), used.resident_bytes)
            for number, used in stats.resources.items()
            if used is not None
        ),
        "worker",
    ),
)


def resources_of(pid: int | None) -> Resources | None:
    """Read what a process has used (proc(5)); ``None`` when it has just ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The second field is the name, in parentheses; it may hold anything.
    fields = text.rpartition(")")[2].split()
    user, system, resident = fields[11], fields[12], fields[21]
    return Resources((int(user) + int(system)) / _TICKS, int(resident) * _PAGE)


class Workers(Service):
    """Runs the workers with the numbers from 1 to ``count - 1``; number 0 is this process.

    ``settings`` are what they have in common. ``contexts`` are those of the agents' port, whose
    credentials workers get, again with each rotation. It is a ``SessionHolder`` of the server's
    service, and is to be stopped after that.
    """

    _log = Logger()

    def __init__(
        self,
        reactor: DirectReactor,
        count: int,
        settings: WorkerSettings,
        first: FirstProcess,
        contexts: ServerContexts,
        spawn: Spawn | None = None,
    ) -> None:
        self._reactor = reactor
        self._count = count
        self._settings = settings
        self._first = first
        self._contexts = contexts
        self._spawn = spawn or partial(spawn_worker, reactor)
        self._running: dict[int, RunningWorker] = {}
        self._started: dict[int, float] = {}
        self._failures: dict[int, int] = {}
        self._calls: dict[int, IDelayedCall] = {}
        self._drained: float | None = None
        self.restarts = 0
        self.on_room: list[Callable[[int], object]] = []
        """Who is told of a worker, by its number, that takes connections again."""

    # -- for the composition -------------------------------------------------------------------

    def problem(self) -> str | None:
        """Return which workers take no connections, for ``/readyz``."""
        missing = [
            str(number)
            for number in range(1, self._count)
            if number not in self._running or not self._running[number].is_ready
        ]
        return f"these workers are not running: {', '.join(missing)}" if missing else None

    def snapshots(self) -> Iterator[SessionSnapshot]:
        """Yield the sessions of all workers, as they were a second ago."""
        for worker in self._running.values():
            yield from worker.snapshots.values()

    def streams(self) -> Iterator[StreamReport]:
        """Yield the oldest streams of all workers, as they were some seconds ago."""
        for worker in self._running.values():
            yield from worker.streams

    def memory(self) -> int:
        """Return what their streams are promised, bytes."""
        return sum(worker.memory for worker in self._running.values())

    def lag(self) -> float:
        """Return the worst lag of their reactors, in seconds."""
        return max((worker.lag for worker in self._running.values()), default=0.0)

    def be_verbose(self, verbose: bool) -> None:
        """Have all workers, and those started later, log what helps to find defects, or no more."""
        self._settings = replace(self._settings, verbose=verbose)
        for worker in self._running.values():
            worker.be_verbose(verbose)

    def stats(self) -> WorkerStats:
        """Return what the metrics show of the workers themselves."""
        running = [worker for worker in self._running.values() if worker.pid is not None]
        return WorkerStats(
            ready=sum(worker.is_ready for worker in running),
            restarts=self.restarts,
            resources={worker.number: resources_of(worker.pid) for worker in running},
        )

    # -- AsksWorkers ---------------------------------------------------------------------------

    def pids(self) -> dict[int, int]:
        """Return the process of each worker that runs, by its number."""
        running = {number: worker.pid for number, worker in sorted(self._running.items())}
        return {number: pid for number, pid in running.items() if pid is not None}

    def sessions_of(self, node: str | None) -> dict[int, int]:
        """Return how many sessions each worker had a second ago, with ``node`` or with all."""
        return {
            number: sum(node in (None, each.node) for each in worker.snapshots.values())
            for number, worker in self._running.items()
        }

    def ask_page(
        self, worker: int, name: str, method: bytes, parameters: Parameters
    ) -> Deferred[Answer]:
        """Have a worker that runs answer for a page of /debug."""
        return self._running[worker].ask_page(name, method, parameters)

    # -- TakesAgents ---------------------------------------------------------------------------

    def worker_for(self, placement: int) -> int:
        """Return the number of the worker for a placement, 0 for this process."""
        return placement % self._count

    def take_agent(self, number: int, connection: socket.socket, received: bytes) -> bool:
        """Pass a connection on; ``False`` when the worker cannot take it now."""
        worker = self._running.get(number)
        return worker is not None and worker.take_agent(connection, received)

    # -- SessionHolder -------------------------------------------------------------------------

    def sessions(self) -> list[TunnelSession]:
        """Return the sessions with workers, by which callers have streams."""
        sessions = [worker.session for worker in self._running.values()]
        return [session for session in sessions if session.connected]

    def drain(self, text: str) -> None:
        """Have all workers end when their streams have, and start none again."""
        if self._drained is None:
            self._drained = self._reactor.seconds()
            for call in self._calls.values():
                call.cancel()
            self._calls.clear()
            for worker in self._running.values():
                worker.drain()

    def close_sessions(self, code: Code, text: str) -> None:
        """End the sessions with workers now."""
        for session in self.sessions():
            session.close(code, text)

    # -- IService ------------------------------------------------------------------------------

    def startService(self) -> None:
        """Start all workers."""
        super().startService()
        self._contexts.on_rotated.append(self._rotated)
        for number in range(1, self._count):
            self._start(number)

    def stopService(self) -> Deferred[None]:
        """Wait until all have ended, those by force that take too long."""
        super().stopService()
        return Deferred.fromCoroutine(self._stop())

    async def _stop(self) -> None:
        self._contexts.on_rotated.remove(self._rotated)
        self.drain("the server is about to stop")
        assert self._drained is not None  # it has just been drained, if not before
        allowed = self._settings.drain_timeout + EXIT_TIMEOUT
        left = max(0.0, self._drained + allowed - self._reactor.seconds())
        workers = list(self._running.values())
        if not await within(self._reactor, left, [worker.exited() for worker in workers]):
            for worker in self._running.values():
                self._log.warn(
                    "worker {number} has not ended in time; it is killed", number=worker.number
                )
                worker.kill()
            await within(self._reactor, PORT_CLOSE_TIMEOUT, [each.exited() for each in workers])

    # -- helpers -------------------------------------------------------------------------------

    def revoked(self, node: str) -> None:
        """Have workers end the sessions of ``node`` whose identity is no longer good."""
        for worker in self._running.values():
            worker.check(node)

    def tell_servers(self, servers: int) -> None:
        """Have workers tell their agents how many servers there are now."""
        for worker in self._running.values():
            worker.tell_servers(servers)

    def _rotated(self) -> None:
        for worker in self._running.values():
            worker.use_credentials(self._contexts.credentials)

    def _start(self, number: int) -> None:
        self._calls.pop(number, None)
        self._started[number] = self._reactor.seconds()
        try:
            worker = RunningWorker(
                self._reactor,
                replace(self._settings, number=number),
                self._first,
                self._spawn,
                lambda: self._tell_room(number),
                lambda problem: self._ended(number, problem),
            )
        except OSError as error:
            # No descriptors or no memory, perhaps for a moment only.
            self._ended(number, f"it could not be started: {error}")
            return
        self._running[number] = worker
        worker.use_credentials(self._contexts.credentials)

    def _tell_room(self, number: int) -> None:
        for callback in self.on_room:
            callback(number)

    def _ended(self, number: int, problem: str) -> None:
        self._running.pop(number, None)
        if self._drained is not None:
            return
        self.restarts += 1
        settled = self._reactor.seconds() - self._started[number] > SETTLED
        failures = self._failures[number] = 1 if settled else self._failures.get(number, 0) + 1
        delay = doubled(failures - 1, FIRST_DELAY, LONGEST_DELAY)
        self._log.error(
            "worker {number} has ended: {problem}; the streams of its nodes have ended with it,"
            " and it is started again in {delay:g} s",
            number=number,
            problem=problem,
            delay=delay,
        )
        self._calls[number] = self._reactor.callLater(delay, self._start, number)
