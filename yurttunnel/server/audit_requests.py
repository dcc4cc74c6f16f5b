"""Writes requests to kubelets into the audit log, at their ends.

A connection to a kubelet carries many requests, so there is a line for each request, and none for
the streams.
"""

from __future__ import annotations

import re
from urllib.parse import unquote_to_bytes
from weakref import WeakKeyDictionary

from twisted.internet.error import ConnectionDone
from twisted.internet.interfaces import IProtocol, ITransport
from twisted.internet.protocol import connectionDone
from twisted.python.failure import Failure
from zope.interface import implementer

from yurttunnel.http.exchange_wrapper import ExchangeWrapper
from yurttunnel.http.fields import Fields
from yurttunnel.http.interfaces import ExchangeFailed, IBodySink, IExchange
from yurttunnel.http.upgrade import SplicedSide
from yurttunnel.server.audit import Audit, AuditEntry, Peer, audited_peer, code_of
from yurttunnel.server.audit_log import Value
from yurttunnel.server.frontends.kubelet.middleware import IMiddleware
from yurttunnel.server.frontends.kubelet.request import Handler, InterceptedRequest
from yurttunnel.wire.codes import Code

_CONTAINER_PATHS = frozenset({"attach", "checkpoint", "containerLogs", "exec", "run"})
_POD_PATHS = _CONTAINER_PATHS | {"portForward"}
"""Paths that are followed by ``/namespace/pod``: ``InstallDebuggingHandlers`` in
pkg/kubelet/server/server.go of Kubernetes. The container is the last segment, possibly after the
UID of the pod."""

_MAX_PATH = 2048
"""Bytes of a path that are parsed: those of kubelets have at most about 700."""

_MAX_METHOD = 32

_SEGMENT = re.compile(r"[\w.-]{0,64}", re.ASCII)
"""The first segment of every path that kubelets serve."""

_NAME = re.compile(r"[\w.-]{0,253}", re.ASCII)
"""The names of namespaces, pods and containers in Kubernetes."""

_OTHER = "other"
"""Replaces anything else, which may be a misplaced query or parameter."""


@implementer(IMiddleware)
class RequestAudit:
    """The outermost of all middlewares, so that it sees every rejection."""

    def __init__(self, audit: Audit) -> None:
        self._audit = audit
        # By transport: parsing a certificate takes longer than the rest of the line.
        self._peers: WeakKeyDictionary[ITransport, Peer] = WeakKeyDictionary()

    def wrap(self, handler: Handler) -> Handler:

        def audited(request: InterceptedRequest) -> None:
            entry = self._audit.begin("request")
            peer = self._peer(request.exchange.transport)
            request.exchange = exchange = _AuditedExchange(request.exchange)
            exchange.on_end(lambda error: _ended(request, exchange, entry, peer, error))
            handler(request)

        return audited

    def _peer(self, transport: ITransport) -> Peer:
        peer = self._peers.get(transport)
        if peer is None:
            peer = self._peers[transport] = audited_peer(transport)
        return peer


class _AuditedExchange(ExchangeWrapper):
    """An exchange that also records the bytes transferred, and how it failed."""

    def __init__(self, exchange: IExchange) -> None:
        super().__init__(exchange)
        self.received = 0
        """Bytes from the caller: the body, and data after an upgrade."""
        self.sent = 0
        """Bytes to the caller after an upgrade."""
        self.broken: tuple[Code, str] | None = None
        """Why the kubelet's side ended early, if it did."""
        self._caller_lost = False

    def fail(self, status: int, text: str) -> None:
        if self.exchange.head_sent:
            self.broken = self.broken or (Code.CONNECTION_LOST, text)
        self.exchange.fail(status, text)

    def abort(self) -> None:
        self.broken = self.broken or (Code.CONNECTION_LOST, "the response was incomplete")
        self.exchange.abort()

    def deliver_body(self, sink: IBodySink) -> None:
        self.exchange.deliver_body(_CountedBody(self, sink))

    def switch(self, status: int, reason: bytes, fields: Fields, protocol: IProtocol) -> None:
        if isinstance(protocol, SplicedSide):
            self._watch(protocol, protocol.other)
        self.exchange.switch(status, reason, fields, protocol)

    def _watch(self, caller: SplicedSide, kubelet: SplicedSide) -> None:
        """Count the transferred bytes, and record which side ends first."""
        to_kubelet, to_caller = caller.dataReceived, kubelet.dataReceived
        caller_lost, kubelet_lost = caller.connectionLost, kubelet.connectionLost

        def count_received(data: bytes) -> None:
            self.received += len(data)
            to_kubelet(data)

        def count_sent(data: bytes) -> None:
            self.sent += len(data)
            to_caller(data)

        def lose_caller(reason: Failure = connectionDone) -> None:
            self._caller_lost = True
            caller_lost(reason)

        def lose_kubelet(reason: Failure = connectionDone) -> None:
            if not self._caller_lost and not isinstance(reason.value, ConnectionDone):
                self.broken = code_of(reason.value)
            kubelet_lost(reason)

        # Both sides allow this: their methods are looked up once, when their connections are
        # switched.
        caller.dataReceived = count_received  # type: ignore[method-assign] # see above
        kubelet.dataReceived = count_sent  # type: ignore[method-assign] # see above
        caller.connectionLost = lose_caller  # type: ignore[method-assign] # see above
        kubelet.connectionLost = lose_kubelet  # type: ignore[method-assign] # see above


@implementer(IBodySink)
class _CountedBody:
    """Counts the body of a request on its way to ``sink``."""

    def __init__(self, exchange: _AuditedExchange, sink: IBodySink) -> None:
        self._exchange = exchange
        self._write = sink.write
        self.finish = sink.finish

    def write(self, data: bytes) -> None:
        self._exchange.received += len(data)
        self._write(data)


def _ended(
    request: InterceptedRequest,
    exchange: _AuditedExchange,
    entry: AuditEntry,
    peer: Peer,
    error: ExchangeFailed | None,
) -> None:
    by_token = request.caller and request.authorization_used
    entry.set_peer(peer.identified_by_token(request.caller) if by_token else peer)
    destination = request.destination
    if destination is not None:
        entry.destination = destination.authority
    entry.node = request.node or (destination.node if destination is not None else "")
    entry.request_id = request.request_id
    head, status = exchange.head, exchange.status
    entry.status = status
    entry.request = {
        "method": head.method[:_MAX_METHOD].decode("ascii", "backslashreplace"),
        **subject_of(head.target),
        "upgraded": status == 101,
    }
    # The connection answers some requests itself: if a handler raises, or a body is malformed.
    if exchange.failure or (request.refusal and error is None):
        refusal = exchange.failure or request.refusal
        entry.write_refused(exchange.transport, refusal, exchange.received)
        return
    code, reason = _result(exchange, error)
    reason = request.refusal or reason
    entry.write_ended(code, reason, exchange.received, exchange.bytes_sent + exchange.sent)


def _result(exchange: _AuditedExchange, error: ExchangeFailed | None) -> tuple[Code, str]:
    if error is None:
        return Code.DONE, ""
    if exchange.broken is not None:
        return exchange.broken
    cause = error.__cause__
    if cause is None or isinstance(cause, ConnectionDone):
        return Code.CANCELLED, error.text
    return Code.CONNECTION_LOST, f"{error.text}: {cause}"


def subject_of(target: bytes) -> dict[str, Value]:
    """Return the parts of a path without the query; anything but plain names is replaced.

    The path is decoded before it is split, as in kubelets.
    """
    path = unquote_to_bytes(target.partition(b"?")[0][:_MAX_PATH])
    first, *others = path.decode("utf-8", "backslashreplace").removeprefix("/").split("/")
    subject: dict[str, Value] = {"path": _name_or_other(first, _SEGMENT)}
    if first in _POD_PATHS and len(others) >= 2:
        names = [_name_or_other(other, _NAME) for other in others]
        subject["namespace"], subject["pod"], *names = names
        if first in _CONTAINER_PATHS and names:
            subject["container"] = names[-1]
    return subject


def _name_or_other(segment: str, pattern: re.Pattern[str]) -> str:
    return segment if pattern.fullmatch(segment) else _OTHER
