"""What the listeners for callers have in common: each caller is a call, which wants a stream."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from twisted.internet.address import UNIXAddress
from twisted.internet.defer import Deferred
from twisted.internet.protocol import ServerFactory, connectionDone
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import Interface

from yurttunnel.http.authority import join_authority
from yurttunnel.http.errors import RequestFailed
from yurttunnel.http.places import Places
from yurttunnel.ops.failures import Failures
from yurttunnel.server.audit import Audit
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


def caller_behind(transport: Any) -> str:
    """Return what a caller counts as: its address, or the user behind a Unix socket."""
    peer = transport.getPeer()
    if isinstance(peer, UNIXAddress):
        return unix_user(transport.getHandle())
    return caller_at(getattr(peer, "host", ""))


class IGate(Interface):
    """What each call of an entry has to pass before anything is dialed for it.

    A middleware (``--middleware``) that provides it sees the calls of every entry: of CONNECT, of
    forwards and of the pass-through.
    """

    def admit(call: Call) -> None:
        """Let ``call`` through, or raise :class:`RequestFailed` with what the caller is told."""


@dataclass(frozen=True, slots=True)
class DialSettings:
    """What bounds the dials of one entry, and what makes their request ids."""

    timeout: float = DIAL_TIMEOUT
    """Seconds for a whole opening."""
    max_pending: int = MAX_PENDING_DIALS
    """Openings that may wait at a time."""
    request_ids: RequestIds = field(default_factory=RequestIds)


class Dialer:
    """What the calls that come by one entry have in common: where they lead, and their bounds.

    At most ``dials.max_pending`` openings wait at a time, of one caller as many as it leaves free;
    further ones fail with :attr:`Code.OVERLOADED`.
    """

    kind = Kind.OTHER
    """What a stream for a caller is called in the audit log and the metrics."""
    flag = ""
    """The flag that asks for this entry, whose callers share what it may hold."""
    audit: Audit | None = None
    """Where it is to be written what becomes of them; set before anybody can connect."""
    failures: Failures | None = None
    """Where it is kept what they did not get; set before anybody can connect."""
    gates: Sequence[IGate] = ()
    """What each call has to pass, in this order, before anything is dialed for it."""

    def __init__(self, registry: SessionRegistry, dials: DialSettings | None = None) -> None:
        dials = dials or DialSettings()
        self.registry = registry
        self.dial_timeout = dials.timeout
        self.pending_dials = Places(dials.max_pending)
        self.request_ids = dials.request_ids


class FrontEnd(Protocol):
    """What a call is made for: it is told by one of two methods how the dial went."""

    def stream_opened(self, stream: IStream) -> None:
        """The far end has connected; the implementation joins ``stream`` or aborts it."""

    def dial_failed(self, error: BaseException) -> None:
        """There is no stream: a :class:`StreamFailed` or :class:`NodeNotConnected` says why, or
        the :class:`RequestFailed` of a gate.

        Anything else is a defect of ours that has been logged.
        """


class Call:
    """One caller that asks for one stream: who, what for, and what becomes of it.

    It begins with the connection, and is told when that ends (:meth:`caller_left`); the audit log
    has a line for it if ``dialer`` has one.
    """

    log = Logger()

    def __init__(self, dialer: Dialer, front_end: FrontEnd) -> None:
        self.request_id = "-"
        """Names the request in logs of both ends; a hyphen until it is known."""
        self.node = ""
        """The node that is asked for, as the caller calls it; empty until it is known."""
        self.serving_node = ""
        """The name of the node that serves what is asked for; empty while none is connected."""
        self.host = ""
        """With ``port`` the target, as the agent is to dial it."""
        self.port = 0
        self.kind = dialer.kind
        self.flag = dialer.flag
        """The flag that asks for the entry by which the caller has come."""
        self._dialer = dialer
        self._front_end = front_end
        self._dialing: Deferred[IStream] | None = None
        self._left = False
        self._caller = ""
        # Whether its failure has been, or is not worth it.
        self._noted = False
        audit = dialer.audit
        self._entry = None if audit is None else audit.begin(self.kind)

    def dial(self, transport: Any, node: str, host: str, port: int) -> None:
        """Open a stream to ``host`` and ``port`` through the agent that serves ``node``.

        Ends in ``stream_opened`` or ``dial_failed`` of the front end, perhaps at once; in neither
        when the caller leaves first, which cancels the dial. ``transport`` is the caller's.
        """
        self.node, self.host, self.port = node, host, port
        self.transport = transport
        self._caller = caller_behind(transport)
        dialer = self._dialer
        if self._entry is not None:
            self._entry.asks(transport, self.request_id, node, join_authority(host, port))
        try:
            session = self._admitted()
        except (NodeNotConnected, RequestFailed, StreamFailed) as error:
            self._not_opened(error)
            return
        except Exception as error:
            # Of a gate, which may be anybody's.
            self._log_defect(Failure())
            self._not_opened(error)
            return
        if self._entry is not None:
            self._entry.node = session.node
        dialer.pending_dials.count(self._caller, 1)
        holder = Holder.of(self.kind, self.flag, self._caller)
        dialing = session.open_stream(host, port, dialer.dial_timeout, self.request_id, holder)
        self._dialing = dialing
        _ = dialing.addBoth(self._dial_ended)

    def _admitted(self) -> INodeSession:
        """Return the session that serves the node, once the call has passed everything.

        Who may not have it is told that, whether there is such a node or not.
        """
        dialer = self._dialer
        missing = None
        try:
            session = dialer.registry.find(self.node)
            self.serving_node = session.node
        except NodeNotConnected as error:
            missing = error
        for gate in dialer.gates:
            gate.admit(self)
        if missing is not None:
            raise missing
        pending = dialer.pending_dials
        if not pending.has_one_for(self._caller):
            raise StreamFailed(
                Code.OVERLOADED,
                f"{pending.taken} dials are pending already, too many of all or of this caller;"
                " try again later",
            )
        return session

    def caller_left(self) -> None:
        """Cancel a dial that is under way: nobody waits for it."""
        self._left = True
        if self._dialing is not None:
            self._dialing.cancel()

    def answered(self, status: int) -> None:
        """Note what the caller was told by HTTP when it got its stream; 0 is nothing yet."""
        if self._entry is not None:
            self._entry.status = status

    def refused(
        self, transport: Any, reason: str, status: int | None = None, destination: str = ""
    ) -> None:
        """Have the status page and the audit log say that the caller gets no stream, and why.

        ``status`` is what it is told by HTTP, ``destination`` what it has asked for where there
        was no dial. A dial that has failed is written down in any case.
        """
        failures = self._dialer.failures
        if failures is not None and not self._noted:
            self._noted = True
            node = self.serving_node or self.node
            failures.note(
                self.kind, caller_behind(transport), node, self.request_id, status, reason
            )
        entry = self._entry
        if entry is not None:
            entry.request_id = self.request_id
            if status is not None:
                entry.status = status
            entry.destination = entry.destination or destination
            entry.refused(transport, reason, 0)

    def _dial_ended(self, result: IStream | Failure) -> None:
        """Take either end of the dial: a stream, or a ``Failure``."""
        self._dialing = None
        self._dialer.pending_dials.count(self._caller, -1)
        if not isinstance(result, Failure):
            stream = result if self._entry is None else audited(result, self._entry)
            if self._left:
                stream.abort(Code.CANCELLED, "the caller left while the stream was opened")
            else:
                self._front_end.stream_opened(stream)
        else:
            assert result.value is not None
            if not (self._left or isinstance(result.value, StreamFailed)):
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
        if self._left:
            self._noted = True
        else:
            self._front_end.dial_failed(error)
        # If the front end has had something written, that says more, and counts.
        text = error.text if isinstance(error, StreamFailed) else str(error)
        self.refused(self.transport, text)


class DialingFactory(Dialer, ServerFactory):
    """Accepts connections each of which is a call; the arguments are as in :class:`Dialer`."""

    noisy = False

    def __init__(self, registry: SessionRegistry, dials: DialSettings | None = None) -> None:
        super().__init__(registry, dials)
        self.connections: set[DialingConnection] = set()
        self._all_gone: list[Deferred[None]] = []

    def drain(self) -> Deferred[None]:
        """End connections that want nothing yet; return what fires when none is left.

        The sessions wait for the streams, but a stream has ended once its last bytes have been
        written to the caller's transport. There they wait for a caller that reads slowly.
        """
        gone: Deferred[None] = Deferred()
        self._all_gone.append(gone)
        for connection in tuple(self.connections):
            connection.drain()
        self._tell_when_gone()
        return gone

    def forget(self, connection: DialingConnection) -> None:
        """Let go of a connection that has ended."""
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
    """A local connection that is one call, for what says by itself what it is meant for."""

    log = Call.log
    call: Call

    def __init__(self, factory: DialingFactory) -> None:
        self._dialer = factory

    def connectionMade(self) -> None:
        """Be known to the factory, and begin the call."""
        self._dialer.connections.add(self)
        self.call = Call(self._dialer, self)

    def dial(self, node: str, host: str, port: int) -> None:
        """Dial; see :class:`Call`."""
        self.call.dial(self.transport, node, host, port)

    def drain(self) -> None:
        """End now if nothing has been asked for: nothing new is taken while the server stops."""
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
        self.call.caller_left()
        self._dialer.forget(self)
