"""The contents of the audit log: who has requested what, and the result.

There is a line for each stream that a caller has had or requested, and for each request to a
kubelet, written at its end. It contains neither payload, nor tokens, nor the query of a request,
which contains commands.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from twisted.internet.interfaces import IReactorTime

from yurttunnel.ops.clocks import time_of_day
from yurttunnel.server.audit_log import Value, format_line
from yurttunnel.server.audit_peers import Peer, audited_peer
from yurttunnel.server.redaction import redacted
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
            "time": _iso(time_of_day(clock)),
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


def _iso(seconds: float) -> str:
    moment = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
