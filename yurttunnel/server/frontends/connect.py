"""The HTTP CONNECT front end (RFC 9110 section 9.3.6), which kube-apiserver and curl use.

``X-Tunnel-Proxy-Host``, if present, selects the agent; otherwise the host of the target does. The
response is 200 only after the far end has connected; each failure before that has its own status
and text (``yurttunnel.http.errors``). No byte of the target follows the 200 in the same read of the
caller (:mod:`yurttunnel.http.isolated_response`).

The text of a failure is also the reason phrase of the status line, the only part that
kube-apiserver shows; that of a rejected head is not, because it quotes the caller.

A caller that closes its sending direction after its head, as ``nc -N`` does, still waits for the
response; one that has closed both directions has left, and its dial is canceled. Only a Unix socket
distinguishes the two. Over TCP the dial continues, within its timeout, until writing the response
fails.

Over TLS, callers are unauthenticated until the handshake is complete. Until then connections have a
separate limit at which the oldest is evicted, and neither the log nor the audit log has a line for
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
from yurttunnel.http.head import HeadError, RequestHead
from yurttunnel.http.interfaces import ExchangeFailed, IExchange, IRequestHandler
from yurttunnel.http.server import ConnectionsFactory, ServerSettings
from yurttunnel.http.server_connection import ServerConnection
from yurttunnel.ops.log import RateLimitedLog
from yurttunnel.ops.log_levels import request_log
from yurttunnel.server.frontends.calls import DIAL_TIMEOUT, Call, Dialer
from yurttunnel.server.handshake_failures import HandshakeFailureLog, peer_address
from yurttunnel.server.redaction import redacted
from yurttunnel.server.registry import SessionRegistry
from yurttunnel.tunnel.interfaces import IStream, StreamFailed
from yurttunnel.tunnel.relay import LocalConnection
from yurttunnel.tunnel.shares import Kind
from yurttunnel.wire.codes import Code

HEAD_TIMEOUT = 10.0
"""Seconds from the connection to its complete head, including a TLS handshake; the read timeout of
yurttunnel 1.2."""

LINGER = 5.0
"""Seconds for a caller to read a response and close, before its connection is aborted."""

STALL_TIMEOUT = 75.0
"""Seconds beyond ``LINGER`` for a caller over TLS to read the end of its stream, as on the ports
for requests."""

MAX_UNREAD_HEADS = 1024
"""The maximum number of connections of one listener without a complete head; over TLS, of those
that have completed the handshake."""

MAX_HANDSHAKES = 1024
"""The maximum number of concurrent TLS handshakes of one listener."""

SETTINGS = ServerSettings(
    head_timeout=HEAD_TIMEOUT,
    idle_timeout=STALL_TIMEOUT,
    # A caller that has closed its sending direction waits for its dial, which ends sooner.
    half_closed_timeout=2 * DIAL_TIMEOUT,
    linger=LINGER,
    # Dials, streams, incomplete heads and handshakes have their own limits.
    max_connections=sys.maxsize,
    max_unread_heads=MAX_UNREAD_HEADS,
    max_handshakes=MAX_HANDSHAKES,
    single_request=True,
)


class ConnectFactory(Dialer, ConnectionsFactory):
    """Accepts CONNECT requests on any stream transport: TCP, Unix socket, TLS."""

    kind = Kind.CONNECT

    def __init__(
        self, clock: IReactorTime, registry: SessionRegistry, settings: ServerSettings = SETTINGS
    ) -> None:
        Dialer.__init__(self, registry)
        ConnectionsFactory.__init__(self, clock, settings)
        self.handshake_failures = HandshakeFailureLog(clock, Call.log)
        self.warnings = RateLimitedLog(clock, Call.log)

    def buildProtocol(self, addr: IAddress | None) -> ServerConnection:
        return ServerConnection(self, ConnectCall(self))

    def refused(
        self, connection: ServerConnection, status: int, text: str, head: RequestHead | None
    ) -> None:
        """Record that a head was rejected, or did not arrive."""
        super().refused(connection, status, text, head)
        handler = connection.handler
        assert isinstance(handler, ConnectCall)
        handler.refused(connection.transport, status, text, head)

    def handshake_failed(self, connection: ServerConnection, reason: Failure) -> None:
        """Report a caller whose TLS handshake failed."""
        if reason.check(SSL.Error):
            self.handshake_failures.warn_of_caller(connection.transport, reason)

    def evicted(self, connection: ServerConnection) -> None:
        if connection.handshaken:
            self.warnings.warn(
                "a caller from {address} is disconnected: {max_unread_heads} newer ones have not"
                " sent their request either; see who holds them (ss -tn), and filter addresses in"
                " front of --connect-endpoint",
                address=peer_address(connection.transport),
                max_unread_heads=self.settings.max_unread_heads,
            )
            return
        self.warnings.warn(
            "a caller from {address} is disconnected: {max_handshakes} newer ones have not"
            " finished their TLS handshake either; see who holds them (ss -tn), and filter"
            " addresses in front of --connect-endpoint",
            address=peer_address(connection.transport),
            max_handshakes=self.settings.max_handshakes,
        )

    def handshake_overdue(self, connection: ServerConnection) -> None:
        """Report a caller whose handshake timed out."""
        self.warnings.warn(
            "a caller from {address} is disconnected: its TLS handshake took longer than"
            " {seconds:g} s",
            address=peer_address(connection.transport),
            seconds=self.settings.head_timeout,
        )


@implementer(IRequestHandler)
class ConnectCall:
    """One caller: dials the target of its CONNECT, and responds."""

    _exchange: IExchange

    def __init__(self, factory: ConnectFactory) -> None:
        self._factory = factory
        self._call = Call(factory, self)
        self._call.set_status(0)
        # Set while the 200 is being sent.
        self._opened: IStream | None = None

    def request_received(self, exchange: IExchange) -> None:
        self._exchange = exchange
        exchange.on_end(self._exchange_ended)
        head = exchange.head
        try:
            _check_is_plain_connect(head)
            host, port = _authority(head.target.decode("ascii", "backslashreplace"))
            node = _requested_node(head) or host
        except RequestFailed as error:
            # These texts quote unvalidated input.
            self._refuse(error.status, error.text, in_status_line=False)
            return
        call = self._call
        proposed = head.by_name.get(b"x-request-id", ())
        call.request_id = self._factory.request_ids.from_caller(proposed)
        call.dial(exchange.transport, node, host, port)

    def stream_opened(self, stream: IStream) -> None:
        """Respond with 200, and join once nothing else can arrive in the same read."""
        self._opened = stream
        self._exchange.switch(200, b"Connection established", (), _SplicedCaller(self._take_stream))

    def dial_failed(self, error: BaseException) -> None:
        """Respond with the status and the text of the failure."""
        if isinstance(error, StreamFailed):
            self._refuse(status_of(error.code), error.text)
        elif isinstance(error, RequestFailed):
            self._refuse(error.status, error.text)
        else:
            request_id = self._call.request_id
            text = f"internal error: see {request_id} in the log of the server"
            self._refuse(500, text)

    def refused(self, transport: object, status: int, text: str, head: RequestHead | None) -> None:
        """Record that the caller gets an error response."""
        destination = "" if head is None else head.target.decode("ascii", "backslashreplace")
        call = self._call
        request_log.info(
            "CONNECT {destination} ({request_id}) answered {status}: {text}",
            destination=redacted(destination),
            node=call.node,
            request_id=call.request_id,
            status=status,
            text=redacted(text),
        )
        call.record_refusal(transport, text, status)

    def _refuse(self, status: int, text: str, in_status_line: bool = True) -> None:
        exchange = self._exchange
        self.refused(exchange.transport, status, text, exchange.head)
        headers = [("Allow", "CONNECT")] if status == 405 else []
        exchange.refuse(status, text, headers, in_status_line)

    def _take_stream(self) -> IStream:
        stream, self._opened = self._opened, None
        assert stream is not None
        self._call.set_status(200)
        return stream

    def _exchange_ended(self, error: ExchangeFailed | None) -> None:
        """Cancel the dial, or abort the stream, of this caller."""
        # It refers to this object, as the handler of its connection.
        del self._exchange
        self._call.caller_disconnected()
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.abort(Code.CANCELLED, "the caller left before the answer was sent")


class _SplicedCaller(LocalConnection):
    """A caller that has received its 200; it is joined to the stream of ``take_stream()``."""

    def __init__(self, take_stream: Callable[[], IStream]) -> None:
        self._take_stream = take_stream

    def connectionMade(self) -> None:
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


def _requested_node(head: RequestHead) -> str | None:
    """Return the host of ``X-Tunnel-Proxy-Host`` if present, as yurttunnel 1.2 does."""
    values = head.by_name.get(b"x-tunnel-proxy-host")
    if values is None or values == [b""]:
        return None
    if len(values) > 1:
        raise HeadError(400, "X-Tunnel-Proxy-Host is given more than once")
    try:
        return strip_port(values[0].decode("ascii", "backslashreplace"))
    except BadAuthority as error:
        raise HeadError(400, f"bad X-Tunnel-Proxy-Host: {error}") from None
