"""The middleware ``trace``: logs one line for each request that has ended."""

from __future__ import annotations

from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from cryptography.x509.oid import NameOID
from twisted.internet.interfaces import IReactorTime, ITransport
from zope.interface import implementer

from yurttunnel.http.connection import is_secure
from yurttunnel.http.interfaces import ExchangeFailed
from yurttunnel.ops.log_levels import PREFORMATTED, request_log
from yurttunnel.pki.contexts import peer_certificate
from yurttunnel.server.frontends.kubelet.middleware import IMiddleware
from yurttunnel.server.frontends.kubelet.request import Handler, InterceptedRequest
from yurttunnel.server.handshake_failures import peer_authority
from yurttunnel.server.redaction import redacted, truncated


class _Peer(NamedTuple):
    """The other end of a connection, in readable form; ``names`` are those in its certificate."""

    address: str
    names: str = ""

    def described(self, caller: str) -> str:
        """Return a description of the caller; ``caller`` is its authorized name, if any."""
        names = repr(truncated(caller)) if caller else self.names
        return f"by {names} from {self.address}" if names else f"from {self.address}"


@implementer(IMiddleware)
class Trace:
    """Logs requests when they end: caller, destination, path class, and result.

    Only the class of the path is logged: the rest, and the query, may contain commands and names.
    Text from a caller adds at most some hundred characters to the line.
    """

    def __init__(self, clock: IReactorTime) -> None:
        self._clock = clock
        # By transport: parsing a certificate for each request would take longer than formatting the
        # rest of the line.
        self._callers: WeakKeyDictionary[ITransport, _Peer] = WeakKeyDictionary()

    def wrap(self, handler: Handler) -> Handler:
        def traced(request: InterceptedRequest) -> None:
            began = self._clock.seconds()
            peer = self._peer(request.exchange.transport)
            request.exchange.on_end(lambda error: self._ended(request, peer, began, error))
            handler(request)

        return traced

    def _peer(self, transport: ITransport) -> _Peer:
        peer = self._callers.get(transport)
        if peer is None:
            peer = self._callers[transport] = _peer_behind(transport)
        return peer

    def _ended(
        self, request: InterceptedRequest, peer: _Peer, began: float, error: ExchangeFailed | None
    ) -> None:
        exchange = request.exchange
        destination = request.destination
        where = destination.authority if destination is not None else "nowhere"
        trouble = f"; {redacted(str(error))}" if error is not None else ""
        who = peer.described(request.caller)
        line = (
            f"{request.verb} {request.path_class} to {where} on {request.node or 'no node'}"
            f" {who} ({request.request_id}): {exchange.status or 'no answer'},"
            f" {exchange.bytes_sent} bytes in {self._clock.seconds() - began:.3f} s{trouble}"
        )
        # Formatted here: formatting each field by the logger costs more than all of this, for every
        # request.
        request_log.info(PREFORMATTED, line=line, node=request.node, request_id=request.request_id)


def _peer_behind(transport: Any) -> _Peer:
    """Return the peer: the address, and over TLS the name in the certificate."""
    address = peer_authority(transport)
    certificate = peer_certificate(transport) if is_secure(transport) else None
    if certificate is None:
        return _Peer(address)
    names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return _Peer(address, truncated(", ".join(repr(name.value) for name in names)))
