"""What waits to be sent, in the order in which it goes: control, credit, then data by turns.

What is sent for the first time goes through the log, which gives it again after a lost
connection. How much may be under way unacknowledged is up to :mod:`~yurttunnel.wire.bdp_estimate`.
"""

from __future__ import annotations

from typing import Final

from yurttunnel.wire import frames
from yurttunnel.wire.bdp_estimate import MAX_CHUNK, MAX_KEPT, BdpEstimate
from yurttunnel.wire.credit import MemoryBudget
from yurttunnel.wire.pieces import Buffer
from yurttunnel.wire.round_trip import PROBE_AGAIN, Probe, RoundTrip
from yurttunnel.wire.scheduler import FairQueue
from yurttunnel.wire.send_log import SendLog

MAX_CONTROL: Final = 64 * 1024
"""No stream is opened while this much of control frames waits to be sent, bytes. It also is
what control frames may add to :data:`~yurttunnel.wire.bdp_estimate.MAX_KEPT`, or to one chunk
while memory is short, so a peer that acknowledges nothing costs no more than both."""


class SendQueue:
    """The sending half of a session.

    What is kept until it is acknowledged counts in ``budget``; when that is used up, one chunk
    at a time is under way, and few control frames. ``payload_limit`` is the credit that the peer
    has given for all streams together, ``payload_sent`` how much of it is used.
    """

    def __init__(self, payload_limit: int, now: float, budget: MemoryBudget | None = None) -> None:
        self.log = SendLog(budget)
        self._budget = budget
        self.payload_limit = payload_limit
        self.payload_sent = 0
        self.bdp = BdpEstimate(now)
        self.round_trip = RoundTrip()
        # How much was under way when the last probe began, bytes.
        self._probed_with = 0
        self.queue = FairQueue(self.bdp.quantum)
        self.control_size = 0
        self._control: list[bytes] = []
        # One frame of each type: a newer PING, PONG or ACK says all that an older one did.
        self.link: dict[int, bytes] = {}

    @property
    def end(self) -> int:
        """Where the control frames end that have been queued: they go first, and all at once."""
        return self.log.end + self.control_size

    def put(self, frame: bytes) -> None:
        """Queue a control frame of the session."""
        self._control.append(frame)
        self.control_size += len(frame)

    def put_link(self, kind: int, frame: bytes) -> None:
        """Queue a frame of the connection, in the place of an earlier one of its type."""
        self.link[kind] = frame

    @property
    def times_something(self) -> bool:
        """Whether a PING or a PONG waits to be sent."""
        link = self.link
        return frames.PING in link or frames.PONG in link

    def take_link(self) -> bytes:
        """Return the frames of the connection, once."""
        if not self.link:
            return b""
        link, self.link = self.link, {}
        return b"".join(link.values())

    def drop_link(self) -> None:
        """Forget the frames of the connection, which end with it."""
        self.link.clear()

    def connected(self, now: float) -> None:
        """Begin with a new connection: what is not acknowledged goes first."""
        self.drop_link()
        self.round_trip.connected(now)
        self.queue.is_draining = False
        self.bdp.begin(self.log.acknowledged, now)
        self.log.rewind()

    @property
    def is_full(self) -> bool:
        """Whether nothing may be sent before the peer acknowledges some of what it has got."""
        kept = self.log.end - self.log.start
        if kept < MAX_CHUNK + MAX_CONTROL:
            return False
        return kept >= MAX_KEPT + MAX_CONTROL or self._is_short

    def next_chunk(self, limit: int) -> bytes:
        """Return the next new bytes of the session.

        ``limit`` bounds the payload of streams.
        """
        log = self.log
        kept = log.end - log.start
        if kept >= MAX_CHUNK + MAX_CONTROL and self.is_full:
            return b""
        parts: list[Buffer] = []
        if self.control_size:
            parts += self._control
            self._control.clear()
            self.control_size = 0
        queue = self.queue
        if (queue.new or queue.old) and self._may_keep_more(kept):
            room = min(limit, self.payload_limit - self.payload_sent)
            if room > 0:
                self.payload_sent += queue.fill(parts, room)
        if not parts:
            return b""
        chunk = b"".join(parts)
        log.append(chunk)
        return chunk

    def _may_keep_more(self, kept: int) -> bool:
        return not kept if self._is_short else kept < self.bdp.most_kept

    @property
    def _is_short(self) -> bool:
        return self._budget is not None and self._budget.is_short

    # -- what is measured of the path ----------------------------------------------------------

    def is_probe_due(self, now: float) -> bool:
        """Return whether it is time to see how far away the peer is with nothing in the way."""
        if self.log.again:
            # It goes before all else, and would be in the way.
            return False
        age = self.round_trip.age(now)
        if self.bdp.has_fallen and age >= PROBE_AGAIN:
            return True
        is_filled = self._under_way > self.bdp.most_kept // 2
        return is_filled and age >= self.round_trip.longest_age

    def ping(self, now: float) -> None:
        """Queue a PING, which begins a probe when that is due."""
        if self.is_probe_due(now):
            self.queue.hold_bulk()
            self._probed_with = self._under_way
            self.round_trip.begin(now)
        self._put_ping(now)

    def give_up_probe(self) -> None:
        """Let bulk data go on, if they wait."""
        if self.round_trip.probe is not Probe.ENDED:
            self.round_trip.give_up()
            self._go_on()

    def pong(self, number: int, now: float) -> bool:
        """Take the answer to a PING; gives whether another PING has been queued."""
        measured = self.round_trip
        before = measured.seconds or 0.0
        ended = measured.pong(number, now)
        if ended is Probe.DRAINING:
            self._put_ping(now)
            self._go_on()
        elif ended is Probe.MEASURING:
            after = measured.seconds or 0.0
            self.bdp.probed(before, after, measured.draining, self._probed_with)
            self.bdp.begin_later()
        return ended is Probe.DRAINING

    @property
    def _under_way(self) -> int:
        return self.log.end - self.log.acknowledged

    def _put_ping(self, now: float) -> None:
        self.put_link(frames.PING, self.round_trip.ping(now))

    def _go_on(self) -> None:
        self.queue.is_draining = False
        self.bdp.begin_later()

    def acknowledged(self, position: int, now: float) -> bool:
        """Forget what the peer has, and adapt to the rate at which it gets there.

        Gives whether it has more than before. Raises
        :class:`~yurttunnel.wire.frames.Violation` like the log.
        """
        news = self.log.acknowledge(position)
        measured = self.round_trip
        if measured.probe is Probe.ENDED:
            self.bdp.acknowledged(position, self.log.end, now, measured.seconds)
            self.queue.quantum = self.bdp.quantum
        return news > 0
