"""What the listeners for callers share: each caller makes a call, which requests a stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from twisted.internet.address import UNIXAddress
from twisted.internet.defer import Deferred
from twisted.internet.protocol import ServerFactory, connectionDone
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import Interface

from yurttunnel.http.authority import join_authority
from yurttunnel.http.errors import RequestFailed
from yurttunnel.http.shared_limit import SharedLimit
from yurttunnel.ops.failures import Failures
from yurttunnel.server.audit import Audit, audited, unix_user
from yurttunnel.server.registry import INodeSession, SessionRegistry
from yurttunnel.server.request_ids import RequestIds
from yurttunnel.tunnel.interfaces import IStream, StreamFailed
from yurttunnel.tunnel.relay import LocalConnection
from yurttunnel.tunnel.shares import Holder, Kind, caller_at
from yurttunnel.wire.codes import Code

DIAL_TIMEOUT = 15.0
"""Seconds: the dial watchdog of yurttunnel 1.2, and half of kube-apiserver's dial timeout."""

MAX_PENDING_DIALS = 4096
"""The maximum number of pending dials of one listener; each holds one connection and a few KiB."""


def caller_key(transport: Any) -> str:
    """Return the key under which a caller is counted: its address, or the user of a Unix socket."""
    peer = transport.getPeer()
    if isinstance(peer, UNIXAddress):
        return unix_user(transport.getHandle())
    return caller_at(getattr(peer, "host", ""))


class IGate(Interface):
    """A check that each call of an entry has to pass before anything is dialed for it.

    A middleware (``--middleware``) that provides this interface sees the calls of every entry:
    CONNECT, forwards and the pass-through.
    """

    def admit(call: Call) -> None:
        """Admit ``call``, or raise :class:`RequestFailed` with the text for the caller."""


class Dialer:
    """What the calls of one entry have in common: the registry, the limits and the gates.

    At most ``pending_dials.maximum`` dials are pending at a time, and one caller may have as many
    as remain free; further ones fail with :attr:`Code.OVERLOADED`. ``dial_timeout`` is in seconds.
    """

    kind = Kind.OTHER
    """The name of a caller's stream in the audit log and in metrics."""
    flag = ""
    """The flag that configures this entry, whose callers share its limits."""
    audit: Audit | None = None
    """The audit log for the calls; set before anybody can connect."""
    failures: Failures | None = None
    """Records failed calls; set before anybody can connect."""
    gates: Sequence[IGate] = ()
    """The checks for each call, in this order, before anything is dialed for it."""

    def __init__(self, registry: SessionRegistry) -> None:
        self.registry = registry
        self.dial_timeout = DIAL_TIMEOUT
        self.pending_dials = SharedLimit(MAX_PENDING_DIALS)
        self.request_ids = RequestIds()


class FrontEnd(Protocol):
    """The owner of a call; one of two methods reports the result of the dial."""

    def stream_opened(self, stream: IStream) -> None:
        """Handle a successful dial: join ``stream``, or abort it."""

    def dial_failed(self, error: BaseException) -> None:
        """Handle a failed dial: ``error`` is a :class:`StreamFailed`, or the
        :class:`RequestFailed` of the registry or a gate.

        Anything else is a defect of the server, which has been logged.
        """


class Call:
    """One caller that requests one stream: its identity, target and outcome.

    It begins with the connection, and :meth:`caller_disconnected` reports the end of that. It has a
    line in the audit log if ``dialer`` has one.
    """

    log = Logger()

    def __init__(self, dialer: Dialer, front_end: FrontEnd) -> None:
        self.request_id = "-"
        """Identifies the request in the logs of both ends; a hyphen until it is known."""
        self.node = ""
        """The requested node, as the caller names it; empty until it is known."""
        self.serving_node = ""
        """The name of the node that serves the call; empty while none is connected."""
        self.host = ""
        """With ``port`` the target that the agent dials."""
        self.port = 0
        self.kind = dialer.kind
        self.flag = dialer.flag
        """The flag that configures the caller's entry."""
        self._dialer = dialer
        self._front_end = front_end
        self._dialing: Deferred[IStream] | None = None
        self._caller_gone = False
        self._caller = ""
        # Whether its failure was recorded, or need not be.
        self._is_recorded = False
        audit = dialer.audit
        self._entry = None if audit is None else audit.begin(self.kind)

    def dial(self, transport: Any, node: str, host: str, port: int) -> None:
        """Open a stream to ``host`` and ``port`` through the agent that serves ``node``.

        Calls ``stream_opened`` or ``dial_failed`` of the front end, possibly before it returns;
        neither if the caller leaves first, which cancels the dial. ``transport`` is the caller's.
        """
        self.node, self.host, self.port = node, host, port
        self.transport = transport
        self._caller = caller_key(transport)
        dialer = self._dialer
        if self._entry is not None:
            self._entry.set_request(transport, self.request_id, node, join_authority(host, port))
        try:
            session = self._admitted()
        except (RequestFailed, StreamFailed) as error:
            self._not_opened(error)
            return
        except Exception as error:
            # Raised by a gate, which may be third-party code.
            self._log_defect(Failure())
            self._not_opened(error)
            return
        if self._entry is not None:
            self._entry.node = session.node
        dialer.pending_dials.add(self._caller, 1)
        holder = Holder.of(self.kind, self.flag, self._caller)
        dialing = session.open_stream(host, port, dialer.dial_timeout, self.request_id, holder)
        self._dialing = dialing
        _ = dialing.addBoth(self._dial_ended)

    def _admitted(self) -> INodeSession:
        """Return the session that serves the node, after all checks.

        A caller without permission is rejected the same way whether the node exists or not.
        """
        dialer = self._dialer
        try:
            session = dialer.registry.find(self.node)
            self.serving_node = session.node
        finally:
            for gate in dialer.gates:
                gate.admit(self)
        pending = dialer.pending_dials
        if not pending.has_room_for(self._caller):
            raise StreamFailed(
                Code.OVERLOADED,
                f"{pending.used} dials are pending already, too many of all or of this caller;"
                " try again later",
            )
        return session

    def caller_disconnected(self) -> None:
        """Cancel a pending dial, whose result is no longer needed."""
        self._caller_gone = True
        # It refers to this call, and is told of nothing any more.
        del self._front_end
        if self._dialing is not None:
            self._dialing.cancel()

    def set_status(self, status: int) -> None:
        """Set the HTTP status that the caller received with its stream; 0 means none yet."""
        if self._entry is not None:
            self._entry.status = status

    def record_refusal(
        self, transport: Any, reason: str, status: int | None = None, destination: str = ""
    ) -> None:
        """Record for the status page and the audit log that the caller gets no stream, and why.

        ``status`` is the HTTP status of the response, ``destination`` what the caller requested if
        nothing was dialed. A failed dial is recorded in any case.
        """
        failures = self._dialer.failures
        if failures is not None and not self._is_recorded:
            self._is_recorded = True
            node = self.serving_node or self.node
            failures.note(self.kind, caller_key(transport), node, self.request_id, status, reason)
        entry = self._entry
        if entry is not None:
            entry.request_id = self.request_id
            if status is not None:
                entry.status = status
            entry.destination = entry.destination or destination
            entry.write_refused(transport, reason, 0)

    def _dial_ended(self, result: IStream | Failure) -> None:
        """Handle the end of the dial: a stream, or a ``Failure``."""
        self._dialing = None
        self._dialer.pending_dials.add(self._caller, -1)
        if not isinstance(result, Failure):
            stream = result if self._entry is None else audited(result, self._entry)
            if self._caller_gone:
                stream.abort(Code.CANCELLED, "the caller left while the stream was opened")
            else:
                self._front_end.stream_opened(stream)
        else:
            assert result.value is not None
            if not (self._caller_gone or isinstance(result.value, StreamFailed)):
                self._log_defect(result)
            self._not_opened(result.value)

    def _log_defect(self, failure: Failure) -> None:
        self.log.failure(
            "Opening stream {request_id} to {node} failed by a defect of the server",
            failure,
            request_id=self.request_id,
            node=self.node,
        )

    def _not_opened(self, error: BaseException) -> None:
        entry = self._entry
        if entry is not None and isinstance(error, StreamFailed):
            entry.code = error.code
        if self._caller_gone:
            self._is_recorded = True
        else:
            self._front_end.dial_failed(error)
        # If the front end has recorded the failure itself, that record has more details and is
        # kept.
        text = error.text if isinstance(error, StreamFailed) else str(error)
        self.record_refusal(self.transport, text)


class DialingFactory(Dialer, ServerFactory):
    """Accepts connections each of which is a call."""

    noisy = False

    def __init__(self, registry: SessionRegistry) -> None:
        super().__init__(registry)
        self.connections: set[DialingConnection] = set()
        self._drained: list[Deferred[None]] = []

    def drain(self) -> Deferred[None]:
        """Close connections without a request; return a ``Deferred`` that fires when none is left.

        Sessions wait for their streams, but a stream ends once its last bytes were written to the
        caller's transport, where a caller that reads slowly still has to receive them.
        """
        drained: Deferred[None] = Deferred()
        self._drained.append(drained)
        for connection in tuple(self.connections):
            connection.drain()
        self._notify_if_drained()
        return drained

    def forget(self, connection: DialingConnection) -> None:
        """Forget a connection that has ended."""
        self.connections.discard(connection)
        self._notify_if_drained()

    def close(self) -> None:
        """Abort all connections, at the end of a drain, after the listener was closed."""
        for connection in tuple(self.connections):
            connection.transport.abortConnection()

    def _notify_if_drained(self) -> None:
        if not self.connections:
            waiting, self._drained = self._drained, []
            for drained in waiting:
                drained.callback(None)


class DialingConnection(LocalConnection):
    """A local connection that is one call, if the entry determines the destination."""

    log = Call.log
    call: Call

    def __init__(self, factory: DialingFactory) -> None:
        self._dialer = factory

    def connectionMade(self) -> None:
        """Register with the factory, and begin the call."""
        self._dialer.connections.add(self)
        self.call = Call(self._dialer, self)

    def dial(self, node: str, host: str, port: int) -> None:
        """Dial; see :class:`Call`."""
        self.call.dial(self.transport, node, host, port)

    def drain(self) -> None:
        """Close the connection if it has no request: none is accepted while the server stops."""
        if not self.call.node:
            self.transport.abortConnection()

    def stream_opened(self, stream: IStream) -> None:
        """See :class:`FrontEnd`."""
        raise NotImplementedError

    def dial_failed(self, error: BaseException) -> None:
        """See :class:`FrontEnd`."""
        raise NotImplementedError

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        super().connectionLost(reason)
        self.call.caller_disconnected()
        self._dialer.forget(self)
