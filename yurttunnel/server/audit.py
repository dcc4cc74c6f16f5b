"""What goes into the audit log: who has asked for what, and what has come of it.

There is a line for each stream that a caller has had or wanted, and for each request to a kubelet,
when it has ended. Neither what passes is in it, nor tokens, nor the query of a request, in which
commands are.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from twisted.internet.interfaces import IReactorTime

from yurttunnel.ops.clocks import time_of_day
from yurttunnel.server.audit_log import Value, format_line
from yurttunnel.server.audit_peers import Peer, peer_behind
from yurttunnel.server.quoting import quotable
from yurttunnel.wire.codes import Code


class Audit:
    """Makes the lines; ``write`` takes each, with its end."""

    def __init__(self, clock: IReactorTime, write: Callable[[bytes], None]) -> None:
        self.clock = clock
        self.write = write

    def begin(self, kind: str) -> AuditEntry:
        """Begin what a caller is about to ask for.

        ``kind`` is ``connect``, ``forward``, ``passthrough`` or ``request``.
        """
        return AuditEntry(self, kind)


class AuditEntry:
    """One line that is to be written: it is told what becomes known, and in the end how it ended.

    Of several ends the first one counts. ``status`` is that of HTTP, 0 where there is none yet
    and ``None`` for what is not HTTP. ``request`` has what is known of requests only.
    """

    def __init__(self, audit: Audit, kind: str) -> None:
        self.request_id = ""
        self.node = ""
        self.destination = ""
        self.code: Code | None = None
        """Why it was refused, where there is a code for that."""
        self.status: int | None = None
        self.request: dict[str, Value] = {}
        self._audit = audit
        self._kind = kind
        self._began = audit.clock.seconds()
        self._peer: Peer | None = None
        self._written = False

    def by(self, peer: Peer) -> None:
        """Note who asks."""
        self._peer = peer

    def asks(self, transport: Any, request_id: str, node: str, destination: str) -> None:
        """Note who asks for what; ``transport`` is that of the caller, as long as it is there."""
        self._peer = peer_behind(transport)
        self.request_id = request_id
        self.node = node
        self.destination = destination

    def refused(self, transport: Any, reason: str, bytes_from_caller: int) -> None:
        """Write that the caller got nothing from the node, and why.

        The node may have got something all the same, and not have answered.
        """
        if self._peer is None:
            self._peer = peer_behind(transport)
        if self.status == HTTPStatus.BAD_REQUEST:
            # It quotes what could not be read.
            reason = quotable(reason)
        self._end("refused", self.code, reason, bytes_from_caller, 0)

    def ended(self, code: Code, reason: str, bytes_from_caller: int, bytes_to_caller: int) -> None:
        """Write how it ended, after the node had been reached."""
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
            "who": peer.who,
            "by": peer.by,
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
