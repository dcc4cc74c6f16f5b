"""The contents of the audit log: who has requested what, and the result.

There is a line for each stream that a caller has had or requested, and for each request to a
kubelet, written at its end. It contains neither payload, nor tokens, nor the query of a request,
which contains commands.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, cast

from cryptography.x509.oid import NameOID
from twisted.internet.address import UNIXAddress
from twisted.internet.error import ConnectionDone
from twisted.internet.interfaces import IProtocol, IReactorTime
from twisted.python.failure import Failure

from yurttunnel.http.connection import is_secure
from yurttunnel.ops.clocks import millisecond_time, time_of_day
from yurttunnel.ops.unix_peers import peer_credentials, user_id_behind
from yurttunnel.pki.contexts import peer_certificate
from yurttunnel.server.audit_log import Value, format_line
from yurttunnel.server.handshake_failures import peer_authority
from yurttunnel.server.redaction import redacted
from yurttunnel.tunnel.interfaces import IStream, StreamFailed
from yurttunnel.wire.codes import Code


class Audit:
    """Formats the lines; ``write`` is called with each, including its line end."""

    def __init__(self, clock: IReactorTime, write: Callable[[bytes], None]) -> None:
        self.clock = clock
        self.write = write

    def begin(self, kind: str) -> AuditEntry:
        """Start the entry of a caller.

        ``kind`` is ``connect``, ``forward``, ``passthrough`` or ``request``.
        """
        return AuditEntry(self, kind)


class AuditEntry:
    """One future line: collects what becomes known, and finally the result.

    Only the first result counts. ``status`` is the HTTP status, 0 if there is none yet and ``None``
    for what is not HTTP. ``request`` has fields of requests only.
    """

    def __init__(self, audit: Audit, kind: str) -> None:
        self.request_id = ""
        self.node = ""
        self.destination = ""
        self.code: Code | None = None
        """Why it was refused, if there is a code for that."""
        self.status: int | None = None
        self.request: dict[str, Value] = {}
        self._audit = audit
        self._kind = kind
        self._began = audit.clock.seconds()
        self._peer: Peer | None = None
        self._written = False

    def set_peer(self, peer: Peer) -> None:
        """Set the caller."""
        self._peer = peer

    def set_request(self, transport: Any, request_id: str, node: str, destination: str) -> None:
        """Set the caller and its request; ``transport`` is the caller's, while that exists."""
        self._peer = audited_peer(transport)
        self.request_id = request_id
        self.node = node
        self.destination = destination

    def write_refused(self, transport: Any, reason: str, bytes_from_caller: int) -> None:
        """Write that the caller got nothing from the node, and why.

        The node may still have received something, without responding.
        """
        if self._peer is None:
            self._peer = audited_peer(transport)
        if self.status == HTTPStatus.BAD_REQUEST:
            # The reason quotes malformed input.
            reason = redacted(reason)
        self._end("refused", self.code, reason, bytes_from_caller, 0)

    def write_ended(
        self, code: Code, reason: str, bytes_from_caller: int, bytes_to_caller: int
    ) -> None:
        """Write the result, after the node was reached."""
        self._end("ended", code, reason, bytes_from_caller, bytes_to_caller)

    def _end(
        self, result: str, code: Code | None, reason: str, from_caller: int, to_caller: int
    ) -> None:
        if self._written:
            return
        self._written = True
        peer = self._peer or Peer("", "", "")
        clock = self._audit.clock
        record: dict[str, Value] = {
            "time": millisecond_time(time_of_day(clock)),
            "kind": self._kind,
            "request_id": self.request_id,
            "who": peer.name,
            "by": peer.identified_by,
            "peer": peer.address,
            "node": self.node,
            "destination": self.destination,
            **self.request,
            **({} if self.status is None else {"status": self.status}),
            "result": result,
            "code": None if code is None else code.name.lower(),
            "reason": reason,
            "bytes_from_caller": from_caller,
            "bytes_to_caller": to_caller,
            "duration": round(clock.seconds() - self._began, 3),
        }
        self._audit.write(format_line(record))


@dataclass(frozen=True, slots=True)
class Peer:
    """A caller; ``identified_by`` is how it is known: ``certificate``, ``token`` or ``address``.

    ``name`` is the common name in the certificate, the user name that the Kubernetes API has
    returned for the token, or the same as ``address``.
    """

    name: str
    identified_by: str
    address: str

    def identified_by_token(self, user: str) -> Peer:
        """Return the same peer, identified by the token of ``user``."""
        return Peer(user, "token", self.address)


def audited_peer(transport: Any) -> Peer:
    """Return the peer of a transport; over TLS, call it after the handshake."""
    address = _address(transport)
    name = _common_name(transport) if is_secure(transport) else ""
    return Peer(name, "certificate", address) if name else Peer(address, "address", address)


def _address(transport: Any) -> str:
    peer = transport.getPeer()
    if isinstance(peer, UNIXAddress):
        return _unix_credentials(transport.getHandle())
    return peer_authority(transport)


def unix_user(connection: socket.socket) -> str:
    """Return the user at the other end of a Unix socket."""
    return f"unix:uid={user_id_behind(connection)}"


def _unix_credentials(connection: socket.socket) -> str:
    """Return the user, group and process at the other end of a Unix socket."""
    process, user, group = peer_credentials(connection)
    return f"unix:uid={user},gid={group},pid={process}"


def _common_name(transport: Any) -> str:
    certificate = peer_certificate(transport)
    if certificate is None:
        return ""
    names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return ", ".join(str(name.value) for name in names)


def audited(stream: IStream, entry: AuditEntry) -> IStream:
    """Return ``stream`` wrapped so that ``entry`` is written when it ends.

    It costs nothing per piece of data, because the users of a stream look up its methods once.
    """
    return cast(IStream, _AuditedStream(stream, entry))


class _AuditedStream:
    def __init__(self, stream: IStream, entry: AuditEntry) -> None:
        self._stream = stream
        self._entry = entry
        self._attached = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def attach(self, protocol: IProtocol) -> None:
        """Wrap ``protocol.connectionLost``: it is called once, whichever side ends the stream."""
        lost = protocol.connectionLost

        def connection_lost(reason: Failure) -> None:
            self._ended(*code_of(reason.value))
            lost(reason)

        # As protocols do with their dataReceived: one object less between the two ends.
        protocol.connectionLost = connection_lost  # type: ignore[method-assign] # see above
        self._attached = True
        self._stream.attach(protocol)

    def abort(self, code: Code, text: str) -> None:
        """Reset the stream; if no protocol is attached, nothing else reports the end."""
        self._stream.abort(code, text)
        if not self._attached:
            self._ended(code, text)

    def _ended(self, code: Code, text: str) -> None:
        stream = self._stream
        self._entry.write_ended(code, text, stream.bytes_sent, stream.bytes_received)


def code_of(error: BaseException | None) -> tuple[Code, str]:
    """Return the code with which a stream ended, as metrics count it, and a text."""
    if isinstance(error, ConnectionDone):
        return Code.DONE, ""
    if isinstance(error, StreamFailed):
        return error.code, error.text
    return Code.CONNECTION_LOST, str(error)
