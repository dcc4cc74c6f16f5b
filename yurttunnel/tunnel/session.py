"""A session on Twisted: drives the wire session by a clock and, while connected, a connection."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from twisted.internet.defer import Deferred, fail
from twisted.internet.interfaces import IDelayedCall, IPushProducer, IReactorTime
from twisted.internet.task import Cooperator
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from yurttunnel.tunnel.cancelled_dials import CancelledDials
from yurttunnel.tunnel.interfaces import IStream, IStreamAcceptor, IStreamOpener, StreamFailed
from yurttunnel.tunnel.shares import OTHER, Holder, Shares, ShareUsedUp
from yurttunnel.tunnel.statistics import SessionSnapshot, TunnelCounters
from yurttunnel.tunnel.stream import StreamRequest, TunnelStream
from yurttunnel.tunnel.transports import IRounds
from yurttunnel.wire.codes import Code
from yurttunnel.wire.credit import MemoryBudget
from yurttunnel.wire.frames import OpenRequest
from yurttunnel.wire.hello import Hello, Limits
from yurttunnel.wire.session import Session
from yurttunnel.wire.session_events import ENDED, OpenRefused
from yurttunnel.wire.stream import Stream
from yurttunnel.wire.stream_table import Side

if TYPE_CHECKING:
    from yurttunnel.tunnel.connection import SessionConnection

BURST = 0.0001
"""Writes within this many seconds of each other are sent together."""

GOAWAY_STEP = 0.1
"""The minimum time in seconds between the two steps of GOAWAY; two round trips if that is more."""

MIN_STREAM_NUMBERS = 1024 * 1024
"""When so few stream numbers are left, a session sends GOAWAY and its peer starts another. At 500
streams a second all numbers are used up in 50 days, and a session may live longer. The remaining
ones last for more than a minute at the maximum rate."""

REPLACEMENT_TIME = 5.0
"""The minimum time in seconds for which a session that is to be replaced goes on, even without open
streams. The agent or the sibling starts the next session within this time (a sibling waits for up
to 3 s); otherwise the node would be unreachable in between."""


@dataclass(slots=True)
class SessionContext:
    """The state that all sessions of a process share.

    ``budget`` is the memory for their data. ``acceptor`` answers the peers' requests to open a
    stream. ``shares`` divide the streams that the memory allows among their holders.
    """

    clock: IReactorTime
    counters: TunnelCounters
    budget: MemoryBudget
    acceptor: IStreamAcceptor
    cooperator: Cooperator = field(init=False)
    at_end_of_round: Callable[[Callable[[], object]], bool] | None = field(init=False)
    call_soon: Callable[..., object] = field(init=False)
    shares: Shares = field(init=False)

    def __post_init__(self) -> None:
        """Create the shares, and a cooperator that runs pull producers one step per iteration."""
        budget, window = self.budget, Limits().stream_window
        self.shares = Shares(
            "in this process of the server",
            budget.limit // window,
            lambda: (budget.limit - budget.used) // window,
        )
        self.cooperator = Cooperator(scheduler=lambda call: self.clock.callLater(0, call))
        rounds = IRounds(self.clock, None)
        self.at_end_of_round = None if rounds is None else rounds.at_end_of_round
        self.call_soon = partial(self.clock.callLater, 0) if rounds is None else rounds.call_soon


@dataclass(frozen=True, slots=True)
class PeerDescription:
    """A description of the peer for logs and pages: names, address, expiry of the certificate."""

    local_name: str
    peer_name: str
    address: str
    certificate_not_after: datetime.datetime | None = None


@implementer(IStreamOpener, IPushProducer)
class TunnelSession:
    """One session, from the first HELLO until it can no longer be resumed.

    Without a connection it is kept for the resume window of the HELLOs, regardless of how the
    connection ended. A shorter ``return_grace``, in seconds, replaces that window after the peer's
    side has closed or reset a healthy connection. This happens when the peer's process dies, whose
    streams then end soon, but also when a middlebox restarts.
    """

    _log = Logger()

    # Set only on instances that send GOAWAY or cancel dials: with more than thirty attributes of
    # its own, each instance would have its own table of attribute names, of 1.3 KiB.
    _goaway_call: IDelayedCall | None = None
    _goaway_text = ""
    _cancelled_dials: CancelledDials | None = None
    _drained = False

    def __init__(
        self,
        context: SessionContext,
        side: Side,
        local: Hello,
        peer: Hello,
        description: PeerDescription,
        return_grace: float = float("inf"),
    ) -> None:
        self.clock = context.clock
        self.cooperator = context.cooperator
        self.call_soon = context.call_soon
        self.description = description
        self.since = datetime.datetime.now(datetime.UTC)
        self.resumptions = 0
        self.draining = False
        self.on_closed: list[Callable[[Code, str], object]] = []
        self.on_draining: list[Callable[[], object]] = []
        self.on_servers: list[Callable[[int], object]] = []
        self._acceptor = context.acceptor
        self._counters = context.counters
        self._return_grace = return_grace
        self._resume_window = min(local.limits.resume_window, peer.limits.resume_window) / 1000
        self._carrier: SessionConnection | None = None
        self._carried_before = False
        self.busy = False
        """Whether the connection is congested."""
        self._flushing = False
        self._at_end_of_round = context.at_end_of_round
        self._flush_at_round_end = False
        self._flush_scheduled = False
        self._last_sent = 0.0
        self._timer: IDelayedCall | None = None
        self._may_end: Callable[[], bool] = lambda: True
        self._ending: list[TunnelStream] = []
        # The value of wire.ends when the ending streams were last checked.
        self._ends_seen = 0
        self.wire = Session(side, local, peer, self, self.clock.seconds(), context.budget)
        self._memory = self.wire.memory
        max_streams = min(peer.limits.max_streams, self._memory.limit // local.limits.stream_window)
        self.shares = Shares(f"to {self.peer_name}", max_streams, self._available, context.shares)
        self._counters.sessions_started += 1

    # -- identity and state --------------------------------------------------------------------

    @property
    def session_id(self) -> bytes:
        """The sixteen bytes with which the peer resumes the session."""
        return self.wire.local.session if self.wire.side is Side.SERVER else self.wire.peer.session

    @property
    def connected(self) -> bool:
        """Whether a connection carries the session now."""
        return self._carrier is not None

    @property
    def closed(self) -> bool:
        """Whether the session has ended."""
        return self.wire.state is ENDED

    @property
    def peer_name(self) -> str:
        """The name of the peer for display."""
        return self.description.peer_name

    @property
    def local_name(self) -> str:
        """The name of this end for display."""
        return self.description.local_name

    def snapshot(self) -> SessionSnapshot:
        """Return the current figures."""
        wire = self.wire
        return SessionSnapshot(
            node=self.peer_name,
            session_id=self.session_id.hex(),
            since=self.since,
            connected=self.connected,
            round_trip=wire.round_trip,
            streams=len(wire.streams),
            streams_by_entry={kind.value: held for kind, held in self.shares.held.items() if held},
            bytes_received=wire.bytes_received,
            bytes_sent=wire.bytes_sent,
            unacknowledged=wire.unacknowledged,
            waits_for=wire.waits_for(self.clock.seconds()),
            resumptions=self.resumptions,
            version=wire.peer.properties.get("software", "unknown"),
            address=self.description.address,
            certificate_not_after=self.description.certificate_not_after,
        )

    # -- streams -------------------------------------------------------------------------------

    def open_stream(
        self, host: str, port: int, timeout: float, request_id: str, holder: Holder = OTHER
    ) -> Deferred[IStream]:
        """Request the peer to connect to a target; see :class:`IStreamOpener`."""
        holder = holder.for_port(port)
        try:
            self.shares.check(holder)
        except ShareUsedUp as error:
            self._counters.refused[f"{holder.kind}.{error.share}"] += 1
            self.dial_answered(Code.OVERLOADED)
            return fail(StreamFailed(Code.OVERLOADED, str(error)))
        stream = TunnelStream(self, request_id, holder)
        milliseconds = int(min(max(1, timeout * 1000), 0xFFFFFFFF))
        request = OpenRequest(host, port, milliseconds, request_id)
        try:
            wire = self.wire.open(request, stream, self.clock.seconds())
        except OpenRefused as error:
            self.dial_answered(error.code)
            return fail(StreamFailed(error.code, f"{self.peer_name}: {error.text}"))
        except ValueError as error:
            return fail(StreamFailed(Code.BAD_DESTINATION, str(error)))
        self.shares.acquire(holder)
        opened = stream.opening(wire)
        self.request_flush()
        if self.wire.numbers_left < MIN_STREAM_NUMBERS and self.connected and not self.draining:
            # Later, because its callbacks may close streams, and the caller does not have this
            # stream yet.
            self.call_soon(self._drain_exhausted)
        return opened

    def release_share(self, holder: Holder, cancelled_at: int) -> None:
        """Release the share of a stream of ``holder``.

        If this end has cancelled its OPEN, by a RESET that ends at ``cancelled_at``, the stream
        counts for a while longer; see :class:`CancelledDials`.
        """
        if not cancelled_at or self.closed:
            self.shares.release(holder)
            return
        if self._cancelled_dials is None:
            self._cancelled_dials = CancelledDials(
                self.clock, self.shares, lambda: self.wire.acknowledged
            )
        self._cancelled_dials.add(holder, cancelled_at)

    def count_traffic(self, holder: Holder, received: int, sent: int) -> None:
        """Count the bytes that a stream opened by this end has carried."""
        self._counters.count_stream(holder, received, sent)

    def finish(self, stream: TunnelStream, wire: Stream) -> None:
        """End the sending direction of ``stream``; notify it later, once the FIN has been sent."""
        if wire.closed:
            return
        if stream not in self._ending:
            self._ending.append(stream)
        # Force a check: its FIN may have been sent before.
        self._ends_seen = -1
        self.wire.finish(wire)
        self.request_flush()
        if not self._flush_at_round_end:
            self._flush_soon()

    def dial_answered(self, code: Code) -> None:
        """Count the answer to an OPEN."""
        self._counters.dials[code] += 1

    def observe_dial_duration(self, seconds: float) -> None:
        """Record the duration of an OPEN that was answered with OK."""
        self._counters.dial_durations.observe(seconds)

    def stream_ended(self, code: Code) -> None:
        """Count the end of an open stream."""
        self._counters.stream_ends[code] += 1

    # -- connections ---------------------------------------------------------------------------

    def carry(self, carrier: SessionConnection, peer_received: int) -> None:
        """Continue over ``carrier``, on which the HELLOs have been exchanged.

        It replaces a connection that still seems to be alive. Raises
        :class:`~yurttunnel.wire.frames.Violation`, and closes the session, if the peer acknowledges
        data that was never sent.
        """
        old, self._carrier = self._carrier, None
        if old is not None:
            old.abandon()
        self.wire.attach(peer_received, self.clock.seconds())
        if self._carried_before:
            self.resumptions += 1
            self._counters.resumptions += 1
        self._carried_before = True
        self._carrier = carrier
        self.busy = False
        carrier.register_producer(self)
        self.flush()

    def data_received(self, data: bytes) -> None:
        """Process bytes from the connection."""
        wire = self.wire
        before = wire.bytes_received
        # Everything that the streams' users write now is sent by one flush at the end.
        self._flushing = True
        try:
            wire.receive(data, self.clock.seconds())
        finally:
            self._flushing = False
        self._counters.bytes_received += wire.bytes_received - before
        if wire.may_send or self._has_ended or self._drained:
            if self._at_end_of_round is None:
                self.flush()
            elif not self._flush_at_round_end:
                self._flush_at_round_end = self._at_end_of_round(self._flush_round)
                if not self._flush_at_round_end:
                    self.flush()

    def connection_lost(self, by_peer: bool) -> None:
        """Handle the loss of the connection; ``by_peer`` if the peer's side closed or reset it."""
        self._carrier = None
        if self.closed:
            return
        self._counters.connections_lost += 1
        now = self.clock.seconds()
        keep = self._resume_window
        # A live peer also resets a connection that it abandons, but such a one was not healthy.
        if by_peer and self.wire.is_healthy(now):
            keep = min(keep, self._return_grace + 4 * (self.wire.round_trip or 0.0))
        self.wire.detach(now, keep)

    def close(self, code: Code, text: str) -> None:
        """End the session and all its streams with a reason."""
        self.wire.close(code, text)

    def drain(
        self, text: str, may_end: Callable[[], bool] = lambda: True, min_delay: float = GOAWAY_STEP
    ) -> None:
        """Drain the session: send GOAWAY, serve until no stream is open, then end the session.

        It ends only if ``may_end()`` allows it, which :meth:`end_if_idle` checks again, and not
        before ``min_delay`` seconds. If called again, ``may_end`` replaces the previous one, and
        ``min_delay`` can only shorten the time.
        """
        if self.closed:
            return
        self._may_end = may_end
        delay = max(min_delay, 2 * (self.wire.round_trip or 0.0))
        if self.wire.draining:
            waited = self._goaway_call
            if waited is not None and waited.getTime() > self.clock.seconds() + delay:
                waited.reset(delay)
            return
        self.draining = True
        self._goaway_text = text
        self._goaway_call = self.clock.callLater(delay, self._goaway_delay_over)
        self.wire.go_away(Code.GOING_AWAY, text)
        self.request_flush()

    def send_servers(self, servers: int) -> None:
        """Send the current number of servers to the agent, if there is a connection."""
        self.wire.send_servers(servers)
        self.request_flush()

    def ended(self) -> Deferred[None]:
        """Return a Deferred that fires once the session has ended."""
        ended: Deferred[None] = Deferred()
        if self.closed:
            ended.callback(None)
        else:
            self.on_closed.append(lambda code, text: ended.callback(None))
        return ended

    def end_if_idle(self) -> None:
        """End a draining session if no stream is open."""
        if not self.wire.streams:
            self.no_stream_left()

    def _drain_exhausted(self) -> None:
        """Drain the session as if the peer had asked; the next one starts with new numbers."""
        if self.connected and not self.draining:
            text = "the session has nearly used up its stream numbers"
            self.drain(text, min_delay=REPLACEMENT_TIME)
            self._notify_draining()

    def _goaway_delay_over(self) -> None:
        self._goaway_call = None
        self.end_if_idle()

    def _available(self) -> int:
        """Return how many more streams the peer's limit and this end's memory allow."""
        memory, wire = self._memory, self.wire
        window = wire.local.limits.stream_window
        return min(
            wire.peer.limits.max_streams - self.shares.used, (memory.limit - memory.used) // window
        )

    # -- flushing ------------------------------------------------------------------------------

    def request_flush(self) -> None:
        """Send soon: with the other writes of this round, or at once outside a round.

        On a reactor without rounds, send at once if the last send was more than :data:`BURST` ago,
        else in the next iteration.
        """
        if self._flushing or self.busy or self._flush_at_round_end or self._carrier is None:
            return
        if self._flush_scheduled and self._at_end_of_round is None:
            return
        if self._at_end_of_round is not None:
            self._flush_at_round_end = self._at_end_of_round(self._flush_round)
            if not self._flush_at_round_end:
                self._send()
        elif self.clock.seconds() - self._last_sent > BURST:
            self._send()
        else:
            self._flush_soon()

    def _flush_soon(self) -> None:
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self.call_soon(self._flush_later)

    def _flush_round(self) -> None:
        self._flush_at_round_end = False
        self.flush()

    def _flush_later(self) -> None:
        self._flush_scheduled = False
        self.flush()

    def flush(self) -> None:
        """Send pending frames, and notify the streams whose FIN has been sent."""
        if not self._flushing:
            self._send()
            if self._has_ended:
                self._settle_ending()

    def _send(self) -> None:
        """Send pending frames until the connection is congested."""
        carrier = self._carrier
        if carrier is None:
            return
        wire = self.wire
        if wire.may_send and not self.busy:
            self._send_on(carrier)
        if self._drained and not self.busy and not wire.unacknowledged:
            # Only now, when the peer has acknowledged everything: closing would lose the rest.
            self.close(Code.GOING_AWAY, "the session has been drained")

    def _send_on(self, carrier: SessionConnection) -> None:
        wire = self.wire
        before = wire.bytes_sent
        self._flushing = True
        try:
            while chunk := wire.data_to_send():
                if self._carrier is not carrier:
                    break
                carrier.write(chunk)
                if self._at_end_of_round is None:
                    self._last_sent = self.clock.seconds()
                if self.busy or not wire.may_send:
                    break
        finally:
            self._flushing = False
        self._counters.bytes_sent += wire.bytes_sent - before

    @property
    def _has_ended(self) -> bool:
        """Whether to check the ending streams; hundreds may wait for a peer that does not read."""
        return bool(self._ending) and self._ends_seen != self.wire.ends

    def _settle_ending(self) -> None:
        self._ends_seen = self.wire.ends
        # The notified users may end other streams.
        ending, self._ending = self._ending, []
        for stream in ending:
            try:
                settled = stream.settle_end()
            except Exception as error:
                stream.fail(error)
            else:
                if not settled:
                    self._ending.append(stream)

    def pauseProducing(self) -> None:
        """Stop sending for now: the connection is congested."""
        self.busy = True

    def resumeProducing(self) -> None:
        self.busy = False
        self.flush()

    def stopProducing(self) -> None:
        """Stop sending: the connection is lost, and ``connection_lost`` follows."""
        self.busy = True

    # -- SessionEvents -------------------------------------------------------------------------

    def stream_requested(self, stream: Stream) -> None:
        """Pass the peer's request for a stream to the acceptor."""
        request = StreamRequest(self, stream)
        stream.events = request
        self._acceptor.stream_requested(request)

    def connection_silent(self) -> None:
        """Abort a connection on which nothing is received any more."""
        carrier = self._carrier
        if carrier is not None:
            self._log.warn(
                "{peer}: no data for too long, closing the connection", peer=self.peer_name
            )
            carrier.abandon()
            self.connection_lost(by_peer=False)

    def timer_moved(self, when: float) -> None:
        """Set the timer of the wire session to an earlier time than before."""
        if self._timer is not None and self._timer.active():
            # Not reset(): for an earlier time the reactor would search all its timers.
            self._timer.cancel()
        self._timer = self.clock.callLater(max(0.0, when - self.clock.seconds()), self._tick)

    def _tick(self) -> None:
        self._timer = None
        self.wire.tick(self.clock.seconds())
        self.flush()

    def goaway_received(self, code: Code, text: str) -> None:
        """Notify the users of this session that it accepts no new streams."""
        self.draining = True
        self._notify_draining()

    def _notify_draining(self) -> None:
        for callback in list(self.on_draining):
            callback()

    def servers_received(self, servers: int) -> None:
        """Notify the callbacks of the number of servers."""
        for callback in list(self.on_servers):
            callback(servers)

    def no_stream_left(self) -> None:
        """Continue to end a draining session, now that no stream is open.

        First the final GOAWAY is sent; once that is done, the session closes when all is flushed.
        """
        if not self.wire.draining or self._goaway_call is not None:
            return
        if self.wire.refuses_streams:
            # Not closed yet: the last stream's FIN is still to be sent.
            self._drained = True
        elif self._may_end():
            self.wire.go_away(Code.GOING_AWAY, self._goaway_text)
        self.request_flush()

    def deliver_failed(self, stream: Stream, error: Exception) -> None:
        """Log an exception of a stream's user, which is a defect."""
        self._log.failure(
            "{peer}: the user of stream {request_id} failed",
            failure=Failure(error),
            peer=self.peer_name,
            request_id=stream.request.request_id,
        )

    def session_closed(self, code: Code, text: str, by_peer: bool) -> None:
        """Clean up, notify the peer unless it has closed the session, and notify the owners."""
        self._counters.session_ends[code] += 1
        carrier, self._carrier = self._carrier, None
        if carrier is not None:
            last = self.wire.data_to_send()
            if last:
                carrier.write(last)
            carrier.end()
        for call in (self._timer, self._goaway_call):
            if call is not None and call.active():
                call.cancel()
        self._timer = self._goaway_call = None
        self._ending.clear()
        if self._cancelled_dials is not None:
            self._cancelled_dials.end()
        for callback in list(self.on_closed):
            callback(code, text)
