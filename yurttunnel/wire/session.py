"""A session: many streams between an agent and a server, over one connection at a time.

Theory
======

A session consists of two byte sequences, one in each direction, of all *session* frames (OPEN, OK,
FAIL, DATA, FIN, RESET, CREDIT, GOAWAY). Each side stores the frames of its sequence in a
:class:`~yurttunnel.wire.send_log.SendLog` until the peer has acknowledged them. A connection
carries a part of each sequence. *Link* frames (HELLO, ACK, PING, PONG, SERVERS, CLOSE) are sent in
between, at frame boundaries, and are not part of the sequence. When a connection is lost the
session is *detached*: users notice only that no data flows. When the peer reconnects, its HELLO
says how many bytes it has received, and the sequence continues at that byte. So by construction no
data is lost, duplicated or reordered.

States of a session::

                 attach                      close, CLOSE received,
    DETACHED  ------------>  ATTACHED  ----  or a violation  ---->  CLOSED
        ^                        |                                    ^
        +-------- detach --------+                                    |
        |                                                             |
        +------------- the peer has not reconnected in time ----------+

This module reads neither a clock nor a socket: the owner passes in bytes with the time at which
they arrived (seconds on any monotonic clock), and gets bytes to send. Events are method calls on
:class:`~yurttunnel.wire.session_events.SessionEvents` and
:class:`~yurttunnel.wire.stream.StreamEvents`. They may call back into the session, except for
``attach``, ``receive`` and ``tick``, which the owner must call from outside any event. After any
call the owner should call :meth:`Session.data_to_send` until it returns nothing.

An exception of a stream's user resets that stream. An exception of the owner in a method of its
events propagates to the owner, which must then drop the connection, but not the session: it is no
longer known which bytes of the connection were processed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from yurttunnel.wire import frames
from yurttunnel.wire.bdp_estimate import ACK_DELAY, ACK_EVERY
from yurttunnel.wire.codes import Code
from yurttunnel.wire.credit import MemoryBudget
from yurttunnel.wire.flood import FloodGuard
from yurttunnel.wire.frames import Violation
from yurttunnel.wire.hello import Hello
from yurttunnel.wire.liveness import Liveness
from yurttunnel.wire.parser import FrameParser
from yurttunnel.wire.receiver import Receiver
from yurttunnel.wire.send_queue import MAX_CONTROL, SendQueue
from yurttunnel.wire.session_events import ATTACHED, DETACHED, ENDED, OpenRefused, SessionEvents
from yurttunnel.wire.stream import (
    ANSWERING,
    CLOSED,
    OPEN,
    OPENING,
    WRITABLE_BELOW,
    Stream,
    StreamEvents,
)
from yurttunnel.wire.stream_table import Side, StreamTable

MAX_ANSWERS: Final = 1024 * 1024
"""The bytes of queued control frames above which a peer that opens another stream is a flood: it
does not read the answers. A legitimate peer would need thousands of refused streams in the seconds
until a dead connection is detected."""

ACK_ALONG: Final = 16 * 1024
"""The number of received bytes after which an ACK is sent together with other frames."""

NEVER: Final = float("inf")

ANSWER_GRACE: Final = 0.5
"""The time in seconds that an opener waits for the peer's answer after the dial's timeout."""


class Session:
    """One end of a session; see the module docstring for its use.

    ``local`` and ``peer`` are the HELLOs with which the session began. ``parent_budget`` is the
    memory that it shares with other sessions of the process.
    """

    def __init__(
        self,
        side: Side,
        local: Hello,
        peer: Hello,
        events: SessionEvents,
        now: float,
        parent_budget: MemoryBudget | None = None,
    ) -> None:
        self.side = side
        self.local = local
        self.peer = peer
        self.state = DETACHED
        self.timer = NEVER
        self.draining = False
        self.peer_draining = False
        # Payload bytes of all streams received from, and passed to, connections.
        self.bytes_received = 0
        self.bytes_sent = 0
        # Incremented whenever a stream has sent its FIN, or is closed.
        self.ends = 0
        self._events = events
        self._now = now
        limits = local.limits
        self._receiver = Receiver(limits, parent_budget, now)
        self._table = StreamTable(side, limits, peer.limits, self._receiver.budget)
        # Looked up once, because it is used for each piece of data.
        self._streams = self._table.open
        self._send_queue = SendQueue(peer.limits.session_window, now, parent_budget)
        self._measured = self._send_queue.round_trip
        interval = max(limits.ping_interval, peer.limits.ping_interval) / 1000
        self._liveness = Liveness(interval, follows=side is Side.AGENT)
        self._flood = FloodGuard(now, limits.max_streams)
        self.refuses_streams = False
        """Whether this side has sent its second GOAWAY."""
        self._peer_refuses_streams = False
        self._expires = now + limits.resume_window / 1000
        self._parser = FrameParser(limits.max_frame, self._on_data, self._on_control)
        self._control_handlers = _CONTROL_HANDLERS[side]
        self._acknowledged = 0
        self._ack_at = NEVER
        self._settling = False
        # The end position of a GOAWAY that was queued when nothing else was unfinished.
        self._goaway_end = -1

    # -- connections ---------------------------------------------------------------------------

    @property
    def received(self) -> int:
        """The number of bytes of session frames received, for the HELLO that resumes."""
        return self._parser.received

    @property
    def unacknowledged(self) -> int:
        """The number of unacknowledged bytes in memory."""
        return self._send_queue.log.size

    @property
    def unfinished(self) -> bool:
        """Whether streams are open, or frames at their ends may not have arrived."""
        end = self._send_queue.end
        return bool(self._table.open) or end not in (self.acknowledged, self._goaway_end)

    @property
    def acknowledged(self) -> int:
        """The number of bytes of this side's sequence that the peer has acknowledged."""
        return self._send_queue.log.acknowledged

    @property
    def streams(self) -> Mapping[int, Stream]:
        """The open streams by number."""
        return self._table.open

    @property
    def numbers_left(self) -> int:
        """The number of streams that this side can open before it has used up its numbers."""
        return max(0, frames.MAX_STREAM + 2 - self._table.next_number) // 2

    @property
    def chunk(self) -> int:
        """The number of bytes that :meth:`data_to_send` returns at a time."""
        return self._send_queue.bdp.chunk

    @property
    def round_trip(self) -> float | None:
        """The round-trip time in seconds, without queueing behind this side's data."""
        return self._measured.seconds

    def is_healthy(self, now: float) -> bool:
        """Return whether the connection is healthy: no PING has been unanswered for long.

        If a healthy connection ends, the peer has ended it. The end of an unhealthy one says
        nothing about the peer's process: the peer drops a silent connection, and a middlebox may
        have lost its state.
        """
        return self._liveness.is_healthy(now, self._measured.seconds or 0.0)

    def waits_for(self, now: float) -> float | None:
        """Return how many seconds the session still waits for its peer, ``None`` if it does not."""
        detached = self.state is DETACHED
        return max(0.0, self._expires - now) if detached else None

    @property
    def memory(self) -> MemoryBudget:
        """The memory budget for the streams' windows."""
        return self._receiver.budget

    def stats(self) -> dict[str, object]:
        """Return a snapshot of the session's state, for diagnosis; sizes are in bytes.

        ``window`` is the session's receive window. The peer may send ``credit_given`` more payload,
        and this end ``credit_left``. ``held`` is received data that is not consumed yet.
        ``control_queued`` is the size of the queued control frames. ``unacknowledged`` data is in
        flight, ``most_unacknowledged`` may be, and ``to_send_again`` is still to be retransmitted
        after a lost connection. ``chunk`` is written to the connection in one call. ``memory_used``
        of ``memory_limit`` is promised to the peer's streams or unacknowledged.
        """
        send_queue, window = self._send_queue, self._receiver.window
        return {
            "state": self.state.value,
            "going_away": self.draining,
            "peer_going_away": self.peer_draining,
            "window": window.size,
            "credit_given": window.limit - window.received,
            "held": window.received - window.consumed,
            "credit_left": send_queue.payload_limit - send_queue.payload_sent,
            "control_queued": send_queue.control_size,
            "unacknowledged": self.unacknowledged,
            "most_unacknowledged": send_queue.bdp.max_unacknowledged,
            "to_send_again": sum(map(len, send_queue.log.to_retransmit)),
            "chunk": send_queue.bdp.chunk,
            "memory_used": self.memory.used,
            "memory_limit": self.memory.limit,
        }

    def can_resume(self, peer_received: int) -> bool:
        """Return whether a peer with ``peer_received`` bytes can resume."""
        log = self._send_queue.log
        return log.acknowledged <= peer_received <= log.end

    def attach(self, peer_received: int, now: float) -> None:
        """Continue over a new connection, on which both HELLOs have been exchanged.

        ``peer_received`` is the number of bytes of session frames that the peer has received,
        according to its HELLO. Raises :class:`Violation` if that is impossible, or if the session
        has ended. Then the session is closed, and the caller sends CLOSE on the new connection. A
        previous connection no longer carries the session.
        """
        if self.state is ENDED:
            raise Violation(Code.SESSION_LOST, "the session has ended")
        self._now = now
        self.state = DETACHED
        try:
            self._send_queue.log.acknowledge(peer_received)
        except Violation as violation:
            self._end(violation.code, violation.text, by_peer=False)
            raise
        self.state = ATTACHED
        self._send_queue.connected(now)
        self._parser.restart()
        # This side's HELLO has acknowledged what was received.
        self._acknowledged = self._parser.received
        self._ack_at = NEVER
        self._liveness.connected(now)
        self._schedule(now)

    def detach(self, now: float, keep: float) -> None:
        """Handle the loss of the connection; keep the session for ``keep`` seconds."""
        if self.state is ATTACHED:
            self._now = now
            self.state = DETACHED
            self._send_queue.drop_link()
            self._expires = now + keep
            self._schedule(self._expires)

    def close(self, code: Code, text: str) -> None:
        """End the session, and notify the peer if there is a connection."""
        if self.state is not ENDED:
            self._end(code, text, by_peer=False)

    def go_away(self, code: Code, text: str) -> None:
        """Send GOAWAY, which happens in two steps.

        The first call requests the peer to open new streams elsewhere; until the second, either
        side may still open streams that have no alternative. The second call is for when no stream
        is open, at least a round trip later, and names the last stream that was served. The event
        ``no_stream_left`` reports that no stream is open, possibly within the call. Further calls
        do nothing.
        """
        if self.state is ENDED or self.refuses_streams:
            return
        self.refuses_streams = self.draining
        self.draining = True
        last = self._table.last_peer_number if self.refuses_streams else frames.MAX_STREAM
        unfinished = self.unfinished
        self._send_queue.put(frames.goaway_frame(last, code, text))
        if not unfinished:
            self._goaway_end = self._send_queue.end
        self._check_drained()

    def send_servers(self, servers: int) -> None:
        """Send the number of servers, including this one, to the peer, an agent.

        Without a connection this does nothing: the HELLO of the next one has the number.
        """
        if self.state is ATTACHED:
            self._send_queue.put_link(frames.SERVERS, frames.servers_frame(servers))

    # -- time ----------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Process everything that is due at ``now``; ``timer`` is when to call this again."""
        self._now = now
        self.timer = NEVER
        if self.state is ENDED:
            return
        for stream in [s for s in self._table.openings.values() if now >= s.deadline]:
            self.reset(stream, Code.TIMEOUT, "no answer from the node within the deadline")
        if self.state is ATTACHED:
            self._tick_attached(now)
        elif self.state is DETACHED and now >= self._expires:
            self._end(Code.SESSION_LOST, "the peer did not reconnect in time", by_peer=False)
        self._schedule(self._next_deadline())

    def _tick_attached(self, now: float) -> None:
        busy = bool(self._table.open)
        if self._liveness.silent(now, busy):
            self._events.connection_silent()
            return
        if self._liveness.is_ping_due(now, busy):
            self._send_queue.abort_probe()
            self._ping()
        if now >= self._ack_at:
            self._append_ack()

    def _ping(self) -> None:
        self._liveness.pinged(self._now)
        self._send_queue.ping(self._now)

    def _next_deadline(self) -> float:
        deadlines = [stream.deadline for stream in self._table.openings.values()]
        if self.state is ATTACHED:
            deadlines += (self._liveness.deadline(bool(self._table.open)), self._ack_at)
        elif self.state is DETACHED:
            deadlines.append(self._expires)
        return min(deadlines, default=NEVER)

    def _schedule(self, when: float) -> None:
        if when < self.timer:
            self.timer = when
            self._events.timer_moved(when)

    # -- sending -------------------------------------------------------------------------------

    @property
    def may_send(self) -> bool:
        """Whether :meth:`data_to_send` may return bytes; if false, it returns none."""
        send_queue = self._send_queue
        queue = send_queue.queue
        return bool(
            queue.new
            or queue.old
            or send_queue.control_size
            or send_queue.link
            or self._receiver.is_due
            or send_queue.log.to_retransmit
        )

    def data_to_send(self, limit: int | None = None) -> bytes:
        """Return the next bytes for the connection, empty if there are none.

        ``limit`` is the maximum stream payload in them, without frame headers and control frames;
        the default is :attr:`chunk`. After the session was closed this returns the CLOSE, once.
        """
        send_queue = self._send_queue
        if self.state is not ATTACHED:
            return send_queue.take_link()
        if self._settling:
            # Called by an event below, before the current bytes were returned to the caller.
            return b""
        if send_queue.log.to_retransmit:
            # It may start in the middle of a frame, but always ends at a frame boundary.
            chunk = send_queue.log.next_retransmission()
            if self._parser.received - self._acknowledged >= ACK_ALONG:
                self._append_ack()
            return chunk + send_queue.take_link()
        if send_queue.link and send_queue.has_ping_or_pong:
            # On its own: TLS delivers a record only when it is complete, and data would delay it.
            # The direct transport makes a record of each write; Twisted's may join several.
            return send_queue.take_link()
        if self._receiver.is_due and not send_queue.is_full:
            for frame in self._receiver.credit(self._now):
                send_queue.put(frame)
        chunk = send_queue.next_chunk(send_queue.bdp.chunk if limit is None else limit)
        self.bytes_sent = send_queue.payload_sent
        if chunk and self._parser.received - self._acknowledged >= ACK_ALONG:
            self._append_ack()
        if send_queue.link:
            chunk = send_queue.take_link() + chunk
        if send_queue.queue.touched:
            self._notify_touched()
        return chunk

    def _notify_touched(self) -> None:
        queue = self._send_queue.queue
        touched, queue.touched = queue.touched, []
        self._settling = True
        try:
            for stream in touched:
                self._notify_sent(stream)
        finally:
            self._settling = False

    def _notify_sent(self, stream: Stream) -> None:
        if stream.send_ended:
            self.ends += 1
            self._check_ended(stream)
        elif stream.full and stream.pending_size < WRITABLE_BELOW and not stream.closed:
            stream.full = False
            self._notify(stream, stream.events.stream_writable)

    def _append_ack(self) -> None:
        self._acknowledged = self._parser.received
        self._ack_at = NEVER
        self._send_queue.put_link(
            frames.ACK, frames.offset_frame(frames.ACK, 0, self._acknowledged)
        )

    # -- streams: called by their users --------------------------------------------------------

    def open(self, request: frames.OpenRequest, events: StreamEvents, now: float) -> Stream:
        """Open a stream; ``stream_opened`` or ``stream_closed`` follows.

        Raises :class:`OpenRefused` if the session is ending or a limit is reached,
        :class:`ValueError` if a field of ``request`` is out of range.
        """
        self._now = now
        self._check_may_open()
        frame = frames.open_frame(self._table.next_number, request)
        stream = self._table.begin(request, now)
        if stream is None:
            raise OpenRefused(Code.OVERLOADED, "no memory left for another stream")
        stream.events = events
        stream.deadline = now + request.timeout / 1000 + ANSWER_GRACE
        self._send_queue.put(frame)
        self._schedule(stream.deadline)
        self._ping_sooner()
        return stream

    def accept(self, stream: Stream) -> None:
        """Answer OK; the stream is paused until :meth:`resume`."""
        if stream.state is ANSWERING:
            stream.state = OPEN
            self._send_queue.put(frames.frame(frames.OK, stream.number))

    def refuse(self, stream: Stream, code: Code, text: str) -> None:
        """Answer FAIL; ``stream_closed`` is not called."""
        if stream.state is ANSWERING:
            self._send_queue.put(frames.coded_frame(frames.FAIL, stream.number, code, text))
            self._remove(stream)
            self._check_drained()

    def send(self, stream: Stream, data: bytes) -> None:
        """Queue ``data``; if ``stream.full`` is true afterwards, wait for ``stream_writable``.

        Data is dropped if the stream or its sending direction has ended, as by a socket. Raises
        :class:`RuntimeError` if the peer opened the stream and it was not accepted yet.
        """
        if stream.state is not OPEN:
            if stream.state is CLOSED:
                return
            _check_accepted(stream)
        if stream.will_end or not data:
            return
        stream.push(data)
        if not stream.queued and stream.send_limit > stream.sent:
            self._send_queue.queue.add(stream)

    def finish(self, stream: Stream) -> None:
        """End the sending direction after the queued data.

        Raises :class:`RuntimeError` like :meth:`send`.
        """
        if stream.state is CLOSED or stream.will_end:
            return
        _check_accepted(stream)
        stream.will_end = True
        if not stream.pending_size:
            stream.send_ended = True
            self.ends += 1
            self._send_queue.put(frames.frame(frames.FIN, stream.number))
            self._check_ended(stream)

    def reset(self, stream: Stream, code: Code, text: str) -> None:
        """End both directions at once; ``stream_closed`` is called before this returns."""
        if stream.state is CLOSED:
            return
        if self.state is not ENDED:
            self._send_queue.put(frames.coded_frame(frames.RESET, stream.number, code, text))
            if stream.state is OPENING:
                stream.cancelled_at = self._send_queue.end
        self._forget(stream, code, text)

    def pause(self, stream: Stream) -> None:
        """Deliver nothing until :meth:`resume`; meanwhile at most a window is buffered."""
        stream.paused = True

    def resume(self, stream: Stream, now: float) -> None:
        """Deliver the buffered data, then new data as it arrives."""
        self._now = now
        stream.paused = False
        while stream.backlog and not stream.paused:
            piece = stream.backlog.popleft()
            self._deliver(stream, piece)
        if stream.end_waiting and not stream.paused:
            stream.end_waiting = False
            self._end_received(stream)

    # -- received frames -----------------------------------------------------------------------

    def receive(self, data: bytes, now: float) -> None:
        """Process bytes from the connection; all resulting events are called before it returns."""
        if self.state is not ATTACHED:
            return
        self._now = now
        liveness = self._liveness
        liveness.awaiting = None
        liveness.last_received = now
        parser = self._parser
        try:
            parser.feed(data)
        except Violation as violation:
            self.close(violation.code, violation.text)
        if parser.received != self._acknowledged:
            self._acknowledge()

    def _acknowledge(self) -> None:
        """Schedule an ACK for the received bytes, now or after a delay."""
        if self.state is not ATTACHED:
            return
        # A peer that has sent GOAWAY only waits for the acknowledgement of what it has sent.
        if self._parser.received - self._acknowledged >= ACK_EVERY or self.peer_draining:
            self._append_ack()
        elif self._ack_at == NEVER:
            self._ack_at = self._now + ACK_DELAY
            self._schedule(self._ack_at)

    def _on_data(self, number: int, piece: bytes) -> None:
        # An error of the stream is checked before one of the amount, so that the same bytes result
        # in the same code regardless of how the connection has split them.
        stream = self._streams.get(number) or self._table.find(number)
        size = len(piece)
        if stream is None:
            self._receiver.dropped(size)
            self.bytes_received += size
            return
        if stream.receive_ended or stream.state is OPENING:
            raise Violation(
                Code.PROTOCOL, f"data for stream {number}, which cannot receive data in its state"
            )
        self._receiver.arrived(stream, size, self._now)
        self.bytes_received += size
        if stream.paused:
            stream.keep(piece)
        else:
            self._deliver(stream, piece)

    def _deliver(self, stream: Stream, piece: bytes) -> None:
        try:
            stream.deliver(piece)
        except Exception as error:
            self._user_failed(stream, error)
        self._receiver.delivered(stream, len(piece), self._now, self._measured.seconds)

    def _on_control(self, kind: int, number: int, payload: bytes) -> None:
        if self.state is ENDED:
            return
        self._flood.frame(self._now)
        handler = self._control_handlers.get(kind)
        if handler is not None:
            if number and kind & frames.LINK:
                raise Violation(Code.PROTOCOL, f"a frame of type {kind:#x} belongs to no stream")
            handler(self, number, payload)
        elif kind & frames.CRITICAL:
            raise Violation(Code.UNKNOWN_CRITICAL, f"a critical frame of unknown type {kind:#x}")

    def _on_open(self, number: int, payload: bytes) -> None:
        self._flood.opening()
        request = frames.decode_open(payload)
        table = self._table
        table.take_number(number)
        if self._send_queue.control_size > MAX_ANSWERS:
            raise Violation(Code.FLOOD, "streams are opened, but the answers are not read")
        if self.refuses_streams:
            self._fail_at_once(number, Code.GOING_AWAY, "the peer accepts no new streams")
            return
        if table.opened_by_peer >= self.local.limits.max_streams:
            self._fail_at_once(number, Code.OVERLOADED, "too many streams are open")
            return
        stream = table.admit(number, request, self._now)
        if stream is None:
            self._fail_at_once(number, Code.OVERLOADED, "no memory left for another stream")
            return
        self._ping_sooner()
        self._events.stream_requested(stream)

    def _on_ok(self, number: int, payload: bytes) -> None:
        if payload:
            raise Violation(Code.PROTOCOL, "OK has a payload")
        stream = self._table.find(number)
        if stream is None:
            return
        if stream.state is not OPENING:
            raise Violation(Code.PROTOCOL, f"OK for stream {number}, which is not being opened")
        del self._table.openings[number]
        stream.state = OPEN
        self._notify(stream, stream.events.stream_opened)

    def _on_fail(self, number: int, payload: bytes) -> None:
        code, text = frames.decode_coded(payload)
        stream = self._table.find(number)
        if stream is None:
            return
        if stream.state is not OPENING:
            raise Violation(Code.PROTOCOL, f"FAIL for stream {number}, which is not being opened")
        self._forget(stream, _failure(code), text)

    def _on_fin(self, number: int, payload: bytes) -> None:
        if payload:
            raise Violation(Code.PROTOCOL, "FIN has a payload")
        stream = self._table.find(number)
        if stream is None:
            return
        if stream.receive_ended or stream.state is OPENING:
            raise Violation(
                Code.PROTOCOL, f"FIN for stream {number}, which cannot end in its state"
            )
        stream.receive_ended = True
        if stream.paused:
            stream.end_waiting = True
        else:
            self._end_received(stream)

    def _on_reset(self, number: int, payload: bytes) -> None:
        code, text = frames.decode_coded(payload)
        stream = self._table.find(number)
        if stream is None:
            return
        if stream.state is ANSWERING:
            self._flood.cancel()
        self._forget(stream, _failure(code), text)

    def _on_credit(self, number: int, payload: bytes) -> None:
        limit = frames.decode_offset(payload)
        if number == 0:
            send_queue = self._send_queue
            send_queue.payload_limit = max(send_queue.payload_limit, limit)
            return
        stream = self._table.find(number)
        if stream is not None and limit > stream.send_limit:
            stream.send_limit = limit
            if stream.pending_size:
                self._send_queue.queue.add(stream)

    def _on_goaway(self, number: int, payload: bytes) -> None:
        last, code, text = frames.decode_goaway(payload)
        if number:
            raise Violation(Code.PROTOCOL, "GOAWAY belongs to no stream")
        if last != frames.MAX_STREAM:
            self._peer_refuses_streams = True
        if not self.peer_draining:
            self.peer_draining = True
            self._events.goaway_received(code, text)
        for stream in [s for s in self._table.openings.values() if s.number > last]:
            self._forget(stream, Code.GOING_AWAY, text)
        self._check_drained()

    def _on_servers(self, number: int, payload: bytes) -> None:
        self._events.servers_received(frames.decode_servers(payload))

    def _on_ack(self, number: int, payload: bytes) -> None:
        position = frames.decode_offset(payload)
        if self._send_queue.acknowledged(position, self._now):
            self._liveness.answered()
        if self._send_queue.bdp.has_fallen and self._send_queue.is_probe_due(self._now):
            self._ping()

    def _on_ping(self, number: int, payload: bytes) -> None:
        ping = frames.decode_offset(payload)
        self._send_queue.put_link(frames.PONG, frames.offset_frame(frames.PONG, 0, ping))

    def _on_pong(self, number: int, payload: bytes) -> None:
        pong = frames.decode_offset(payload)
        if self._measured.has_sent(pong):
            self._liveness.answered()
        if self._send_queue.pong(pong, self._now):
            self._liveness.pinged(self._now)

    def _on_close(self, number: int, payload: bytes) -> None:
        code, text = frames.decode_coded(payload)
        self._end(code, text, by_peer=True)

    def _on_hello(self, number: int, payload: bytes) -> None:
        raise Violation(Code.PROTOCOL, "HELLO can only be the first frame of a connection")

    # -- helpers -------------------------------------------------------------------------------

    def _check_may_open(self) -> None:
        if self.state is ENDED:
            raise OpenRefused(Code.SESSION_LOST, "the session has ended")
        if self.refuses_streams or self._peer_refuses_streams:
            raise OpenRefused(Code.GOING_AWAY, "the session accepts no new streams")
        if self._table.opened_here >= self.peer.limits.max_streams:
            raise OpenRefused(Code.OVERLOADED, "too many streams are open to the node")
        if self._send_queue.control_size > MAX_CONTROL:
            raise OpenRefused(Code.OVERLOADED, "too much data is queued for the node")
        if self._table.next_number > frames.MAX_STREAM:
            raise OpenRefused(Code.OVERLOADED, "the session has used up its stream numbers")

    def _ping_sooner(self) -> None:
        """Send PINGs more frequently from the first stream on."""
        if len(self._table.open) == 1 and self.state is ATTACHED:
            self._schedule(self._liveness.deadline(busy=True))

    def _fail_at_once(self, number: int, code: Code, text: str) -> None:
        self._send_queue.put(frames.coded_frame(frames.FAIL, number, code, text))

    def _notify(self, stream: Stream, event: Callable[..., None], *details: object) -> None:
        """Call an event of ``stream``; an exception resets that stream only."""
        try:
            event(*details)
        except Exception as error:
            self._user_failed(stream, error)

    def _user_failed(self, stream: Stream, error: Exception) -> None:
        self.reset(stream, Code.INTERNAL, "the stream's user failed")
        self._events.deliver_failed(stream, error)

    def _forget(self, stream: Stream, code: Code, text: str) -> None:
        """Remove ``stream``, and notify its user."""
        if stream.state is not CLOSED:
            self._remove(stream)
            self._notify(stream, stream.events.stream_closed, code, text)
            self._check_drained()

    def _remove(self, stream: Stream) -> None:
        self.ends += 1
        self._table.remove(stream)
        self._send_queue.queue.remove(stream)
        self._receiver.removed(stream, sum(map(len, stream.backlog)))
        stream.drop_pending()

    def _end_received(self, stream: Stream) -> None:
        self._notify(stream, stream.events.stream_ended)
        self._check_ended(stream)

    def _check_ended(self, stream: Stream) -> None:
        ended = stream.send_ended and stream.receive_ended and not stream.end_waiting
        if ended and stream.state is OPEN:
            self._forget(stream, Code.DONE, "")

    def _check_drained(self) -> None:
        leaving = self.draining or self.peer_draining
        if leaving and not self._table.open and self.state is not ENDED:
            self._events.no_stream_left()

    def _end(self, code: Code, text: str, by_peer: bool) -> None:
        self._send_queue.drop_link()
        if self.state is ATTACHED and not by_peer:
            # Retransmitted data may start in the middle of a frame, where CLOSE would be taken for
            # data.
            rest = self._send_queue.log.next_retransmission()
            close = frames.coded_frame(frames.CLOSE, 0, code, text)
            self._send_queue.put_link(frames.CLOSE, rest + close)
        self._send_queue.log.drop()
        self.state = ENDED
        for stream in list(self._table.open.values()):
            self._forget(stream, code if code is not Code.DONE else Code.GOING_AWAY, text)
        self._events.session_closed(code, text, by_peer)


_ControlHandler = Callable[[Session, int, bytes], None]

# One table for all sessions; bound methods would take 1.5 KiB in each.
_OF_BOTH_SIDES: dict[int, _ControlHandler] = {
    frames.OPEN: Session._on_open,
    frames.OK: Session._on_ok,
    frames.FAIL: Session._on_fail,
    frames.FIN: Session._on_fin,
    frames.RESET: Session._on_reset,
    frames.CREDIT: Session._on_credit,
    frames.GOAWAY: Session._on_goaway,
    frames.ACK: Session._on_ack,
    frames.PING: Session._on_ping,
    frames.PONG: Session._on_pong,
    frames.CLOSE: Session._on_close,
    frames.HELLO: Session._on_hello,
}
_CONTROL_HANDLERS: Final[dict[Side, dict[int, _ControlHandler]]] = {
    Side.SERVER: _OF_BOTH_SIDES,
    Side.AGENT: {**_OF_BOTH_SIDES, frames.SERVERS: Session._on_servers},
}


def _failure(code: Code) -> Code:
    """Return the code of a FAIL or RESET; ``DONE``, which makes no sense there, as ``INTERNAL``."""
    return code if code is not Code.DONE else Code.INTERNAL


def _check_accepted(stream: Stream) -> None:
    if stream.state is ANSWERING:
        raise RuntimeError(f"stream {stream.number} must be accepted before anything is sent")
