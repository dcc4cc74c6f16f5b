"""The queue of frames to be sent: control frames, credit, then data in the scheduler's order.

New data is stored in the log, which retransmits it after a lost connection.
:mod:`~yurttunnel.wire.bdp_estimate` limits the unacknowledged data.
"""

from __future__ import annotations

from typing import Final

from yurttunnel.wire import frames
from yurttunnel.wire.bdp_estimate import MAX_CHUNK, MAX_UNACKNOWLEDGED, BdpEstimate
from yurttunnel.wire.credit import MemoryBudget
from yurttunnel.wire.pieces import Buffer
from yurttunnel.wire.round_trip import PROBE_AGAIN, Probe, RoundTrip
from yurttunnel.wire.scheduler import FairQueue
from yurttunnel.wire.send_log import SendLog

MAX_CONTROL: Final = 64 * 1024
"""The bytes of queued control frames above which no stream is opened. Control frames may also add
this many bytes to :data:`~yurttunnel.wire.bdp_estimate.MAX_UNACKNOWLEDGED`, or to one chunk while
memory is short, so the sum limits the cost of a peer that acknowledges nothing."""


class SendQueue:
    """The sending half of a session.

    Unacknowledged data is charged to ``budget``; when that is used up, only one chunk at a time and
    few control frames are in flight. ``payload_limit`` is the credit of the peer for all streams
    together, ``payload_sent`` how much of it is used.
    """

    def __init__(self, payload_limit: int, now: float, budget: MemoryBudget | None = None) -> None:
        self.log = SendLog(budget)
        self._budget = budget
        self.payload_limit = payload_limit
        self.payload_sent = 0
        self.bdp = BdpEstimate(now)
        self.round_trip = RoundTrip()
        # The number of bytes in flight when the last probe began.
        self._probed_amount = 0
        self.queue = FairQueue(self.bdp.quantum)
        self.control_size = 0
        self._control: list[bytes] = []
        # One frame of each type: a newer PING, PONG or ACK supersedes an older one.
        self.link: dict[int, bytes] = {}

    @property
    def end(self) -> int:
        """The end position of the queued control frames, which are sent first and all at once."""
        return self.log.end + self.control_size

    def put(self, frame: bytes) -> None:
        """Queue a control frame of the session."""
        self._control.append(frame)
        self.control_size += len(frame)

    def put_link(self, kind: int, frame: bytes) -> None:
        """Queue a link frame, replacing an earlier one of the same type."""
        self.link[kind] = frame

    @property
    def has_ping_or_pong(self) -> bool:
        """Whether a PING or a PONG is queued."""
        link = self.link
        return frames.PING in link or frames.PONG in link

    def take_link(self) -> bytes:
        """Return the queued link frames, and remove them."""
        if not self.link:
            return b""
        link, self.link = self.link, {}
        return b"".join(link.values())

    def drop_link(self) -> None:
        """Drop the queued link frames: the connection has ended."""
        self.link.clear()

    def connected(self, now: float) -> None:
        """Start with a new connection: unacknowledged data is retransmitted first."""
        self.drop_link()
        self.round_trip.connected(now)
        self.queue.is_draining = False
        self.bdp.begin(self.log.acknowledged, now)
        self.log.rewind()

    @property
    def is_full(self) -> bool:
        """Whether nothing may be sent before the peer acknowledges more."""
        size = self.log.end - self.log.start
        if size < MAX_CHUNK + MAX_CONTROL:
            return False
        return size >= MAX_UNACKNOWLEDGED + MAX_CONTROL or self._is_short

    def next_chunk(self, limit: int) -> bytes:
        """Return the next new bytes of the session.

        ``limit`` is the maximum payload of streams in them.
        """
        log = self.log
        size = log.end - log.start
        if size >= MAX_CHUNK + MAX_CONTROL and self.is_full:
            return b""
        parts: list[Buffer] = []
        if self.control_size:
            parts += self._control
            self._control.clear()
            self.control_size = 0
        queue = self.queue
        if (queue.new or queue.old) and self._may_send_more(size):
            room = min(limit, self.payload_limit - self.payload_sent)
            if room > 0:
                self.payload_sent += queue.fill(parts, room)
        if not parts:
            return b""
        chunk = b"".join(parts)
        log.append(chunk)
        return chunk

    def _may_send_more(self, size: int) -> bool:
        return not size if self._is_short else size < self.bdp.max_unacknowledged

    @property
    def _is_short(self) -> bool:
        return self._budget is not None and self._budget.is_short

    # -- measuring the path --------------------------------------------------------------------

    def is_probe_due(self, now: float) -> bool:
        """Return whether it is time to measure the round trip without a queue."""
        if self.log.to_retransmit:
            # Retransmitted data is sent first, and would delay the PING.
            return False
        age = self.round_trip.age(now)
        if self.bdp.has_fallen and age >= PROBE_AGAIN:
            return True
        is_filled = self._in_flight > self.bdp.max_unacknowledged // 2
        return is_filled and age >= self.round_trip.max_probe_age

    def ping(self, now: float) -> None:
        """Queue a PING, which starts a probe if one is due."""
        if self.is_probe_due(now):
            self.queue.hold_bulk()
            self._probed_amount = self._in_flight
            self.round_trip.begin(now)
        self._queue_ping(now)

    def abort_probe(self) -> None:
        """Abort a probe, and resume bulk data."""
        if self.round_trip.probe is not Probe.ENDED:
            self.round_trip.abort_probe()
            self._resume_bulk()

    def pong(self, number: int, now: float) -> bool:
        """Process the answer to a PING; return whether another PING was queued."""
        measured = self.round_trip
        before = measured.seconds or 0.0
        ended = measured.pong(number, now)
        if ended is Probe.DRAINING:
            self._queue_ping(now)
            self._resume_bulk()
        elif ended is Probe.MEASURING:
            after = measured.seconds or 0.0
            self.bdp.probed(before, after, measured.draining, self._probed_amount)
            self.bdp.begin_later()
        return ended is Probe.DRAINING

    @property
    def _in_flight(self) -> int:
        return self.log.end - self.log.acknowledged

    def _queue_ping(self, now: float) -> None:
        self.put_link(frames.PING, self.round_trip.ping(now))

    def _resume_bulk(self) -> None:
        self.queue.is_draining = False
        self.bdp.begin_later()

    def acknowledged(self, position: int, now: float) -> bool:
        """Drop acknowledged data, and adapt to the rate of acknowledgements.

        Returns whether the position has increased. Raises
        :class:`~yurttunnel.wire.frames.Violation` like the log.
        """
        news = self.log.acknowledge(position)
        measured = self.round_trip
        if measured.probe is Probe.ENDED:
            self.bdp.acknowledged(position, self.log.end, now, measured.seconds)
            self.queue.quantum = self.bdp.quantum
        return news > 0
