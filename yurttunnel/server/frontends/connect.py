"""The HTTP CONNECT front end (RFC 9110 section 9.3.6): what kube-apiserver and curl dial.

The agent is chosen by ``X-Tunnel-Proxy-Host`` when the caller sends it, else by the host of the
target. The answer is 200 only after the far end has connected; every failure before has a status
of its own and a sentence (``yurttunnel.http.errors``). Not one byte of the target follows the 200
in the same read of the caller (:mod:`yurttunnel.http.sent_alone`).

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

import sys
from collections.abc import Callable

from OpenSSL import SSL
from twisted.internet.interfaces import IAddress, IReactorTime
from twisted.python.failure import Failure
from zope.interface import implementer

from yurttunnel.http.authority import BadAuthority, split_authority, strip_port
from yurttunnel.http.errors import RequestFailed, status_of
from yurttunnel.http.head import HeadError, HeadLimits, RequestHead
from yurttunnel.http.interfaces import ExchangeFailed, IExchange, IRequestHandler
from yurttunnel.http.server import ConnectionsFactory, ServerSettings
from yurttunnel.http.server_connection import ServerConnection
from yurttunnel.ops.log import RateLimitedLog
from yurttunnel.ops.log_levels import request_log
from yurttunnel.server.frontends.calls import Call, Dialer, DialSettings
from yurttunnel.server.quoting import quotable
from yurttunnel.server.refused_peers import RefusedPeers, address_behind
from yurttunnel.server.registry import NodeNotConnected, SessionRegistry
from yurttunnel.tunnel.errors import StreamFailed
from yurttunnel.tunnel.interfaces import IStream
from yurttunnel.tunnel.relay import LocalConnection
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


class ConnectFactory(Dialer, ConnectionsFactory):
    """Accepts CONNECT requests on any stream transport: TCP, Unix socket, TLS.

    ``limits`` bounds the head, ``head_timeout`` is the time in seconds that it may take and
    ``max_unread_heads`` how many may be incomplete at a time. So many TLS handshakes as
    ``max_handshakes`` may be under way besides. ``linger`` is the time in seconds that a caller
    has to take an error answer, or to end TLS, and ``stall_timeout`` what it has beyond that to
    take the last of its stream. The rest is as in :class:`Dialer`.
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
        dials: DialSettings | None = None,
    ) -> None:
        Dialer.__init__(self, registry, dials)
        settings = ServerSettings(
            limits=limits or HeadLimits(),
            head_timeout=head_timeout,
            idle_timeout=stall_timeout,
            # Who has ended its direction waits for its dial, and that ends before.
            half_closed_timeout=2 * self.dial_timeout,
            linger=linger,
            # Dials and streams are bounded, and those who have not got so far.
            max_connections=sys.maxsize,
            max_unread_heads=max_unread_heads,
            max_handshakes=max_handshakes,
            single_request=True,
        )
        ConnectionsFactory.__init__(self, clock, settings)
        self.refused_peers = RefusedPeers(clock, Call.log)
        self.warnings = RateLimitedLog(clock, Call.log)

    def buildProtocol(self, addr: IAddress | None) -> ServerConnection:
        """Make the protocol of one caller."""
        return ServerConnection(self, ConnectCall(self))

    def refused(
        self, connection: ServerConnection, status: int, text: str, head: RequestHead | None
    ) -> None:
        """Write down that a head is refused, or has not come."""
        super().refused(connection, status, text, head)
        handler = connection.handler
        assert isinstance(handler, ConnectCall)
        handler.refused(connection.transport, status, text, head)

    def handshake_failed(self, connection: ServerConnection, reason: Failure) -> None:
        """Report a caller that TLS has refused."""
        if reason.check(SSL.Error):
            self.refused_peers.warn_of_caller(connection.transport, reason)

    def evicted(self, connection: ServerConnection) -> None:
        """Report a flood."""
        if connection.handshaken:
            self.warnings.warn(
                "a caller from {address} is disconnected: {max_unread_heads} newer ones have not"
                " sent their request either; see who holds them (ss -tn), and filter addresses in"
                " front of --connect-endpoint",
                address=address_behind(connection.transport),
                max_unread_heads=self.settings.max_unread_heads,
            )
            return
        self.warnings.warn(
            "a caller from {address} is disconnected: {max_handshakes} newer ones have not"
            " finished their TLS handshake either; see who holds them (ss -tn), and filter"
            " addresses in front of --connect-endpoint",
            address=address_behind(connection.transport),
            max_handshakes=self.settings.max_handshakes,
        )

    def handshake_overdue(self, connection: ServerConnection) -> None:
        """Report a caller that does not get on."""
        self.warnings.warn(
            "a caller from {address} is disconnected: its TLS handshake took longer than"
            " {seconds:g} s",
            address=address_behind(connection.transport),
            seconds=self.settings.head_timeout,
        )


@implementer(IRequestHandler)
class ConnectCall:
    """One caller: dials what its CONNECT asks for, and answers."""

    _exchange: IExchange

    def __init__(self, factory: ConnectFactory) -> None:
        self._factory = factory
        self._call = Call(factory, self)
        self._call.answered(0)
        # While the 200 goes out.
        self._opened: IStream | None = None

    def request_received(self, exchange: IExchange) -> None:
        """See ``IRequestHandler``."""
        self._exchange = exchange
        head = exchange.head
        try:
            _check_is_plain_connect(head)
            host, port = _authority(head.target.decode("ascii", "backslashreplace"))
            node = _asked_node(head) or host
        except RequestFailed as error:
            # These texts quote what nobody has looked through.
            self._refuse(error.status, error.text, in_status_line=False)
            return
        exchange.on_end(self._exchange_ended)
        call = self._call
        proposed = head.by_name.get(b"x-request-id", ())
        call.request_id = self._factory.request_ids.taken_over(proposed)
        call.dial(exchange.transport, node, host, port)

    def stream_opened(self, stream: IStream) -> None:
        """Answer 200, and join once nothing else can be read along with it."""
        self._opened = stream
        self._exchange.switch(200, b"Connection established", (), _SplicedCaller(self._take_stream))

    def dial_failed(self, error: BaseException) -> None:
        """Answer with the status and the sentence of the failure."""
        if isinstance(error, StreamFailed):
            self._refuse(status_of(error.code), error.text)
        elif isinstance(error, NodeNotConnected):
            self._refuse(error.status, str(error))
        elif isinstance(error, RequestFailed):
            self._refuse(error.status, error.text)
        else:
            request_id = self._call.request_id
            text = f"the server has a defect; the log of the server has more, as {request_id}"
            self._refuse(500, text)

    def refused(self, transport: object, status: int, text: str, head: RequestHead | None) -> None:
        """Write down that the caller is told of an error."""
        destination = "" if head is None else head.target.decode("ascii", "backslashreplace")
        call = self._call
        request_log.info(
            "CONNECT {destination} ({request_id}) answered {status}: {text}",
            destination=quotable(destination),
            node=call.node,
            request_id=call.request_id,
            status=status,
            text=quotable(text),
        )
        call.refused(transport, text, status)

    def _refuse(self, status: int, text: str, in_status_line: bool = True) -> None:
        exchange = self._exchange
        self.refused(exchange.transport, status, text, exchange.head)
        headers = [("Allow", "CONNECT")] if status == 405 else []
        exchange.refuse(status, text, headers, in_status_line)

    def _take_stream(self) -> IStream:
        stream, self._opened = self._opened, None
        assert stream is not None
        self._call.answered(200)
        return stream

    def _exchange_ended(self, error: ExchangeFailed | None) -> None:
        """Let go of whatever waits for this caller."""
        self._call.caller_left()
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.abort(Code.CANCELLED, "the caller left before the answer was sent")


class _SplicedCaller(LocalConnection):
    """A caller that has its 200: it is joined to the stream that ``take_stream`` returns."""

    def __init__(self, take_stream: Callable[[], IStream]) -> None:
        self._take_stream = take_stream

    def connectionMade(self) -> None:
        """Relay."""
        self.join(self._take_stream())


def _check_is_plain_connect(head: RequestHead) -> None:
    if head.method != b"CONNECT":
        raise HeadError(405, "only CONNECT requests are served here")
    if b"expect" in head.by_name:
        raise HeadError(417, "a CONNECT request cannot expect anything")


def _authority(text: str) -> tuple[str, int]:
    try:
        return split_authority(text)
    except BadAuthority as error:
        raise HeadError(400, f"bad destination: {error}") from None


def _asked_node(head: RequestHead) -> str | None:
    """Return the host of ``X-Tunnel-Proxy-Host`` if any, with which yurttunnel 1.2 chooses, too."""
    values = head.by_name.get(b"x-tunnel-proxy-host")
    if values is None or values == [b""]:
        return None
    if len(values) > 1:
        raise HeadError(400, "X-Tunnel-Proxy-Host is given more than once")
    try:
        return strip_port(values[0].decode("ascii", "backslashreplace"))
    except BadAuthority as error:
        raise HeadError(400, f"bad X-Tunnel-Proxy-Host: {error}") from None
