"""``twisted.web`` with the limits that a port for operators needs.

Clients get a fixed time for a request, few connections with one request each, small requests
without bodies, and HTTP/1.1 only. Nobody who holds connections keeps others out: the oldest that
has sent no request makes room for the next one, and so does the oldest that does not take its
answer. A probe sends its request at once, is answered in the same turn, and counts apart from other
pages, so it always gets both. ``twisted.web.server`` is left out: its sessions, templates and
remote objects are of no use here, and take 2.5 MiB of each process.
"""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, cast
from urllib.parse import unquote_to_bytes

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IAddress, IDelayedCall, IReactorTime, ITCPTransport
from twisted.internet.protocol import ServerFactory, connectionDone
from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.web import http
from twisted.web.resource import Resource, getChildForRequest

from yurttunnel.http.evicting_set import EvictingSet
from yurttunnel.ops.slices import Slices

REQUEST_SECONDS = 15
"""How long a connection may take to send its request completely, and then to read the answer."""

MAX_UNASKED = 256
"""Connections at a time whose request is not complete. More than a listening socket of Twisted's
accepts in two turns of the reactor (100 each): whoever sends at once is read before that many newer
ones can have come."""

MAX_ASKED = 64
"""Connections at a time whose answer is being made or taken: some scrapers, probes and people."""

AT_ONCE = 4
"""Pages that are made in one turn of the reactor, beside those for probes; further ones are made
one in a turn: the metrics of many nodes take some milliseconds."""

PROBES = (b"/healthz", b"/livez", b"/readyz", b"/v1/healthz", b"/v1/readyz")
"""The pages that are always made at once, wherever they are there."""

MAX_PROBES = 512
"""Connections at a time that have been given one of them. It is sent in the next turn of the
reactor at the latest, before which so many others cannot have asked."""

MAX_BODY_BYTES = 16 * 1024
"""What a client may send as a body."""

ANSWERED_LATER = 1
"""What a page's ``render`` gives when it will write the answer itself, and finish the request."""


class PageRequest(http.Request):
    """A request for one of the pages.

    ``prepath`` and ``postpath`` are the decoded segments of its path before and after the page
    at which the search has arrived.
    """

    _log = Logger()
    _body: io.BytesIO
    _body_bytes = 0

    def gotLength(self, length: int | None) -> None:
        """Provide an empty body; twisted.web would make a file on disk for a large one."""
        self.content = self._body = io.BytesIO()

    @property
    def body(self) -> bytes:
        """What the client has sent as a body, whole."""
        return self._body.getvalue()

    def handleContentChunk(self, data: bytes) -> None:
        """Keep ``data``; end the connection when there is too much of it."""
        before = self._body_bytes
        self._body_bytes += len(data)
        if before <= MAX_BODY_BYTES < self._body_bytes:
            self.channel.write(
                b"HTTP/1.1 413 Content Too Large\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
            )
            self.channel.loseConnection()
        elif self._body_bytes <= MAX_BODY_BYTES:
            self._body.write(data)

    def process(self) -> None:
        """Find the page, and answer with what it gives."""
        if self._body_bytes > MAX_BODY_BYTES:
            # It has been answered.
            return
        channel = cast(_LimitedChannel, self.channel)
        site = channel.factory
        if site.serves_probes_alone or self.path in PROBES:
            channel.asked(site.probes)
            self._answer()
        else:
            channel.asked(site.asked)
            site.answer(channel, self._answer)

    def answer_in_slices(self, pieces: Iterable[str]) -> int:
        """Answer with ``pieces`` as UTF-8, which are made while the client waits for them.

        A page's ``render`` returns what this gives.
        """
        making = cast(_LimitedChannel, self.channel).factory.slices.join(pieces)
        _ = Deferred.fromCoroutine(self._answer_with(making))
        return ANSWERED_LATER

    async def _answer_with(self, making: Deferred[bytes]) -> None:
        gone = self.notifyFinish()
        _ = gone.addErrback(lambda _: making.cancel())
        try:
            body = await making
        except CancelledError:
            return
        except Exception:
            body = self._not_made()
        self._send(body)

    def _answer(self) -> None:
        self.prepath: list[bytes] = []
        self.postpath = [unquote_to_bytes(segment) for segment in self.path[1:].split(b"/")]
        self.setHeader(b"date", http.datetimeToString())
        try:
            body = self._rendered()
        except Exception:
            body = self._not_made()
        if body is not ANSWERED_LATER:
            self._send(body)

    def _rendered(self) -> Any:
        """Return what the page gives, or a refusal of what is no path but would be cut to one."""
        if self.path.startswith(b"/"):
            return getChildForRequest(self.channel.factory.root, self).render(self)
        self.setResponseCode(http.BAD_REQUEST)
        self.setHeader(b"content-type", b"text/plain; charset=utf-8")
        return b"the target of a request is a path: it begins with /\n"

    def _not_made(self) -> bytes:
        # Whatever it is, the client waits for an answer; the log has it.
        self._log.failure("{path!r} could not be answered", path=self.path)
        self.setResponseCode(http.INTERNAL_SERVER_ERROR)
        self.setHeader(b"content-type", b"text/plain; charset=utf-8")
        return b"the page could not be made: the log says why\n"

    def _send(self, body: bytes) -> None:
        self.setHeader(b"content-length", b"%d" % len(body))
        # For HEAD it sends the header fields alone.
        self.write(body)
        self.finish()


class _LimitedChannel(http.HTTPChannel):
    """HTTP/1.1 with one request, and a fixed time for it instead of an idle timeout.

    The limit of 16 KiB for the head is the one of twisted.web.
    """

    requestFactory = PageRequest
    timeOut = REQUEST_SECONDS
    maxHeaders = 100
    # After the time is over: how long the rest of an answer may take to be sent.
    abortTimeout = 15

    factory: LimitedSite

    def connectionMade(self) -> None:
        super().connectionMade()
        self.factory.unasked.begin(self)

    def asked(self, those: EvictingSet[_LimitedChannel]) -> None:
        """Have sent a whole request, and be one of ``those`` who wait for their answer."""
        self.factory.unasked.end(self)
        those.begin(self)

    def evicted(self) -> None:
        """Make room for a connection that is newer."""
        cast(ITCPTransport, self.transport).abortConnection()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        site = self.factory
        for those in (site.unasked, site.asked, site.probes):
            those.end(self)
        super().connectionLost(reason)

    def callLater(self, period: float, func: Callable[[], object]) -> IDelayedCall:
        """Have time limits run by the site's clock."""
        return self.factory.clock.callLater(period, func)

    def resetTimeout(self) -> None:
        """Leave the deadline where it is: a byte now and then buys no more time."""

    def checkPersistence(self, request: http.Request, version: bytes) -> bool:
        """End the connection after one request.

        Whoever sent many at once would have all of them answered in one turn of the reactor.
        """
        request.responseHeaders.setRawHeaders(b"connection", [b"close"])
        return False

    def requestDone(self, request: http.Request) -> None:
        """Wait for the client to read the answer; twisted.web would wait for ever."""
        super().requestDone(request)
        self.setTimeout(REQUEST_SECONDS)


class LimitedSite(ServerFactory):
    """The pages below ``root``, with limits and without an access log, by the time of ``clock``.

    Each page answers whatever method it is asked by: its ``render`` gives the body, or
    :data:`ANSWERED_LATER`. At most ``max_unasked`` connections are before the end of their
    request, and ``max_asked`` after it. With ``serves_probes_alone`` all pages are made at once.
    """

    noisy = False

    def __init__(
        self,
        root: Resource,
        clock: IReactorTime,
        max_unasked: int = MAX_UNASKED,
        max_asked: int = MAX_ASKED,
        *,
        serves_probes_alone: bool = False,
    ) -> None:
        self.root = root
        self.serves_probes_alone = serves_probes_alone
        self.clock = clock
        self.slices = Slices(clock)
        self.unasked = EvictingSet(max_unasked, _LimitedChannel.evicted)
        self.asked = EvictingSet(max_asked, _LimitedChannel.evicted)
        self.probes = EvictingSet(MAX_PROBES, _LimitedChannel.evicted)
        # In this turn of the reactor; AT_ONCE once one has been made that had to wait for it.
        self._made = 0
        self._turns: deque[tuple[_LimitedChannel, Callable[[], object]]] = deque()

    def buildProtocol(self, addr: IAddress | None) -> Any:
        channel = _LimitedChannel()
        channel.factory = self
        return channel

    def answer(self, channel: _LimitedChannel, answer: Callable[[], object]) -> None:
        """Have ``answer()`` called, now or in a turn of its own if ``channel`` is there then."""
        if self._made == AT_ONCE:
            self._turns.append((channel, answer))
            return
        if not self._made:
            self.clock.callLater(0, self._next_turn)
        self._made += 1
        answer()

    def _next_turn(self) -> None:
        self._made = 0
        while self._turns and not self._made:
            channel, answer = self._turns.popleft()
            if channel in self.asked:
                self._made = AT_ONCE
                self.clock.callLater(0, self._next_turn)
                answer()

    def log(self, request: http.Request) -> None:
        """Write no access log: scrapes and probes every few seconds would bury what matters."""
