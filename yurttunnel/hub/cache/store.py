"""The cache in the reactor thread, with one thread for writing and one for reading."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Coroutine, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from twisted.application.service import Service
from twisted.internet.defer import CancelledError, Deferred, DeferredSemaphore, succeed
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import LoopingCall
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from yurttunnel.hub.cache import clients, documents, events, reading, tokens
from yurttunnel.hub.cache.cached_list import CachedList, with_timeout
from yurttunnel.hub.cache.connection import Connect, connect
from yurttunnel.hub.cache.errors import CacheDamaged
from yurttunnel.hub.cache.interfaces import (
    CachedDocument,
    CacheFailed,
    Collection,
    ICache,
    ICachedList,
    IIncomingList,
    Scope,
    Stored,
    StoredEvent,
)
from yurttunnel.hub.cache.lists import IncomingLists
from yurttunnel.hub.cache.metrics import CacheStats
from yurttunnel.hub.cache.objects import has_selectors
from yurttunnel.hub.cache.queue import WriteQueue
from yurttunnel.hub.cache.reading import Reader, Snapshot
from yurttunnel.hub.cache.selectors import changing_part
from yurttunnel.hub.cache.versions import version_of
from yurttunnel.hub.cache.writer import Writer
from yurttunnel.hub.cache.writes import Change, Key, ScopeExit, Write
from yurttunnel.hub.media.interfaces import Item, TypeMeta
from yurttunnel.ops.bounded_dict import BoundedDict
from yurttunnel.ops.clocks import time_of_day
from yurttunnel.ops.log import RateLimitedLog
from yurttunnel.ops.threads import Jobs

MAX_BYTES = 2 * 1024 * 1024 * 1024
"""The default limit of the file in bytes."""

MAX_QUEUED = 80 * 1024 * 1024
"""The memory limit of the write queue in bytes: two lists of 5,000 pods of 5.7 KB."""

MAX_CONCURRENT_READS = 32
"""Maximum number of concurrent reads of lists; others wait. Guests have as many more."""

MAX_LOG_SIZE = 128 * 1024 * 1024
"""Maximum size of the log in bytes. Over it, all lists that are being read are closed: the log
cannot be reused as long as the reads overlap."""

MAX_USED = 10_000
"""Maximum number of collections whose use in this hour is remembered."""

_MAX_ACCEPTED = 1_000
"""Maximum number of tokens that are known to be stored or queued."""

_MAX_REFUSED = 1_000
"""Maximum number of unknown rejected tokens that are to be deleted when the queue is empty."""

_Result = TypeVar("_Result")


@implementer(ICache)
class Cache(Service):
    """See :class:`ICache`.

    ``threads(name)`` returns a thread, such as :class:`~yurttunnel.ops.threads.JobThread`. The
    directory of ``path`` is created (0700) if it does not exist. Clients for which
    ``is_guest(client)`` take no room from the others. Documents, which all clients share, are
    written with the data of guests, because any client can have many of them cached.
    """

    _log = Logger()

    def __init__(
        self,
        clock: IReactorTime,
        path: Path,
        threads: Callable[[str], Jobs],
        *,
        max_bytes: int = MAX_BYTES,
        max_queued: int = MAX_QUEUED,
        is_guest: clients.IsGuest,
        connect: Connect = connect,
    ) -> None:
        self._clock = clock
        self._is_guest = is_guest
        self._max_bytes = max_bytes
        self._thread = threads("cache reader")
        self._reader = Reader(path, connect)
        self._writer = Writer(
            clock,
            path,
            threads("cache writer"),
            connect,
            max_bytes,
            max_queued,
            is_guest,
            self._opened,
            self._writes_done,
        )
        # Keys: whether they are for guests.
        self._incoming = {
            guests: IncomingLists(clock, queue, self._list_refused)
            for guests, queue in ((False, self._writer.own), (True, self._writer.guests))
        }
        self._lists = {guests: DeferredSemaphore(MAX_CONCURRENT_READS) for guests in (False, True)}
        self._open_lists: set[CachedList] = set()
        self._warnings = RateLimitedLog(clock, self._log)
        self._used: set[Collection] = set()
        self._hours = LoopingCall(self._count_hour)
        self._hours.clock = clock
        self._accepted = BoundedDict[bytes, tuple[str, float]](_MAX_ACCEPTED)
        # Those of them that have to be written again.
        self._unwritten_tokens: set[bytes] = set()
        # Tokens that an earlier run may have stored, to be deleted in this order.
        self._refused_tokens = BoundedDict[bytes, None](_MAX_REFUSED)
        self.replacements = 0
        self.on_replaced: list[Callable[[], object]] = []

    @property
    def stats(self) -> CacheStats:
        """The counters."""
        stats = self._writer.stats
        stats.max_size = self._max_bytes
        stats.queued = self._writer.waiting
        stats.broken = self.problem() is not None
        return stats

    def set_limit(self, max_bytes: int) -> None:
        """Change the limit of the file."""
        self._max_bytes = max_bytes
        self._writer.set_limit(max_bytes)

    def startService(self) -> None:
        super().startService()
        self._writer.start()
        _ = self._hours.start(clients.HOUR).addErrback(self._defect)

    def stopService(self) -> Deferred[None]:
        """Write all queued data, for a few seconds at most, and close the file."""
        return Deferred.fromCoroutine(self._stop())

    async def _stop(self) -> None:
        super().stopService()
        self._hours.stop()
        await self._writer.stop(self._close_reader)

    def problem(self) -> str | None:
        return self._writer.problem()

    def defer(self, client: str, call: Callable[[], object], size: int) -> None:
        self._writer.queue(client).defer(call, size)

    def upsert(self, collection: Collection, meta: TypeMeta, item: Item) -> None:
        key = Key(collection, item.namespace, item.name)
        queue = self._writer.queue(collection.client)
        queue.change(key, Change(version_of(item.version), meta, item))

    def remove(self, scope: Scope, item: Item) -> None:
        part = changing_part(scope)
        scope_exit = ScopeExit(part, item._replace(body=b"")) if has_selectors(part) else None
        key = Key(scope.collection, item.namespace, item.name)
        queue = self._writer.queue(scope.collection.client)
        queue.change(key, Change(version_of(item.version), scope_exit=scope_exit))

    def remove_object(
        self, client: str, resource: str, namespace: str, name: str, version: str = ""
    ) -> None:
        self._put(clients.remove_object(client, resource, namespace, name, version), client)

    def mark_changed(
        self, client: str, resource: str, namespace: str, version: str, name: str = ""
    ) -> None:
        self._put(clients.mark_changed(client, resource, namespace, version, name), client)

    def advance(self, scope: Scope, since: str, version: str) -> None:
        queue = self._writer.queue(scope.collection.client)
        queue.advance(scope, version_of(since), version_of(version))

    def record_use(self, collection: Collection) -> None:
        if collection not in self._used:
            self._note_use(collection)
            self._put(clients.record_use(collection), collection.client)

    def _put(self, write: Write, client: str) -> None:
        queue = self._writer.queue(client)
        queue.put(write, queue.owner_of(client))

    def evict(self, caches: Callable[[str], bool]) -> None:
        for queue in (self._writer.own, self._writer.guests):
            queue.put(clients.EvictClients(caches))

    def begin_list(self, scope: Scope, continue_token: str) -> IIncomingList:
        self._note_use(scope.collection)
        client = scope.collection.client
        is_guest = self._is_guest(client)
        owner = clients.owner_of(client) if is_guest else client
        return self._incoming[is_guest].begin(scope, continue_token, owner)

    def get(self, collection: Collection, namespace: str, name: str) -> Deferred[Stored | None]:
        return self._read(
            lambda connection: reading.find(connection, collection, namespace, name),
            self._writer.queue(collection.client),
        )

    def list(self, scope: Scope) -> Deferred[ICachedList | None]:
        return self._with_timeout(self._list(scope))

    def known_version(self, scope: Scope) -> Deferred[str | None]:
        return self._with_timeout(self._known_to(scope))

    def store_document(self, client: str, path: str, form: str, document: CachedDocument) -> None:
        self._writer.guests.put(documents.store(client, path, form, document), documents.OWNER)

    def document(self, client: str, path: str, form: str) -> Deferred[CachedDocument | None]:
        return self._read(
            lambda connection: documents.find(connection, client, path, form), self._writer.guests
        )

    def store_event(
        self, path: str, content_type: str, body: bytes, token: str, owner: str = ""
    ) -> None:
        self._event_queue(token).put(events.StoreEvent(path, content_type, body, token, owner))

    def event_problem(self, token: str) -> str | None:
        return self._writer.event_problem(self._event_queue(token))

    def _event_queue(self, token: str) -> WriteQueue:
        return self._writer.guests if token else self._writer.own

    def stored_events(self, max_bytes: int) -> Deferred[Sequence[StoredEvent]]:
        return self._read(
            lambda connection: events.oldest(connection, max_bytes),
            self._writer.own,
            self._writer.guests,
        )

    def delete_event(self, id: int) -> None:
        self._writer.own.put(events.DeleteEvent(id))

    def store_token(self, digest: bytes, owner: str, until: float) -> None:
        """See :class:`ICache`; a token that is stored or queued is not written again."""
        if self._accepted.get(digest) == (owner, until):
            return
        self._accepted[digest] = owner, until
        self._refused_tokens.pop(digest, None)
        self._write_token(digest)

    def _write_token(self, digest: bytes) -> None:
        dropped = partial(self._rewrite_tokens, {digest})
        self._writer.own.put(tokens.store(digest, *self._accepted[digest], dropped))

    def _rewrite_tokens(self, digests: Iterable[bytes]) -> None:
        """Write tokens again once the queue is empty: they are rarely reported again."""
        self._unwritten_tokens = self._unwritten_tokens.union(digests) & self._accepted.keys()

    def token_owner(self, digest: bytes) -> Deferred[str | None]:
        if digest in self._refused_tokens:
            return succeed(None)
        now = time_of_day(self._clock)
        return self._read(
            lambda connection: tokens.owner(connection, digest, now), self._writer.own
        )

    def delete_token(self, digest: bytes) -> None:
        """See :class:`ICache`; anyone can make up tokens, so they displace no queued write."""
        if self._accepted.pop(digest, None) is not None or not self._writer.own.is_busy:
            self._writer.own.put(tokens.delete([digest]))
            return
        self._refused_tokens[digest] = None

    def _defect(self, failure: Failure) -> None:
        self._log.failure("Defect: hours are not counted, so no client is evicted", failure)

    def _note_use(self, collection: Collection) -> None:
        if len(self._used) >= MAX_USED:
            self._used.clear()
        self._used.add(collection)

    def _count_hour(self) -> None:
        """Count an hour, unless no API server has responded in it."""
        if self._used:
            self._used.clear()
            self._writer.own.put(clients.CountHour())
            # What other versions have cached is out of date after an hour with the API.
            self._writer.remove_others()

    def _read(
        self, read: Callable[[sqlite3.Connection], _Result], *queues: WriteQueue
    ) -> Deferred[_Result]:
        return self._with_timeout(self._in_reader(partial(self._reader.read, read), *queues))

    def _with_timeout(self, reading: Coroutine[Any, Any, _Result]) -> Deferred[_Result]:
        return with_timeout(self._clock, Deferred.fromCoroutine(reading))

    async def _list(self, scope: Scope) -> ICachedList | None:
        client = scope.collection.client
        slots, queue = self._lists[self._is_guest(client)], self._writer.queue(client)
        try:
            await slots.acquire()
        except CancelledError:
            # Of the timeout of the whole; the disk is not to blame.
            raise CacheFailed("too many lists are read from the cache at a time") from None
        try:
            snapshot = await self._in_reader(partial(self._reader.snapshot, scope), queue)
        except BaseException:
            slots.release()
            raise
        if snapshot is None:
            slots.release()
            return None
        complete = snapshot.complete and not queue.is_incomplete(scope.collection)
        read = partial(self._in_thread, self._writer.opened)
        over = partial(self._list_closed, slots)
        listed = CachedList(self._clock, read, snapshot, complete, over)
        self._open_lists.add(listed)
        return listed

    async def _known_to(self, scope: Scope) -> str | None:
        queue = self._writer.queue(scope.collection.client)
        version = await self._in_reader(
            partial(self._reader.read, partial(reading.known_version, scope)), queue
        )
        return None if queue.is_incomplete(scope.collection) else version

    def _list_closed(
        self, slots: DeferredSemaphore, listed: CachedList, snapshot: Snapshot
    ) -> None:
        self._open_lists.discard(listed)
        _ = self._thread.run(snapshot.close)
        slots.release()

    async def _in_reader(self, job: Callable[[], _Result], *queues: WriteQueue) -> _Result:
        """Read after the writes in these queues are done, or after a timeout."""
        await self._writer.flushed(*queues)
        return await self._in_thread(self._writer.opened, job)

    def _in_thread(self, opened: int, job: Callable[[], _Result]) -> Deferred[_Result]:
        """Read from the file that was opened with this number."""

        def failed(failure: Failure) -> Failure:
            if isinstance(failure.value, CacheDamaged):
                self._writer.report_damage(failure.value, opened)
            return failure

        return self._thread.run(job).addErrback(failed)

    def _close_reader(self) -> Deferred[None]:
        closed = self._thread.run(self._reader.close)
        self._thread.end()
        return closed

    def _opened(self) -> None:
        """Close the earlier connections: the file may be another one, without the tokens."""
        self._rewrite_tokens(self._accepted)
        _ = self._thread.run(self._reader.close)
        if self._writer.replacements != self.replacements:
            self.replacements = self._writer.replacements
            for callback in self.on_replaced:
                callback()

    def _writes_done(self) -> None:
        if self._writer.log_size > MAX_LOG_SIZE:
            # The size does not change before the next write; lists opened until then stay open.
            self._writer.log_size = 0
            for listed in tuple(self._open_lists):
                listed.close()
        if self._writer.own.awaits_lists:
            # Lists are being received, and may leave no room.
            return
        digests, self._unwritten_tokens = self._unwritten_tokens & self._accepted.keys(), set()
        for digest in digests:
            self._write_token(digest)
        if self._refused_tokens:
            self._writer.own.put(tokens.delete([*self._refused_tokens]))
            self._refused_tokens.clear()

    def _list_refused(self, scope: Scope) -> None:
        self._writer.stats.refused += 1
        self._warnings.warn(
            "A list of {resource} for {client} is not cached: {size} MB wait to be written"
            " already; offline requests get its previous state",
            resource=scope.collection.resource,
            client=scope.collection.client,
            size=self._writer.queue(scope.collection.client).size // 1_000_000,
        )
