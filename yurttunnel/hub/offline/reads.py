"""Responses to get and list from the cache, and cached documents."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from twisted.internet.interfaces import IReactorTime

from yurttunnel.http.interfaces import IExchange
from yurttunnel.hub.cache.interfaces import ICache
from yurttunnel.hub.cache.versions import is_older, version_of
from yurttunnel.hub.media.interfaces import ListMeta
from yurttunnel.hub.offline.backpressure import Backpressure, WholeResponses
from yurttunnel.hub.offline.failures import OfflineFailures
from yurttunnel.hub.offline.lookup import FoundList, Lookup
from yurttunnel.hub.offline.paging import NotContinued, Page
from yurttunnel.hub.offline.sources import Source
from yurttunnel.hub.request.accept import document_forms
from yurttunnel.hub.request.requests import HubCall, ListOptions

ALL_CLIENTS = ""
"""The client of documents, which all authenticated users share."""


class Reads:
    """Serves reads. All methods raise ``RequestFailed`` before the response has begun."""

    def __init__(
        self, clock: IReactorTime, cache: ICache, lookup: Lookup, failures: OfflineFailures
    ) -> None:
        self._clock = clock
        self._cache = cache
        self._lookup = lookup
        self._failures = failures
        self._responses = WholeResponses(clock, failures)

    async def document(self, call: HubCall) -> None:
        """Respond with versions, discovery or OpenAPI, as last received from the API."""
        path = call.request.path
        for form in document_forms(call.exchange.head):
            document = await self._cache.document(ALL_CLIENTS, path, form)
            if document is not None:
                content_type = document.content_type.encode("latin-1")
                await self._responses.send(call, content_type, document.body)
                return
        # Not 404, which would mean that the API group does not exist. kubectl requests many groups
        # at its start, and would retry each if there were a Retry-After.
        raise self._failures.unavailable(f"{path} was never requested here in this form", False)

    async def get(self, call: HubCall, owner: str) -> None:
        """Respond with an object."""
        source, type, item, columns = await self._lookup.object(call, owner)
        body = source.codec.object(type, source.bodies([item])[0], columns)
        await self._responses.send(call, source.codec.content_type, body)

    async def list(self, call: HubCall, owner: str) -> None:
        """Respond with a list, or a page of one."""
        with self._lookup.reading(call):
            await self._list(call, owner)

    async def _list(self, call: HubCall, owner: str) -> None:
        found = await self._lookup.list(call, owner)
        try:
            check_version(call.request.options, found.cached_list.meta, self._failures)
            try:
                page = Page(found.cached_list, call.request.options)
            except NotContinued as error:
                raise self._failures.expired(str(error)) from None
            await _send(Backpressure(self._clock, call.exchange), call.exchange, found, page)
        finally:
            found.cached_list.close()


def check_version(options: ListOptions, meta: ListMeta, failures: OfflineFailures) -> None:
    """Raise ``RequestFailed`` if a version is requested that the list does not have.

    A client must not get an older state than it has already seen.
    """
    requested, known = options.resource_version, meta.version
    if options.resource_version_match == "Exact" and requested != known:
        raise failures.expired(f"version {requested} is not cached here, only {known}")
    if is_older(version_of(known), version_of(requested)):
        raise failures.too_new(requested, known)


async def _send(
    backpressure: Backpressure, exchange: IExchange, found: FoundList, page: Page
) -> None:
    source = found.source
    fields = [(b"Content-Type", source.codec.content_type)]
    if found.warning:
        fields.append(warning_field(found.warning))
    bodies = _Bodies(source, page)
    if source.codec.lists_need_sizes and not source.is_as_stored:
        await bodies.make(backpressure)
    writer = source.codec.list_writer(source.meta(page.meta), bodies.sizes or ())
    if bodies.sizes is not None:
        fields.append((b"Content-Length", b"%d" % writer.length))
    # Read before the head is sent, so that an error becomes a response and not an abort.
    piece = await bodies.next()
    exchange.send_head(200, fields)
    backpressure.begin()
    exchange.write(writer.head)
    while piece is not None and not backpressure.ended:
        exchange.write(writer.items(piece))
        await backpressure.ready()
        piece = await bodies.next()
    exchange.write(writer.tail)
    exchange.finish()


class _Bodies:
    """The items of a page in the client's form, in pieces.

    ``sizes`` are the sizes of all items, ``None`` if they are not known before the items are read.
    """

    def __init__(self, source: Source, page: Page) -> None:
        self._source = source
        self._page = page
        self._made: deque[list[bytes]] | None = None
        self.sizes: Sequence[int] | None = page.sizes if source.is_as_stored else None

    async def make(self, backpressure: Backpressure) -> None:
        """Convert all items to get their sizes; this is done only for metadata, which are small."""
        made: deque[list[bytes]] = deque()
        while not backpressure.ended and (items := await self._page.next()):
            made.append(self._source.bodies(items))
        self._made = made
        self.sizes = [len(body) for piece in made for body in piece]

    async def next(self) -> list[bytes] | None:
        """Return the next piece, in which all items may be hidden; ``None`` at the end."""
        if self._made is not None:
            return self._made.popleft() if self._made else None
        items = await self._page.next()
        return self._source.bodies(items) if items else None


def warning_field(text: str) -> tuple[bytes, bytes]:
    """Return the header field for which kubectl prints a warning (RFC 9111 section 5.5)."""
    quoted = text.replace("\\", "\\\\").replace('"', '\\"')
    return b"Warning", f'299 - "{quoted}"'.encode("ascii", "replace")
