"""The cache in the reactor thread, with one thread for writing and one for reading."""

from __future__ import annotations

import sqlite3
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from twisted.application.service import Service
from twisted.internet.defer import Deferred, DeferredSemaphore, succeed
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import LoopingCall
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from yurttunnel.hub.cache import clients, documents, events, reading, tokens
from yurttunnel.hub.cache.connection import Connect, connect
from yurttunnel.hub.cache.interfaces import (
    Collection,
    ICache,
    IListed,
    IListing,
    KeptDocument,
    KeptEvent,
    Scope,
    Stored,
)
from yurttunnel.hub.cache.listed import Listed, in_time
from yurttunnel.hub.cache.lists import Continued, Listing
from yurttunnel.hub.cache.metrics import CacheStats
from yurttunnel.hub.cache.objects import is_selective
from yurttunnel.hub.cache.queue import WriteQueue
from yurttunnel.hub.cache.reading import Reader, Snapshot
from yurttunnel.hub.cache.selectors import changing_part
from yurttunnel.hub.cache.trouble import CacheDamaged
from yurttunnel.hub.cache.versions import version_of
from yurttunnel.hub.cache.writes import Change, Key, Left
from yurttunnel.hub.cache.writing import Writing
from yurttunnel.hub.media.interfaces import Item, TypeMeta
from yurttunnel.ops.clocks import time_of_day
from yurttunnel.ops.log import RateLimitedLog
from yurttunnel.ops.threads import Jobs

MOST_BYTES = 2 * 1024 * 1024 * 1024
"""The default limit of the file in bytes."""

MOST_WAITING = 80 * 1024 * 1024
"""The memory limit of the write queue in bytes: two lists of 5,000 pods of 5.7 KB."""

MOST_LISTED = 32
"""Maximum number of concurrent reads of lists; others wait. Guests have as many more."""

MOST_LOG = 128 * 1024 * 1024
"""Maximum size of the log in bytes. Over it, all lists that are being read are closed: the log
cannot be reused as long as the reads overlap."""

MOST_USED = 10_000
"""Maximum number of collections whose use in this hour is remembered."""

_MOST_ACCEPTED = 1_000
"""Maximum number of tokens that are known to be stored or queued."""

_MOST_REFUSED = 1_000
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
        most_bytes: int = MOST_BYTES,
        most_waiting: int = MOST_WAITING,
        is_guest: clients.IsGuest,
        connect: Connect = connect,
    ) -> None:
        self._clock = clock
        self._is_guest = is_guest
        self._most_bytes = most_bytes
        self._thread = threads("cache reader")
        self._reader = Reader(path, connect)
        self._writing = Writing(
            clock,
            path,
            threads("cache writer"),
            connect,
            most_bytes,
            most_waiting,
            is_guest,
            self._opened,
            self._written,
        )
        # Keys: whether they are for guests.
        self._continued = {guests: Continued(clock) for guests in (False, True)}
        self._lists = {guests: DeferredSemaphore(MOST_LISTED) for guests in (False, True)}
        self._listed: set[Listed] = set()
        self._warnings = RateLimitedLog(clock, self._log)
        self._used: set[Collection] = set()
        self._hours = LoopingCall(self._count_hour)
        self._hours.clock = clock
        self._accepted: OrderedDict[bytes, tuple[str, float]] = OrderedDict()
        # Those of them that have to be written again.
        self._lacking: set[bytes] = set()
        # Tokens that an earlier run may have stored, to be deleted in this order.
        self._refused_tokens: dict[bytes, None] = {}

    @property
    def stats(self) -> CacheStats:
        """The counters."""
        stats = self._writing.stats
        stats.most = self._most_bytes
        stats.waiting = self._writing.waiting
        stats.broken = self.problem() is not None
        return stats

    def bound(self, most_bytes: int) -> None:
        """Change the limit of the file."""
        self._most_bytes = most_bytes
        self._writing.bound(most_bytes)

    def startService(self) -> None:
        """Start to open the file."""
        super().startService()
        self._writing.start()
        _ = self._hours.start(clients.HOUR).addErrback(self._defect)

    def stopService(self) -> Deferred[None]:
        """Write all queued data, for a few seconds at most, and close the file."""
        return Deferred.fromCoroutine(self._stop())

    async def _stop(self) -> None:
        super().stopService()
        self._hours.stop()
        await self._writing.stop(self._let_go)

    def problem(self) -> str | None:
        """See :class:`ICache`."""
        return self._writing.problem()

    def upsert(self, collection: Collection, meta: TypeMeta, item: Item) -> None:
        """See :class:`ICache`."""
        key = Key(collection, item.namespace, item.name)
        queue = self._writing.queue(collection.client)
        queue.change(key, Change(version_of(item.version), meta, item))

    def remove(self, scope: Scope, item: Item) -> None:
        """See :class:`ICache`."""
        part = changing_part(scope)
        left = Left(part, item._replace(body=b"")) if is_selective(part) else None
        key = Key(scope.collection, item.namespace, item.name)
        queue = self._writing.queue(scope.collection.client)
        queue.change(key, Change(version_of(item.version), left=left))

    def forget_object(
        self, client: str, resource: str, namespace: str, name: str, version: str = ""
    ) -> None:
        """See :class:`ICache`."""
        write = clients.forget_object(client, resource, namespace, name, version)
        self._writing.queue(client).put(write)

    def see(self, scope: Scope, since: str, version: str) -> None:
        """See :class:`ICache`."""
        queue = self._writing.queue(scope.collection.client)
        queue.see(scope, version_of(since), version_of(version))

    def use(self, collection: Collection) -> None:
        """See :class:`ICache`."""
        if collection not in self._used:
            self._note_use(collection)
            self._writing.queue(collection.client).put(clients.use(collection))

    def forget(self, keeps: Callable[[str], bool]) -> None:
        """See :class:`ICache`."""
        for queue in (self._writing.own, self._writing.guests):
            queue.put(clients.Forget(keeps))

    def begin_list(self, scope: Scope, continue_token: str) -> IListing:
        """See :class:`ICache`."""
        self._note_use(scope.collection)
        client = scope.collection.client
        queue, continued = self._writing.queue(client), self._continued[self._is_guest(client)]
        return Listing(queue, continued, scope, continue_token, self._refused)

    def get(self, collection: Collection, namespace: str, name: str) -> Deferred[Stored | None]:
        """See :class:`ICache`."""
        return self._read(
            lambda connection: reading.find(connection, collection, namespace, name),
            self._writing.queue(collection.client),
        )

    def list(self, scope: Scope) -> Deferred[IListed | None]:
        """See :class:`ICache`."""
        return self._in_time(self._list(scope))

    def known_to(self, scope: Scope) -> Deferred[str | None]:
        """See :class:`ICache`."""
        return self._in_time(self._known_to(scope))

    def keep_document(self, client: str, path: str, form: str, document: KeptDocument) -> None:
        """See :class:`ICache`."""
        self._writing.guests.put(documents.keep(client, path, form, document))

    def document(self, client: str, path: str, form: str) -> Deferred[KeptDocument | None]:
        """See :class:`ICache`."""
        return self._read(
            lambda connection: documents.find(connection, client, path, form), self._writing.guests
        )

    def keep_event(
        self, path: str, content_type: str, body: bytes, token: str, owner: str = ""
    ) -> None:
        """See :class:`ICache`."""
        self._event_queue(token).put(events.Keep(path, content_type, body, token, owner))

    def event_problem(self, token: str) -> str | None:
        """See :class:`ICache`."""
        return self._writing.event_problem(self._event_queue(token))

    def _event_queue(self, token: str) -> WriteQueue:
        return self._writing.guests if token else self._writing.own

    def kept_events(self, most: int) -> Deferred[Sequence[KeptEvent]]:
        """See :class:`ICache`."""
        return self._read(
            lambda connection: events.oldest(connection, most),
            self._writing.own,
            self._writing.guests,
        )

    def drop_event(self, id: int) -> None:
        """See :class:`ICache`."""
        self._writing.own.put(events.Drop(id))

    def accept_token(self, digest: bytes, owner: str, until: float) -> None:
        """See :class:`ICache`; a token that is stored or queued is not written again."""
        if self._accepted.get(digest) == (owner, until):
            return
        self._accepted[digest] = owner, until
        if len(self._accepted) > _MOST_ACCEPTED:
            self._accepted.popitem(last=False)
        self._refused_tokens.pop(digest, None)
        self._write_token(digest)

    def _write_token(self, digest: bytes) -> None:
        dropped = partial(self._lack, {digest})
        self._writing.own.put(tokens.accept(digest, *self._accepted[digest], dropped))

    def _lack(self, digests: Iterable[bytes]) -> None:
        """Write tokens again once the queue is empty: they are rarely reported again."""
        self._lacking = self._lacking.union(digests) & self._accepted.keys()

    def token_owner(self, digest: bytes) -> Deferred[str | None]:
        """See :class:`ICache`."""
        if digest in self._refused_tokens:
            return succeed(None)
        now = time_of_day(self._clock)
        return self._read(
            lambda connection: tokens.owner(connection, digest, now), self._writing.own
        )

    def refuse_token(self, digest: bytes) -> None:
        """See :class:`ICache`; anyone can make up tokens, so they displace no queued write."""
        if self._accepted.pop(digest, None) is not None or not self._writing.own.is_busy:
            self._writing.own.put(tokens.refuse([digest]))
            return
        self._refused_tokens[digest] = None
        if len(self._refused_tokens) > _MOST_REFUSED:
            del self._refused_tokens[next(iter(self._refused_tokens))]

    def _defect(self, failure: Failure) -> None:
        self._log.failure("Defect: hours are not counted, so no client is forgotten", failure)

    def _note_use(self, collection: Collection) -> None:
        if len(self._used) >= MOST_USED:
            self._used.clear()
        self._used.add(collection)

    def _count_hour(self) -> None:
        """Count an hour, unless no API server has responded in it."""
        if self._used:
            self._used.clear()
            self._writing.own.put(clients.CountHour())

    def _read(
        self, read: Callable[[sqlite3.Connection], _Result], *queues: WriteQueue
    ) -> Deferred[_Result]:
        return self._in_time(self._in_reader(partial(self._reader.read, read), *queues))

    def _in_time(self, reading: Coroutine[Any, Any, _Result]) -> Deferred[_Result]:
        return in_time(self._clock, Deferred.fromCoroutine(reading))

    async def _list(self, scope: Scope) -> IListed | None:
        client = scope.collection.client
        slots, queue = self._lists[self._is_guest(client)], self._writing.queue(client)
        await slots.acquire()
        try:
            snapshot = await self._in_reader(partial(self._reader.snapshot, scope), queue)
        except BaseException:
            slots.release()
            raise
        if snapshot is None:
            slots.release()
            return None
        complete = snapshot.complete and not queue.is_lacking(scope.collection)
        read = partial(self._in_thread, self._writing.opened)
        over = partial(self._list_is_over, slots)
        listed = Listed(self._clock, read, snapshot, complete, over)
        self._listed.add(listed)
        return listed

    async def _known_to(self, scope: Scope) -> str | None:
        queue = self._writing.queue(scope.collection.client)
        version = await self._in_reader(
            partial(self._reader.read, partial(reading.known_to, scope)), queue
        )
        return None if queue.is_lacking(scope.collection) else version

    def _list_is_over(self, slots: DeferredSemaphore, listed: Listed, snapshot: Snapshot) -> None:
        self._listed.discard(listed)
        _ = self._thread.run(snapshot.close)
        slots.release()

    async def _in_reader(self, job: Callable[[], _Result], *queues: WriteQueue) -> _Result:
        """Read after the writes in these queues are done, or after a timeout."""
        await self._writing.settled(*queues)
        return await self._in_thread(self._writing.opened, job)

    def _in_thread(self, opened: int, job: Callable[[], _Result]) -> Deferred[_Result]:
        """Read from the file that was opened with this number."""

        def failed(failure: Failure) -> Failure:
            if isinstance(failure.value, CacheDamaged):
                self._writing.found_damaged(failure.value, opened)
            return failure

        return self._thread.run(job).addErrback(failed)

    def _let_go(self) -> Deferred[None]:
        closed = self._thread.run(self._reader.close)
        self._thread.end()
        return closed

    def _opened(self) -> None:
        """Close the earlier connections: the file may be another one, without the tokens."""
        self._lack(self._accepted)
        _ = self._thread.run(self._reader.close)

    def _written(self) -> None:
        if self._writing.log_size > MOST_LOG:
            # The size does not change before the next write; lists opened until then stay open.
            self._writing.log_size = 0
            for listed in tuple(self._listed):
                listed.close()
        if self._writing.own.is_busy:
            # Lists are being received, and may leave no room.
            return
        digests, self._lacking = self._lacking & self._accepted.keys(), set()
        for digest in digests:
            self._write_token(digest)
        if self._refused_tokens:
            self._writing.own.put(tokens.refuse([*self._refused_tokens]))
            self._refused_tokens.clear()

    def _refused(self, scope: Scope) -> None:
        self._writing.stats.refused += 1
        self._warnings.warn(
            "A list of {resource} for {client} is not kept: {size} MB wait for the cache"
            " already; offline requests get its previous state",
            resource=scope.collection.resource,
            client=scope.collection.client,
            size=self._writing.queue(scope.collection.client).size // 1_000_000,
        )
