"""Pages for operators, served with the limits that a port for them needs.

Clients get a fixed time for a request, few connections with one request each, and small requests.
Nobody who holds connections keeps others out: the oldest that has sent no request makes room for
the next one, and so does the oldest that does not take its answer. A probe sends its request at
once, is answered in the same turn, and counts apart from other pages, so it always gets both.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from email.utils import formatdate
from typing import Any, TypeAlias
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
"""How long a connection may take to send the head of its request, then its body, and then to read
the answer."""

MAX_UNASKED = 256
"""Connections at a time whose request has not come. More than a listening socket of Twisted's
accepts in two turns of the reactor (100 each): whoever sends at once is read before that many newer
ones can have come."""

MAX_ASKED = 64
"""Connections at a time whose request has a body that is being read, or whose answer is being made
or taken: some scrapers, probes and people."""

AT_ONCE = 4
"""Pages that are made in one turn of the reactor, beside those for probes; further ones are made
one in a turn: the metrics of many nodes take some milliseconds."""

PROBES = ("/healthz", "/livez", "/readyz", "/v1/healthz", "/v1/readyz")
"""The pages that are always made at once, wherever they are there."""

MAX_ANSWERED = 512
"""Connections at a time that have their answer, and whose client has not closed them yet; those of
pages that are no probes count above, too. Beyond that the oldest is closed, which loses nothing
that the kernel has taken: all of a small answer."""

MAX_BODY_BYTES = 16 * 1024
"""What a client may send as a body."""

_SETTINGS = ServerSettings(
    head_timeout=REQUEST_SECONDS,
    idle_timeout=REQUEST_SECONDS,
    body_timeout=REQUEST_SECONDS,
    # There is no such body: it has its time once.
    min_body_bytes=MAX_BODY_BYTES + 1,
    linger=REQUEST_SECONDS,
    # Each is in a state that is bounded.
    max_connections=sys.maxsize,
    # Whoever sent many requests at once would have all of them answered in one turn.
    single_request=True,
)

_USUAL_FIELDS = {
    b"Cache-Control": b"no-store",
    b"X-Content-Type-Options": b"nosniff",
    b"Content-Security-Policy": b"default-src 'none'",
    b"Server": b"yurttunnel",
}

TEXT = b"text/plain; charset=utf-8"


@dataclass(frozen=True, slots=True)
class PageRequest:
    """A request for one of the pages; of ``path`` each segment is spelled as ``quote`` does it."""

    head: RequestHead
    path: str
    query: str
    body: bytes
    transport: Any

    @property
    def parameters(self) -> dict[str, list[str]]:
        """What stands behind "?", by name."""
        return parse_qs(self.query, keep_blank_values=True, errors="backslashreplace")


@dataclass(frozen=True, slots=True)
class Answer:
    """What a page answers with.

    A ``body`` in pieces is made in slices, as UTF-8. ``fields`` are further ones, or replace what
    all answers have.
    """

    content_type: bytes
    body: bytes | Iterable[str]
    status: int = 200
    fields: Fields = ()


AnyPage: TypeAlias = Callable[[PageRequest], Answer | Awaitable[Answer]]
"""Answers whatever method it is asked by."""

Pages = Mapping[str, AnyPage]
"""Pages by their paths; one whose path ends with ``/*`` is for all below that have none."""


def text(body: str, status: int = 200, fields: Fields = ()) -> Answer:
    """Answer with text, which may quote what is no UTF-8: names of files."""
    return Answer(TEXT, body.encode("utf-8", "backslashreplace"), status, fields)


def missing(request: PageRequest) -> Answer:
    """Answer that there is no such page, and where to find those that there are."""
    return text("no such page; / lists those that exist\n", 404)


def allowed_methods(methods: Iterable[bytes]) -> tuple[str, Fields]:
    """Return the sentence and the field that answer, with 405, another method than ``methods``."""
    allowed = b", ".join(methods)
    return f"only {allowed.decode()} are answered here", ((b"Allow", allowed),)


def guarded(pages: Pages, refusal: Callable[[PageRequest], str | None]) -> dict[str, AnyPage]:
    """Return ``pages`` for those who may ask.

    ``refusal(request)`` says in one line why somebody may not, ``None`` when he may.
    """

    def guard(page: AnyPage) -> AnyPage:
        def answer(request: PageRequest) -> Answer | Awaitable[Answer]:
            refused = refusal(request)
            return page(request) if refused is None else text(f"{refused}\n", 403)

        return answer

    return {path: guard(page) for path, page in pages.items()}


@implementer(IRequestHandler)
class LimitedSite(HTTPFactory):
    """The ``pages``, with limits and without an access log, by the time of ``clock``.

    At most ``max_unasked`` connections are before the end of a head, and ``max_asked`` after it.
    With ``serves_probes_alone`` all pages are made at once. Connections that there are when nobody
    listens any more are served on, until :meth:`close`.
    """

    _log = Logger()

    def __init__(
        self,
        pages: Pages,
        clock: IReactorTime,
        max_unasked: int = MAX_UNASKED,
        max_asked: int = MAX_ASKED,
        *,
        serves_probes_alone: bool = False,
    ) -> None:
        super().__init__(clock, self, replace(_SETTINGS, max_unread_heads=max_unasked))
        self.closing = EvictingSet(
            MAX_ANSWERED, lambda connection: connection.transport.loseConnection()
        )
        self.pages: Pages = {"/*": missing, **pages}
        # The nearest first; a path may have thousands of segments that it could be looked for at.
        below = (path for path in self.pages if path.endswith("/*"))
        self._below = sorted(below, key=len, reverse=True)
        self.serves_probes_alone = serves_probes_alone
        self.slices = Slices(clock)
        self.asked: EvictingSet[Any] = EvictingSet(
            max_asked, lambda transport: transport.abortConnection()
        )
        """The transports of connections."""
        # In this turn of the reactor; AT_ONCE once one has been made that had to wait for it.
        self._made = 0
        self._turns: deque[tuple[object, Callable[[], object]]] = deque()

    def request_received(self, exchange: IExchange) -> None:
        """See ``IRequestHandler``."""
        path, _, query = exchange.head.target.decode("ascii").partition("?")
        if exchange.head.method == b"CONNECT" or not path.startswith("/"):
            exchange.refuse(400, "the target of a request is a path: it begins with /")
            return
        path = "/".join(quote(unquote_to_bytes(segment), safe="") for segment in path.split("/"))
        _ = Deferred.fromCoroutine(self._take(exchange, path, query))

    def forget(self, connection: ServerConnection) -> None:
        """See ``ConnectionsFactory``."""
        super().forget(connection)
        self.asked.end(connection.transport)

    async def _take(self, exchange: IExchange, path: str, query: str) -> None:
        transport = exchange.transport
        is_probe = self.serves_probes_alone or path in PROBES
        if exchange.has_body or not is_probe:
            self.asked.begin(transport)
        try:
            body = await read_body(exchange, MAX_BODY_BYTES)
        except BodyTooLarge as error:
            exchange.refuse(error.status, str(error))
            return
        except ExchangeFailed:
            return
        request = PageRequest(exchange.head, path, query, body, transport)
        if is_probe:
            self.asked.end(transport)
            await self._answer(exchange, request)
        else:
            self._in_turn(
                transport, lambda: Deferred.fromCoroutine(self._answer(exchange, request))
            )

    async def _answer(self, exchange: IExchange, request: PageRequest) -> None:
        try:
            answer = self._page_at(request.path)(request)
            if not isinstance(answer, Answer):
                answer = await answer
            body = await self._whole(exchange, answer.body)
        except Exception:
            # Whatever it is, the client waits for an answer; the log has it.
            self._log.failure("{path!r} could not be answered", path=request.path)
            body = b"the page could not be made: the log says why\n"
            answer = Answer(TEXT, body, 500)
        fields = {
            b"Content-Type": answer.content_type,
            b"Date": formatdate(usegmt=True).encode(),
            **_USUAL_FIELDS,
            **dict(answer.fields),
        }
        exchange.respond(answer.status, [*fields.items()], body)

    def _page_at(self, path: str) -> AnyPage:
        if path not in self.pages:
            path = next(below for below in self._below if path.startswith(below[:-1]))
        return self.pages[path]

    async def _whole(self, exchange: IExchange, body: bytes | Iterable[str]) -> bytes:
        """Return all of ``body``, whose pieces are made while the client waits for them."""
        if isinstance(body, bytes):
            return body
        making = self.slices.join(body)
        exchange.on_end(lambda _: making.cancel())
        try:
            return await making
        except CancelledError:
            # The client has left.
            return b""

    def _in_turn(self, transport: object, answer: Callable[[], object]) -> None:
        """Have ``answer()`` called, now or in a turn of its own if ``transport`` is there then."""
        if self._made == AT_ONCE:
            self._turns.append((transport, answer))
            return
        if not self._made:
            self.clock.callLater(0, self._next_turn)
        self._made += 1
        answer()

    def _next_turn(self) -> None:
        self._made = 0
        while self._turns and not self._made:
            transport, answer = self._turns.popleft()
            if transport in self.asked:
                self._made = AT_ONCE
                self.clock.callLater(0, self._next_turn)
                answer()
