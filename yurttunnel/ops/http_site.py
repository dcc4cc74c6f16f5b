"""An HTTP server for the pages of operators, with limits on time, connections and size.

Requests are small and have a fixed time, and each connection carries one. Clients that hold
connections open do not lock others out: when the limit is reached, the oldest connection that has
sent no request is closed, or the oldest that does not read its response. Probes send their request
at once, are answered in the same turn of the reactor, and are counted apart from other pages, so
they always get a connection and a response.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from email.utils import formatdate
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import parse_qs, quote, unquote_to_bytes

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from zope.interface import implementer

from yurttunnel.http.evicting_set import EvictingSet
from yurttunnel.http.fields import Fields
from yurttunnel.http.head import RequestHead
from yurttunnel.http.interfaces import ExchangeFailed, IExchange, IRequestHandler
from yurttunnel.http.request_body import BodyTooLarge, read_body
from yurttunnel.http.server import HTTPFactory, ServerSettings
from yurttunnel.http.server_connection import ServerConnection
from yurttunnel.ops.slices import Slices

REQUEST_SECONDS = 15
"""The timeout, in seconds, for a connection to send the head of its request; then for the body;
and then to read the response."""

MAX_AWAITING_REQUEST = 256
"""The maximum number of connections whose request has not arrived. It is more than a listening
socket of Twisted accepts in two turns of the reactor (100 each): a request that is sent at once is
read before so many newer connections can have arrived."""

MAX_IN_PROGRESS = 64
"""The maximum number of connections whose request body is being read, or whose response is being
made or sent: enough for some scrapers, probes and people."""

PAGES_PER_TURN = 4
"""The number of pages made in one turn of the reactor, besides those for probes. After that it is
one page a turn: the metrics of many nodes take some milliseconds."""

PROBES = ("/healthz", "/livez", "/readyz", "/v1/healthz", "/v1/readyz")
"""The pages that are always made at once, where they exist: the probes."""

MAX_LINGERING = 512
"""The maximum number of connections that have their response and that the client has not closed;
those of pages other than probes also count above. Beyond it the oldest is closed, which loses
nothing that the kernel has accepted: all of a small response."""

MAX_BODY_BYTES = 16 * 1024
"""The maximum size of a request body."""

_SETTINGS = ServerSettings(
    head_timeout=REQUEST_SECONDS,
    idle_timeout=REQUEST_SECONDS,
    body_timeout=REQUEST_SECONDS,
    # Bodies have no such timeout here; the time for a request is limited as a whole.
    min_body_bytes=MAX_BODY_BYTES + 1,
    linger=REQUEST_SECONDS,
    # The number of connections is limited in each state.
    max_connections=sys.maxsize,
    # Pipelined requests would all be answered in one turn of the reactor.
    single_request=True,
)

_DEFAULT_FIELDS = {
    b"Cache-Control": b"no-store",
    b"X-Content-Type-Options": b"nosniff",
    b"Content-Security-Policy": b"default-src 'none'",
    b"Server": b"yurttunnel",
}

TEXT = b"text/plain; charset=utf-8"


class PageRequest(NamedTuple):
    """A request for a page; each segment of ``path`` is quoted as by ``quote``."""

    head: RequestHead
    path: str
    query: str
    body: bytes
    transport: Any

    @property
    def parameters(self) -> dict[str, list[str]]:
        """The parameters of the query, by name."""
        return parse_qs(self.query, keep_blank_values=True, errors="backslashreplace")


class PageResponse(NamedTuple):
    """The response of a page.

    A ``body`` in pieces is made in slices, encoded as UTF-8. ``fields`` are added to the header
    fields that all responses have, or replace them.
    """

    content_type: bytes
    body: bytes | Iterable[str]
    status: int = 200
    fields: Fields = ()


class PageRefused(Exception):
    """Raised by a page to respond with an error: ``status``, and the message as a line of text."""

    def __init__(self, sentence: str, status: int = 400) -> None:
        super().__init__(sentence)
        self.status = status


AnyPage: TypeAlias = Callable[[PageRequest], PageResponse | Awaitable[PageResponse]]
"""Makes the response to a request with any method; may raise :class:`PageRefused`."""

Pages = Mapping[str, AnyPage]
"""Pages by path; a path that ends with ``/*`` matches all paths below it that have no page."""


def text(body: str, status: int = 200, fields: Fields = ()) -> PageResponse:
    """Return a plain-text response; ``body`` may contain names of files that are not UTF-8."""
    return PageResponse(TEXT, body.encode("utf-8", "backslashreplace"), status, fields)


def not_found(request: PageRequest) -> PageResponse:
    """Return a 404 response that names the index of the pages."""
    return text("no such page; / lists those that exist\n", 404)


def allowed_methods(methods: Iterable[bytes]) -> tuple[str, Fields]:
    """Return the message and the header field of a 405 response that allows ``methods``."""
    allowed = b", ".join(methods)
    return f"only {allowed.decode()} are allowed here", ((b"Allow", allowed),)


def with_access_control(
    pages: Pages, refusal: Callable[[PageRequest], str | None]
) -> dict[str, AnyPage]:
    """Return ``pages`` with access control.

    ``refusal(request)`` returns the reason, in one line, why a request is refused, or ``None``.
    """

    def guard(page: AnyPage) -> AnyPage:
        def response(request: PageRequest) -> PageResponse | Awaitable[PageResponse]:
            refused = refusal(request)
            return page(request) if refused is None else text(f"{refused}\n", 403)

        return response

    return {path: guard(page) for path, page in pages.items()}


@implementer(IRequestHandler)
class LimitedSite(HTTPFactory):
    """An HTTP server for ``pages``, with limits and without an access log; timed by ``clock``.

    At most ``max_awaiting_request`` connections may be before the end of a request's head, and
    ``max_in_progress`` after it. With ``only_probes`` all pages are made at once. When the port
    stops listening, open connections are still served until :meth:`close`.
    """

    _log = Logger()

    def __init__(
        self,
        pages: Pages,
        clock: IReactorTime,
        max_awaiting_request: int = MAX_AWAITING_REQUEST,
        max_in_progress: int = MAX_IN_PROGRESS,
        *,
        only_probes: bool = False,
    ) -> None:
        super().__init__(clock, self, replace(_SETTINGS, max_unread_heads=max_awaiting_request))
        self.closing = EvictingSet(
            MAX_LINGERING, lambda connection: connection.transport.loseConnection()
        )
        self.pages: Pages = {"/*": not_found, **pages}
        # The longest prefix first; a path may have thousands of segments, so they are not tried.
        below = (path for path in self.pages if path.endswith("/*"))
        self._prefixes = sorted(below, key=len, reverse=True)
        self.only_probes = only_probes
        self.slices = Slices(clock)
        self.in_progress: EvictingSet[Any] = EvictingSet(
            max_in_progress, lambda transport: transport.abortConnection()
        )
        """The transports of connections that have sent the head of a request."""
        # Pages made in this turn of the reactor; PAGES_PER_TURN after a page that had to wait.
        self._made_this_turn = 0
        self._queue: deque[tuple[object, Callable[[], object]]] = deque()

    def request_received(self, exchange: IExchange) -> None:
        path, _, query = exchange.head.target.decode("ascii").partition("?")
        if exchange.head.method == b"CONNECT" or not path.startswith("/"):
            exchange.refuse(400, "the target of a request is a path: it begins with /")
            return
        path = "/".join(quote(unquote_to_bytes(segment), safe="") for segment in path.split("/"))
        _ = Deferred.fromCoroutine(self._handle(exchange, path, query))

    def forget(self, connection: ServerConnection) -> None:
        super().forget(connection)
        self.in_progress.discard(connection.transport)

    async def _handle(self, exchange: IExchange, path: str, query: str) -> None:
        transport = exchange.transport
        is_probe = self.only_probes or path in PROBES
        if exchange.has_body or not is_probe:
            self.in_progress.add(transport)
        try:
            body = await read_body(exchange, MAX_BODY_BYTES)
        except BodyTooLarge as error:
            exchange.refuse(error.status, str(error))
            return
        except ExchangeFailed:
            return
        request = PageRequest(exchange.head, path, query, body, transport)
        if is_probe:
            self.in_progress.discard(transport)
            await self._respond(exchange, request)
        else:
            self._run_or_queue(
                transport, lambda: Deferred.fromCoroutine(self._respond(exchange, request))
            )

    async def _respond(self, exchange: IExchange, request: PageRequest) -> None:
        try:
            response = self._page_at(request.path)(request)
            if not isinstance(response, PageResponse):
                response = await response
            body = await self._joined(exchange, response.body)
        except PageRefused as error:
            body = f"{error}\n".encode("utf-8", "backslashreplace")
            response = PageResponse(TEXT, body, error.status)
        except Exception:
            # Whatever the error, the client gets a response, and the log the traceback.
            self._log.failure("The request for {path!r} failed", path=request.path)
            body = b"the page could not be made: the log has the reason\n"
            response = PageResponse(TEXT, body, 500)
        fields = {
            b"Content-Type": response.content_type,
            b"Date": formatdate(usegmt=True).encode(),
            **_DEFAULT_FIELDS,
            **dict(response.fields),
        }
        exchange.respond(response.status, [*fields.items()], body)

    def _page_at(self, path: str) -> AnyPage:
        if path not in self.pages:
            path = next(below for below in self._prefixes if path.startswith(below[:-1]))
        return self.pages[path]

    async def _joined(self, exchange: IExchange, body: bytes | Iterable[str]) -> bytes:
        """Return all of ``body``; its pieces are made while the client waits."""
        if isinstance(body, bytes):
            return body
        joining = self.slices.join(body)
        exchange.on_end(lambda _: joining.cancel())
        try:
            return await joining
        except CancelledError:
            # The client has disconnected.
            return b""

    def _run_or_queue(self, transport: object, response: Callable[[], object]) -> None:
        """Call ``response()`` now, or in a later turn if ``transport`` is then still connected."""
        if self._made_this_turn == PAGES_PER_TURN:
            self._queue.append((transport, response))
            return
        if not self._made_this_turn:
            self.clock.callLater(0, self._next_turn)
        self._made_this_turn += 1
        response()

    def _next_turn(self) -> None:
        self._made_this_turn = 0
        while self._queue and not self._made_this_turn:
            transport, response = self._queue.popleft()
            if transport in self.in_progress:
                self._made_this_turn = PAGES_PER_TURN
                self.clock.callLater(0, self._next_turn)
                response()
