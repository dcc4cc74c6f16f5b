"""The HTTP CONNECT front end (RFC 9110 section 9.3.6): what kube-apiserver and curl dial.

The agent is chosen by ``X-Tunnel-Proxy-Host`` when the caller sends it, else by the host of the
target. The answer is 200 only after the far end has connected; every failure before has a status
of its own and a sentence (``yurttunnel.http.errors``).

Not one byte of the target may follow the 200 in the same read of the caller: kube-apiserver then
gives up the connection (``tunnelHTTPConnect`` in k8s.io/apiserver pkg/server/egressselector). The
stream is therefore attached, and so begins to deliver, only when that cannot happen:

- on a Unix socket after the caller has read the 200, which the kernel knows of such sockets. It is
  looked at when the caller sends something, as callers do that speak first, and now and then;
- over TLS after the 200 is in a record of its own, since a read gives no more than one record;
- over plain TCP after the 200 has been handed to the kernel. Nobody learns when a caller reads from
  a TCP socket, so a caller that is slow may find the target's first bytes behind the 200.

A pull producer is how a Twisted transport tells that something is with the kernel: it asks for more
each time all that was written has gone out. That costs no turn of the reactor.

The sentence of a failure is in the status line, too, the only part that kube-apiserver shows; one
about a head that is refused is not, as it quotes the caller.

A caller that ends its sending direction behind its head, as ``nc -N`` does, still waits for its
answer; one that has closed both directions has left, and its dial is canceled. Only a Unix socket
tells the two apart. Over TCP the dial goes on, within its timeout, and writing the answer shows
that nobody reads it.

Over TLS nobody has said who it is before the handshake is done. Until then connections count
apart, the oldest one makes room for the next, and neither the log nor the audit log has a line for
each.
"""

from __future__ import annotations

import enum
from typing import Any, cast

from OpenSSL import SSL
from twisted.internet.address import UNIXAddress
from twisted.internet.interfaces import (
    IAddress,
    IDelayedCall,
    IHandshakeListener,
    IPullProducer,
    IReactorTime,
    ISSLTransport,
    ITransport,
)
from twisted.internet.protocol import connectionDone
from twisted.python.failure import Failure
from zope.interface import implementer

from yurttunnel.http.authority import BadAuthority, split_authority, strip_port
from yurttunnel.http.connection import all_taken, has_hung_up
from yurttunnel.http.crowd import Crowd
from yurttunnel.http.deadlines import Deadlines
from yurttunnel.http.errors import error_response, status_of
from yurttunnel.http.head import HeadError, HeadLimits, RequestHead, RequestHeadReader
from yurttunnel.ops.log import RateLimitedLog
from yurttunnel.ops.log_levels import request_log
from yurttunnel.server.dialing import (
    DIAL_TIMEOUT,
    MAX_PENDING_DIALS,
    DialingConnection,
    DialingFactory,
    ITakesCallers,
)
from yurttunnel.server.quoting import quotable
from yurttunnel.server.refused_peers import RefusedPeers
from yurttunnel.server.registry import INodeSession, NodeNotConnected, SessionRegistry
from yurttunnel.server.request_ids import RequestIds
from yurttunnel.tunnel.direct.transport import SocketTransport
from yurttunnel.tunnel.errors import StreamFailed
from yurttunnel.tunnel.interfaces import IStream
from yurttunnel.tunnel.shares import Kind
from yurttunnel.wire.codes import Code

HEAD_TIMEOUT = 10.0
"""Seconds from the connection to its complete head, a TLS handshake included; the read timeout of
yurttunnel 1.2."""

LINGER = 5.0
"""Seconds that a caller has to take an answer and close, before its connection is aborted."""

STALL_TIMEOUT = 75.0
"""Seconds beyond ``LINGER`` that a caller over TLS has to take the last of its stream, as on the
ports for requests."""

MAX_UNREAD_HEADS = 1024
"""Connections of one listener that may be without a complete head at a time; over TLS those that
are through the handshake."""

MAX_HANDSHAKES = 1024
"""TLS handshakes of one listener at a time."""

_FIRST_LOOK, _LAST_LOOK = 0.001, 2.048
"""Seconds until it is looked again whether a caller has read its 200; each time twice as many. A
caller that has not read it after the last, 4 s in all, is one that will not notice."""

_ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"


class _State(enum.Enum):
    """Where a connection stands; a lost one is ``lost`` in any of them."""

    HEAD = enum.auto()
    """The head is being read."""
    DIALING = enum.auto()
    """The head is read; the far end is being connected."""
    ESTABLISHED = enum.auto()
    """The 200 is written and is on its way to the caller; the stream waits."""
    JOINED = enum.auto()
    """Bytes go through."""
    REFUSED = enum.auto()
    """The caller has its error answer; what it still sends is dropped."""


class ConnectFactory(DialingFactory):
    """Accepts CONNECT requests on any stream transport: TCP, Unix socket, TLS.

    ``limits`` bounds the head, ``head_timeout`` is the time in seconds that it may take and
    ``max_unread_heads`` how many may be incomplete at a time. So many TLS handshakes as
    ``max_handshakes`` may be under way besides. ``linger`` is the time in seconds that a caller
    has to take an error answer, or to end TLS, and ``stall_timeout`` what it has beyond that to
    take the last of its stream. The rest is as in :class:`DialingFactory`.
    """

    kind = Kind.CONNECT

    def __init__(
        self,
        clock: IReactorTime,
        registry: SessionRegistry,
        *,
        limits: HeadLimits | None = None,
        head_timeout: float = HEAD_TIMEOUT,
        max_unread_heads: int = MAX_UNREAD_HEADS,
        max_handshakes: int = MAX_HANDSHAKES,
        linger: float = LINGER,
        stall_timeout: float = STALL_TIMEOUT,
        dial_timeout: float = DIAL_TIMEOUT,
        max_pending_dials: int = MAX_PENDING_DIALS,
        request_ids: RequestIds | None = None,
    ) -> None:
        super().__init__(
            registry,
            dial_timeout=dial_timeout,
            max_pending_dials=max_pending_dials,
            request_ids=request_ids,
        )
        self.clock = clock
        self.limits = limits or HeadLimits()
        self.head_timeout = head_timeout
        self.max_unread_heads = max_unread_heads
        self.max_handshakes = max_handshakes
        self.refused_peers = RefusedPeers(clock, ConnectProtocol.log)
        self.warnings = RateLimitedLog(clock, ConnectProtocol.log)
        self.unread_heads = Deadlines(clock, head_timeout, ConnectProtocol.head_overdue)
        self.handshakes = Crowd(max_handshakes, ConnectProtocol.crowded_out)
        """Those of ``unread_heads`` that are in their TLS handshake."""
        self.closing = Deadlines(clock, linger, ConnectProtocol.close_overdue)
        self.stalled = Deadlines(clock, stall_timeout, ConnectProtocol.abort)

    def buildProtocol(self, addr: IAddress | None) -> ConnectProtocol:
        """Make the protocol of one caller."""
        return ConnectProtocol(self)

    def close(self) -> None:
        """Abort every connection and stop the timers."""
        super().close()
        for deadlines in (self.unread_heads, self.closing, self.stalled):
            deadlines.stop()

    def has_too_many_heads(self) -> bool:
        """Tell whether one more head would be too many."""
        return len(self.unread_heads) - len(self.handshakes) > self.max_unread_heads


@implementer(IPullProducer, IHandshakeListener)
class ConnectProtocol(DialingConnection):
    """One caller: reads its CONNECT, answers, and joins it to its stream."""

    handshaken = False
    """TLS is there, or there is none."""

    def __init__(self, factory: ConnectFactory) -> None:
        super().__init__(factory)
        self._factory = factory
        self._state = _State.HEAD
        self._reader = RequestHeadReader(factory.limits)
        # All that has been read, while the head is.
        self._received = b""
        self._head: RequestHead | None = None
        self._destination = ""
        self._early = b""
        self._opened: IStream | None = None
        self._answer_written = False
        self._secure = False
        self._join_call: IDelayedCall | None = None

    def makeConnection(self, transport: ITransport) -> None:
        """Begin; a TLS transport is given the half-close that it lacks."""
        if ISSLTransport.providedBy(transport):
            # Its users can end one direction, and then it closes both.
            self._secure = True
            transport = cast(ITransport, _ClosesWhole(transport, self))
        super().makeConnection(transport)

    def connectionMade(self) -> None:
        """Expect a head, over TLS after the handshake; the time for both begins."""
        super().connectionMade()
        self._factory.unread_heads.add(self)
        if self._secure:
            self._factory.handshakes.begin(self)
        else:
            self._begin()

    def handshakeCompleted(self) -> None:
        """TLS is there: from now on the caller counts, and it is told what becomes of it."""
        self._factory.handshakes.end(self)
        self._begin()

    def _begin(self) -> None:
        self.handshaken = True
        if self._factory.has_too_many_heads():
            self._refuse(503, "too many connections wait for their request; try again later")

    def dataReceived(self, data: bytes) -> None:
        """Take bytes of the head, or bytes that the caller sends ahead of the answer."""
        if self._state is _State.HEAD:
            self._received += data
            self._read_head(data)
        elif self._state is not _State.REFUSED:
            self._early += data
            if self._waits_for_caller() and all_taken(self.transport):
                self._cancel_join()
                self._join_opened()
            else:
                # At most what the transport has read already comes after the pause.
                self.transport.pauseProducing()

    def readConnectionLost(self) -> None:
        """See :class:`LocalConnection`; between the head and the join it says nothing by itself.

        Joining and refusing start the reading again, and the end is then read a second time.
        """
        if self._state is _State.ESTABLISHED:
            return
        if self._state is _State.DIALING and not has_hung_up(self.transport):
            return
        super().readConnectionLost()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """Let go of whatever waits for this caller."""
        factory = self._factory
        if not self.handshaken and reason.check(SSL.Error):
            factory.refused_peers.warn(
                "a caller from {address} is refused", reason, address=self._address()
            )
        self._forget_head()
        factory.closing.discard(self)
        factory.stalled.discard(self)
        self._cancel_join()
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.abort(Code.CANCELLED, "the caller left before the answer was sent")
        super().connectionLost(reason)

    def drain(self) -> None:
        """End now if nothing of a request has come; who has begun with one is answered."""
        if self._state is _State.HEAD and not self._received:
            self.abort()

    def crowded_out(self) -> None:
        """Make room for a caller that is newer."""
        self._factory.warnings.warn(
            "a caller from {address} is cut off: {max_handshakes} newer ones have not finished"
            " their TLS handshake either; see who holds them (ss -tn), and filter addresses in"
            " front of --connect-endpoint",
            address=self._address(),
            max_handshakes=self._factory.max_handshakes,
        )
        self._give_up()

    def head_overdue(self) -> None:
        """Turn away a caller that has not sent its head in time; a stranger is told nothing."""
        if self.handshaken:
            self._refuse(408, "the request head did not arrive in time")
            return
        self._factory.warnings.warn(
            "a caller from {address} is cut off: its TLS handshake was not done within"
            " {seconds:g} s",
            address=self._address(),
            seconds=self._factory.head_timeout,
        )
        self._give_up()

    def bound_closing(self) -> None:
        """Give the caller limited time to close its side, unless it has closed already."""
        if not self.lost and self not in self._factory.closing:
            self._factory.closing.add(self)

    def close_overdue(self) -> None:
        """End a connection that the caller does not close.

        One that is slow to take the last of its stream has a little longer.
        """
        if self._state is _State.JOINED and not all_taken(self.transport):
            self._factory.stalled.add(self)
        else:
            self.abort()

    def abort(self) -> None:
        """Reset the connection."""
        self.transport.abortConnection()

    def passed_on(self, session: INodeSession) -> bool:
        """Pass the socket on where it is one of ours, and not one under TLS."""
        taker = ITakesCallers(session, None)
        transport = self.transport
        if taker is None or not isinstance(transport, SocketTransport):
            return False
        if not taker.take_caller(transport.getHandle(), self._received, self._factory.flag):
            return False
        transport.release().close()
        self._factory.forget(self)
        return True

    def stream_opened(self, stream: IStream) -> None:
        """Answer 200, and join once nothing else can be sent along with it."""
        self._state = _State.ESTABLISHED
        self._opened = stream
        if self._entry is not None:
            self._entry.status = 200
        if self._secure:
            # TLS transports collect what is written in one turn into one record.
            self.transport.write(_ESTABLISHED)
            self._join_call = self._factory.clock.callLater(0, self._join_opened)
        else:
            self.transport.registerProducer(self, False)

    def resumeProducing(self) -> None:
        """Write the 200 when asked first; when asked again it has gone to the kernel."""
        if not self._answer_written:
            self._answer_written = True
            self.transport.write(_ESTABLISHED)
            return
        self.transport.unregisterProducer()
        if isinstance(self.transport.getHost(), UNIXAddress):
            self._join_when_read(_FIRST_LOOK)
        else:
            self._join_opened()

    def stopProducing(self) -> None:
        """Do nothing: ``connectionLost`` follows and lets go of the stream."""

    def dial_failed(self, error: BaseException) -> None:
        """Answer with the status and the sentence of the failure."""
        if isinstance(error, StreamFailed):
            self._refuse(status_of(error.code), error.text)
        elif isinstance(error, NodeNotConnected):
            self._refuse(error.status, str(error))
        else:
            text = f"the server has a defect; the log of the server has more, as {self.request_id}"
            self._refuse(500, text)

    def _read_head(self, data: bytes) -> None:
        reader = self._reader
        try:
            head = reader.feed(data)
            if head is None:
                return
            self._head = head
            self._destination = head.target.decode("ascii", "backslashreplace")
            _check_is_plain_connect(head)
            host, port = _authority(self._destination)
            node = _asked_node(head) or host
        except HeadError as error:
            # These texts quote what nobody has looked through.
            self._refuse(error.status, error.text, in_status_line=False)
            return
        factory = self._factory
        self._forget_head()
        self._state = _State.DIALING
        self.request_id = factory.request_ids.taken_over(head.values(b"x-request-id"))
        if reader.early:
            self._early = reader.early
            self.transport.pauseProducing()
        self.dial(node, host, port)
        self._received = b""

    def _forget_head(self) -> None:
        """Wait for the head, and for the handshake before it, no longer."""
        self._factory.unread_heads.discard(self)
        self._factory.handshakes.end(self)

    def _give_up(self) -> None:
        self._forget_head()
        self.abort()

    def _address(self) -> str:
        return getattr(self.transport.getPeer(), "host", "an unknown address")

    def _join_when_read(self, delay: float) -> None:
        """Join if the caller has read the 200, else look again in ``delay`` seconds."""
        if delay > _LAST_LOOK or all_taken(self.transport):
            self._join_opened()
        else:
            later = self._factory.clock.callLater
            self._join_call = later(delay, self._join_when_read, 2 * delay)

    def _waits_for_caller(self) -> bool:
        """Whether the 200 is with the kernel, and only the caller has to read it."""
        return self._join_call is not None and not self._secure

    def _cancel_join(self) -> None:
        if self._join_call is not None:
            self._join_call.cancel()
            self._join_call = None

    def _join_opened(self) -> None:
        self._join_call = None
        stream, self._opened = self._opened, None
        assert stream is not None
        self._state = _State.JOINED
        early, self._early = self._early, b""
        self.join(stream, early)

    def _refuse(self, status: int, text: str, in_status_line: bool = True) -> None:
        """Answer with an error, and close once the caller has it.

        Closing at once would reset the connection of a caller that still sends, and the reset
        can overtake the answer. So only our direction ends, and the caller's is read to its end.
        """
        request_log.info(
            "CONNECT {destination} ({request_id}) answered {status}: {text}",
            destination=quotable(self._destination),
            node=self.node,
            request_id=self.request_id,
            status=status,
            text=quotable(text),
        )
        self.refused(text, status)
        self._forget_head()
        factory = self._factory
        if len(factory.closing) >= factory.max_unread_heads:
            self.transport.abortConnection()
            return
        factory.closing.add(self)
        headers = [("Allow", "CONNECT")] if status == 405 else []
        answer = error_response(
            status, text, self._head, headers=headers, in_status_line=in_status_line
        )
        self.transport.write(answer)
        self._early = b""
        self._state = _State.REFUSED
        # It has been paused, perhaps, or its end has been read; that is now wanted.
        self.transport.resumeProducing()
        self.transport.loseWriteConnection()


class _ClosesWhole:
    """A TLS transport that closes where it is asked to end its sending direction.

    Twisted passes ``loseWriteConnection`` on to the TCP socket below TLS, which destroys data.
    A ``close_notify`` tells the caller the same, but then the connection waits for the caller
    to close, too; ``closing`` bounds that.
    """

    def __init__(self, transport: ITransport, protocol: ConnectProtocol) -> None:
        self._transport = transport
        self._protocol = protocol

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def loseWriteConnection(self) -> None:
        self._protocol.bound_closing()
        self._transport.loseConnection()


def _check_is_plain_connect(head: RequestHead) -> None:
    if head.method != b"CONNECT":
        raise HeadError(405, "only CONNECT requests are served here")
    if head.values(b"expect"):
        raise HeadError(417, "a CONNECT request cannot expect anything")
    if head.values(b"transfer-encoding") or head.values(b"content-length") not in ([], [b"0"]):
        raise HeadError(400, "a CONNECT request has no body")


def _authority(text: str) -> tuple[str, int]:
    try:
        return split_authority(text)
    except BadAuthority as error:
        raise HeadError(400, f"bad destination: {error}") from None


def _asked_node(head: RequestHead) -> str | None:
    """Give the host of ``X-Tunnel-Proxy-Host`` if any, with which yurttunnel 1.2 chooses, too."""
    values = head.values(b"x-tunnel-proxy-host")
    if len(values) > 1:
        raise HeadError(400, "X-Tunnel-Proxy-Host is given more than once")
    if not values or not values[0]:
        return None
    try:
        return strip_port(values[0].decode("ascii", "backslashreplace"))
    except BadAuthority as error:
        raise HeadError(400, f"bad X-Tunnel-Proxy-Host: {error}") from None
