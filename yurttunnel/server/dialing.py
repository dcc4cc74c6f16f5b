"""What the listeners for callers have in common: local connections that want a stream."""

from __future__ import annotations

import socket
from typing import Any

from twisted.internet.address import UNIXAddress
from twisted.internet.defer import Deferred
from twisted.internet.protocol import ServerFactory, connectionDone
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import Interface

from yurttunnel.http.authority import join_authority
from yurttunnel.server.audit import Audit, AuditEntry
from yurttunnel.server.audit_peers import unix_user
from yurttunnel.server.audit_streams import audited
from yurttunnel.server.registry import INodeSession, NodeNotConnected, SessionRegistry
from yurttunnel.server.request_ids import RequestIds
from yurttunnel.tunnel.errors import StreamFailed
from yurttunnel.tunnel.interfaces import IStream
from yurttunnel.tunnel.relay import LocalConnection
from yurttunnel.tunnel.shares import Holder, Kind, caller_at
from yurttunnel.wire.codes import Code

DIAL_TIMEOUT = 15.0
"""Seconds: the dial watchdog of yurttunnel 1.2, and half of kube-apiserver's dial timeout."""

MAX_PENDING_DIALS = 4096
"""Dials of one listener that may wait at a time; each holds one connection and a few KiB."""


def _caller(transport: Any) -> str:
    """Give what a caller counts as: its address, or the user behind a Unix socket."""
    peer = transport.getPeer()
    if isinstance(peer, UNIXAddress):
        return unix_user(transport.getHandle())
    return caller_at(getattr(peer, "host", ""))


class ITakesCallers(Interface):
    """A way to a node that leads through another process of this server."""

    def take_caller(connection: socket.socket, received: bytes, flag: str) -> bool:
        """Have that process serve the caller at ``connection``, beginning with ``received``.

        ``flag`` is that of the entry by which it has come.

        ``False`` when it cannot take one now. Else this process has done with the caller, and
        closes its own descriptor.
        """


class DialingFactory(ServerFactory):
    """Accepts connections for which streams are opened through ``registry``.

    ``dial_timeout`` is in seconds and covers a whole opening. At most ``max_pending_dials``
    openings wait at a time; further ones fail with :attr:`Code.OVERLOADED`.
    """

    noisy = False
    kind = Kind.OTHER
    """What a stream for a caller is called in the audit log and the metrics."""
    flag = ""
    """The flag that asks for this entry, whose callers share what it may hold."""
    audit: Audit | None = None
    """Where it is to be written what becomes of them; set before anybody can connect."""

    def __init__(
        self,
        registry: SessionRegistry,
        *,
        dial_timeout: float = DIAL_TIMEOUT,
        max_pending_dials: int = MAX_PENDING_DIALS,
        request_ids: RequestIds | None = None,
    ) -> None:
        self.registry = registry
        self.dial_timeout = dial_timeout
        self.max_pending_dials = max_pending_dials
        self.pending_dials = 0
        self.request_ids = request_ids or RequestIds()
        self.connections: set[DialingConnection] = set()
        self._all_gone: list[Deferred[None]] = []

    def drain(self) -> list[Deferred[None]]:
        """End connections that want nothing yet; gives what fires when none is left.

        The sessions wait for the streams, but a stream has ended once its last bytes have been
        written to the caller's transport. There they wait for a caller that reads slowly.
        """
        gone: Deferred[None] = Deferred()
        self._all_gone.append(gone)
        for connection in tuple(self.connections):
            connection.drain()
        self._tell_when_gone()
        return [gone]

    def forget(self, connection: DialingConnection) -> None:
        """Let go of a connection that has ended, or that another process goes on with."""
        self.connections.discard(connection)
        self._tell_when_gone()

    def close(self) -> None:
        """Abort every connection; for the end of a drain, after the listener has been closed."""
        for connection in tuple(self.connections):
            connection.transport.abortConnection()

    def _tell_when_gone(self) -> None:
        if not self.connections:
            waiting, self._all_gone = self._all_gone, []
            for gone in waiting:
                gone.callback(None)


class DialingConnection(LocalConnection):
    """A local connection that asks for one stream and is told by one of two calls how it went."""

    log = Logger()
    request_id = "-"
    """Names the request in logs of both ends; a hyphen until it is known."""
    node = ""
    """The node that is asked for, as the caller calls it; empty until it is known."""
    _dialing: Deferred[IStream] | None = None
    _entry: AuditEntry | None = None

    def __init__(self, factory: DialingFactory) -> None:
        self._dialer = factory

    def connectionMade(self) -> None:
        """Be known to the factory."""
        dialer = self._dialer
        dialer.connections.add(self)
        if dialer.audit is not None:
            self._entry = dialer.audit.begin(dialer.kind)

    def dial(self, node: str, host: str, port: int) -> None:
        """Open a stream to ``host`` and ``port`` through the agent that serves ``node``.

        Ends in :meth:`stream_opened` or :meth:`dial_failed`, perhaps at once; in neither when
        the connection is lost first, which cancels the dial.
        """
        self.node = node
        dialer = self._dialer
        if self._entry is not None:
            self._entry.asks(self.transport, self.request_id, node, join_authority(host, port))
        if dialer.pending_dials >= dialer.max_pending_dials:
            text = f"{dialer.pending_dials} dials are pending already; try again later"
            self._not_opened(StreamFailed(Code.OVERLOADED, text))
            return
        try:
            session = dialer.registry.find(node)
        except NodeNotConnected as error:
            self._not_opened(error)
            return
        if self.passed_on(session):
            return
        if self._entry is not None:
            self._entry.node = session.node
        dialer.pending_dials += 1
        dialing = session.open_stream(
            host, port, dialer.dial_timeout, self.request_id, self.holder()
        )
        self._dialing = dialing
        _ = dialing.addBoth(self._dial_ended)

    def holder(self) -> Holder:
        """Give whose share the stream is of."""
        return Holder.of(self._dialer.kind, self.flag, _caller(self.transport))

    @property
    def flag(self) -> str:
        """The flag of the entry by which the caller has come."""
        return self._dialer.flag

    def drain(self) -> None:
        """End now if nothing has been asked for: nothing new is taken while the server stops."""
        if not self.node:
            self.transport.abortConnection()

    def passed_on(self, session: INodeSession) -> bool:
        """Have another process serve the caller, if it can; nothing is to be done here then."""
        return False

    def stream_opened(self, stream: IStream) -> None:
        """The far end has connected; the implementation joins ``stream`` or aborts it."""
        raise NotImplementedError

    def dial_failed(self, error: BaseException) -> None:
        """There is no stream: ``error`` is a :class:`StreamFailed`, :class:`NodeNotConnected`.

        Anything else is a defect of ours that has been logged.
        """
        raise NotImplementedError

    def refused(self, reason: str, status: int | None = None, destination: str = "") -> None:
        """Have the audit log say that the caller gets no stream, and why; for subclasses.

        ``status`` is what it is told by HTTP, ``destination`` what it has asked for where there
        was no dial. A dial that has failed is written down in any case.
        """
        entry = self._entry
        if entry is not None:
            entry.request_id = self.request_id
            entry.status = status
            entry.destination = entry.destination or destination
            entry.refused(self.transport, reason)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """Cancel a dial that is under way."""
        super().connectionLost(reason)
        if self._dialing is not None:
            self._dialing.cancel()
        self._dialer.forget(self)

    def _dial_ended(self, result: IStream | Failure) -> None:
        """Take either end of the dial: a stream, or a ``Failure``."""
        self._dialing = None
        self._dialer.pending_dials -= 1
        if not isinstance(result, Failure):
            stream = result if self._entry is None else audited(result, self._entry)
            if self.lost:
                stream.abort(Code.CANCELLED, "the caller left while the stream was opened")
            else:
                self.stream_opened(stream)
        else:
            assert result.value is not None
            if not (self.lost or isinstance(result.value, StreamFailed)):
                self.log.failure(
                    "Opening stream {request_id} to {node} failed by a defect of the server",
                    result,
                    request_id=self.request_id,
                    node=self.node,
                )
            self._not_opened(result.value)

    def _not_opened(self, error: BaseException) -> None:
        entry = self._entry
        if entry is not None and isinstance(error, StreamFailed):
            entry.code = error.code
        if not self.lost:
            self.dial_failed(error)
        # If the subclass has had something written, that says more, and counts.
        self.refused(error.text if isinstance(error, StreamFailed) else str(error))
