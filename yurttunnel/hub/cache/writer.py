"""Writing of the queues to disk: its times, and its error handling."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from twisted.internet.defer import Deferred, DeferredList
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from yurttunnel.hub.cache.clients import KUBELET, IsGuest, owner_of
from yurttunnel.hub.cache.connection import Connect
from yurttunnel.hub.cache.database import Contents, Database
from yurttunnel.hub.cache.errors import BodyDamaged, CacheDamaged, LimitReached, OtherVersion
from yurttunnel.hub.cache.interfaces import CacheFailed
from yurttunnel.hub.cache.metrics import CacheStats
from yurttunnel.hub.cache.queue import WriteQueue
from yurttunnel.hub.cache.writes import Write, WriteResult
from yurttunnel.ops.backoff import Backoff
from yurttunnel.ops.log import RateLimitedLog
from yurttunnel.ops.reconciler import Reconciler
from yurttunnel.ops.threads import Jobs
from yurttunnel.ops.timeouts import fired_within

BATCH_SECONDS = 0.05
"""How long writes other than changes are collected, in seconds; a process that is killed may lose
that much."""

BARRIER_SECONDS = 2.0
"""How long a read waits for earlier writes, in seconds."""

FLUSH_SECONDS = 5.0
"""How long shutdown waits for the queues, in seconds."""

SLOW_SECONDS = 5.0
"""The duration in seconds after which a write in progress is reported as a problem."""

_TEST_INTERVAL = 60.0
"""The interval, in seconds, at which the file is tested while nothing is queued."""

_CLOSE_SECONDS = 2.0
"""How long shutdown waits for the current write, and for closing the file, in seconds."""


class Writer:
    """Writes its queues in batches and in order, in a thread.

    The queue for data of ``guests`` is separate, and has half as much memory as ``max_queued``,
    so it displaces nothing of the node's ``own``. ``on_opened`` is called after each new
    connection, because the file may be another one; ``on_written`` is called when the queues are
    empty.
    """

    _log = Logger()

    def __init__(
        self,
        clock: IReactorTime,
        path: Path,
        thread: Jobs,
        connect: Connect,
        max_bytes: int,
        max_queued: int,
        is_guest: IsGuest,
        on_opened: Callable[[], object],
        on_written: Callable[[], object],
    ) -> None:
        self._clock = clock
        self._path = path
        self._thread = thread
        self._database = Database(path, connect, max_bytes, is_guest)
        self._is_guest = is_guest
        self._on_opened = on_opened
        self._on_written = on_written
        self._warnings = RateLimitedLog(clock, self._log)
        self._loop = Reconciler(
            clock,
            _TEST_INTERVAL,
            "writing the cache",
            self._write_waiting,
            settle=BATCH_SECONDS,
            backoff=Backoff(),
            finish=_CLOSE_SECONDS,
        )
        self._is_open = False
        self._opening: list[Deferred[None]] = []
        self._damage: CacheDamaged | None = None
        self._problem: CacheFailed | None = None
        # Why data of the node's own was dropped in the last complete write.
        self._drop_reason: CacheFailed | None = None
        self._write_began: float | None = None
        self._resumes_at = 0.0
        callbacks = self._loop.trigger, self._dropped
        self.own = WriteQueue(max_queued, *callbacks, lambda client: not is_guest(client))
        self.guests = WriteQueue(max_queued // 2, *callbacks, is_guest, owner_of)
        self._queues = (self.own, self.guests)
        self.stats = CacheStats()
        self.opened = 0
        """The number of times that a file was opened; each may be another file."""
        self.replacements = 0
        """That of the database, when the file was opened last."""
        self.log_size = 0
        """The size of its log in bytes after the last write, 0 once it has been checked. The log is
        reused only when no reader needs its contents."""

    def start(self) -> None:
        """Open the file."""
        self._loop.startService()

    def set_limit(self, max_bytes: int) -> None:
        """Change the limit of the file, after the current write."""
        _ = self._thread.run(partial(self._database.set_limit, max_bytes))

    def remove_others(self) -> None:
        """Remove the files of other versions, which may be what leaves no room for this one's."""
        _ = self._thread.run(self._database.remove_others)

    async def stop(self, close_readers: Callable[[], Deferred[None]]) -> None:
        """Write the queues, within :data:`FLUSH_SECONDS`, and close the file.

        ``close_readers`` closes the other connections before: the last connection to close moves
        the log into the file.
        """
        await self.flushed(*self._queues, seconds=FLUSH_SECONDS)
        await self._loop.stopService()
        if any(queue.is_busy or queue.has_postponed for queue in self._queues):
            self._log.error(
                "The last changes were not written within {seconds:g} s: the cache {path} has the"
                " previous state",
                seconds=FLUSH_SECONDS,
                path=self._path,
            )
        await fired_within(self._clock, _CLOSE_SECONDS, close_readers())
        await fired_within(self._clock, _CLOSE_SECONDS, self._thread.run(self._database.close))
        self._thread.end()
        self._is_open = False

    @property
    def waiting(self) -> int:
        """The memory of all queued writes in bytes."""
        return sum(queue.size for queue in self._queues)

    def queue(self, client: str) -> WriteQueue:
        """Return the queue of a client."""
        return self.guests if self._is_guest(client) else self.own

    async def flushed(self, *queues: WriteQueue, seconds: float = BARRIER_SECONDS) -> bool:
        """Wait until all earlier writes in the queues are done, for at most ``seconds``.

        Return whether they are; return ``False`` at once while there is a problem with writing.
        """
        if self._is_open and not any(queue.is_busy for queue in queues):
            return True
        if self._write_problem() is not None:
            return False
        self._loop.trigger(settle=0.0)
        marks = DeferredList(map(self._barrier, queues))
        return await fired_within(self._clock, seconds, marks)

    def problem(self) -> str | None:
        """Return why nothing can be written, or why data of the node's own was dropped."""
        problem = self._write_problem()
        return problem if self._drop_reason is None else problem or str(self._drop_reason)

    def event_problem(self, queue: WriteQueue) -> str | None:
        """Return why no Event can be stored by way of a queue."""
        if queue.has_postponed:
            return f"the cache {self._path} has no room for the Events that were accepted before"
        return self.problem()

    def _write_problem(self) -> str | None:
        """Return why nothing can be written."""
        if self._problem is not None:
            return str(self._problem)
        if (
            self._write_began is not None
            and self._clock.seconds() - self._write_began > SLOW_SECONDS
        ):
            seconds = f"{SLOW_SECONDS:g} s"
            return f"the cache {self._path}: a write takes more than {seconds}: check its disk"
        return None

    def report_damage(self, damage: CacheDamaged, opened: int) -> None:
        """Record that a reader found damage; ``opened`` is the number of the opened file."""
        if opened != self.opened or self._damage is not None:
            return
        self._damage = damage
        if isinstance(damage, BodyDamaged):
            self._log.error(
                "{damage}: it is not served, and a new cache is created once an API server"
                " responds: check the disk",
                damage=damage,
            )
        self._loop.trigger(settle=0.0)

    def _barrier(self, queue: WriteQueue) -> Deferred[None]:
        if queue.is_busy or self._is_open:
            return queue.barrier()
        opened: Deferred[None] = Deferred()
        self._opening.append(opened)
        return opened

    async def _write_waiting(self) -> bool:
        drop_reason = self._drop_reason
        self._resume()
        try:
            try:
                await self._write_all()
            except CacheDamaged as damage:
                if self._keeps(damage):
                    self.report_damage(damage, self.opened)
                    raise
                await self._recreate(damage)
                await self._write_all()
            # This may queue writes that were dropped before; there may be no later opportunity.
            self._on_written()
            await self._write_all()
        except CacheFailed as failure:
            self._is_open = False
            self._fail(failure)
            return False
        if self._drop_reason is drop_reason:
            self._drop_reason = None
        self._recovered()
        return True

    def _resume(self) -> None:
        """Retry postponed writes from time to time, because there may be room now."""
        now = self._clock.seconds()
        if now >= self._resumes_at:
            self._resumes_at = now + _TEST_INTERVAL
            for queue in self._queues:
                queue.resume()

    async def _write_all(self) -> None:
        for queue in self._queues:
            queue.call_deferred()
        if self._damage is not None and not self._keeps(self._damage):
            raise self._damage
        if not self._is_open:
            await self._open()
        while any(self._queues):
            for queue in filter(None, self._queues):
                await self._write(queue)

    def _keeps(self, damage: CacheDamaged) -> bool:
        """Return whether the rest of the file is worth more than a new one.

        It is as long as clients cannot list again.
        """
        return isinstance(damage, BodyDamaged) and not any(
            queue.has_responses for queue in self._queues
        )

    async def _open(self) -> None:
        contents, self.stats.events = await self._thread.run(self._database.open)
        self._count(contents)
        self._is_open = True
        self.opened += 1
        self.replacements = self._database.replacements
        self._on_opened()
        opening, self._opening = self._opening, []
        for each in opening:
            each.callback(None)

    async def _write(self, queue: WriteQueue) -> None:
        writes = queue.take()
        refused = await self._try_write(queue, writes)
        if refused is None:
            return
        number = sum(write.size > 0 for write in writes)
        if number == 1:
            self._drop(queue, refused)
            return
        # Writes behind one that does not fit may fit, or make room.
        queue.put_back()
        while number > 0 and queue:
            alone = queue.take(1)
            number -= sum(write.size > 0 for write in alone)
            refused = await self._try_write(queue, alone)
            if refused is not None:
                self._drop(queue, refused)

    async def _try_write(self, queue: WriteQueue, writes: list[Write]) -> CacheFailed | None:
        """Do the taken writes; return the error if there is no room for them."""
        of_guests = queue is self.guests
        self._write_began = self._clock.seconds()
        try:
            written = await self._thread.run(partial(self._database.write, writes, of_guests))
        except BaseException:
            queue.put_back()
            raise
        finally:
            self._write_began = None
        self._count(written.contents)
        self.stats.count(written.done)
        self._log_evictions(written.done)
        for defect in written.defects:
            self._log.failure("Defect: a change cannot be written to the cache", defect)
        if written.refused is None:
            queue.done()
        return written.refused

    def _drop(self, queue: WriteQueue, refused: CacheFailed) -> None:
        """Drop the single taken write, so that its collections become incomplete.

        Changes of the node's own clients wait for a higher limit instead, unless a later write
        makes room.
        """
        if queue.postpone():
            return
        own = queue is self.own
        if own and isinstance(refused, LimitReached) and queue.should_wait(refused.max_bytes):
            queue.put_back()
            raise refused
        clients = queue.drop_taken()
        self.stats.dropped += 1
        if isinstance(refused, LimitReached):
            if queue is self.guests:
                self._log_no_room()
                return
            refused = refused.needed_by(clients or {KUBELET})
        if queue is self.own:
            self._drop_reason = refused
        self._warnings.warn(
            "A list or changes for {clients} are not cached: {reason}; until the next list,"
            " offline requests may get no or outdated objects",
            clients=", ".join(sorted(clients)) or "the node",
            reason=refused,
        )

    def _log_evictions(self, done: Sequence[WriteResult]) -> None:
        for client in (client for each in done for client in each.evicted):
            # Any client can create and displace guests, with new names.
            info = self._warnings.info if self._is_guest(client) else self._log.info
            info(
                "The cached data of {client} was deleted: it was not requested lately, is not to"
                " be cached any longer, or there is no room for it",
                client=client,
            )
        documents = sum(each.documents for each in done)
        if documents:
            self._warnings.info(
                "{count} of the cached discovery and OpenAPI responses were deleted: the"
                " cache {path} has no room for them",
                count=documents,
                path=self._path,
            )

    def _count(self, contents: Contents) -> None:
        self.stats.size, self.stats.clients, self.log_size = contents

    async def _recreate(self, damage: CacheDamaged) -> None:
        self._is_open = False
        aside = await self._thread.run(partial(self._database.set_aside, damage))
        self._damage = None
        if isinstance(damage, OtherVersion):
            self._log.warn(
                "{other}: it is now {aside}, for a rollback; until clients have listed"
                " again, offline requests for what this version has not cached before fail",
                other=damage,
                aside=aside,
            )
            return
        self.stats.damaged += 1
        self._log.error(
            "{damage}: it is now {aside}, and a new one was created; offline requests fail until"
            " clients have listed again: check the disk",
            damage=damage,
            aside=aside,
        )

    def _fail(self, failure: CacheFailed) -> None:
        if str(failure) != str(self._problem):
            self._log.error(
                "The responses of the API are not cached for an outage: {reason}; retrying",
                reason=failure,
            )
        self._problem = failure

    def _recovered(self) -> None:
        if self._problem is not None:
            self._log.info("The cache {path} is written again", path=self._path)
        self._problem = None

    def _log_no_room(self) -> None:
        self._warnings.warn(
            "A list or changes for a client that is not one of the node's own are not cached: the"
            " cache {path} is full: raise --cache-max-bytes",
            path=self._path,
        )

    def _dropped(self, count: int) -> None:
        self.stats.dropped += count
        self._warnings.warn(
            "{count} of the changes queued for the cache {path} were dropped: its disk is"
            " slow, full or broken; offline requests may get outdated objects",
            count=count,
            path=self._path,
        )
